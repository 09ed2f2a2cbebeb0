"""Benchmarks; README.md has the list."""

import os

# Where it is set, each process of an editable install compiles all modules anew: half a second.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
