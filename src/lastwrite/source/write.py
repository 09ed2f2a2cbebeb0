"""``df.write.format("lastwrite")`` and ``writeStream``: append records to topics of an archive.

The columns are those of Spark's Kafka sink: ``value``, and optionally ``key``, ``topic``,
``headers`` and ``partition``. ``timestamp`` is optional, too. Other columns are ignored, so rows
that the source returned can be written.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from lastwrite.config.stores import is_of_stores, store_settings
from lastwrite.encoding.compression import Codec
from lastwrite.errors import InvalidConfig, LogError
from lastwrite.kafka.jobs.append import AppendedPart, AppendJob, Stager, clear, commit
from lastwrite.source.options import as_declared
from lastwrite.storage.objects import address

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as _StreamBase
except ImportError:  # PySpark before 4.1
    _StreamBase = object  # type: ignore[assignment, misc]

_TYPES = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
_CODECS = {codec.name.lower(): codec for codec in Codec}
_OPTIONS = {
    "path": "path",
    "topic": "topic",
    "numpartitions": "numPartitions",
    "compression.type": "compression.type",
    "txnappid": "txnAppId",
    "txnversion": "txnVersion",
    "checkpointlocation": "checkpointLocation",
    # an option of the Kafka sink, ignored here: headers are written if there is a column for them
    "includeheaders": "includeHeaders",
}


@dataclass(frozen=True, slots=True)
class _WriteResult(WriterCommitMessage):
    """The files that one task has written."""

    parts: tuple[AppendedPart, ...]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The checked options of a write query."""

    append: AppendJob
    topic: str | None
    number: int
    columns: tuple[str, ...]


def parse_write(
    given: Mapping[str, str], schema: StructType, *, overwrite: bool, is_stream: bool
) -> WriteOptions:
    """Check the options and columns of a write query.

    Raises:
        InvalidConfig: an option or a column is not valid, or the topic was fetched from a cluster.
    """
    options = {name.lower(): value for name, value in given.items()}
    options = {name.removeprefix("kafka."): value for name, value in options.items()}
    unknown = [n for n in options if n not in _OPTIONS and not is_of_stores(n)]
    unknown = [n for n in unknown if f"kafka.{n}" not in map(str.lower, given)]
    if unknown:
        raise InvalidConfig(
            f"unknown option {unknown[0]}", remedy=f"give one of: {', '.join(_OPTIONS.values())}"
        )
    if "path" not in options:
        raise InvalidConfig(
            "no archive is given", remedy='set the archive, as in .save("/backup/kafka")'
        )
    if overwrite:
        raise InvalidConfig("the only supported mode is append", remedy='use .mode("append")')
    columns = _columns(schema, options.get("topic"))
    codec = options.get("compression.type", "none").lower()
    if codec not in _CODECS:
        raise InvalidConfig(
            f"compression.type is {codec!r}", remedy="give one of: " + ", ".join(_CODECS)
        )
    name, number = _named(options, is_stream)
    settings = store_settings(
        as_declared({n: v for n, v in given.items() if is_of_stores(n.lower())})
    )
    address.use(settings)
    append = AppendJob(
        archive=options["path"],
        codec=_CODECS[codec],
        new_partitions=_number(options, "numpartitions", 1, 1),
        stores=settings,
        name=name,
    )
    topic = options.get("topic")
    if topic is not None:
        append.partitions_of(topic)  # an invalid topic then raises an error before any task starts
    return WriteOptions(append, topic, number, columns)


def _columns(schema: StructType, topic: str | None) -> tuple[str, ...]:
    types = {each.name: each.dataType.simpleString() for each in schema.fields}
    if "value" not in types:
        raise InvalidConfig(
            "there is no column value",
            remedy="add a column value, which becomes the records' values",
        )
    if topic is None and "topic" not in types:
        raise InvalidConfig(
            "there is no option topic and no column topic",
            remedy="set the option topic, or add a column topic",
        )
    for name, allowed in _TYPES.items():
        if name in types and types[name] not in allowed:
            raise InvalidConfig(
                f"column {name} is of {types[name]}", remedy=f"cast it to {' or '.join(allowed)}"
            )
    return tuple(name for name in types if name in _TYPES)


