"""RocketMQ commands other than compaction: dispatch, fetch, cut."""
