"""Compaction by example; see ``README.md``."""
