"""The demo: the history of a git repository as a topic, compacted, and proved against git itself."""
