"""Commands that look at Pulsar's topic folders without changing them."""
