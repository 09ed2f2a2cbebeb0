"""``table``: a topic's last writes as a mapping in bounded memory.

Memory contains only an index of fingerprints, 40 bytes per key. A value is read from the log when
its key is looked up. Within a partition, the last write of a key has the largest offset. If a key
is in several partitions, its last write is the one with the latest timestamp (RocketMQ: store time,
Pulsar: publish time), and among equal timestamps the one in the highest partition. The table is
complete up to ``end_offsets``.

``follow`` updates the table as the log grows, and yields the changes: the last write or the
tombstone of each key that was written since the last update.

Only last writes are decoded, when they are read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from shlex import quote
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from lastwrite.archive.gaps import gaps_in, warn_of
from lastwrite.commands.systems import system_to_read
from lastwrite.config.stores import store_settings
from lastwrite.decoding.options import DecodingConfig, DecodingOptions
from lastwrite.encoding.slices import bytes_of
from lastwrite.engine.system import system_named
from lastwrite.errors import CommitConflict, CorruptLog, InvalidConfig
from lastwrite.kafka.beside_a_broker import one_try
from lastwrite.model.columns import RecordColumns
from lastwrite.model.log import PartitionLog, Problem
from lastwrite.rows.last_writes import LastWrites, MissedDelete
from lastwrite.rows.reading import RowUnit, read_records, read_rows
from lastwrite.rows.requirements import require_arrow
from lastwrite.rows.system import RowSystem, rows_of
from lastwrite.spark.memory import parse_bytes
from lastwrite.storage.objects import address
from lastwrite.storage.reading import TRIES

if TYPE_CHECKING:
    import pyarrow as pa

    from lastwrite.rows.decoded import DecodedRows

T = TypeVar("T")

MEMORY = "512m"
_USUAL_COLUMNS = ("key", "value", "partition", "offset", "timestamp")


def table(
    path: str,
    topic: str | None = None,
    *,
    memory: str | int = MEMORY,
    system: str | None = None,
    metadata: str | None = None,
    config: Mapping[str, object] | None = None,
    **decoding: Unpack[DecodingOptions],
) -> KeyedTable:
    """The last write of every key of a topic, as a mapping from bytes to bytes or decoded values.

    Args:
        path: a Kafka log root, a RocketMQ store or a Pulsar archive; or an archive of any system,
            in a folder or a bucket. The path must contain the whole topic.
        topic: the name of the topic; not needed if there is only one.
        memory: memory limit, in bytes or as ``512m``. A larger index uses scratch files.
        system: ``kafka``, ``rocketmq``, ``pulsar`` or ``automq``. None means: detect it from the
            files.
        metadata: AutoMQ: the path of the cluster's metadata log, ``__cluster_metadata-0``.
        config: settings ``storage.*`` of a bucket. Kafka: ``cleanup.policy=compact`` states that
            the topic was compacted earlier, so that offsets between two segments may be missing.
        decoding: formats and schemas of values, and of keys in columns; see ``DecodingConfig``.

    Raises:
        NotALog, InvalidConfig, LogHeld: nothing was read.
        RemoteFailed: the schema registry does not answer.
        CorruptLog: a record cannot be read, and it may have been the last one of its key.
        UnsupportedFormat: a message is encrypted.
        OutOfMemoryBudget: a batch is larger than the memory limit.
        CommitConflict: a broker changed the topic repeatedly while it was read.
    """
    path = str(path)
    address.use(store_settings(config))
    rows = rows_of(system_to_read(path, system, metadata))
    wanted = DecodingConfig.of(decoding)

    named: set[str] = set()

    def listed() -> list[PartitionLog]:
        address.use(store_settings(config))
        logs = partitions_of_topic(rows, path, topic, config)
        warn_of(logs, named)
        return logs

    def made(logs: Sequence[PartitionLog]) -> KeyedTable:
        return KeyedTable(rows, logs, parse_bytes(memory), listed, decoding=wanted)

    return steady(rows, listed, made, (path, topic))


@contextmanager
def _naming_the_rest(where: tuple[str, str | None] | None) -> Iterator[None]:
    """Add to the remedy of a damage error how to read the undamaged records."""
    try:
        yield
    except CorruptLog as error:
        if where is None:
            raise
        path, topic = where
        of_topic = "" if topic is None else f" --topic {quote(topic)}"
        rest = f"`lastwrite dump {quote(path)}{of_topic}` prints the records that can be read"
        error.remedy = f"{error.remedy}; {rest}" if error.remedy else rest
        raise


def steady(
    system: RowSystem,
    listed: Callable[[], Sequence[PartitionLog]],
    made: Callable[[Sequence[PartitionLog]], T],
    where: tuple[str, str | None] | None = None,
) -> T:
    """Call ``made`` with the logs that ``listed`` returns, and return the result of ``made``.

    If a broker or a compaction changes the logs during the call, both functions are called again,
    at most ``TRIES`` times. ``where`` is the path and topic of the logs, for remedies.

    Raises:
        CommitConflict: the logs changed every time.
        CorruptLog: a partition is damaged. Without it, last writes would be missing or outdated, so
            none are returned. The remedy names the command that reads the other partitions.
    """
    for tries in range(1, TRIES + 1):
        with _naming_the_rest(where):
            logs = listed()
        with _naming_the_rest(where), one_try(tries, *logs):
            found = made(logs)
            for log in logs:
                system_named(system.name).check_unmoved(log)
            return found
    raise AssertionError("unreachable")


def partitions_of_topic(
    system: RowSystem, path: str, topic: str | None, config: Mapping[str, object] | None
) -> list[PartitionLog]:
    """All partitions of one topic, for its last writes.

    Raises:
        NotALog, InvalidConfig, LogHeld, CorruptLog: there are several topics, or the path has only
            some partitions of the topic, or a log is damaged.
    """
    logs = system.logs_of(path, topic, is_compacted=True, config=config)
    topics = sorted({log.name.topic for log in logs})
    if len(topics) > 1 or (not topics and topic is None):
        raise InvalidConfig(
            f"the path has {len(topics)} topics, and none was chosen",
            path=path,
            remedy=f"name one topic: {', '.join(topics[:20])}",
        )
    if logs and len(logs) < system.count_partitions(logs[0]):
        raise InvalidConfig(
            "a table needs all partitions of a topic, but the path has only some",
            path=path,
            remedy="give the log root, store or archive, and the topic's name",
        )
    return logs


class KeyedTable(Mapping[bytes, Any]):
    """The last writes of a topic, as a mapping: the result of ``table``.

    Only one thread at a time may look up keys. Records that were compacted or deleted later can be
    read while their files are open. Otherwise, a lookup raises ``CommitConflict``: create the table
    again, or ``follow`` it.
    """

    def __init__(
        self,
        system: RowSystem,
        logs: Sequence[PartitionLog],
        memory_bytes: int,
        listed: Callable[[], Sequence[PartitionLog]] | None = None,
        raw_keys: bool = False,
        decoding: DecodingConfig | None = None,
    ) -> None:
        self._system = system
        self._listed = listed
        self._decoding = decoding or DecodingConfig()
        self._topic = logs[0].name.topic if logs else ""
        self._values = None if self._decoding.value_format == "raw" else self._rows(("value",))
        self._last = LastWrites(system, logs, memory_bytes, raw_keys)
        # by partition: the offset below which ``follow`` has returned all changes
        self._returned = dict(self._last.ends)

    @property
    def end_offsets(self) -> dict[int, int]:
        """The first offset that is not in the table, by partition."""
        return dict(self._last.ends)

    @property
    def logs(self) -> Sequence[PartitionLog]:
        """The partitions of the topic, as they were last listed."""
        return self._last.logs

    @property
    def notes(self) -> list[Problem]:
        """Gaps of the topic's archive that were accepted as lost."""
        return gaps_in(self.logs)

    # ------------------------------------------------------------------ a mapping

    def __getitem__(self, key: bytes | str) -> Any:
        if isinstance(key, str):
            key = key.encode("utf-8", "surrogateescape")
        has_headers = self._values is not None and self._values.has_headers
        found = self._last.record(key, has_headers=has_headers)
        if found is None:
            raise KeyError(key)
        if self._values is None:
            return found[0]
        return self._values.value(key, found[0], self._topic, found[1])

    def __contains__(self, key: object) -> bool:
        if isinstance(key, str):
            key = key.encode("utf-8", "surrogateescape")
        return isinstance(key, bytes) and self._last.value(key) is not None

    def __len__(self) -> int:
        return len(self._last)

    def __iter__(self) -> Iterator[bytes]:
        for records in self._records():
            yield from bytes_of(records.data, *records.keys)

    # ``items`` and ``values`` read the log once. The methods of Mapping would look up each key.
    def items(self) -> Iterator[tuple[bytes, Any]]:  # type: ignore[override]
        """The keys and values, in the log's order."""
        if self._values is not None:
            rows = self._rows(("key", "value"), replace(self._decoding, key_format="raw"))
            for batch in self._batches(rows):
                yield from zip(*(column.to_pylist() for column in batch.columns[:2]), strict=True)
            return
        for records in self._records():
            columns = (bytes_of(records.data, *each) for each in (records.keys, records.values))
            yield from zip(*columns, strict=True)

    def values(self) -> Iterator[Any]:  # type: ignore[override]
        """The values, in the log's order."""
        if self._values is not None:
            for batch in self._batches(self._values):
                yield from batch.column(0).to_pylist()
            return
        for records in self._records():
            yield from bytes_of(records.data, *records.values)

    def _records(self) -> Iterator[RecordColumns]:
        for unit in self.units(_USUAL_COLUMNS):
            yield from read_records(unit, self._last.limits)

    # ------------------------------------------------------------------ columns

    def units(self, columns: Sequence[str]) -> Iterator[RowUnit]:
        """The parts of the log that contain last writes, in order.

        A part has the positions of its last writes. Other processes can read the parts.
        """
        return self._last.units(columns)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The last writes as batches of Arrow, in the log's order, a few thousand rows each.

        Args:
            columns: some of ``key, value, topic, partition, offset, timestamp, timestampType,
                headers``, and fields of decoded data such as ``value.name``. None means key,
                value, partition, offset, timestamp.

        Raises:
            BadValue: a key or value does not match its schema, and ``on_bad`` is ``fail``.
            EnvironmentUnfit: pyarrow is missing.
        """
        yield from self._batches(self._rows(columns))

    def _rows(
        self, columns: Sequence[str] | None, decoding: DecodingConfig | None = None
    ) -> DecodedRows:
        require_arrow()
        from lastwrite.rows.decoded import DecodedRows

        return DecodedRows(decoding or self._decoding, columns or _USUAL_COLUMNS, self._topic)

    @cached_property
    def _usual_rows(self) -> DecodedRows:
        """The converter of rows to the default columns. It has one schema for the whole table."""
        return self._rows(None)

    def _batches(self, rows: DecodedRows) -> Iterator[pa.RecordBatch]:
        for unit in self.units(rows.raw_columns):
            yield from rows.of(read_rows(unit, self._last.limits))

    def reader(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """The last writes as one Arrow stream; see ``batches``."""
        rows = self._rows(columns)
        import pyarrow as pa  # imported after ``_rows`` has checked that pyarrow is installed

        return pa.RecordBatchReader.from_batches(rows.arrow_schema, self._batches(rows))

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        """The last writes as an Arrow stream, for DuckDB and pyarrow.

        Use ``reader()`` for polars, and ``to_arrow()`` for pandas.
        """
        return self.reader().__arrow_c_stream__(requested_schema)

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The complete table as an Arrow table, in memory."""
        return self.reader(columns).read_all()

    # ------------------------------------------------------------------ changes

    def follow(self, *, poll_s: float | None = 0.5) -> Iterator[pa.RecordBatch]:
        """The changes since the table was created, or since the last batch that was taken.

        A batch has a few thousand rows, with the columns key, value, partition, offset, timestamp
        and ``deleted``. If the key was deleted, ``deleted`` is true and the value is null. The
        value is also null if the record's decoded value is null, such as the JSON text ``null``.

        If a key was written several times between two polls, only the last write is returned. The
        changes can therefore be applied in any order.

        When the first batch is returned, the table already contains the last poll. A batch counts
        as taken when the next batch is requested. If a cleaner removed a tombstone before a poll
        found it, the key is returned as deleted, without offset and timestamp.

        Keys and values are decoded as in the table. If ``on_bad`` is ``null``, a bad value is not a
        delete; ``_error`` contains the reason. If it is ``aside``, a record with a bad value is
        put aside, and its key is returned as deleted. A record with a bad key is not returned. A
        delete with a bad key is only returned if ``on_bad`` is ``null``, because otherwise no write
        of this key was returned either.

        Args:
            poll_s: seconds between two polls without changes. None means: stop if there are none.

        Raises:
            CommitConflict: changes are missing. The log begins after the offsets that were read, a
                key is gone and its record cannot be read, or the topic was created again. Create
                the table again.
            CorruptLog, UnsupportedFormat, OutOfMemoryBudget: as for ``table``.
            BadValue: a key or value is bad, and ``on_bad`` is ``fail``. No change was skipped, so
                following again raises the error again.
            InvalidConfig: the table was not created by ``table``.
        """
        if self._listed is None:
            raise InvalidConfig(
                "this table was not created by table(), so it cannot follow the log"
            )
        rows = self._usual_rows
        while True:
            moved: CommitConflict | None = None
            try:
                yield from self._pending(rows)
            except CommitConflict as error:  # a compaction has replaced a segment that was read
                moved = error
            self._last.open_all()
            steady(self._system, self._listed, self._last.catch_up)
            self._last.open_all()  # open the files now: the next poll may be much later
            unseen = self._last.check_missed_deletes()
            for partition in self._last.ends:
                self._returned.setdefault(partition, 0)
            if unseen:
                yield from _decoded(rows, self._deleted(unseen, rows.raw_columns))
            if unseen is None and moved is not None:
                raise moved
            if unseen is None and poll_s is None:
                return
            if unseen is None:
                time.sleep(poll_s or 0)

    def _pending(self, rows: DecodedRows) -> Iterator[pa.RecordBatch]:
        """The changes that ``follow`` has not returned yet, as batches."""
        shared = 0 if self._system.is_offset_unique else 1
        for unit in self._last.changes(rows.raw_columns, self._returned):
            for records in read_records(unit, self._last.limits):
                for changed in self._changed(records, unit):
                    last = changed.column("offset")[-1].as_py()
                    yield from _decoded(rows, changed)
                    self._returned[unit.name.partition] = last + 1 - shared
        self._returned.update(self._last.ends)

    def _changed(self, records: RecordColumns, unit: RowUnit) -> Iterator[pa.RecordBatch]:
        from lastwrite.rows.arrow import batches_of

        yield from batches_of(self._system.with_deletes(records), unit.name, unit.columns)

    def _deleted(self, unseen: Sequence[MissedDelete], columns: Sequence[str]) -> pa.RecordBatch:
        import pyarrow as pa

        from lastwrite.rows.arrow import arrow_schema

        rows = [
            {"key": each.key, "topic": self._topic, "partition": each.partition} for each in unseen
        ]
        return pa.RecordBatch.from_pylist(rows, schema=arrow_schema(columns))

    # ------------------------------------------------------------------ closing

    def close(self) -> None:
        """Close the files and delete the index."""
        self._last.close()

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
        name = self.logs[0].name.topic if self.logs else "nothing"
        return f"<table of {name}: {len(self)} keys up to {self.end_offsets}>"


def _decoded(rows: DecodedRows, changed: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    return (batch for batch in rows.of([changed], as_changes=True) if len(batch))
