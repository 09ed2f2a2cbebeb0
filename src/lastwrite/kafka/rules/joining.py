"""Which small segments at an archive's end the next turn makes one of, and when a segment is full.

A turn of a follower brings little, and each makes a segment. The next one begins with a copy of
those at the end if they are at least eight, of which none has more than a third of the bytes::

    72 | 8 8 8 8 8 8 8 8            nine segments, turns of 8
    72 | 64 8                       one copy of 64 bytes, and what is new

So a byte's segment at least triples with each copy, and a byte is copied log3(segment.bytes / bytes
of a turn) times at most. Turns of a thousandth of segment.bytes write five bytes for each that
comes, and leave 17 segments at most.
"""

from __future__ import annotations

from collections.abc import Sequence

from lastwrite.kafka.rules.settings import KafkaTopicConfig

AT_LEAST = 8
_SHARE = 3


def joined(sizes: Sequence[int], most_bytes: int) -> int:
    """How many of the last segments, of ``sizes`` bytes, become one; 0: none.

    ``most_bytes``: that the one may have.
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
    """After how long a segment is full, by the time of its first batch: Kafka's ``segment.ms``, or
    sooner, so that ``max.compaction.lag.ms`` can be kept.

    Source: Kafka 4.4.0 LogConfig.maxSegmentMs, LogSegment.timeWaitedForRoll.
    """
    if config.compacts:
        return min(config.segment_ms, config.max_compaction_lag_ms)
    return config.segment_ms
