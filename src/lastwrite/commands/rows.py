"""``read`` with a session: the records of a topic as a DataFrame, in the schema of Spark's Kafka
source.

The driver lists the partitions and cuts them into pieces; tasks read the pieces where they lie,
when the DataFrame is evaluated. The session is the caller's; nothing of pyspark is imported here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from lastwrite.commands.systems import KAFKA, system_of
from lastwrite.errors import EnvironmentUnfit, InvalidConfig
from lastwrite.kafka.look.columns import logs_of, read_rows, row_units
from lastwrite.kafka.look.read import Isolation
from lastwrite.spark.use import refuse_workers_without_us

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def rows_frame(
    spark: SparkSession,
    path: str,
    topic: str | None,
    partition: int | None,
    *,
    system: str | None,
    offset: int | None,
    isolation_level: str | None,
    columns: Sequence[str] | None,
) -> DataFrame:
    """The records from ``offset`` on; arguments as ``commands.read``.

    Raises:
        NotALog, InvalidConfig, LogHeld, CorruptLog: while listing.
        EnvironmentUnfit: pyarrow or pandas is missing.
    """
    refuse_without_arrow()
    from lastwrite.rows.arrow import chosen_columns, spark_schema

    if system_of(path, system) != KAFKA:
        raise InvalidConfig(
            "a DataFrame of records is for Kafka", path=path, remedy="leave out spark="
        )
    chosen = chosen_columns(columns)
    isolation = isolation_of(isolation_level)
    units = [
        unit
        for log in logs_of(path, topic, partition)
        for unit in row_units(
            log, chosen, is_committed=isolation is Isolation.COMMITTED, first=offset or 0
        )
    ]
    if not units:
        return spark.createDataFrame([], spark_schema(chosen))
    refuse_workers_without_us(spark)

    def rows_of(places: Iterable[Any]) -> Iterator[Any]:
        for batch in places:
            for place in batch.column(0).to_pylist():
                yield from read_rows(units[place])

    numbers = spark.range(0, len(units), 1, len(units))
    return numbers.mapInArrow(rows_of, spark_schema(chosen))


def refuse_without_arrow() -> None:
    """
    Raises:
        EnvironmentUnfit: pyarrow or pandas, which Spark asks for, is missing.
    """
    for package in ("pyarrow", "pandas"):
        if find_spec(package) is None:
            raise EnvironmentUnfit(
                f"a DataFrame needs {package}",
                remedy="pip install 'lastwrite[frames]', or leave out spark=",
            )


def isolation_of(level: str | None) -> Isolation:
    """
    Raises:
        InvalidConfig: there is no such level.
    """
    if level is not None and level not in list(Isolation):
        raise InvalidConfig(f"isolation level {level!r}", remedy=f"one of: {', '.join(Isolation)}")
    return Isolation(level or Isolation.UNCOMMITTED)
