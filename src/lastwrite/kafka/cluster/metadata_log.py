"""Settings of topics and brokers, and replica placement, from a metadata log on this disk.

A partition's folder does not contain its topic's cleanup policy. Settings are in the cluster's
metadata log, ``__cluster_metadata-0``, in the log root of every KRaft broker and controller. A
snapshot there (``<end offset>-<epoch>.checkpoint``) has the state up to its end offset. The
segments have the later records.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar

from lastwrite.errors import CorruptLog, LogError, TruncatedLog, UnsupportedFormat, located
from lastwrite.kafka.cluster.message import MessageReader
from lastwrite.kafka.cluster.metadata_record import (
    MetadataRecord,
    RemoveTopicRecord,
    TopicConfigRecord,
    TopicRecord,
    Transaction,
    decode_metadata_record,
)
from lastwrite.kafka.cluster.metadata_tables import FRAME_VERSION, METADATA_RECORDS
from lastwrite.kafka.format.batch import decode_batch, decode_batch_header
from lastwrite.kafka.format.batch_layout import CONTROL_BIT
from lastwrite.kafka.format.names import METADATA_TOPIC, KafkaFileKind, Suffix, classify
from lastwrite.storage.file_state import FileState
from lastwrite.storage.files import to_log_error
from lastwrite.storage.mapping import mapped

FOLDER = f"{METADATA_TOPIC}-0"
_REMEDY = (
    "nothing was changed, because the topics' policies are unknown; give the metadata of another "
    "broker or controller of this cluster with --metadata PATH"
)

RecordT = TypeVar("RecordT")

# Record types for replica placement.
_TOPIC, _PARTITION, _CHANGE, _REMOVED = 2, 3, 5, 9
_NO_LEADER_CHANGE = -2
_REGISTRATION, _PLAINTEXT = 0, 0


@dataclass(slots=True)
class ClusterConfigs:
    """The settings of every existing topic, and the dynamic settings of brokers."""

    # settings by topic; empty for a topic without settings
    topics: dict[str, dict[str, str]] = field(default_factory=dict)
    # dynamic settings by node id; "" has the cluster-wide settings
    brokers: dict[str, dict[str, str]] = field(default_factory=dict)


def cluster_configs(folder: str) -> ClusterConfigs | None:
    """The settings in the metadata log in ``folder``. None if the folder does not exist.

    Settings in properties files of brokers are not included.

    Raises:
        CorruptLog, UnsupportedFormat: the metadata log is damaged or has an unknown version.
        LogError: a file cannot be read.
    """
    if not os.path.isdir(folder):
        return None
    topics = _Topics()
    records: Iterator[MetadataRecord] = records_of(folder, decode_metadata_record)
    for record in records:
        topics.apply(record)
    return topics.found


class ClusterPartition(NamedTuple):
    """The replicas of a partition in the cluster."""

    replicas: tuple[int, ...]  # node ids of the replicas
    directories: tuple[str, ...]  # id of each replica's log root; empty in old releases
    leader_epoch: int


@dataclass(slots=True)
class ClusterTopic:
    """A topic's id, and its partitions by number."""

    topic_id: str
    partitions: dict[int, ClusterPartition] = field(default_factory=dict)


def cluster_topics(folder: str) -> dict[str, ClusterTopic]:
    """The existing topics, by name, from the metadata log in ``folder``.

    Raises:
        CorruptLog, UnsupportedFormat: the metadata log is damaged or has an unknown version.
        LogError: a file cannot be read.
    """
    names: dict[str, str] = {}  # topic names by topic id
    topics: dict[str, ClusterTopic] = {}  # topics by topic id
    pending: list[tuple[int, dict[str, Any]]] | None = None  # records of an open transaction
    for number, fields in records_of(folder, _decode_placement):
        if number in (each.value for each in Transaction):
            for held in (pending or ()) if number == Transaction.END.value else ():
                _place(topics, names, *held)
            pending = [] if number == Transaction.BEGIN.value else None
        elif pending is not None:
            pending.append((number, fields))
        else:
            _place(topics, names, number, fields)
    return {names[topic_id]: topic for topic_id, topic in topics.items()}


