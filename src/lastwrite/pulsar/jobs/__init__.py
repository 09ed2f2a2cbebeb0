"""Copies topics of live Pulsar clusters to topic folders and archives."""
