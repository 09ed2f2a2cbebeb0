"""The data source as PySpark wants it: one process plans, others read, and what they read travels
by pickle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from lastwrite.commands.rows import last_writes
from lastwrite.config.stores import store_settings
from lastwrite.errors import InvalidConfig
from lastwrite.kafka.look.columns import PIECE_BYTES, RowUnit, logs_of, read_rows, row_units
from lastwrite.kafka.look.read import Isolation
from lastwrite.rows.arrow import arrow_schema, chosen_columns, spark_schema
from lastwrite.source.options import SourceOptions, parse
from lastwrite.source.ranges import chosen_logs, piece_bytes, span_of
from lastwrite.storage.objects import address

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class _Piece(InputPartition):
    """What one task reads."""

    def __init__(self, unit: RowUnit) -> None:
        super().__init__(None)
        self.unit = unit


class DefaultSource(DataSource):
    """``spark.read.format("lastwrite")``."""

    @classmethod
    def name(cls) -> str:
        return "lastwrite"

    def schema(self) -> str:
        options = parse(dict(self.options))
        return spark_schema(chosen_columns(options.columns, options.has_headers))

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(parse(dict(self.options)), _columns_of(schema))


class _Reader(DataSourceReader):
    """A query over what lies there when it is planned."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        address.use(store_settings(options.stores))
        logs = chosen_logs((log for path in options.paths for log in logs_of(path)), options)
        if options.is_compacted:
            return [_Piece(unit) for unit in last_writes(logs, self._columns)]
        size = piece_bytes(logs, options, PIECE_BYTES)
        pieces = []
        for log in logs:
            first, end = span_of(log, options)
            pieces += row_units(
                log,
                self._columns,
                is_committed=options.isolation is Isolation.COMMITTED,
                first=first,
                end=end,
                piece_bytes=size,
            )
        return [_Piece(unit) for unit in pieces]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, _Piece):  # of no partitions Spark makes one that is none
            yield from read_rows(partition.unit)


def _columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema, which may be the caller's own.

    Raises:
        InvalidConfig: it has others than the source has, or of other types.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    columns = chosen_columns(schema.fieldNames())
    if not to_arrow_schema(schema, timezone="UTC").equals(arrow_schema(columns)):
        raise InvalidConfig(
            f"the source has other types than {schema.simpleString()}",
            remedy=f"ask for {spark_schema(columns)}",
        )
    return columns


def register(spark: Any) -> None:
    """Make the source known to a session that does not find it by itself."""
    spark.dataSource.register(DefaultSource)
