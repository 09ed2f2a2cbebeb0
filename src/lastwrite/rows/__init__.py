"""Read records as rows, in one schema for all systems, and as Arrow columns."""
