"""Kafka's log directories: the only place that opens and changes their files."""
