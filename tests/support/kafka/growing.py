"""A Kafka log that grows between two looks, as a broker appends to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lastwrite.demo.topic_writer import TopicWriter
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.names import HIGH_WATERMARKS, RECOVERY_POINTS
from lastwrite.kafka.store.checkpoints import write_offset
from lastwrite.model.log import TopicPartition

Written = tuple[bytes | None, bytes | None, int]  # key, value, time


class GrowingLog:
    """Partition ``partition`` of topic ``t`` below ``root``."""

    def __init__(self, root: Path, partition: int = 0, topic_id: str | None = None) -> None:
        self.root, self.name = root, TopicPartition("t", partition)
        self.folder = root / str(self.name)
        self.end = 0
        with TopicWriter(str(root), self.name, topic_id=topic_id):
            pass

    def append(self, records: Sequence[Written]) -> None:
        """One batch, at the end of the active segment."""
        batch = [
            Record(self.end + n, time, key, value) for n, (key, value, time) in enumerate(records)
        ]
        if not batch:
            return
        active = sorted(self.folder.glob("*.log"))[-1]
        with active.open("ab") as file:
            file.write(encode_batch(batch))
        for suffix in (".index", ".timeindex"):  # without them a closed segment is damaged
            active.with_suffix(suffix).touch()
        self.end += len(batch)
        self._tell()

    def roll(self) -> None:
        """A new active segment."""
        active = sorted(self.folder.glob("*.log"))[-1]
        if active.stat().st_size:
            (self.folder / f"{self.end:020}.log").touch()

    def _tell(self) -> None:
        for checkpoint in (RECOVERY_POINTS, HIGH_WATERMARKS):
            write_offset(str(self.root), checkpoint, self.name, self.end)
