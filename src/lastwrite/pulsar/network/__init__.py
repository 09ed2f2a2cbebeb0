"""Access to a live Pulsar cluster: its metadata store, its bookies, its brokers.

``link`` sends and receives frames over one connection. ``bookies`` reads and writes ledgers.
``metadata`` lists topics, ledgers, bookies and brokers. ``broker`` commits a new compacted ledger.
No Python library on PyPI has the first three functions. Pulsar's Python client cannot commit,
because it has no acknowledgement with properties.
"""
