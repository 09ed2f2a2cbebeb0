"""RocketMQ's own rules and settings, pure."""
