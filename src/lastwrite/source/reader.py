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

from lastwrite.commands.rows import last_writes
from lastwrite.commands.systems import KAFKA
from lastwrite.errors import InvalidConfig
from lastwrite.rows.arrow import chosen_columns, spark_schema
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
        return spark_schema(chosen_columns(options.columns, options.has_headers))

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(parse(dict(self.options)), _columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = parse(dict(self.options), is_stream=True)
        if system_at(options.paths).name != KAFKA:
            raise InvalidConfig("a stream is of Kafka's topics", remedy="use table() and follow")
        return stream_reader(options, _columns_of(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        given = dict(self.options)
        return ArrowWriter(parse_write(given, schema, overwrite=overwrite, is_stream=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        refuse_streams_without_arrow()
        given = dict(self.options)
        return StreamWriter(parse_write(given, schema, overwrite=overwrite, is_stream=True))


class _Reader(DataSourceReader):
    """A query over what lies there when it is planned."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        logs = listed(self._options)
        if self._options.is_compacted:
            system = system_at(self._options.paths)
            return [Piece(unit) for unit in last_writes(system, logs, self._columns)]
        spans = [(log, *span_of(log, self._options)) for log in logs]
        return [Piece(unit) for unit in units_of(spans, self._columns, self._options)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Piece):  # of no partitions Spark makes one that is none
            yield from read_rows(partition.unit)


def _columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema, which may be the caller's own.

    Raises:
        InvalidConfig: it has others than the source has, or of other types.
    """
    columns = chosen_columns(schema.fieldNames())
    if _plain(schema.simpleString()) != _plain(f"struct<{spark_schema(columns)}>"):
        raise InvalidConfig(
            f"the source has other types than {schema.simpleString()}",
            remedy=f"ask for {spark_schema(columns)}",
        )
    return columns


def _plain(types: str) -> str:
    """A schema as Spark writes it, less what says no more."""
    return re.sub(r"`(\w+)` ", r"\1:", types).replace(" ", "").lower()


def register(spark: Any) -> None:
    """Make the source known to a session that does not find it by itself."""
    spark.dataSource.register(DefaultSource)
