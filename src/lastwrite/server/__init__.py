"""``lastwrite serve``: serve log files to any Kafka client over Kafka's protocol."""
