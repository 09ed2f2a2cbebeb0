"""The demo: the history of a git repository as a topic, compacted and compared with git itself."""
