"""RocketMQ's stores: the only place that opens and changes their files."""
