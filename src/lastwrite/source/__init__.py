"""``spark.read.format("lastwrite")``: a data source with the schema and options of Spark's Kafka
source.
"""
