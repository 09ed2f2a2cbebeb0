"""Rounds, sweeps and readers on one archive, in every order that chance finds."""
