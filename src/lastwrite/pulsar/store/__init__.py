"""Pulsar's topic folders: the only place that opens and changes their files."""
