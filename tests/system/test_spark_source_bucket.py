"""``format("lastwrite")`` over an archive in a real S3 server."""

from __future__ import annotations

from pathlib import Path

import pytest

import lastwrite
from lastwrite.spark.session import spark_session
from tests.support.objects import BUCKET, s3_server
from tests.system.test_spark_source import CORPUS, LEVELS, consumed, load, rows

pytestmark = [pytest.mark.spark, pytest.mark.broker]
TOPIC = "transactional"


def test_an_archive_in_a_bucket(tmp_path: Path) -> None:
    with s3_server(tmp_path / "s3", BUCKET) as s3:
        address = f"s3://{BUCKET}/a"
        lastwrite.fetch([str(CORPUS)], address, topic=TOPIC, include_active=True, config=s3.config)
        options = {name.replace(".", "__"): value for name, value in s3.config.items()}
        with spark_session("local[2]", {}) as spark:
            for level in LEVELS:
                asked = {"includeHeaders": "true", "kafka__isolation__level": level, **options}
                found = load(spark, path=address, subscribe=TOPIC, **asked)
                assert rows(found) == consumed(TOPIC, level)
            frame = lastwrite.read(address, TOPIC, spark=spark, config=s3.config)
            assert frame.count() == len(consumed(TOPIC, LEVELS[0]))
