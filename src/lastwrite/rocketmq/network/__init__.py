"""RocketMQ's remoting protocol, as far as ``restore`` and ``send`` need it.

``frame`` is bytes, ``connection`` one conversation, ``route`` who has a topic, ``client`` the
requests, ``outgoing`` a message on its way. No Python library that pip installs pulls by offset
without native parts or a JVM: see docs/decisions/a-client-of-our-own.md.
"""
