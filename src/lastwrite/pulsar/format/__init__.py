"""Pulsar: entries, ledgers and their metadata, in bytes."""
