"""RocketMQ's own rules and settings, without I/O."""
