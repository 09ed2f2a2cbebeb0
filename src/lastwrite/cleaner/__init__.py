"""The cleaner as a daemon: it watches log roots, picks the dirtiest partitions, and runs their
rounds.
"""
