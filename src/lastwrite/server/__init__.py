"""``lastwrite serve``: Kafka's protocol over logs as they lie, for any client of Kafka."""