def _named(options: Mapping[str, str], is_stream: bool) -> tuple[str, int]:
    """The name and number of this append. They identify a repeated append, which has no effect."""
    name = options.get("txnappid", "")
    if is_stream:
        name = name or options.get("checkpointlocation", "")
        if not name:
            raise InvalidConfig(
                "a stream needs a name, which identifies a repeated micro-batch",
                remedy="set txnAppId to a value that stays the same after each restart, or set "
                "checkpointLocation",
            )
        return name, 0
    if bool(name) != ("txnversion" in options):
        raise InvalidConfig(
            "txnAppId and txnVersion must be set together", remedy="set both or neither"
        )
    return name, _number(options, "txnversion", 0, 0)


def _number(options: Mapping[str, str], name: str, default: int, least: int) -> int:
    text = options.get(name, str(default))
    if not text.isdigit() or int(text) < least:
        raise InvalidConfig(
            f"{_OPTIONS[name]} is {text!r}", remedy=f"give a number of {least} or more"
        )
    return int(text)


class _SourceWriter:
    """Base class of the batch writer and the stream writer."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def _laid_down(self, batches: Iterable[Mapping[str, Sequence[Any]]]) -> _WriteResult:
        """Write batches to files. A batch is a mapping from column name to list of values."""
        stager = Stager(self._options.append)
        try:
            for columns in batches:
                self._add(stager, columns)
            return _WriteResult(tuple(stager.finish()))
        except BaseException:
            stager.abandon()
            raise

    def _add(self, stager: Stager, columns: Mapping[str, Sequence[Any]]) -> None:
        values = columns["value"]
        nothing = [None] * len(values)
        now_ms = time.time_ns() // 1_000_000
        for topic, partition, micros, key, value, headers in zip(
            columns.get("topic", nothing),
            columns.get("partition", nothing),
            columns.get("timestamp", nothing),
            columns.get("key", nothing),
            values,
            columns.get("headers", nothing),
            strict=True,
        ):
            topic = self._options.topic or topic
            if topic is None:
                raise InvalidConfig(
                    "a row has no topic", remedy="fill the column topic, or set the option topic"
                )
            stager.add(
                topic,
                partition,
                now_ms if micros is None else micros // 1000,
                _bytes(key),
                _bytes(value),
                tuple((each["key"].encode(), each["value"]) for each in headers or ()),
            )

    def _commit(self, messages: Sequence[Any], number: int) -> None:
        parts: list[AppendedPart] = []
        for message in messages:
            if not isinstance(message, _WriteResult):
                raise LogError("a task did not report its files", remedy="run the job again")
            parts += message.parts
        commit(self._options.append, parts, number)

    def _abort(self, messages: Sequence[Any]) -> None:
        done = [part for each in messages if isinstance(each, _WriteResult) for part in each.parts]
        append = self._options.append
        clear(append, {part.name: None for part in done})
        clear(append)


def _bytes(content: Any) -> bytes | None:
    return content.encode() if isinstance(content, str) else content


class ArrowWriter(_SourceWriter, DataSourceArrowWriter):
    """The batch writer, for ``df.write``."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._laid_down(_lists(iterator, self._options.columns))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages, self._options.number)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


def _lists(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str]
) -> Iterator[dict[str, list[Any]]]:
    import pyarrow as pa

    for batch in batches:
        found = {}
        for name in columns:
            column = batch.column(batch.schema.get_field_index(name))
            found[name] = (column.cast(pa.int64()) if name == "timestamp" else column).to_pylist()
        yield found


class StreamWriter(_SourceWriter, _StreamBase):
    """The stream writer, for ``df.writeStream``."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._laid_down(_lists(iterator, self._options.columns))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._abort(messages)


def reject_streams_without_arrow() -> None:
    """Check that the installed PySpark can write a stream of Arrow batches to a sink.

    Raises:
        InvalidConfig: this PySpark does not support it.
    """
    if _StreamBase is object:
        raise InvalidConfig(
            "a stream into an archive needs PySpark 4.1 or newer",
            remedy="write each micro-batch with foreachBatch, txnAppId and txnVersion",
        )
