"""What is done with Kafka's logs beside rounds and looks: they are brought into archives."""
