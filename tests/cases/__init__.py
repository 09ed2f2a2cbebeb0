"""Examples of compaction in text files, described in ``README.md``."""
