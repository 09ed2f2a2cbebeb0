"""Read-only views of Kafka logs: inspect, dump, read, verify and serve."""
