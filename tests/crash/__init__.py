"""Tests of rounds over random logs, killed at random operations.

See ``python -m tests.crash --help``.
"""
