"""The results of commands, as values that print as JSON."""
