"""Pulsar: bytes, files, network, rules, looking, live topics, and its ``System``."""
