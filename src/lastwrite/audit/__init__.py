"""Looking at a log without changing it: ``inspect``, ``dump``, ``explain`` and ``verify``, and what they share."""
