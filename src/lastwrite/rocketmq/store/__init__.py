"""RocketMQ's stores. Only the modules in this folder open and change their files."""
