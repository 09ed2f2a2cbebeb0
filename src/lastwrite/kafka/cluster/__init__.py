"""Metadata of a Kafka cluster: the metadata log, the identity of log roots, and internal topics."""
