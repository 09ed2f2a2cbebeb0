"""What a log has lost: what lies beside its records may know of more than there are.

A broker notes an offset only of records that it has written. So where one of its notes lies behind
the place at which a log ends, records were there::

    180.log  offsets 180 to 187, then half a batch
    replication-offset-checkpoint  190            offsets 188 and 189 are missing
    190.snapshot                                  the same

A kill leaves no such state: what was written stays, and the notes are taken from it. A power cut
does, which takes what was not synced; and so do a disk that fails and a copy that ends too early.
Of a closed segment less can be said: a cleaner takes whole batches from its end. There the next
segment's begin proves something only where a batch breaks; its own indexes do where they name an
offset behind its last. Those of the last segment prove nothing after a crash: a broker that
truncates a log leaves the old entries in the file until it closes it.

Source: Kafka 4.4 ``ReplicaManager.checkpointHighWatermarks``, ``LogManager.truncateTo``,
``LogLoader.recoverLog``,
``AbstractIndex.truncateToEntries0``, ``LogSegment.onBecomeInactiveSegment``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lastwrite.kafka.format.names import FileKind, segment_file_name


class Witness(NamedTuple):
    """Evidence that a log once had all records below an offset."""

    end_offset: int
    words: str
    if_stale: str = ""  # what to do if the evidence is not of this log


def missing(end_offset: int, witness: Witness, *, is_file_at_end: bool = True) -> str:
    """The offsets that are gone where a log, or a segment, ends at ``end_offset``, and how that is
    known.

    Where bytes come after that place, some of the records may be there yet; but nobody can tell
    where they begin.
    """
    last = witness.end_offset - 1
    gone = (
        f"offset {last} is missing"
        if last == end_offset
        else f"offsets {end_offset} to {last} are missing"
    )
    more = "" if is_file_at_end else " or out of reach"
    return f"{gone}{more}, as {witness.words}"


def where_a_start_cuts(at_offset: int, following: Sequence[int], log_start: int) -> str:
    """What to do where a broker's start would cut the log, and remove the segments that begin at
    ``following``.

    ``log_start``: by its checkpoint. A log that ends below it is begun anew.
    """
    start = f"that start cuts the log at offset {at_offset}"
    if log_start > at_offset:
        start = f"that start removes all segments, and starts again at offset {log_start}, the log's start"
    elif following:
        many = f"the {len(following)} segments" if len(following) > 1 else "the one segment"
        start += (
            f" and removes {many} after it, from {segment_file_name(following[0], FileKind.LOG)} on"
        )
    else:
        start += ", and new records get the offsets of those that are missing"
    return (
        "nothing was changed; where other replicas are in sync, start the broker: it cuts this one and fetches from "
        f"them what is missing; where this is the only copy, copy the folder first: {start}"
    )


def where_a_start_goes_on(end_offset: int, log_start: int) -> str:
    """What to do where a broker's start would take ``end_offset`` for the log's end without an error."""
    start = f"that start takes offset {end_offset} for the log's end, and new records get the offsets that are missing"
    if log_start > end_offset:
        start = f"that start removes all segments, and starts again at offset {log_start}, the log's start"
    return (
        "nothing was changed; where other replicas are in sync, start the broker: it fetches from them what is "
        "missing; where this is the only copy, copy the folder first, and look for what is missing in a backup: "
        f"{start}; where this is a copy of a log, copy it again"
    )


def where_a_start_trusts(end_offset: int) -> str:
    """What to do where the last segment is torn and the broker's start would not cut it."""
    return (
        "nothing was changed; where other replicas are in sync, move the partition's folder out of the log root before "
        "you start the broker: it fetches the whole partition from them; where this is the only copy, copy the log "
        "root, and remove .kafka_cleanshutdown from it: without that file the broker's start cuts the log at offset "
        f"{end_offset}, with it new records come after what is torn"
    )
