"""Instructions for the user of a damaged Kafka partition. Following them never loses data.

The instructions never restore a single file from another replica. Replicas roll and clean their
segments at different offsets and times, so another replica's file would cause gaps or duplicates.
Nor do they delete a file that another replica or a copy may still need.

Source: Kafka 4.4 ``LogLoader`` (what a broker truncates and rebuilds at start),
``UnifiedLog.roll``.
"""

UPGRADE = (
    "nothing was changed; use a newer release of Lastwrite; if no newer broker wrote this log, "
    "compare the segment with the same segment of another replica"
)
RESTORE = (
    "nothing was changed; if other replicas are in sync, stop the broker, move the partition's "
    "folder out of the log root and start the broker: it fetches the partition from them; if this "
    "is the only copy, copy the folder first, and restore the entire folder from a backup, never "
    "a single file"
)
REBUILD = (
    "copy the partition's folder; if lastwrite verify finds no other damage in it, stop the "
    "broker, move this segment's .index, .timeindex and .txnindex out of the folder, and start "
    "the broker: it rebuilds the three indexes, and truncates this segment at its first "
    "incomplete batch"
)
