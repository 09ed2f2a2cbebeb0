"""The message formats v0 and v1, which ``format`` gives to everybody else as batches of v2."""
