"""``read`` with a session: a DataFrame of a topic's records, in the schema of Spark's Kafka source.

The driver lists the partitions and divides them into pieces. Tasks read the pieces when the
DataFrame is evaluated. The session belongs to the caller; this module does not import pyspark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from lastwrite.archive.gaps import warn_of
from lastwrite.commands.systems import KAFKA
from lastwrite.commands.table import MEMORY
from lastwrite.decoding.options import DecodingConfig
from lastwrite.errors import CommitConflict, InvalidConfig, missing_extra
from lastwrite.kafka.look.read import Isolation, isolation_of
from lastwrite.model.log import PartitionLog
from lastwrite.rows.last_writes import LastWrites
from lastwrite.rows.reading import RowUnit, read_rows, row_units
from lastwrite.rows.system import RowSystem
from lastwrite.spark.memory import parse_bytes
from lastwrite.spark.use import reject_workers_without_us
from lastwrite.spark.worker import settle

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from lastwrite.rows.decoded import DecodedRows

VIEWS = ("log", "compacted")
# memory in bytes that a task uses for reading; libraries and task data need the other quarter
_MEMORY_BYTES = parse_bytes(MEMORY) * 3 // 4


def rows_frame(
    spark: SparkSession,
    rows: RowSystem,
    where: tuple[str, str | None, int | None, int | None],
    *,
    isolation_level: str | None,
    columns: Sequence[str] | None,
    view: str,
    decoding: DecodingConfig,
    config: Mapping[str, object] | None,
) -> DataFrame:
    """A DataFrame of the records from an offset on, or of the last writes.

    Args:
        where: path, topic, partition and first offset. All arguments are as for ``commands.read``.

    Raises:
        NotALog, InvalidConfig, LogHeld, CorruptLog: while the logs are listed.
        EnvironmentUnfit: pyarrow or pandas is missing.
    """
    reject_without_arrow()
    from lastwrite.rows.decoded import DecodedRows

    path, topic, partition, offset = where
    of_last = is_compacted(view)
    if of_last and (partition is not None or offset is not None):
        raise InvalidConfig(
            "the view compacted always covers a whole topic",
            remedy="leave out the partition and the offset, and filter the DataFrame",
        )
    is_committed = isolation_of(isolation_level) is Isolation.COMMITTED or rows.name != KAFKA
    logs = rows.logs_of(path, topic, partition, is_compacted=of_last, config=config)
    warn_of(logs, set())
    made = DecodedRows(decoding, columns, lambda: one_topic(log.name.topic for log in logs))
    chosen = made.raw_columns
    if of_last:
        units = list(last_writes(rows, logs, chosen))
    else:
        units = [
            unit
            for log in logs
            for unit in row_units(rows, log, chosen, is_committed=is_committed, first=offset or 0)
        ]
    return frame_of(spark, units, made)


def frame_of(spark: SparkSession, units: Sequence[RowUnit], rows: DecodedRows) -> DataFrame:
    """A DataFrame of the units' records, with one task per unit.

    ``rows`` converts records to rows.

    Raises:
        EnvironmentUnfit: pyarrow or pandas is missing.
    """
    reject_without_arrow()
    if not units:
        return spark.createDataFrame([], rows.spark_schema)
    reject_workers_without_us(spark)

    def rows_read(places: Iterable[Any]) -> Iterator[Any]:
        for batch in places:
            for place in batch.column(0).to_pylist():
                yield from rows.of(planned_rows(units[place]))

    numbers = spark.range(0, len(units), 1, len(units))
    return numbers.mapInArrow(rows_read, rows.spark_schema)


def planned_rows(unit: RowUnit) -> Iterator[pa.RecordBatch]:
    """The rows of a unit. The unit's query may have been planned long before this call.

    Raises:
        CommitConflict: after the query was planned, the segment was replaced or deleted. Other
            errors are those of ``read_rows``.
    """
    try:
        yield from read_rows(unit)
        settle()
    except CommitConflict as error:
        remedy = (
            "a compaction or a broker replaced the segment after the query was planned; run "
            "the query again"
        )
        raise CommitConflict(error.problem, error.at, error.path, remedy) from error


def one_topic(names: Iterable[str]) -> str:
    """The single topic whose schemas are used.

    Raises:
        InvalidConfig: there are several topics, or none.
    """
    topics = sorted(set(names))
    if len(topics) != 1:
        raise InvalidConfig(
            f"the path has {len(topics)} topics, but one schema can be used for only one topic: "
            f"{', '.join(topics[:20])}",
            remedy="name one topic, or give a schema with which keys or values are read",
        )
    return topics[0]


def is_compacted(view: str) -> bool:
    """Whether the argument ``view`` selects only last writes.

    Raises:
        InvalidConfig: ``view`` is not in ``VIEWS``.
    """
    if view not in VIEWS:
        raise InvalidConfig(f"{view!r} is not a view", remedy=" or ".join(VIEWS))
    return view == "compacted"


def last_writes(
    system: RowSystem, logs: Iterable[PartitionLog], columns: Sequence[str]
) -> Iterator[RowUnit]:
    """The units to read for the last writes of each topic, without deletes.

    The driver finds the last writes. The tasks read them.

    Raises:
        CorruptLog, CommitConflict, OutOfMemoryBudget: as ``table``.
    """
    by_topic: dict[str, list[PartitionLog]] = {}
    for log in logs:
        by_topic.setdefault(log.name.topic, []).append(log)
    for of_topic in by_topic.values():
        with closing(LastWrites(system, of_topic, _MEMORY_BYTES, has_index=False)) as found:
            yield from found.units(columns)


def reject_without_arrow() -> None:
    """Check that pyarrow and pandas are installed.

    Raises:
        EnvironmentUnfit: pyarrow or pandas, which Spark needs, is missing.
    """
    for package in ("pyarrow", "pandas"):
        if find_spec(package) is None:
            raise missing_extra("a DataFrame", package, "frames", "leave out spark=")
