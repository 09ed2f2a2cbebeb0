"""``table``: a topic's last writes as a mapping, in bounded memory, read from where they lie.

Nothing but an index of fingerprints is held, 40 bytes a key; a value is read when it is asked for.
The rule is that of ``latest``: within a partition the larger offset wins, between partitions the
later record; the table is true up to ``end_offsets``.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from lastwrite.commands.systems import KAFKA, system_of
from lastwrite.config.stores import store_settings
from lastwrite.encoding.fingerprint import SECRET_WORDS, fingerprint, secret_from
from lastwrite.encoding.slices import gathered
from lastwrite.errors import CommitConflict, InvalidConfig
from lastwrite.kafka import beside_a_broker
from lastwrite.kafka.look.columns import (
    RecordReader,
    RowUnit,
    add_places_of,
    logs_of,
    read_records,
    read_rows,
    row_units,
)
from lastwrite.kafka.store import partitions
from lastwrite.model.columns import RecordColumns, Slices
from lastwrite.model.log import PartitionLog, Segment
from lastwrite.model.work import Limits
from lastwrite.rows.places import PlaceIndex, PlaceIndexBuilder
from lastwrite.spark.memory import parse_bytes
from lastwrite.storage.machine import core_count
from lastwrite.storage.objects import address
from lastwrite.storage.reading import TRIES

if TYPE_CHECKING:
    import pyarrow as pa

MEMORY = "512m"
_USUAL_COLUMNS = ("key", "value", "partition", "offset", "timestamp")
_CHUNK_SHARE = 16  # of the memory, one part for a thread's chunk and what it decompresses to


def table(
    path: str,
    topic: str | None = None,
    *,
    memory: str | int = MEMORY,
    system: str | None = None,
    config: Mapping[str, object] | None = None,
) -> KeyedTable:
    """The last write of every key of a Kafka topic, as a mapping of bytes to bytes.

    Args:
        path: a log root, or an archive in a folder or a bucket; the whole topic lies there.
        topic: its name; not needed where one topic lies there.
        memory: what it may take, with an index in scratch files beyond: bytes, or as ``512m``.
        system: ``kafka``; None: what lies there.
        config: how a bucket is reached, ``storage.*``.

    Raises:
        NotALog, InvalidConfig, LogHeld: nothing was read.
        CorruptLog: a record cannot be read, and it may have been a key's last.
        OutOfMemoryBudget: a batch is larger than the memory allows.
        CommitConflict: a broker changed the topic again and again while it was read.
    """
    path = str(path)
    address.use(store_settings(config))
    if system_of(path, system) != KAFKA:
        raise InvalidConfig("a table is of Kafka's topics", path=path, remedy="use latest")
    budget = parse_bytes(memory)
    for tries in range(1, TRIES + 1):
        logs = whole_topic(path, topic)
        with beside_a_broker.one_try(tries, *logs):
            made = KeyedTable(logs, budget)
            for log in logs:
                beside_a_broker.check_unmoved(log)
            return made
    raise AssertionError("unreachable")


def whole_topic(path: str, topic: str | None) -> list[PartitionLog]:
    """All partitions of one topic.

    Raises:
        NotALog, InvalidConfig, LogHeld, CorruptLog: there are several topics, or the path is of one
            partition among others, or a log is not whole.
    """
    logs = logs_of(path, topic)
    topics = {log.name.topic for log in logs}
    if len(topics) != 1:
        raise InvalidConfig(
            f"{len(topics)} topics are there",
            path=path,
            remedy=f"name one: {', '.join(sorted(topics)[:20])}",
        )
    if len(logs) < len(partitions.of_topic(logs[0].folder)):
        raise InvalidConfig(
            "a table is of a whole topic",
            path=path,
            remedy="give the log root, and the topic's name",
        )
    return logs


class KeyedTable(Mapping[bytes, bytes]):
    """See ``table``. ``end_offsets``: partition to the first offset that is not in it; ``logs``: the
    partitions as they were listed.

    Looking up is safe from one thread at a time. What was compacted or deleted since it was made
    can be read as long as its files are open; else a look says ``CommitConflict``: make it anew.
    """

    def __init__(self, logs: Sequence[PartitionLog], memory_bytes: int) -> None:
        self.end_offsets = {log.name.partition: log.last_stable_offset for log in logs}
        self.logs = logs
        self._secret = secret_from(secrets.token_bytes(8 * SECRET_WORDS))
        threads = core_count()
        share = memory_bytes // _CHUNK_SHARE // threads
        self._limits = Limits(
            chunk_bytes=min(1 << 20, max(1 << 18, share // 4)),
            plain_bytes=max(4 << 20, memory_bytes // 8),
            block_entries=max(1 << 14, min(1 << 19, share // 40)),
        )
        self._first_segment: list[int] = []
        self._segments: list[Segment] = []
        for log in logs:
            self._first_segment.append(len(self._segments))
            self._segments += log.segments
        self._reader = RecordReader(self._limits)
        self._index = self._made(memory_bytes, threads)

    def _made(self, memory_bytes: int, threads: int) -> PlaceIndex:
        of_segment = [log.name.partition for log in self.logs for _ in log.segments]
        builder = PlaceIndexBuilder(of_segment, memory_bytes // 4)
        try:
            with ThreadPoolExecutor(threads, "table") as pool:
                work = [
                    pool.submit(
                        add_places_of, unit, number, self._secret, self._limits, builder.add
                    )
                    for unit, number in self._units(_USUAL_COLUMNS)
                ]
                for each in work:
                    each.result()
            return builder.finish()
        except BaseException:
            builder.abandon()
            raise

    def _units(self, columns: Sequence[str]) -> Iterator[tuple[RowUnit, int]]:
        """The pieces of all partitions, in order, and each one's segment."""
        for log, first in zip(self.logs, self._first_segment, strict=True):
            for unit in row_units(log, columns, is_committed=True):
                yield unit, first + unit.piece.segment

    # ------------------------------------------------------------------ a mapping

    def __getitem__(self, key: bytes) -> bytes:
        data = np.frombuffer(key, dtype=np.uint8)
        one, two = fingerprint(data, 0, len(key), self._secret)
        row = self._index.find(int(one), int(two) >> 32)
        if row < 0:
            raise KeyError(key)
        places = self._index.places
        segment = self._segments[int(places.segments[row])]
        found = self._reader.record(segment, int(places.positions[row]), int(places.offsets[row]))
        if found is None or found[1] is None:
            raise CommitConflict(
                "the record is not where it was", int(places.positions[row]), segment.path
            )
        if found[0] != key:
            raise KeyError(key)
        return found[1]

    def __contains__(self, key: object) -> bool:
        try:
            self[key]  # type: ignore[index]
        except KeyError:
            return False
        return True

    def __len__(self) -> int:
        return len(self._index)

    def __iter__(self) -> Iterator[bytes]:
        for records in self._records():
            yield from _values(records, records.keys)

    # The views of a mapping look each key up; these go through the log once.
    def items(self) -> Iterator[tuple[bytes, bytes]]:  # type: ignore[override]
        """Keys and values, in the log's order."""
        for records in self._records():
            yield from zip(
                _values(records, records.keys), _values(records, records.values), strict=True
            )

    def values(self) -> Iterator[bytes]:  # type: ignore[override]
        """Values, in the log's order."""
        for records in self._records():
            yield from _values(records, records.values)

    def _records(self) -> Iterator[RecordColumns]:
        for unit in self.units(_USUAL_COLUMNS):
            yield from read_records(unit, self._limits)

    # ------------------------------------------------------------------ columns

    def units(self, columns: Sequence[str]) -> Iterator[RowUnit]:
        """The pieces that have last writes, in order, each with the offsets of these: what another
        process needs to read them.
        """
        last = -1
        offsets = positions = np.empty(0, np.int64)
        for unit, segment in self._units(columns):
            if segment != last:
                last = segment
                offsets, positions = self._index.offsets_in(segment)
            first, end = np.searchsorted(positions, [unit.piece.start, unit.piece.end])
            if first < end:
                yield unit.wanting(offsets[first:end])

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The last writes as batches of Arrow, in the log's order, a few thousand rows each.

        Args:
            columns: of ``key, value, topic, partition, offset, timestamp, timestampType``; None:
                key, value, partition, offset, timestamp.
        """
        from lastwrite.rows.arrow import chosen_columns

        chosen = chosen_columns(columns or _USUAL_COLUMNS)
        for unit in self.units(chosen):
            yield from read_rows(unit, self._limits)

    def reader(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """The same as one stream."""
        import pyarrow as pa

        from lastwrite.rows.arrow import arrow_schema, chosen_columns

        chosen = chosen_columns(columns or _USUAL_COLUMNS)
        return pa.RecordBatchReader.from_batches(arrow_schema(chosen), self.batches(chosen))

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        """What polars, DuckDB and pandas take, without a copy of ours."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All of it, in this process' memory."""
        return self.reader(columns).read_all()

    # ------------------------------------------------------------------ its end

    def close(self) -> None:
        """Close its files, and remove those of its index."""
        self._reader.close()
        self._index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        name = self.logs[0].name.topic
        return f"<table of {name}: {len(self)} keys up to {self.end_offsets}>"


def _values(records: RecordColumns, slices: Slices) -> Iterator[bytes]:
    joined, ends = gathered(records.data, *slices)
    whole = joined.tobytes()
    return (whole[start:end] for start, end in pairwise(ends.tolist()))
