"""Jobs on Kafka's logs other than compaction and inspection: fetch, append and restore."""
