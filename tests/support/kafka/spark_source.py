"""Spark's own Kafka source, with an older PySpark, and a program that compares Lastwrite's with it.

python -m tests.support.kafka.spark_source BROKER DATA
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.jars import Unavailable, alone, fetch_jars

PYSPARK, SOURCE = "4.0.5", "4.0.1"  # the newest version of which Maven has all parts
POM = Path(__file__).with_name("spark-source-pom.xml")
LEVELS = ("read_uncommitted", "read_committed")


def peer_home() -> Path:
    """The folder with an importable PySpark and ``jars/lib``. Fetched on first use (430 MB).

    ``LASTWRITE_SPARK_PEER_HOME`` names it. The default is ``~/.cache/lastwrite/pyspark-<version>``.

    Raises:
        Unavailable: It cannot be fetched.
    """
    default = Path.home() / ".cache" / "lastwrite" / f"pyspark-{PYSPARK}"
    home = Path(os.environ.get("LASTWRITE_SPARK_PEER_HOME") or default)
    fetch_jars(
        home / "jars", "Kafka source of Spark", POM, f"spark-sql-kafka-0-10_2.13-{SOURCE}.jar"
    )
    pyspark_at(home, PYSPARK)
    return home


def pyspark_at(home: Path, version: str) -> None:
    """Install that PySpark in the folder, unless it is there.

    Raises:
        Unavailable: It cannot be fetched.
    """
    with alone(home):
        if not (home / f"pyspark-{version}.dist-info").exists():
            pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(home)]
            done = subprocess.run(
                [*pip, f"pyspark=={version}"], capture_output=True, text=True, timeout=900
            )
            if done.returncode:
                raise Unavailable(f"no PySpark {version}: {done.stderr[-500:]}")


def environment_of(home: Path, *jars: Path) -> dict[str, str]:
    """The environment variables of a process with the PySpark in ``home`` and the folders' jars."""
    found = [str(jar) for folder in jars for jar in sorted((folder / "lib").glob("*.jar"))]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(home), str(Path(__file__).parents[3])]),
        "SPARK_PEER_JARS": ",".join(found),
        "PYSPARK_PYTHON": sys.executable,
    }
    environment.pop("SPARK_HOME", None)
    return environment


def differences(home: Path, broker: str, data: Path) -> dict[str, list[int]]:
    """By isolation level: the row count, and the rows that only Spark or Lastwrite has."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, broker, str(data)],
        capture_output=True,
        text=True,
        timeout=1800,
        env=environment_of(home, home / "jars"),
    )
    if done.returncode:
        raise RuntimeError(f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}")
    found: dict[str, list[int]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(broker: str, data: str) -> None:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", os.environ["SPARK_PEER_JARS"])
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "Asia/Kolkata")
        .getOrCreate()
    )
    found = {}
    for level in LEVELS:
        asked = {
            "subscribePattern": "peer-",
            "includeHeaders": "true",
            "kafka.isolation.level": level,
            "kafka.bootstrap.servers": broker,
            "startingOffsets": "earliest",
        }
        theirs = spark.read.format("kafka").options(**asked).load()
        # A job switches to Lastwrite by another format and a path.
        ours = spark.read.format("lastwrite").options(**asked).load(data)
        assert ours.schema == theirs.schema, (ours.schema, theirs.schema)
        theirs, ours = theirs.cache(), ours.cache()
        found[level] = [
            theirs.count(),
            theirs.exceptAll(ours).count(),
            ours.exceptAll(theirs).count(),
        ]
        if any(found[level][1:]):
            theirs.exceptAll(ours).show(5, False)
            ours.exceptAll(theirs).show(5, False)
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
