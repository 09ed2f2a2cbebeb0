"""Committed offsets of consumer groups, from the records of ``__consumer_offsets``.

    key     i16 1 · group · topic · i32 partition
    value   i16 3 · i64 offset · i32 leader epoch · metadata · i64 commit ms

Each string has an i16 length before it. The last record of a key is current. A record without a
value deletes the offset. Offsets committed in a transaction become current at the COMMIT marker.
Lastwrite writes version 3 and reads all versions.

Source: Kafka 4.4 ``OffsetCommitKey.json``, ``OffsetCommitValue.json``; docs/formats/kafka.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple, Self

from lastwrite.errors import CorruptLog
from lastwrite.kafka.cluster.internal_topics import GROUPS_TOPIC, decode_internal_record
from lastwrite.kafka.format.batch import ControlType, decode_control_record
from lastwrite.kafka.format.batch_layout import Batch, Record
from lastwrite.model.log import TopicPartition

_KEY, _VALUE = struct.Struct(">h"), struct.Struct(">hqi")
_VERSION = 3


class Commit(NamedTuple):
    """A group's committed offset in a partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    at_ms: int = -1  # time of the commit
    expires_ms: int = -1  # expiry time chosen by the client; only in version 1


class GroupPartition(NamedTuple):
    """A consumer group and a partition: the key of a committed offset."""

    group: str
    topic: str
    partition: int

    @classmethod
    def of(cls, group: str, name: TopicPartition) -> Self:
        """The pair of a group and the partition ``name``."""
        return cls(group, name.topic, name.partition)

    @property
    def name(self) -> TopicPartition:
        """The topic and number of the partition."""
        return TopicPartition(self.topic, self.partition)


class UnreadCommit(NamedTuple):
    """A commit that cannot be decoded, and is the newest record of its key."""

    offset: int
    group: str | None  # None if the group cannot be decoded
    partition: GroupPartition | None  # None if the key cannot be decoded
    reason: str


class OffsetCommits:
    """The committed offsets in ``__consumer_offsets``, built by applying its batches in order.

    ``offsets`` has the committed offset of each group in each partition. ``deleted`` has the groups
    and partitions whose offset expired or was deleted. ``unread`` has the newest record of each
    key, if it cannot be decoded. The group and partition of such a record are neither in
    ``offsets`` nor in ``deleted``.
    """

    def __init__(self) -> None:
        self.offsets: dict[GroupPartition, Commit] = {}
        self.deleted: set[GroupPartition] = set()
        self.unread: dict[bytes, UnreadCommit] = {}
        self._newest_offsets: dict[GroupPartition, int] = {}  # offset of each key's newest record
        self._open: dict[int, list[Record]] = {}  # records of open transactions by producer id

    def take(self, batches: Iterable[Batch]) -> None:
        """Apply the next batches of ``__consumer_offsets``.

        Raises:
            CorruptLog: a transaction marker cannot be decoded.
        """
        for batch in batches:
            producer = batch.header.producer_id
            if batch.attributes.control:
                for record in batch.records:
                    decided = self._open.pop(producer, [])
                    if decode_control_record(record).type is ControlType.COMMIT:
                        self._take(decided)
            elif batch.attributes.transactional:
                self._open.setdefault(producer, []).extend(batch.records)
            else:
                self._take(batch.records)

    def _take(self, records: Iterable[Record]) -> None:
        for record in records:
            place, key = None, record.key or b""
            try:
                place = decode_group_partition(record.key)
                # A transaction's records are applied at the marker, perhaps after newer records.
                if place is None or record.offset < self._newest_offsets.get(place, -1):
                    continue
                commit = None if record.value is None else commit_of(record.value)
            except CorruptLog as error:
                if record.value is None:  # a tombstone deletes the record with this undecodable key
                    self.unread.pop(key, None)
                    continue
                group = _group_of(key) if place is None else place.group
                self.unread[key] = UnreadCommit(record.offset, group, place, error.problem)
                if place is not None:
                    self._newest_offsets[place] = record.offset
                    self.offsets.pop(place, None)
                    self.deleted.discard(place)
                continue
            self.unread.pop(key, None)
            self._newest_offsets[place] = record.offset
            self.note(place, commit)

    def note(self, place: GroupPartition, commit: Commit | None) -> None:
        """Apply the newest commit of a group in a partition. None means deleted."""
        if commit is None:
            self.offsets.pop(place, None)
            self.deleted.add(place)
        else:
            self.offsets[place] = commit
            self.deleted.discard(place)


def key_of(place: GroupPartition) -> bytes:
    partition = struct.pack(">i", place.partition)
    return _KEY.pack(1) + _text(place.group) + _text(place.topic) + partition


def value_of(commit: Commit) -> bytes:
    head = _VALUE.pack(_VERSION, commit.offset, commit.leader_epoch)
    return head + _text(commit.metadata) + struct.pack(">q", commit.at_ms)


def decode_group_partition(key: bytes | None) -> GroupPartition | None:
    """Decode the group and partition in a record's key. None if the record is not a commit.

    Raises:
        CorruptLog: the key is too short, or a string is not UTF-8.
    """
    if key is None or int.from_bytes(key[:2], "big") not in (0, 1):
        return None
    try:
        group, at = _read_text(key, 2)
        topic, at = _read_text(key, at)
        (partition,) = struct.unpack_from(">i", key, at)
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptLog(
            f"a committed offset's key of {len(key)} bytes cannot be decoded: {error}", 0
        ) from error
    return GroupPartition(group, topic, partition)


def _group_of(key: bytes) -> str | None:
    """The group in a damaged key. None if the group cannot be decoded, either."""
    try:
        return _read_text(key, 2)[0]
    except (struct.error, UnicodeDecodeError):
        return None


def commit_of(value: bytes) -> Commit:
    """Decode a committed offset from a record's value.

    Raises:
        CorruptLog: the value is too short, a string is not UTF-8, or the version is unknown.
    """
    if int.from_bytes(value[:2], "big") != _VERSION:
        return _other_version(value)
    try:
        _, offset, epoch = _VALUE.unpack_from(value, 0)
        metadata, at = _read_text(value, _VALUE.size)
        (at_ms,) = struct.unpack_from(">q", value, at)
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptLog(
            f"a committed offset's value of {len(value)} bytes cannot be decoded: {error}", 0
        ) from error
    return Commit(offset, epoch, metadata, at_ms)


def _other_version(value: bytes) -> Commit:
    found = decode_internal_record(GROUPS_TOPIC, key_of(GroupPartition("", "", 0)), value)
    if found.value is None:
        raise CorruptLog(found.problem or "the record contains no committed offset", 0)
    return Commit(
        found.value["offset"],
        found.value.get("leaderEpoch", -1),
        found.value["metadata"] or "",
        found.value["commitTimestamp"],
        found.value.get("expireTimestamp", -1),
    )


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", data, at)
    if length < 0 or at + 2 + length > len(data):
        raise struct.error(f"the text at byte {at} has length {length}")
    return data[at + 2 : at + 2 + length].decode(), at + 2 + length
