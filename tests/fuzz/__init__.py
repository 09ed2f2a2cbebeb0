"""Fuzz tests of every decoder of the three systems. See ``python -m tests.fuzz --help``."""
