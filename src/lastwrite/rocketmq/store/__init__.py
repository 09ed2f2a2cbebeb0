"""RocketMQ's stores: only these modules open and change their files."""
