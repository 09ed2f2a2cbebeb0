"""Client of a live Kafka cluster: topics, their settings, and the batches of their partitions.

``connection`` is one connection to one broker. ``messages`` encodes requests and decodes responses.
``fetch`` and ``produce`` encode the two requests with records without kio, so that no record is
copied. All other messages are classes of kio, which ``pip install lastwrite[kafka]`` installs.
``cluster`` tracks leaders and retries. ``live_log`` reads one partition, ``producer`` writes one.
``coordinator`` sends requests to group and transaction coordinators. ``topics`` creates topics and
changes settings.
"""
