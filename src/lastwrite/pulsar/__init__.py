"""Support for Pulsar: bytes, files, network, rules, inspection, live topics, and its ``System``."""
