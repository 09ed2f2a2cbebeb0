"""The last writes of a topic as an Iceberg, Delta or Parquet table that each run updates."""
