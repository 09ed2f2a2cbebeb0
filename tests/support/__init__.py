"""Code that several tests share: models, writers of logs and stores, comparisons, real brokers.

The code of one system is in that system's folder. A real broker can be started by hand, for example
with ``python -m tests.support.kafka.broker``.
"""
