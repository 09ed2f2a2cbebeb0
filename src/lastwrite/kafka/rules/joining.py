"""Which small segments at an archive's end the next turn merges, and when a segment is full.

A turn of a follower copies few bytes, and each turn writes a segment. The next turn begins with a
copy of the last segments, if they are at least eight and the largest has at most a third of the
bytes::

    72 | 8 8 8 8 8 8 8 8            nine segments, turns of 8
    72 | 64 8                       one copy of 64 bytes, and the new ones

So the segment of a byte at least triples with each copy, and a byte is copied at most
log3(segment.bytes / bytes of a turn) times. With turns of a thousandth of segment.bytes, five bytes
are written per new byte, and at most 17 segments remain.
"""

from __future__ import annotations

from collections.abc import Sequence

from lastwrite.kafka.rules.settings import KafkaTopicConfig

AT_LEAST = 8
_SHARE = 3


def joined(sizes: Sequence[int], most_bytes: int) -> int:
    """How many of the last segments, of ``sizes`` bytes, are merged; 0 for none.

    ``most_bytes`` limits the size of the merged segment.
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
    """The age, by its first batch's time, at which a segment is full.

    That is Kafka's ``segment.ms``, or less if ``max.compaction.lag.ms`` demands it.

    Source: Kafka 4.4.0 LogConfig.maxSegmentMs, LogSegment.timeWaitedForRoll.
    """
    if config.compacts:
        return min(config.segment_ms, config.max_compaction_lag_ms)
    return config.segment_ms
