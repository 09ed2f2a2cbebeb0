"""Benchmarks. README.md lists them."""

import os

# If it is set, each process of an editable install compiles all modules again, which takes 0.5 s.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
