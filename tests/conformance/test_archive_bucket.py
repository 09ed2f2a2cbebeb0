"""Tests of an archive in a real S3 server, behind a network with faults."""

from __future__ import annotations

from pathlib import Path

import pytest

import lastwrite
from lastwrite.demo.topic_writer import TopicWriter
from lastwrite.model.log import TopicPartition
from lastwrite.spark.inline import INLINE
from tests.archives.commits import commit_under_faults
from tests.support.objects import BUCKET, fault_proxy, s3_server

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_commits_that_were_reported_are_in_the_bucket(tmp_path: Path) -> None:
    with s3_server(tmp_path / "data") as server, fault_proxy(server.endpoint) as proxy:
        met = commit_under_faults(server, proxy, "kafka/orders/0", 15)
    assert met["requests spoilt"] > 60
    assert met["won"] == 60


@pytest.mark.parametrize("topics", [1, 40])
def test_round_on_small_partitions_needs_at_most_seven_requests_each(
    tmp_path: Path, topics: int
) -> None:
    """Reading the manifest takes 1 request a partition, scan and rewrite 2, the commit 3.

    The commit writes the journal, the segment and the manifest. The remaining requests are for the
    whole archive: one listing finds all partitions of all topics.
    """
    partitions = 40
    for n in range(partitions):
        name = TopicPartition(f"t{n % topics}", n // topics)
        with TopicWriter(str(tmp_path / "root"), name) as log:
            for i in range(40):
                log.append(b"key-%d" % (i % 10), b"v" * 20, 1_700_000_000_000 + i)
    with s3_server(tmp_path / "data") as server, fault_proxy(server.endpoint) as proxy:
        address = f"s3://{BUCKET}/many"
        config = {"storage.endpoint": proxy.endpoint, "storage.allowHttp": "true"}
        lastwrite.fetch([str(tmp_path / "root")], address, config=config, include_active=True)
        config |= {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        for each, other in ((6, 9), (1, 8)):
            proxy.spoil()
            report = lastwrite.compact(address, config=config, spark=INLINE)
            assert report.exit_status == 0 and report.requests is not None
            asked = report.requests
            total = asked.gets + asked.puts + asked.lists + asked.deletes
            assert total == each * partitions + other <= 7 * partitions
            assert total == len(proxy.requests(total))
        assert report.to_dict()["totals"]["cleaned"] == 0
