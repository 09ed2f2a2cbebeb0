"""A new Kafka topic partition, written from records with the layout that a broker uses.

Records are collected in batches like in a producer, and batches are appended to segments like in a
broker. A segment that the next batch would make larger than ``segment.bytes`` is closed, and the
next one begins. A closed segment has its offset and time index, and each new base offset a producer
snapshot. ``close`` writes the files of a clean shutdown: the checkpoints of the log root and the
marker file. A broker opens the folder without recovery.

Segments are not rolled by time (``segment.ms``); the caller uses ``roll``. Indexes do not become
full, because the default of 10 MiB is enough for 5 GiB of log.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import BinaryIO

import numpy as np

from lastwrite.encoding.compression import Codec
from lastwrite.errors import CommitConflict, InvalidConfig
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.index import SegmentIndexer
from lastwrite.kafka.format.names import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    KafkaFileKind,
    folder_name,
    segment_file_name,
)
from lastwrite.kafka.format.text import (
    LeaderEpoch,
    encode_clean_shutdown,
    encode_leader_epochs,
    encode_partition_metadata,
    topic_id_text,
)
from lastwrite.kafka.producers.snapshot import encode_snapshot
from lastwrite.kafka.store.checkpoints import write_offset
from lastwrite.model.log import TopicPartition
from lastwrite.storage import files

_MAX_RELATIVE_OFFSET = (1 << 31) - 1
# upper bound, as in producers, of the bytes of a record's length, attributes, deltas and sizes
_RECORD_OVERHEAD_BYTES = 21
_NO_BROKER_EPOCH = -1
_BUFFER_BYTES = 1 << 20


class TopicWriter:
    """Appends records to the new partition ``name`` below the log root ``root``.

    ``batch_bytes`` limits a batch before compression, as ``batch.size`` does in a producer: a
    larger record gets its own batch. One batch is in memory, and four integers for each batch of
    one segment.

    Raises:
        CommitConflict: the partition exists already.
        InvalidConfig: a batch is larger than ``segment_bytes``; a broker refuses it, too.
    """

    def __init__(
        self,
        root: str,
        name: TopicPartition,
        *,
        segment_bytes: int = 1 << 30,
        index_interval_bytes: int = 4096,
        batch_bytes: int = 16_384,
        codec: Codec = Codec.NONE,
        leader_epoch: int = 0,
        topic_id: str | None = None,
    ) -> None:
        self.folder = os.path.join(root, folder_name(name))
        self._root = root
        self._name = name
        self._segment_bytes = segment_bytes
        self._interval_bytes = index_interval_bytes
        self._batch_bytes = batch_bytes
        self._codec = codec
        self._leader_epoch = leader_epoch
        self._pending: list[Record] = []
        self._pending_bytes = 0
        self._bases: list[int] = []
        # batches of the open segment: (position, size, last offset, timestamp)
        self._batches: list[tuple[int, int, int, int]] = []
        self._size = 0
        self.end_offset = 0
        self.log_bytes = 0
        if os.path.exists(self.folder):
            raise CommitConflict(
                "the partition's folder already exists",
                path=self.folder,
                remedy="give a folder that does not contain the partition",
            )
        files.make_folder(self.folder)
        if topic_id is None:
            # A broker picks a random topic id. This one is derived from the name, so that the files
            # are reproducible.
            topic_id = topic_id_text(uuid.uuid5(uuid.NAMESPACE_OID, name.topic).bytes)
        files.write(
            os.path.join(self.folder, PARTITION_METADATA), encode_partition_metadata(topic_id)
        )
        self._file = self._begin(0)

    @property
    def segment_count(self) -> int:
        """The number of segments so far, including the open one."""
        return len(self._bases)

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: Sequence[tuple[bytes, bytes | None]] = (),
    ) -> int:
        """Append a record to the open batch. Returns the record's offset."""
        size = _RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
        for header, content in headers:
            size += 10 + len(header) + len(content or b"")
        if self._pending and self._pending_bytes + size > self._batch_bytes:
            self.flush_batch()
        offset = self.end_offset
        self._pending.append(Record(offset, timestamp_ms, key, value, tuple(headers)))
        self._pending_bytes += size
        self.end_offset += 1
        return offset

    def flush_batch(self) -> None:
        """End the open batch, as a producer does after its linger time."""
        if not self._pending:
            return
        records, self._pending, self._pending_bytes = self._pending, [], 0
        data = encode_batch(records, codec=self._codec, leader_epoch=self._leader_epoch)
        if len(data) > self._segment_bytes:
            raise InvalidConfig(
                f"a batch of {len(data)} bytes does not fit into segments of {self._segment_bytes}",
                path=self.folder,
                remedy="raise segment_bytes, or lower batch_bytes",
            )
        last = records[-1].offset
        if (
            self._size > self._segment_bytes - len(data)
            or last - self._bases[-1] > _MAX_RELATIVE_OFFSET
        ):
            self._close_segment()
            self._file = self._begin(records[0].offset)
        try:
            self._file.write(data)
        except OSError as error:
            raise files.to_log_error(
                error, self._path(self._bases[-1], KafkaFileKind.LOG), "write the segment"
            ) from error
        self._batches.append(
            (self._size, len(data), last, max(record.timestamp_ms for record in records))
        )
        self._size += len(data)
        self.log_bytes += len(data)

    def roll(self) -> None:
        """Close the open segment, unless it is empty, and begin the next at the log's end."""
        self.flush_batch()
        if self._size:
            self._close_segment()
            self._file = self._begin(self.end_offset)

    def close(self) -> None:
        """Write the files that a broker writes to partition and log root at a clean shutdown."""
        self.flush_batch()
        if self._size:
            self._close_segment()
            self._write_snapshot(self.end_offset)
        else:
            # An empty segment needs no indexes: a broker creates them with the first record.
            self._file.close()
        if self.end_offset:
            epochs = encode_leader_epochs([LeaderEpoch(self._leader_epoch, 0)])
            files.write(os.path.join(self.folder, LEADER_EPOCHS), epochs)
        files.fsync_dir(self.folder)
        for checkpoint in (RECOVERY_POINTS, HIGH_WATERMARKS):
            write_offset(self._root, checkpoint, self._name, self.end_offset)
        files.write(
            os.path.join(self._root, CLEAN_SHUTDOWN), encode_clean_shutdown(_NO_BROKER_EPOCH)
        )
        files.fsync_dir(self._root)

    def _begin(self, base_offset: int) -> BinaryIO:
        if self._bases:
            self._write_snapshot(base_offset)
        self._bases.append(base_offset)
        self._batches = []
        self._size = 0
        path = self._path(base_offset, KafkaFileKind.LOG)
        try:
            return open(path, "xb", buffering=_BUFFER_BYTES)
        except OSError as error:
            raise files.to_log_error(error, path, "create the segment") from error

    def _close_segment(self) -> None:
        base_offset = self._bases[-1]
        path = self._path(base_offset, KafkaFileKind.LOG)
        try:
            self._file.close()
        except OSError as error:
            raise files.to_log_error(error, path, "write the segment") from error
        files.fsync_file(path)
        indexer = SegmentIndexer(base_offset, self._interval_bytes)
        indexer.append(*np.asarray(self._batches, dtype=np.int64).T.copy())
        offsets, times = indexer.finish()
        for kind, content in ((KafkaFileKind.INDEX, offsets), (KafkaFileKind.TIME_INDEX, times)):
            files.write(self._path(base_offset, kind), content)

    def _write_snapshot(self, offset: int) -> None:
        """Write an empty producer snapshot, because no producer of these records has an id."""
        files.write(self._path(offset, KafkaFileKind.SNAPSHOT), encode_snapshot(()))

    def _path(self, offset: int, kind: KafkaFileKind) -> str:
        return os.path.join(self.folder, segment_file_name(offset, kind))

    def __enter__(self) -> TopicWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the partition.

        After an error, only the open file is closed, so the partition looks as after a crash.
        """
        if error is None:
            self.close()
        else:
            with contextlib.suppress(OSError):
                self._file.close()
