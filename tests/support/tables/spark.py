"""Reads tables with Spark and with Iceberg's and Delta's own jars, in another process.

PySpark and the jars are in a folder of their own.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from deltalake import DeltaTable

from tests.support.jars import fetch_jars
from tests.support.kafka.spark_source import environment_of, pyspark_at
from tests.support.tables.judges import iceberg_table

PYSPARK = "4.1.4"  # the newest version that both formats have jars for
DELTA, ICEBERG = "4.4.0", "1.12.0"  # with Delta's 4.1.0 this Spark cannot read a checkpoint
JARS = f"jars-{DELTA}-{ICEBERG}"
SETTINGS = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions,"
    "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_FOR_SMALL_TABLES = {  # for tables of some hundred rows, not for timed comparisons
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.memory": "3g",  # keeps thousands of queries, and shows none of their plans
    "spark.ui.enabled": "false",
    "spark.sql.ui.retainedExecutions": "1",
    "spark.ui.retainedJobs": "1",
    "spark.ui.retainedStages": "1",
}
POM = Path(__file__).with_name("spark-pom.xml")


def spark_home() -> Path:
    """The folder with an importable PySpark and the jars. Fetched on first use (500 MB).

    Raises:
        Unavailable: It cannot be fetched.
    """
    home = Path.home() / ".cache" / "lastwrite" / f"pyspark-{PYSPARK}"
    marker = f"delta-spark_4.1_2.13-{DELTA}.jar"
    versions = f"-Ddelta={DELTA}", f"-Diceberg={ICEBERG}"
    fetch_jars(home / JARS, "Iceberg and Delta", POM, marker, *versions)
    pyspark_at(home, PYSPARK)
    return home


def kafka_jars() -> Path:
    """The folder with the jars of Spark's Kafka source for that PySpark.

    Fetched on first use (6 MB).

    Raises:
        Unavailable: They cannot be fetched.
    """
    home = spark_home() / "jars-kafka"
    pom = POM.with_name("spark-kafka-pom.xml")
    fetch_jars(home, "Kafka source of Spark", pom, "spark-sql-kafka-0-10_2.13-4.1.1.jar")
    return home


def spark_environment(*more_jars: Path) -> dict[str, str]:
    """The environment of a process with that PySpark, Iceberg's, Delta's and more jars.

    Raises:
        Unavailable: They cannot be fetched.
    """
    home = spark_home()
    return environment_of(home, home / JARS, *more_jars)


class State(NamedTuple):
    """A table at one of its commits."""

    format: str
    place: str  # Iceberg's metadata file, or Delta's folder
    version: int | None  # Delta's version; None for Iceberg

    @classmethod
    def of(cls, format: str, to: Path) -> State:
        """The table's current state."""
        if format == "iceberg":
            return cls(format, iceberg_table(to).metadata_location, None)
        return cls(format, str(to), DeltaTable(str(to)).version())


class SparkReader:
    """The process that runs Spark. It ends with the context."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=spark_environment(),
            text=True,
        )
        return self

    def read(self, states: Sequence[State]) -> Iterator[dict[bytes, bytes]]:
        """The keys and values of each state, read in one query.

        Raises:
            AssertionError: The query failed, or returned a key twice.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(states) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(("[", '"')):
                found = json.loads(line)
                break
        else:
            raise AssertionError("Spark has ended")
        assert not isinstance(found, str), found
        rows: list[list[tuple[bytes, bytes]]] = [[] for _ in states]
        for which, key, value in found:
            rows[int(which)].append((base64.b64decode(key), base64.b64decode(value)))
        for state, pairs in zip(states, rows, strict=True):
            assert len(dict(pairs)) == len(pairs), f"Spark finds a key twice in {state}"
            yield dict(pairs)

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def main() -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import base64 as coded
    from pyspark.sql.functions import lit

    spark: Any = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", os.environ["SPARK_PEER_JARS"])
        .config("spark.ui.enabled", "false")
        .config(map={**SETTINGS, **_FOR_SMALL_TABLES})
        .getOrCreate()
    )
    for line in sys.stdin:
        try:
            tables = [
                spark.read.format(format)
                .options(**({} if version is None else {"versionAsOf": version}))
                .load(to)
                # as text: Spark would compile a number into the generated code
                .select(lit(str(number)), coded("key"), coded("value"))
                for number, (format, to, version) in enumerate(json.loads(line))
            ]
            found = functools.reduce(lambda one, other: one.union(other), tables)
            print(json.dumps([list(row) for row in found.collect()]), flush=True)
        except Exception as error:
            print(json.dumps(f"{type(error).__name__}: {error}"[:2000]), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
