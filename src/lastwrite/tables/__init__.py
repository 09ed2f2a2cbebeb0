"""The last writes of a topic as a table on disk, of Iceberg, Delta or Parquet, that stays current."""
