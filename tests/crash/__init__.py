"""Whole rounds over random logs, killed at random operations; see ``python -m tests.crash
--help``.
"""
