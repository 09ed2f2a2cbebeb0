"""What Kafka keeps about itself: the metadata log, whose a log root is, offsets, groups and transactions."""