def broker_addresses(folder: str) -> dict[int, str]:
    """The address of each broker (``HOST:PORT``), by node id, from its last registration.

    This is the broker's PLAINTEXT listener if it has one, or else its first listener.

    Raises:
        CorruptLog, UnsupportedFormat, LogError: the metadata log is damaged or cannot be read.
    """
    found: dict[int, str] = {}
    for fields in records_of(folder, _decode_registration):
        points = sorted(
            fields["endPoints"], key=lambda each: each["securityProtocol"] != _PLAINTEXT
        )
        if points:
            host, port = points[0]["host"], points[0]["port"]
            found[fields["brokerId"]] = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return found


def _decode_registration(value: bytes) -> dict[str, Any] | None:
    reader = MessageReader(value)
    if reader.unsigned() != FRAME_VERSION:
        return None
    number, version = reader.unsigned(), reader.unsigned()
    if number != _REGISTRATION:
        return None
    return METADATA_RECORDS[number].decode(value, version, reader.position)[0]


def _place(
    topics: dict[str, ClusterTopic], names: dict[str, str], number: int, fields: dict[str, Any]
) -> None:
    topic_id: str = fields["topicId"]
    if number == _TOPIC:
        names[topic_id], topics[topic_id] = fields["name"], ClusterTopic(topic_id)
    elif number == _REMOVED:
        topics.pop(topic_id, None)
    elif topic_id in topics:
        partitions, partition = topics[topic_id].partitions, fields["partitionId"]
        before = partitions.get(partition, ClusterPartition((), (), 0))
        epoch = before.leader_epoch
        if number == _PARTITION:
            epoch = fields["leaderEpoch"]
        elif fields.get("leader", _NO_LEADER_CHANGE) != _NO_LEADER_CHANGE:
            epoch += 1
        replicas, directories = fields.get("replicas"), fields.get("directories")
        partitions[partition] = ClusterPartition(
            before.replicas if replicas is None else tuple(replicas),
            before.directories if directories is None else tuple(directories),
            epoch,
        )


def _decode_placement(value: bytes) -> tuple[int, dict[str, Any]] | None:
    """The type and fields of a record about replica placement or a metadata transaction.

    None for a record of another type.
    """
    reader = MessageReader(value)
    frame = reader.unsigned()
    if frame != FRAME_VERSION:
        raise UnsupportedFormat(f"the metadata record has frame version {frame}", 0)
    number, version = reader.unsigned(), reader.unsigned()
    if number in (_TOPIC, _PARTITION, _CHANGE, _REMOVED):
        return number, METADATA_RECORDS[number].decode(value, version, reader.position)[0]
    return (number, {}) if number in (each.value for each in Transaction) else None


def state(folder: str) -> tuple[tuple[str, FileState], ...]:
    """A value that changes with the metadata log's files. Equal values mean equal settings."""
    if not os.path.isdir(folder):
        return ()
    with os.scandir(folder) as entries:
        return tuple(
            sorted((e.name, FileState.of(os.stat(e.path))) for e in entries if e.is_file())
        )


class _Topics:
    """The existing topics and all settings, built by applying metadata records in order."""

    def __init__(self) -> None:
        self.found = ClusterConfigs()
        self._names: dict[bytes, str] = {}
        self._pending: list[MetadataRecord] | None = None  # records of an open transaction

    def apply(self, record: MetadataRecord) -> None:
        if isinstance(record, Transaction):
            ended = self._pending if record is Transaction.END else None
            self._pending = [] if record is Transaction.BEGIN else None
            for held in ended or ():
                self.apply(held)
        elif self._pending is not None:
            self._pending.append(record)
        elif isinstance(record, TopicRecord):
            self._names[record.topic_id] = record.name
            self.found.topics.setdefault(record.name, {})
        elif isinstance(record, RemoveTopicRecord):
            self.found.topics.pop(self._names.pop(record.topic_id, ""), None)
        else:
            if isinstance(record, TopicConfigRecord):
                settings = self.found.topics.setdefault(record.topic, {})
            else:
                settings = self.found.brokers.setdefault(record.broker, {})
            if record.value is None:
                settings.pop(record.name, None)
            else:
                settings[record.name] = record.value


