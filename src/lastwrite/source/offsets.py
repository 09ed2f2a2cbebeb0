"""Offsets of a stream in the form of Spark's Kafka source, ``{"orders": {"0": 1234}}``: the first
offset of each partition that is not read yet; and the size of a micro-batch.

The identity of each log at its offset is stored beside them, ``{"topic ids": {"orders-0":
"AAECAw…"}}``; no topic has a space in its name. See ``RowSystem.identity``. Earlier checkpoints
have no identities, and neither do topics of clusters before Kafka 2.8. Such offsets are accepted
without a check.
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

# The start of a stream that begins at the end. Its first micro-batch has no rows. It only stores
# the end, so that a restart does not skip the records that arrive after it.
UNDECIDED: Shown = {"": {}}


def encode_offsets(
    offsets: Mapping[TopicPartition, int],
    identities: Mapping[TopicPartition, str] | None = None,
) -> Shown:
    """Offsets sorted by names and numbers, because Spark compares their text."""
    shown: Shown = {}
    for name in sorted(offsets):
        shown.setdefault(name.topic, {})[str(name.partition)] = offsets[name]
    ids = identities or {}
    known = {str(name): ids[name] for name in sorted(offsets) if name in ids}
    return {**shown, _IDS: known} if known else shown


def decode_identities(shown: Mapping[str, Mapping[str, Any]]) -> Identities:
    """The identities beside offsets that ``decode_offsets`` accepts; old releases wrote none."""
    known = shown.get(_IDS, {})
    return {name: known[str(name)] for name in decode_offsets(shown) if str(name) in known}


def decode_offsets(shown: Mapping[str, Mapping[str, Any]]) -> Offsets:
    """Decode the offsets in a checkpoint.

    Raises:
        CorruptLog: the checkpoint contains something else.
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
            remedy="give the query a checkpoint of its own, or the one it had",
        ) from error


def missing_rows(start: Offsets, end: Offsets, begins: Offsets) -> Offsets:
    """The numbers of offsets between; new partitions start at the offset in ``begins``."""
    found = {name: until - start.get(name, begins.get(name, 0)) for name, until in end.items()}
    return {name: rows for name, rows in found.items() if rows > 0}


def limited(start: Offsets, end: Offsets, begins: Offsets, limit: int) -> Offsets:
    """The end of a micro-batch of about ``limit`` offsets. Each partition contributes in proportion
    to its unread offsets, and at least one.

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
