"""Chooses where work runs: in this process, on the caller's Spark session, or on a new session.

A command gets its runner from ``spark.use.runner_for``, by this rule:

1. The caller decides, by passing a session or ``INLINE``, which means no Spark.
2. Otherwise, work that changes nothing runs in this process if it takes less time than the start of
   Spark (``choose_spark``). A command that only reads passes no bytes, and never starts Spark.
3. All other work runs on Spark, including every change to a log, however small. If a worker dies,
   Spark replaces it, and the driver survives and can clean up. Deleting expired segments is not
   such work, so the daemon starts no Spark for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Inline:
    """The type of ``INLINE``, which callers pass instead of a Spark session to use no Spark."""

    def __repr__(self) -> str:
        return "INLINE"


INLINE = Inline()


def choose_spark(
    given: SparkSession | Inline | None, work_bytes: int = 0, spark_from_bytes: int = 1
) -> SparkSession | Inline | None:
    """The session for work that reads ``work_bytes``, or ``INLINE`` to run it in this process.

    None means a new session.

    ``given`` is the caller's choice. From ``spark_from_bytes`` on, the work takes longer than the
    start of Spark.
    """
    if given is not None:
        return given
    return INLINE if work_bytes < spark_from_bytes else None
