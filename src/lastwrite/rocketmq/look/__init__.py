"""Commands that read a RocketMQ store without changing it."""
