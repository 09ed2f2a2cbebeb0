"""The data source as classes of PySpark's API.

One process plans a query and pickles the plan. Other processes read the records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)

from lastwrite.archive.gaps import warn_of
from lastwrite.commands.rows import last_writes, one_topic, planned_rows
from lastwrite.commands.systems import KAFKA
from lastwrite.errors import InvalidConfig
from lastwrite.rows.decoded import ERROR, DecodedRows
from lastwrite.source.filters import RowFilter, narrowed_by
from lastwrite.source.options import SourceOptions, parse
from lastwrite.source.piece import SourcePartition
from lastwrite.source.ranges import listed, span_of, system_at, units_of, use_stores
from lastwrite.source.short_errors import rows_with_short_errors, with_short_errors
from lastwrite.source.stream import stream_reader
from lastwrite.source.write import (
    ArrowWriter,
    StreamWriter,
    parse_write,
    reject_streams_without_arrow,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """Spark's data source ``lastwrite``: creates the readers and writers."""

    @classmethod
    def name(cls) -> str:
        return "lastwrite"

    @with_short_errors
    def schema(self) -> str:
        options = parse(dict(self.options), is_stream=None)
        return _rows(options, options.columns).spark_schema

    @with_short_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse(dict(self.options))
        if options.takes_filters and not hasattr(DataSourceReader, "pushFilters"):
            raise InvalidConfig(
                "pushdown needs PySpark 4.1 or newer", remedy="leave out the option pushdown"
            )
        # If Spark's setting for filter pushdown is off, Spark raises an error for a reader that has
        # pushFilters. So this reader is used only with the option pushdown.
        kind = _FilteringReader if options.takes_filters else _BatchReader
        return kind(options, _rows_of(options, schema))

    @with_short_errors
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = parse(dict(self.options), is_stream=True)
        use_stores(options)
        if system_at(options.paths).name != KAFKA:
            raise InvalidConfig(
                "only Kafka's topics can be read as a stream", remedy="use table() and follow"
            )
        return stream_reader(options, _rows_of(options, schema))

    @with_short_errors
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        given = dict(self.options)
        return ArrowWriter(parse_write(given, schema, overwrite=overwrite, is_stream=False))

    @with_short_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        reject_streams_without_arrow()
        given = dict(self.options)
        return StreamWriter(parse_write(given, schema, overwrite=overwrite, is_stream=True))


class _BatchReader(DataSourceReader):
    """The reader of a batch query. It reads the records that exist when the query is planned."""

    def __init__(self, options: SourceOptions, rows: DecodedRows) -> None:
        self._options = options
        self._rows = rows
        self._narrowed = RowFilter()

    @with_short_errors
    def partitions(self) -> Sequence[InputPartition]:
        options, columns, narrowed = self._options, self._rows.raw_columns, self._narrowed
        logs = listed(options)
        warn_of(logs, set())
        if options.is_compacted:
            # Last writes are elected before filters apply, so filters do not change them.
            units = last_writes(system_at(options.paths), logs, columns)
        else:
            spans = [(log, *span_of(log, options)) for log in logs]
            spans = [(log, *narrowed.span(log.name, first, end)) for log, first, end in spans]
            units = iter(units_of(spans, columns, options))
        return [SourcePartition(unit) for unit in narrowed.of(units)]

    @rows_with_short_errors
    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, SourcePartition):  # Spark passes None if there are no partitions
            yield from self._rows.of(planned_rows(partition.unit))


class _FilteringReader(_BatchReader):
    """The reader of a batch query that uses the query's filters.

    Spark applies the filters again.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._narrowed = narrowed_by(filters)
        return filters


def _rows(options: SourceOptions, columns: Sequence[str] | None) -> DecodedRows:
    """The decoder that converts records to the columns of a query.

    Raises:
        InvalidConfig: a column or a schema does not exist.
    """

    def topic() -> str:
        if len(options.topics) == 1:
            return options.topics[0]
        return one_topic(log.name.topic for log in listed(options))

    return DecodedRows(options.decoding, columns, topic, options.has_headers)


def _rows_of(options: SourceOptions, schema: StructType) -> DecodedRows:
    """The decoder that converts records to the columns of ``schema``, which may be the user's.

    Raises:
        InvalidConfig: the source lacks a column, or has it with another type.
    """
    names = [name for name in schema.fieldNames() if name != ERROR]
    rows = _rows(options, options.columns)
    if list(rows.columns) != names:
        rows = _rows(options, names)
    if _plain(schema.simpleString()) != _plain(f"struct<{rows.spark_schema}>"):
        raise InvalidConfig(
            f"the given schema {schema.simpleString()} does not match the source's columns",
            remedy=f"use the schema {rows.spark_schema}",
        )
    return rows


def _plain(types: str) -> str:
    """A schema's text for comparison: in lower case, without quotes and spaces."""
    return re.sub(r"`([^`]*)`:? ", r"\1:", types).replace(" ", "").lower()


def register(spark: Any) -> None:
    """Register the data source in a Spark session that has not done so automatically."""
    spark.dataSource.register(DefaultSource)
