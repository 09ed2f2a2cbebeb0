"""The Python API: one module per command. It selects the system, and calls its implementation."""