def check_snapshot(folder: str) -> None:
    """Check that the newest snapshot in ``folder`` is complete: its last record is a footer.

    Raises:
        CorruptLog: the snapshot ends early.
        LogError: the file cannot be read.
    """
    path = _newest_snapshot(folder)
    if path is None:
        return
    with located(path), mapped(path) as content:
        at, is_footer = 0, False
        while at < len(content):
            header = decode_batch_header(memoryview(content), at)
            at, is_footer = at + header.size_bytes, bool(header.attributes & CONTROL_BIT)
        if not is_footer or at > len(content):
            raise CorruptLog(
                "the snapshot of the metadata log does not end with its footer",
                len(content),
                remedy="nothing was changed; copy the metadata log again",
            )


def _newest_snapshot(folder: str) -> str | None:
    files = [(name, classify(name)) for name in sorted(os.listdir(folder))]
    found = [
        os.path.join(folder, name)
        for name, file in files
        if file.kind is KafkaFileKind.METADATA_SNAPSHOT and file.suffix is Suffix.LIVE
    ]
    return found[-1] if found else None


Decode: TypeAlias = Callable[[bytes], RecordT | None]


def records_of(folder: str, decode: Decode[RecordT]) -> Iterator[RecordT]:
    """The decoded records of the newest snapshot, then the later records of the log.

    A record is skipped if ``decode`` returns None for it.
    """
    files = [(name, classify(name)) for name in sorted(os.listdir(folder))]
    snapshot, start = _newest_snapshot(folder), 0
    if snapshot is not None:
        start = classify(os.path.basename(snapshot)).offset or 0
        yield from _decoded(snapshot, 0, decode)
    for name, file in files:
        if file.kind is KafkaFileKind.LOG and file.suffix is Suffix.LIVE:
            yield from _decoded(os.path.join(folder, name), start, decode)


def _decoded(path: str, start: int, decode: Decode[RecordT]) -> Iterator[RecordT]:
    """The records of a file from offset ``start`` on. Stops at a torn tail, as Kafka does."""
    try:
        with open(path, "rb") as file:
            # A segment may be large, so it is mapped instead of read.
            size = os.fstat(file.fileno()).st_size
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else None
    except OSError as error:
        raise to_log_error(error, path, "read the cluster's metadata") from error
    if content is None:
        return
    try:
        yield from _decoded_batches(memoryview(content), start, decode)
    except TruncatedLog:
        return
    except CorruptLog as error:
        raise type(error)(error.problem, error.at, path, _REMEDY) from error
    except LogError as error:
        raise error.located(path) from error


def _decoded_batches(view: memoryview, start: int, decode: Decode[RecordT]) -> Iterator[RecordT]:
    at = 0
    while at < len(view):
        header = decode_batch_header(view, at)
        if header.last_offset >= start:
            batch = decode_batch(view, at)
            for record in () if batch.attributes.control else batch.records:
                if record.offset >= start and record.value is not None:
                    decoded = _record(record.value, at, decode)
                    if decoded is not None:
                        yield decoded
        at += header.size_bytes


def _record(value: bytes, at: int, decode: Decode[RecordT]) -> RecordT | None:
    try:
        return decode(value)
    except TruncatedLog as error:
        raise CorruptLog(f"{error.problem}, in the batch that begins at this byte", at) from error
    except LogError as error:
        raise type(error)(f"{error.problem}, in the batch that begins at this byte", at) from error
