"""A Spark job that compacts one topic of an archive: compact.py ARCHIVE TOPIC MEMORY.

Tested: ``spark-submit --master local[1]``, Spark 4.3.0. Not tested: a cluster, a bucket.
The region and the credentials of a bucket are found in the environment, such as ``AWS_REGION``.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

import lastwrite


def main() -> int:
    archive, topic, memory = sys.argv[1:]
    spark = SparkSession.builder.appName(f"lastwrite {topic}").getOrCreate()
    try:
        report = lastwrite.compact(archive, topic=topic, memory=memory, spark=spark)
    finally:
        spark.stop()
    print(json.dumps(report.to_dict()))  # noqa: T201
    return report.exit_status


if __name__ == "__main__":
    sys.exit(main())
