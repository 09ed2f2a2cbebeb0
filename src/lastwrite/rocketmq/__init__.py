"""RocketMQ: bytes, files, network, rules, jobs, looking, and its ``System``."""
