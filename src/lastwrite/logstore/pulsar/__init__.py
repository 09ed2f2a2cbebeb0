"""Pulsar: topic folders, their compacted ledgers, and where ledgers lie."""
