"""The settings of topics and brokers, as far as they lie on this disk.

A partition's folder does not say whether its topic is compacted: settings live in the cluster's own
log, ``__cluster_metadata-0``, which lies in the log root of every broker and controller that runs
KRaft. There, a snapshot (``<end offset>-<epoch>.checkpoint``) holds everything up to its end, and
the segments what came after.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from lastwrite.errors import CorruptLog, LogError, TruncatedLog
from lastwrite.kafka.cluster.metadata_record import (
    MetadataRecord,
    RemovedTopic,
    Topic,
    TopicSetting,
    Transaction,
    decode_metadata_record,
)
from lastwrite.kafka.format.batch import decode_batch, decode_batch_header
from lastwrite.kafka.format.names import METADATA_TOPIC, FileKind, Suffix, classify
from lastwrite.storage.files import to_log_error

FOLDER = f"{METADATA_TOPIC}-0"
_REMEDY = (
    "no topic's policy is known, and nothing was changed; give the metadata of another broker or controller of this "
    "cluster by --metadata PATH"
)


@dataclass(slots=True)
class ClusterConfigs:
    """What a cluster's metadata says: settings of every topic there is, dynamic ones of brokers."""

    topics: dict[str, dict[str, str]] = field(
        default_factory=dict
    )  # a topic without any is there with none
    brokers: dict[str, dict[str, str]] = field(
        default_factory=dict
    )  # by node id; under "": those of all brokers


def cluster_configs(folder: str) -> ClusterConfigs | None:
    """The settings in the metadata log in ``folder``; None where there is no such folder.

    What brokers have in their properties files is not here.

    Raises:
        CorruptLog, UnsupportedFormat: the metadata log is damaged or of a later version.
        LogError: it cannot be read.
    """
    if not os.path.isdir(folder):
        return None
    topics = _Topics()
    for record in _records(folder):
        topics.apply(record)
    return topics.found


def state(folder: str) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and times of the metadata log's files: the same state, the same settings."""
    if not os.path.isdir(folder):
        return ()
    with os.scandir(folder) as entries:
        return tuple(
            sorted((e.name, e.stat().st_size, e.stat().st_mtime_ns) for e in entries if e.is_file())
        )


class _Topics:
    """The topics that there are, while records go by."""

    def __init__(self) -> None:
        self.found = ClusterConfigs()
        self._names: dict[bytes, str] = {}
        self._pending: list[MetadataRecord] | None = None  # of an open transaction

    def apply(self, record: MetadataRecord) -> None:
        if isinstance(record, Transaction):
            ended = self._pending if record is Transaction.END else None
            self._pending = [] if record is Transaction.BEGIN else None
            for held in ended or ():
                self.apply(held)
        elif self._pending is not None:
            self._pending.append(record)
        elif isinstance(record, Topic):
            self._names[record.topic_id] = record.name
            self.found.topics.setdefault(record.name, {})
        elif isinstance(record, RemovedTopic):
            self.found.topics.pop(self._names.pop(record.topic_id, ""), None)
        else:
            if isinstance(record, TopicSetting):
                settings = self.found.topics.setdefault(record.topic, {})
            else:
                settings = self.found.brokers.setdefault(record.broker, {})
            if record.value is None:
                settings.pop(record.name, None)
            else:
                settings[record.name] = record.value


def _records(folder: str) -> Iterator[MetadataRecord]:
    """The records that count: the newest snapshot's, then those of the log behind it."""
    names = sorted(os.listdir(folder))
    files = [(name, classify(name)) for name in names]
    snapshots = [
        name
        for name, file in files
        if file.kind is FileKind.METADATA_SNAPSHOT and file.suffix is Suffix.LIVE
    ]
    start = 0
    if snapshots:
        start = classify(snapshots[-1]).offset or 0
        yield from _decoded(os.path.join(folder, snapshots[-1]), 0)
    for name, file in files:
        if file.kind is FileKind.LOG and file.suffix is Suffix.LIVE:
            yield from _decoded(os.path.join(folder, name), start)


def _decoded(path: str, start: int) -> Iterator[MetadataRecord]:
    """The records of a file from offset ``start`` on; a torn tail ends it, as it does for Kafka."""
    try:
        with open(path, "rb") as file:
            # A segment may be as large as any other: it is mapped, not read.
            size = os.fstat(file.fileno()).st_size
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else None
    except OSError as error:
        raise to_log_error(error, path, "read the cluster's metadata") from error
    if content is None:
        return
    try:
        yield from _decoded_batches(memoryview(content), start)
    except TruncatedLog:
        return
    except CorruptLog as error:
        raise type(error)(error.problem, error.at, path, _REMEDY) from error
    except LogError as error:
        raise error.located(path) from error


def _decoded_batches(view: memoryview, start: int) -> Iterator[MetadataRecord]:
    at = 0
    while at < len(view):
        header = decode_batch_header(view, at)
        if header.last_offset >= start:
            batch = decode_batch(view, at)
            for record in () if batch.attributes.control else batch.records:
                if record.offset >= start and record.value is not None:
                    decoded = _record(record.value, at)
                    if decoded is not None:
                        yield decoded
        at += header.size_bytes


def _record(value: bytes, at: int) -> MetadataRecord | None:
    try:
        return decode_metadata_record(value)
    except TruncatedLog as error:
        raise CorruptLog(f"{error.problem}, in the batch that begins here", at) from error
    except LogError as error:
        raise type(error)(f"{error.problem}, in the batch that begins here", at) from error
