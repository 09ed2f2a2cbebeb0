"""Where work runs: in this process, on the caller's Spark session, or on one of our own.

The rule, by which a command takes its runner from ``spark.use.runner_for``:

1. What the caller gives decides: a session of theirs, or ``INLINE``, which says none.
2. Else work that changes nothing, of fewer bytes than Spark's start is worth, runs in this process:
   ``place_of`` says so. A command that only looks names no bytes, and never starts Spark.
3. All other work runs on Spark. So does all that changes a log, however small it is: a worker that
   dies is replaced, and the driver lives on to clear up. Where only
   expired segments go there is no such work: the daemon then starts no Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Inline:
    """Stands where a Spark session is asked for and says: none."""

    def __repr__(self) -> str:
        return "INLINE"


INLINE = Inline()


def place_of(
    given: SparkSession | Inline | None, work_bytes: int = 0, spark_from_bytes: int = 1
) -> SparkSession | Inline | None:
    """Where work runs that goes over ``work_bytes``; None: on a session of our own.

    ``given`` is what the caller says. ``spark_from_bytes``: from so many on it takes longer than to
    start Spark.
    """
    if given is not None:
        return given
    return INLINE if work_bytes < spark_from_bytes else None
