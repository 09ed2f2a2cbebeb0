"""What is done with live topics of Pulsar beside rounds: they are brought."""
