"""Pulsar's own rules and settings, pure."""
