"""Kafka: bytes, files, rules, looking, and its ``System``."""
