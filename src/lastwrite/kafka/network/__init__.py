"""A live Kafka cluster: its topics, their settings, and the batches of their partitions.

``connection`` is one conversation with one broker, ``messages`` what is said in it; ``fetch`` is
the one request that carries records, by hand so that none is copied; ``cluster`` follows leaders
and asks again; ``live_log`` reads one partition. Messages but Fetch are kio's, which pip installs
with ``lastwrite[kafka]``.
"""
