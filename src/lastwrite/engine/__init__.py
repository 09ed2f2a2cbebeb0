"""The compaction engine, independent of the system: plan, scan, elect, rewrite and commit."""
