"""Kafka's records as columns of a DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from os.path import join
from typing import Any

from lastwrite.engine.chunks import BatchWindow
from lastwrite.errors import CorruptLog, LogError
from lastwrite.kafka.format.chunk import KafkaFormat
from lastwrite.kafka.format.gather import gather, with_headers
from lastwrite.kafka.format.names import PARTITION_METADATA
from lastwrite.kafka.format.text import decode_partition_metadata
from lastwrite.kafka.look.problems import loses_records
from lastwrite.kafka.look.stretch import stretch_of
from lastwrite.kafka.store import lock, partitions
from lastwrite.kafka.store.index_files import index_path
from lastwrite.kafka.store.pieces import cuts_of
from lastwrite.kafka.system import KAFKA
from lastwrite.model.columns import ByteArray, RecordColumns
from lastwrite.model.log import PartitionLog
from lastwrite.rows.system import RowReader, RowSystem, Wants
from lastwrite.storage.choice import Topics
from lastwrite.storage.objects.address import is_address
from lastwrite.storage.reading import read_small


class _KafkaRowReader:
    def __init__(self, plain_bytes: int) -> None:
        self.format = KafkaFormat(plain_bytes)

    def records(
        self,
        chunk: BatchWindow,
        selected: ByteArray | None,
        span: tuple[int, int],
        *,
        is_committed: bool,
    ) -> Iterator[RecordColumns]:
        for run in self.format.opened(chunk.buffer, chunk.table, selected):
            yield gather(
                chunk.buffer,
                run,
                chunk.table,
                span,
                is_committed=is_committed,
                shift=chunk.shift,
            )

    def with_headers(self, records: RecordColumns) -> RecordColumns:
        return with_headers(records)


class _KafkaRows(RowSystem):
    name = "kafka"

    def logs_of(
        self,
        path: str,
        topic: Topics = None,
        partition: int | None = None,
        *,
        wants: Wants | None = None,
        is_compacted: bool = False,
        config: Mapping[str, object] | None = None,
    ) -> list[PartitionLog]:
        logs: list[PartitionLog] = []
        for folder in partitions.find_partitions(path, topic, partition):
            name = partitions.partition_name(folder)
            if wants is not None and not wants(name):
                continue
            lock.reject_if_locked(partitions.root_of(folder), [name])
            log = KAFKA.read_judged(folder, config)
            for problem in log.problems:
                if loses_records(problem, log):  # damaged offset and time indexes are harmless here
                    raise CorruptLog(
                        problem.message, problem.position, problem.path, problem.remedy
                    )
            logs.append(log)
        return logs

    def count_partitions(self, log: PartitionLog) -> int:
        return len(partitions.of_topic(log.folder))

    def cuts(
        self, log: PartitionLog, segment: int, span: tuple[int, int], piece_bytes: int
    ) -> list[int]:
        found = log.segments[segment]
        cuts = [0, found.size_bytes]
        suspects = {problem.path for problem in log.problems}
        if found.is_indexed and index_path(found.path) not in suspects:
            with suppress(LogError):  # without a readable index the segment is one piece
                cuts = cuts_of(log, segment, piece_bytes)
        start, stop = stretch_of(found, *span, log.segment_end(segment))
        return [start, *(cut for cut in cuts if start < cut < stop), stop]

    def identity(self, log: PartitionLog, offset: int) -> str | None:
        """The topic's id, which differs for a topic that was created again."""
        if log.topic_id is not None or is_address(log.folder):
            return log.topic_id
        try:
            return decode_partition_metadata(read_small(join(log.folder, PARTITION_METADATA)))
        except LogError:
            return None

    def difference(self, log: PartitionLog, offset: int, identity: str) -> str | None:
        found = self.identity(log, offset)
        return (
            None if found in (None, identity) else f"its topic id was {identity} and is now {found}"
        )

    def reader(self, plain_bytes: int, extra: Any, *, raw_keys: bool) -> RowReader:
        return _KafkaRowReader(plain_bytes)


ROWS = _KafkaRows()
