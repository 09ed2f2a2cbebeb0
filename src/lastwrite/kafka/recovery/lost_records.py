"""Evidence of lost records: files beside a log may contain offsets that the log does not have.

A broker writes an offset to such a file only after it has written the records. So if that offset is
beyond the log's end, records are lost::

    180.log  offsets 180 to 187, then half a batch
    replication-offset-checkpoint  190            offsets 188 and 189 are missing
    190.snapshot                                  offsets 188 and 189 are missing

Killing a broker does not cause this, because written data survives. A power cut does, because it
loses data that was not synced. A failing disk and an incomplete copy do, too.

A closed segment gives less evidence, because a cleaner removes batches from its end. The next
segment's base offset is evidence only if the closed segment has a broken batch. The indexes of the
closed segment are evidence if they contain an offset after the segment's last offset. The indexes
of the last segment are no evidence after a crash: a broker that truncates a log leaves old entries
in the index files until it closes them.

Source: Kafka 4.4 ``ReplicaManager.checkpointHighWatermarks``, ``LogManager.truncateTo``,
``LogLoader.recoverLog``, ``AbstractIndex.truncateToEntries0``,
``LogSegment.onBecomeInactiveSegment``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lastwrite.kafka.format.names import KafkaFileKind, segment_file_name


class EndEvidence(NamedTuple):
    """Evidence that a log once had all records below ``end_offset``."""

    end_offset: int
    description: str  # the evidence, as the end of a sentence
    if_stale: str = ""  # what the user can do if the evidence belongs to an older log


def missing(end_offset: int, witness: EndEvidence, *, is_file_at_end: bool = True) -> str:
    """The text of a message: the missing offsets from ``end_offset`` on, and the evidence for them.

    If ``is_file_at_end`` is false, bytes follow the end. They may contain some of the records.
    """
    last = witness.end_offset - 1
    gone = (
        f"offset {last} is missing"
        if last == end_offset
        else f"offsets {end_offset} to {last} are missing"
    )
    more = "" if is_file_at_end else " or cannot be read"
    return f"{gone}{more}; the evidence is that {witness.description}"


def recovery_truncation_offset(at_offset: int, following: Sequence[int], log_start: int) -> str:
    """The remedy for the user if a broker's start would truncate the log.

    The broker would also remove the segments with the base offsets ``following``. ``log_start`` is
    the offset in the log start checkpoint. A broker replaces a log that ends below this offset by
    an empty log.
    """
    start = f"the broker's start truncates the log at offset {at_offset}"
    if log_start > at_offset:
        start = (
            "the broker's start removes all segments, and the log starts again at offset "
            f"{log_start}, the log start"
        )
    elif following:
        many = f"the {len(following)} segments" if len(following) > 1 else "the one segment"
        start += (
            f" and removes {many} after this one, from "
            f"{segment_file_name(following[0], KafkaFileKind.LOG)} on"
        )
    else:
        start += ", and new records get the offsets of the missing records"
    return (
        "nothing was changed; if other replicas are in sync, start the broker: it truncates this "
        "replica and fetches the missing records from them; if this is the only copy, copy the "
        f"folder before you start the broker: {start}"
    )


def recovery_end_offset(end_offset: int, log_start: int) -> str:
    """The remedy for the user if a broker would silently accept ``end_offset`` as the log's end."""
    start = (
        f"the broker's start accepts offset {end_offset} as the log's end, and new records get "
        "the offsets of the missing records"
    )
    if log_start > end_offset:
        start = (
            "the broker's start removes all segments, and the log starts again at offset "
            f"{log_start}, the log start"
        )
    return (
        "nothing was changed; if other replicas are in sync, start the broker: it fetches the "
        "missing records from them; if this is the only copy, copy the folder before you start "
        f"the broker, and search a backup for the missing records: {start}; if this is a copy of "
        "a log, copy the log again"
    )


def recovery_checkpoint_offset(end_offset: int) -> str:
    """The remedy for the user if a broker's start would not truncate the torn last segment."""
    return (
        "nothing was changed; if other replicas are in sync, move the partition's folder out of "
        "the log root before you start the broker: it fetches the partition from them; if this is "
        "the only copy, copy the log root, then remove .kafka_cleanshutdown from the log root: "
        f"without that file, the broker's start truncates the log at offset {end_offset}; with "
        "the file, the broker appends new records after the incomplete batch"
    )
