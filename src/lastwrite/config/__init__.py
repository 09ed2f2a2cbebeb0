"""Declares, parses and lists settings. Each system has its own table of settings."""
