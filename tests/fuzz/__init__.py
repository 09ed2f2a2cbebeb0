"""Damaged bytes for every reader of the three systems; see ``python -m tests.fuzz --help``."""
