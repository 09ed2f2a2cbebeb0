"""The state of a log after a crash, its repair by a broker's start, and lost records."""
