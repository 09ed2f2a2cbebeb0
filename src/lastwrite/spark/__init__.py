"""Runs rounds on Spark: session, runner and the two exchanges. No other package imports pyspark."""
