"""The end of the demo: a SQL query on the compacted topic as a Spark table."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

import lastwrite
from lastwrite.demo.demo_topic import DemoTopic
from lastwrite.model.progress import Progress
from lastwrite.reports.document import FrozenDocument
from lastwrite.spark.use import sql_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# pyspark.sql.datasource exists since Spark 4
NEEDS = ("pyarrow", "pandas", "pyspark.sql.datasource")
REMEDY = "pip install 'lastwrite[frames]' 'pyspark>=4'"


class DemoAnswer(FrozenDocument, frozen=True):
    """The answer to the demo's SQL query: the five largest groups of live keys.

    The groups are the folders of a git history, or the states of the sample's orders.
    """

    sql: str
    columns: list[str]  # names of the three columns: group, number of live keys, last write
    files: int  # number of live keys of the topic
    folders: list[str]  # names of the groups
    folder_files: list[int]  # number of live keys in each of ``folders``
    last_writes: list[str]  # last write in each of ``folders``: days in the session's time zone


def can_query() -> bool:
    """Whether the packages that Spark's data source needs are installed."""
    try:
        return all(find_spec(name) is not None for name in NEEDS)
    except ImportError:
        return False


def run_query(
    asked: DemoTopic,
    root: str,
    spark: SparkSession | None,
    master: str,
    conf: Mapping[str, str],
    progress: Progress,
) -> DemoAnswer:
    """Query the last writes of the topic below ``root``, as ``lastwrite.read`` returns them.

    Raises:
        EnvironmentUnfit: Spark does not start.
    """
    with sql_session(spark, master, conf, progress) as session:
        topic = lastwrite.read(
            root,
            asked.name.topic,
            spark=session,
            view="compacted",
            key_format="utf8",
            value_format="utf8",
            on_bad="null",
        )
        topic.createOrReplaceTempView("topic")
        found = session.sql(asked.sql)
        columns, rows = found.columns[:3], found.collect()
        session.catalog.dropTempView("topic")
    return DemoAnswer(
        sql=asked.sql,
        columns=columns,
        files=int(rows[0]["of"]) if rows else 0,
        folders=[str(row[0]) for row in rows],
        folder_files=[int(row[1]) for row in rows],
        last_writes=[str(row[2]) for row in rows],
    )
