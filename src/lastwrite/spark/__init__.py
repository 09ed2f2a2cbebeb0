"""Run rounds on Spark: session, runner and two exchanges. No other package imports pyspark."""
