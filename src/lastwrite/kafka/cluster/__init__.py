"""Kafka's own metadata: the metadata log, the identity of log roots, and internal topics."""
