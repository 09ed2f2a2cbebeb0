"""A live Pulsar cluster: its metadata store, its bookies, its brokers.

``link`` is frames over one connection, ``bookies`` reads and writes ledgers, ``metadata`` says what
there is and where it lies, ``broker`` hands over what was written. No Python library that pip
installs does any of it but the last, and that one cannot: Pulsar's own client has no
acknowledgement with properties.
"""
