"""A command each: choose the system, call it."""
