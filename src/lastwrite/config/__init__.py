"""Declares, parses and explains settings; each system has its own table of names."""
