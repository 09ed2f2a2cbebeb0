"""The cleaner daemon: watches log roots, and compacts the dirtiest partitions first."""
