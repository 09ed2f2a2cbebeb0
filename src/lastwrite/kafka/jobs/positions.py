"""Where consumer groups are, by the ``__consumer_offsets`` of log directories: as the brokers that
lead its partitions would say.

    group laws commits orders-2 at 17      key   1, laws, orders, 2      value  17, …
    … at 19, in a transaction              the same key                  19, once it is committed
    its position expires                   the same key                  null

Only what is replicated and committed counts, the last of each key.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from lastwrite.errors import LogError, NotALog
from lastwrite.kafka.cluster.internal_topics import (
    GROUPS_TOPIC,
    decode_internal_record,
    is_commit,
)
from lastwrite.kafka.look.read import Isolation, KafkaReading, ReadStatus
from lastwrite.kafka.store import archived, log_dir, tiered
from lastwrite.kafka.store.partitions import find_partitions
from lastwrite.model.log import TopicPartition
from lastwrite.storage.objects.address import is_address

# By partition and group: position, leader epoch before it or -1, the group's own word; None: gone.
Positions: TypeAlias = Mapping[TopicPartition, Mapping[str, tuple[int, int, str] | None]]


def positions_in(roots: Sequence[str]) -> Positions:
    """The positions that log roots know of; of groups that other brokers coordinate, none.

    Raises:
        LogError: some of them cannot be read.
    """
    found: dict[TopicPartition, dict[str, tuple[int, int, str] | None]] = {}
    for folder in _folders(roots):
        for key, value in _last_commits(folder).items():
            told = decode_internal_record(GROUPS_TOPIC, key, value)
            if told.key is None or (value is not None and told.value is None):
                continue  # of a version that nobody knows yet
            name = TopicPartition(told.key["topic"], told.key["partition"])
            position = None if told.value is None else _position(told.value)
            found.setdefault(name, {})[told.key["group"]] = position
    return found


def _position(value: Mapping[str, Any]) -> tuple[int, int, str]:
    return value["offset"], value.get("leaderEpoch", -1), value["metadata"] or ""


def _folders(roots: Sequence[str]) -> Iterator[str]:
    for root in roots:
        if is_address(root) or not os.path.isdir(root):
            continue
        try:
            folders = find_partitions(root, GROUPS_TOPIC)
        except NotALog:
            continue
        for folder in folders:
            if not archived.is_archived(folder) and not tiered.is_tier(folder):
                yield folder


def _last_commits(folder: str) -> dict[bytes, bytes | None]:
    log = log_dir.read_partition(folder)
    reading = KafkaReading(log, Isolation.COMMITTED, None, None, None)
    found: dict[bytes, bytes | None] = {}
    for row in reading:
        key = base64.b64decode(row["key"] or "")
        if is_commit(key):
            found[key] = None if row["value"] is None else base64.b64decode(row["value"])
    if reading.status is ReadStatus.DAMAGED:
        raise LogError(
            "groups' positions cannot be read: the log is damaged",
            path=folder,
            remedy="lastwrite verify says where",
        )
    return found
