"""What a crash leaves, what a broker's start makes of it, and what proves a loss."""
