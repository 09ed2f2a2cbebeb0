"""The only package that imports pyspark: session, runner and the two exchanges."""
