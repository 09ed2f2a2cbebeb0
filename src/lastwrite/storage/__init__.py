"""Files: every operation that changes one, locks, scratch, throttle, quarantine."""
