"""Rules and settings that only Pulsar has. The modules do no I/O."""
