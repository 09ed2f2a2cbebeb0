"""The last writes of a topic as a table of Iceberg, Delta or Parquet that stays current."""
