"""The demo: compact a sample topic or a git history, and compare it with its known last writes."""
