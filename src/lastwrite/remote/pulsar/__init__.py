"""Pulsar: the metadata store, the bookies and the broker of a live cluster."""
