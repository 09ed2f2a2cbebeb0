"""What tests share: models, makers of logs and stores, judges, brokers; a folder for each system.

Run by hand: ``python -m tests.support.kafka.broker``, ``.rocketmq.broker``, ``.pulsar.broker``.
"""
