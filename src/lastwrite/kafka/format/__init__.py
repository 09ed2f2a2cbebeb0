"""Kafka: batches, indexes, snapshots and text files, in bytes."""
