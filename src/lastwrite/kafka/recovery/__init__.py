"""The state of a log after a crash, how a broker repairs it at start, and lost records."""
