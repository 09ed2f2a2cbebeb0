"""A client of RocketMQ's remoting protocol, as far as Lastwrite needs it.

``frame`` encodes, ``connection`` is one connection, ``route`` finds brokers and queues, ``client``
has the requests, and ``outgoing`` is a message to be sent. No Python library that pip installs
pulls by offset without native parts or a JVM: see docs/decisions/a-client-of-our-own.md.
"""
