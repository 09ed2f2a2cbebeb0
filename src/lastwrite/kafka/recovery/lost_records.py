"""Proof of lost records: files beside a log may name offsets that it does not have.

A broker notes an offset only after it has written the records. So if a note is beyond the end of a
log, records were there::

    180.log  offsets 180 to 187, then half a batch
    replication-offset-checkpoint  190            offsets 188 and 189 are missing
    190.snapshot                                  the same

Killing a broker does not cause this: the notes never exceed what was written, and written data
survives. A power cut does, since it loses what was not synced; so do a failing disk and a copy that
ended early.

A closed segment proves less, because a cleaner removes whole batches from its end. There the next
segment's base offset is a proof only if a batch is broken; its own indexes are one if they name an
offset after its last. The indexes of the last segment prove nothing after a crash: a broker that
truncates a log leaves the old entries in the file until it closes it.

Source: Kafka 4.4 ``ReplicaManager.checkpointHighWatermarks``, ``LogManager.truncateTo``,
``LogLoader.recoverLog``, ``AbstractIndex.truncateToEntries0``,
``LogSegment.onBecomeInactiveSegment``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lastwrite.kafka.format.names import KafkaFileKind, segment_file_name


class EndEvidence(NamedTuple):
    """Evidence that a log once had all records below an offset."""

    end_offset: int
    words: str
    if_stale: str = ""  # what to do if the evidence is not of this log


def missing(end_offset: int, witness: EndEvidence, *, is_file_at_end: bool = True) -> str:
    """The missing offsets of a log or segment that ends at ``end_offset``, with the proof, as text.

    If bytes follow the end, some of the records may still be there, but their position is unknown.
    """
    last = witness.end_offset - 1
    gone = (
        f"offset {last} is missing"
        if last == end_offset
        else f"offsets {end_offset} to {last} are missing"
    )
    more = "" if is_file_at_end else " or out of reach"
    return f"{gone}{more}, as {witness.words}"


def recovery_truncation_offset(at_offset: int, following: Sequence[int], log_start: int) -> str:
    """The remedy if a broker's start would truncate the log and remove the segments that begin at
    ``following``.

    ``log_start``: from its checkpoint. A log that ends below it is replaced by an empty one.
    """
    start = f"that start cuts the log at offset {at_offset}"
    if log_start > at_offset:
        start = f"that start removes all segments, and starts again at offset {log_start}, the log's start"
    elif following:
        many = f"the {len(following)} segments" if len(following) > 1 else "the one segment"
        start += f" and removes {many} after it, from {segment_file_name(following[0], KafkaFileKind.LOG)} on"
    else:
        start += ", and new records get the offsets of those that are missing"
    return (
        "nothing was changed; where other replicas are in sync, start the broker: it cuts this one and fetches from "
        f"them what is missing; where this is the only copy, copy the folder first: {start}"
    )


def recovery_end_offset(end_offset: int, log_start: int) -> str:
    """The remedy if a broker's start would accept ``end_offset`` as the log's end without an error."""
    start = f"that start takes offset {end_offset} for the log's end, and new records get the offsets that are missing"
    if log_start > end_offset:
        start = f"that start removes all segments, and starts again at offset {log_start}, the log's start"
    return (
        "nothing was changed; where other replicas are in sync, start the broker: it fetches from them what is "
        "missing; where this is the only copy, copy the folder first, and look for what is missing in a backup: "
        f"{start}; where this is a copy of a log, copy it again"
    )


def recovery_checkpoint_offset(end_offset: int) -> str:
    """The remedy if the last segment is torn and the broker's start would not truncate it."""
    return (
        "nothing was changed; where other replicas are in sync, move the partition's folder out of the log root before "
        "you start the broker: it fetches the whole partition from them; where this is the only copy, copy the log "
        "root, and remove .kafka_cleanshutdown from it: without that file the broker's start cuts the log at offset "
        f"{end_offset}, with it new records come after what is torn"
    )
