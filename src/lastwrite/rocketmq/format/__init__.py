"""RocketMQ: records, index files, units of work and names, in bytes."""
