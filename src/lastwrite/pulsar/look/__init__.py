"""Looking at Pulsar's topic folders without changing them."""
