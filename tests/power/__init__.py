"""Tests of whole runs on a modelled disk that loses power.

See ``python -m tests.power --help``.
"""
