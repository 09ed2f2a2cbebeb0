"""Looking at a Kafka log without changing it."""
