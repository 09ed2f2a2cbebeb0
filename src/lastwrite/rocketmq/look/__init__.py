"""Looking at a RocketMQ store without changing it."""
