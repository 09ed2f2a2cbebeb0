"""Rounds, sweeps and readers on one archive, in random order."""
