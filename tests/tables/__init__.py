"""Tests of tables against plain models, through rounds, kills and lost responses."""
