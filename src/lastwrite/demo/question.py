"""The end of the demo: a SQL query on the compacted topic as a Spark table."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from lastwrite.demo.topic import TOPIC
from lastwrite.model.progress import Progress
from lastwrite.reports.document import FrozenDocument
from lastwrite.spark.use import sql_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# pyspark.sql.datasource exists since Spark 4
NEEDS = ("pyarrow", "pandas", "pyspark.sql.datasource")
REMEDY = "pip install 'lastwrite[frames]' 'pyspark>=4'"
_SQL = """\
SELECT if(contains(key, '/'), split_part(key, '/', 1), '.') AS folder, count(*) AS files,
       date(max(timestamp)) AS last_write, sum(count(*)) OVER () AS of
FROM topic GROUP BY folder ORDER BY files DESC, folder LIMIT 5"""


class DemoAnswer(FrozenDocument, frozen=True):
    """The result of the SQL query: the five folders of the topic with the most files."""

    sql: str
    files: int  # number of files of the topic
    folders: list[str]
    folder_files: list[int]  # number of files in each of ``folders``
    last_writes: list[str]  # last write in each of ``folders``: days in the session's time zone


def can_ask() -> bool:
    """Whether the packages that Spark's data source needs are installed."""
    try:
        return all(find_spec(name) is not None for name in NEEDS)
    except ImportError:
        return False


def ask(
    root: str, spark: SparkSession | None, master: str, conf: Mapping[str, str], progress: Progress
) -> DemoAnswer:
    """Query the last writes of the topic below ``root``, as ``format("lastwrite")`` returns them.

    Raises:
        EnvironmentUnfit: Spark does not start.
    """
    with sql_session(spark, master, conf, progress) as session:
        topic = (
            session.read.format("lastwrite")
            .options(subscribe=TOPIC.topic, view="compacted", keyFormat="utf8", onBad="null")
            .load(root)
        )
        topic.createOrReplaceTempView("topic")
        rows: list[Any] = session.sql(_SQL).collect()
        session.catalog.dropTempView("topic")
    return DemoAnswer(
        sql=_SQL,
        files=int(rows[0]["of"]) if rows else 0,
        folders=[str(row["folder"]) for row in rows],
        folder_files=[int(row["files"]) for row in rows],
        last_writes=[str(row["last_write"]) for row in rows],
    )
