"""File operations, locks, scratch files, throttling, and the list of quarantined partitions."""
