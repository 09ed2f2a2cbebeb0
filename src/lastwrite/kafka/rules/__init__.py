"""Kafka's own rules and settings, pure."""
