"""Whole runs on a modelled disk that loses power; see ``python -m tests.power --help``."""
