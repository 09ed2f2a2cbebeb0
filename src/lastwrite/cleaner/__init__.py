"""The cleaner daemon: watches log roots, picks the dirtiest partitions, and runs their rounds."""
