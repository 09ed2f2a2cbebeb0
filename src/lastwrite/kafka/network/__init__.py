"""A live Kafka cluster: its topics, their settings, and the batches of their partitions.

``connection`` is one conversation with one broker, ``messages`` what is said in it; ``fetch`` and
``produce`` are the requests that carry records, by hand so that none is copied; ``cluster`` follows
leaders and asks again; ``live_log`` reads one partition, ``producer`` writes one; ``coordinator``
speaks for groups and transactions, ``topics`` of what is set. Other messages are kio's, which pip
installs with ``lastwrite[kafka]``.
"""
