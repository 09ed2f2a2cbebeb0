"""Kafka: bytes, files, rules, inspection, and its ``System``."""
