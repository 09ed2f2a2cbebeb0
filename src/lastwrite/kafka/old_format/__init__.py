"""Message formats v0 and v1, converted to batches of v2 for ``format``."""
