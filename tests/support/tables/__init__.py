"""Tables on disk for tests: writers, models, and other programs' readers."""
