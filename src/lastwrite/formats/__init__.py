"""Bytes to columns and back: no files, no clock, no Spark."""
