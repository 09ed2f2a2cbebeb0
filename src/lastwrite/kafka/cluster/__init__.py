"""What Kafka keeps about itself: the metadata log, whose a log root is, its own topics."""
