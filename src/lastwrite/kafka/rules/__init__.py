"""Kafka's rules and settings, without I/O."""
