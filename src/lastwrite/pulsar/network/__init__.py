"""Access to a live Pulsar cluster: its metadata store, its bookies, its brokers.

``link`` sends and receives frames over one connection. ``bookies`` reads and writes ledgers.
``metadata`` reads what exists and where it is stored. ``broker`` commits a new compacted ledger. No
Python library from pip does the first three. Pulsar's own client cannot do the last, because it has
no acknowledgement with properties.
"""
