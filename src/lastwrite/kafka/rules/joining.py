"""Which small segments at an archive's end are merged, and when a segment is full.

A follower polls the log. Each poll copies few bytes and writes a segment. A poll first merges the
last segments, if they are at least eight and the largest has at most a third of their bytes::

    72 | 8 8 8 8 8 8 8 8            nine segments; each poll writes 8 bytes
    72 | 64 8                       eight segments merged to one of 64 bytes, and a new one

So each merge at least triples the size of the segment that a byte is in. A byte is copied at most
log3(segment.bytes / bytes of a poll) times. If a poll writes a thousandth of segment.bytes, five
bytes are written per new byte, and at most 17 segments remain.
"""

from __future__ import annotations

from collections.abc import Sequence

from lastwrite.kafka.rules.settings import KafkaTopicConfig

AT_LEAST = 8
_SHARE = 3


def joined(sizes: Sequence[int], most_bytes: int) -> int:
    """The number of segments at the archive's end that are merged next, or 0.

    ``sizes`` are the sizes in bytes of all segments. ``most_bytes`` limits the merged segment.
    """
    count = total = largest = 0
    for n, size in enumerate(reversed(sizes), 1):
        total += size
        largest = max(largest, size)
        if total > most_bytes:
            break
        if n >= AT_LEAST and _SHARE * largest <= total:
            count = n
    return count


def roll_ms(config: KafkaTopicConfig) -> int:
    """The age of a segment's first batch at which the segment is full.

    This is ``segment.ms``. If the topic is compacted, it is at most ``max.compaction.lag.ms``.

    Source: Kafka 4.4.0 LogConfig.maxSegmentMs, LogSegment.timeWaitedForRoll.
    """
    if config.compacts:
        return min(config.segment_ms, config.max_compaction_lag_ms)
    return config.segment_ms
