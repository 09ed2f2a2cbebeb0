"""One round over many partitions: plan, scan, elect, rewrite, commit. It names no system."""
