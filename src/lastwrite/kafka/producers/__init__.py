"""Producers and transactions of a log: snapshots, and what the batches say by themselves."""
