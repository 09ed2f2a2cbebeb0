"""Support for RocketMQ: formats, rules, files, network, commands, and its ``System``."""
