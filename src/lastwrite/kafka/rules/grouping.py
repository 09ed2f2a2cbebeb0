"""Which adjacent segments compaction merges into one segment.

Compaction shrinks segments. Merging small segments prevents a log of thousands of tiny files. Only
adjacent segments are merged, and only if their total size *before* compaction fits one segment. So
no output exceeds the size at which a broker would have rolled. Segments without surviving records
become a file of 0 bytes, which a later compaction merges.
"""

from __future__ import annotations

from collections.abc import Sequence

from lastwrite.config.declaration import INT_MAX
from lastwrite.model.log import Segment


def group_segments(
    segments: Sequence[Segment], end: int, segment_bytes: int, segment_index_bytes: int
) -> list[list[Segment]]:
    """Group the segments below offset ``end``. Compaction merges each group to one segment.

    ``segments`` are the segments of a log, oldest first. ``end`` is the end of the cleaned range.

    Source: Kafka 4.4.0 Cleaner.groupSegmentsBySize; docs/formats/kafka-cleaning.md, "Groups of
    segments".
    """
    cleaned = [segment for segment in segments if segment.base_offset < end]
    groups: list[list[Segment]] = []
    log_bytes = index_bytes = time_index_bytes = 0
    for at, segment in enumerate(cleaned):
        last_offset = (cleaned[at + 1].base_offset if at + 1 < len(cleaned) else end) - 1
        joins = (
            bool(groups)
            and log_bytes + segment.size_bytes <= segment_bytes
            and index_bytes + segment.index_bytes <= segment_index_bytes
            and time_index_bytes + segment.time_index_bytes <= segment_index_bytes
            # An index entry stores its offset relative to the base offset, in 31 bits. An empty
            # segment needs no index entry.
            and (segment.size_bytes == 0 or last_offset - groups[-1][0].base_offset <= INT_MAX)
        )
        if joins:
            groups[-1].append(segment)
        else:
            groups.append([segment])
            log_bytes = index_bytes = time_index_bytes = 0
        log_bytes += segment.size_bytes
        index_bytes += segment.index_bytes
        time_index_bytes += segment.time_index_bytes
    return groups
