"""One round over many partitions: plan, scan, elect, rewrite, commit. Independent of the system."""
