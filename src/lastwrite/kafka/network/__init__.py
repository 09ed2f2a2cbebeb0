"""Client of a live Kafka cluster: topics, their settings, and the batches of their partitions.

``connection`` is one connection to one broker, ``messages`` encodes requests and decodes responses.
``fetch`` and ``produce`` carry records; they are hand-written so that no record is copied.
``cluster`` tracks leaders and retries. ``live_log`` reads one partition, ``producer`` writes one.
``coordinator`` talks to group and transaction coordinators, ``topics`` creates topics and changes
settings. All other messages are kio's, which ``pip install lastwrite[kafka]`` installs.
"""
