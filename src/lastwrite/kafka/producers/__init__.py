"""Producers and transactions of a log, from snapshots and from the batches themselves."""
