"""A client for the part of RocketMQ's remoting protocol that Lastwrite needs.

``frame`` encodes requests, ``connection`` is one connection, ``route`` finds brokers and queues,
``client`` has the requests, and ``outgoing`` is a message to be sent. Every Python library on PyPI
that pulls by offset needs native code or a JVM; see docs/decisions/a-client-of-our-own.md.
"""
