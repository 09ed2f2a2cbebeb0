"""What a crash leaves in a partition, what a broker's start makes of it, and what proves that records are lost."""
