"""The data source as PySpark wants it: one process plans, others read, and what they read travels
by pickle.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)

from lastwrite.commands.rows import last_writes, one_topic
from lastwrite.commands.systems import KAFKA
from lastwrite.errors import InvalidConfig
from lastwrite.rows.decoded import ERROR, DecodedRows
from lastwrite.rows.reading import read_rows
from lastwrite.source.options import SourceOptions, parse
from lastwrite.source.piece import Piece
from lastwrite.source.ranges import listed, span_of, system_at, units_of
from lastwrite.source.stream import stream_reader
from lastwrite.source.write import (
    ArrowWriter,
    StreamWriter,
    parse_write,
    refuse_streams_without_arrow,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """``spark.read.format("lastwrite")``."""

    @classmethod
    def name(cls) -> str:
        return "lastwrite"

    def schema(self) -> str:
        options = parse(dict(self.options), is_stream=None)
        return _rows(options, options.columns).spark_schema

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse(dict(self.options))
        return _Reader(options, _rows_of(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = parse(dict(self.options), is_stream=True)
        if system_at(options.paths).name != KAFKA:
            raise InvalidConfig("a stream is of Kafka's topics", remedy="use table() and follow")
        return stream_reader(options, _rows_of(options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        given = dict(self.options)
        return ArrowWriter(parse_write(given, schema, overwrite=overwrite, is_stream=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        refuse_streams_without_arrow()
        given = dict(self.options)
        return StreamWriter(parse_write(given, schema, overwrite=overwrite, is_stream=True))


class _Reader(DataSourceReader):
    """A query over what lies there when it is planned."""

    def __init__(self, options: SourceOptions, rows: DecodedRows) -> None:
        self._options = options
        self._rows = rows

    def partitions(self) -> Sequence[InputPartition]:
        logs, columns = listed(self._options), self._rows.raw_columns
        if self._options.is_compacted:
            system = system_at(self._options.paths)
            return [Piece(unit) for unit in last_writes(system, logs, columns)]
        spans = [(log, *span_of(log, self._options)) for log in logs]
        return [Piece(unit) for unit in units_of(spans, columns, self._options)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Piece):  # of no partitions Spark makes one that is none
            yield from self._rows.of(read_rows(partition.unit))


def _rows(options: SourceOptions, columns: Sequence[str] | None) -> DecodedRows:
    """What is made of records.

    Raises:
        InvalidConfig: there are no such columns, or no such schemas.
    """

    def topic() -> str:
        if len(options.topics) == 1:
            return options.topics[0]
        return one_topic(log.name.topic for log in listed(options))

    return DecodedRows(options.decoding, columns, topic, options.has_headers)


def _rows_of(options: SourceOptions, schema: StructType) -> DecodedRows:
    """The columns of a schema, which may be the caller's own.

    Raises:
        InvalidConfig: it has others than the source has, or of other types.
    """
    names = [name for name in schema.fieldNames() if name != ERROR]
    rows = _rows(options, options.columns)
    if list(rows.columns) != names:
        rows = _rows(options, names)
    if _plain(schema.simpleString()) != _plain(f"struct<{rows.spark_schema}>"):
        raise InvalidConfig(
            f"the source has other types than {schema.simpleString()}",
            remedy=f"ask for {rows.spark_schema}",
        )
    return rows


def _plain(types: str) -> str:
    """A schema as Spark writes it, less what says no more."""
    return re.sub(r"`([^`]*)`:? ", r"\1:", types).replace(" ", "").lower()


def register(spark: Any) -> None:
    """Make the source known to a session that does not find it by itself."""
    spark.dataSource.register(DefaultSource)
