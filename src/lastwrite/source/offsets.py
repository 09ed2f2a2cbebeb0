"""The offsets of a stream as stored in its checkpoint, and the size of a micro-batch.

The form is that of Spark's Kafka source, ``{"orders": {"0": 1234}}``: topic and partition to the
first offset that was not read yet.

The object also has the identity of each log at its offset, ``{"topic ids": {"orders-0":
"AAECAw…"}}``. Topic names contain no spaces, so no topic has this key. See ``RowSystem.identity``.
Checkpoints of earlier releases and topics of clusters before Kafka 2.8 have no identities. Their
offsets are accepted without a check.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from lastwrite.errors import CorruptLog
from lastwrite.model.log import TopicPartition

Offsets: TypeAlias = dict[TopicPartition, int]
Identities: TypeAlias = dict[TopicPartition, str]
Shown: TypeAlias = dict[str, dict[str, Any]]

_IDS = "topic ids"

# The first offset of a stream, before its start was determined. The first micro-batch has no rows.
# It only stores the start, so that a restart does not skip records that are written meanwhile.
UNDECIDED: Shown = {"": {}}


def encode_offsets(
    offsets: Mapping[TopicPartition, int],
    identities: Mapping[TopicPartition, str] | None = None,
) -> Shown:
    """Encode offsets, sorted by topic and partition, because Spark compares their text."""
    shown: Shown = {}
    for name in sorted(offsets):
        shown.setdefault(name.topic, {})[str(name.partition)] = offsets[name]
    ids = identities or {}
    known = {str(name): ids[name] for name in sorted(offsets) if name in ids}
    return {**shown, _IDS: known} if known else shown


def decode_identities(shown: Mapping[str, Mapping[str, Any]]) -> Identities:
    """Decode the identities in a checkpoint. Checkpoints of old releases have none."""
    known = shown.get(_IDS, {})
    return {name: known[str(name)] for name in decode_offsets(shown) if str(name) in known}


def decode_offsets(shown: Mapping[str, Mapping[str, Any]]) -> Offsets:
    """Decode the offsets in a checkpoint.

    Raises:
        CorruptLog: the checkpoint does not contain offsets of this form.
    """
    try:
        return {
            TopicPartition(topic, int(number)): int(offset)
            for topic, numbers in shown.items()
            if topic != _IDS
            for number, offset in numbers.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise CorruptLog(
            f"the checkpoint contains no valid offsets: {shown!r}",
            remedy="give the query a new checkpoint, or the checkpoint that it had before",
        ) from error


def missing_rows(start: Offsets, end: Offsets, begins: Offsets) -> Offsets:
    """The number of unread offsets, from ``start`` to ``end``, of each partition that has any.

    Partitions that are not in ``start`` begin at the offset in ``begins``.
    """
    found = {name: until - start.get(name, begins.get(name, 0)) for name, until in end.items()}
    return {name: rows for name, rows in found.items() if rows > 0}


def limited(start: Offsets, end: Offsets, begins: Offsets, limit: int) -> Offsets:
    """The end of a micro-batch of about ``limit`` offsets.

    Each partition gets a share in proportion to its unread offsets, and at least one offset.

    Source: Spark 4.1 ``KafkaMicroBatchStream.rateLimit``.
    """
    rows = missing_rows(start, end, begins)
    total = sum(rows.values())
    until = dict(end)
    for name, count in rows.items():
        share = limit * (count / total)
        taken = math.ceil(share) if share < 1 else math.floor(share)
        until[name] = min(end[name], start.get(name, begins.get(name, 0)) + taken)
    return until
