"""Explain the state of a partition, by running the steps of compaction without writing."""
