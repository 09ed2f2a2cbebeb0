"""Tests of the data source under Spark Connect, whose clients have no SparkContext.

They cover batch, compacted view, stream, writing and ``read``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.long]
for package in ("grpc_status", "google.rpc"):
    pytest.importorskip(package, reason="pip install 'pyspark[connect]'")
pytest.importorskip("pyspark.sql.datasource", reason="Python data sources came with PySpark 4")

CORPUS = Path(__file__).parents[1] / "corpus" / "kafka-4.4.0" / "stopped"

# In a process of its own, because a process has either kind of session.
CODE = """
import sys
import lastwrite
from pyspark.sql import SparkSession
corpus, work = sys.argv[1:]
archive, topic = work + "/archive", "client-zstd"
spark = SparkSession.builder.remote("local[2]").getOrCreate()
assert not hasattr(spark, "sparkContext")

def differ(one, other):
    return one.exceptAll(other).count() or other.exceptAll(one).count()

def load(path, topic, **options):
    return spark.read.format("lastwrite").option("subscribe", topic).options(**options).load(path)

whole = load(corpus, topic)
assert whole.count() == 60
assert not differ(lastwrite.read(corpus, topic, spark=spark), whole)
expected = lastwrite.latest(corpus, topic)
for last in (
    load(corpus, topic, view="compacted"),
    lastwrite.read(corpus, topic, spark=spark, view="compacted"),
):
    assert {bytes(row.key): bytes(row.value) for row in last.collect()} == expected

whole.write.format("lastwrite").mode("append").option("topic", "copy").save(archive)
some = ["key", "value", "timestamp"]
assert not differ(load(archive, "copy").select(some), whole.select(some))

stream = spark.readStream.format("lastwrite").option("subscribe", "copy")
stream = stream.option("startingOffsets", "earliest").load(archive).writeStream.format("lastwrite")
stream = stream.option("topic", "again").option("path", archive)
stream = stream.option("checkpointLocation", work + "/checkpoint")
for _ in range(2):  # the second brings nothing
    query = stream.trigger(availableNow=True).start()
    query.awaitTermination()
    assert query.exception() is None
assert not differ(load(archive, "again").select(some), whole.select(some))
spark.stop()
print("well")
"""


def test_all_functions_work_under_spark_connect(tmp_path: Path) -> None:
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(CORPUS), str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=1200,
    )
    assert done.returncode == 0 and done.stdout.endswith("well\n"), done.stderr[-5000:]
