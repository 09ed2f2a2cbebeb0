"""A Kafka log that grows as a broker appends to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lastwrite.demo.topic_writer import TopicWriter
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.index import DEFAULT_INTERVAL_BYTES, OFFSET_ENTRY, TIME_ENTRY
from lastwrite.kafka.format.names import HIGH_WATERMARKS, RECOVERY_POINTS
from lastwrite.kafka.store.checkpoints import write_offset
from lastwrite.model.log import TopicPartition

Written = tuple[bytes | None, bytes | None, int]  # key, value, timestamp


class GrowingLog:
    """Partition ``partition`` of ``topic`` below ``root``."""

    def __init__(
        self, root: Path, partition: int = 0, topic_id: str | None = None, topic: str = "t"
    ) -> None:
        self.root, self.name = root, TopicPartition(topic, partition)
        self.folder = root / str(self.name)
        self.end = 0
        self._begin()
        with TopicWriter(str(root), self.name, topic_id=topic_id):
            pass

    def append(self, records: Sequence[Written]) -> None:
        """Append one batch to the active segment."""
        batch = [
            Record(self.end + n, time, key, value) for n, (key, value, time) in enumerate(records)
        ]
        if not batch:
            return
        active = sorted(self.folder.glob("*.log"))[-1]
        data, position = encode_batch(batch), active.stat().st_size
        with active.open("ab") as file:
            file.write(data)
        self.end += len(batch)
        latest_ms = max(record.timestamp_ms for record in batch)
        if latest_ms > self._latest[0]:
            self._latest = latest_ms, self.end - 1 - int(active.stem)
        is_due = self._unindexed > DEFAULT_INTERVAL_BYTES
        if is_due:
            self._unindexed = 0
        self._unindexed += len(data)
        entry = OFFSET_ENTRY.pack(self.end - 1 - int(active.stem), position) if is_due else b""
        self._write_indexes(active, entry, is_due)
        self._tell()

    def _begin(self) -> None:
        self._unindexed = 0  # bytes since the last entry of the active segment's offset index
        # the active segment's largest timestamp, and the relative offset of that batch
        self._latest = -1, 0
        self._told_ms = -1  # timestamp of the last time index entry

    def _write_indexes(self, active: Path, entry: bytes, is_time_due: bool) -> None:
        time_entry = b""
        if is_time_due and self._latest[0] > self._told_ms:
            self._told_ms = self._latest[0]
            time_entry = TIME_ENTRY.pack(*self._latest)
        for suffix, content in ((".index", entry), (".timeindex", time_entry)):
            with active.with_suffix(suffix).open("ab") as file:
                file.write(content)

    def roll(self) -> None:
        """Begin a new active segment."""
        active = sorted(self.folder.glob("*.log"))[-1]
        if active.stat().st_size:
            self._write_indexes(active, b"", True)
            self._begin()
            (self.folder / f"{self.end:020}.log").touch()

    def _tell(self) -> None:
        for checkpoint in (RECOVERY_POINTS, HIGH_WATERMARKS):
            write_offset(str(self.root), checkpoint, self.name, self.end)
