"""The only package that imports pyspark: session, runner, the two exchanges."""
