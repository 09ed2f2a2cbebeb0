"""Tests of fetching a live topic through connections that break after a number of bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

import lastwrite
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.network.cluster import KafkaCluster
from lastwrite.kafka.rules.live_settings import KafkaClientConfig
from lastwrite.reports.fetching import HoldReason
from tests.support.breaking import BreakingProxy
from tests.support.jars import free_ports
from tests.support.kafka.logs import write_segment

NOW_MS = 1_700_000_000_000
_RANDOM = Random(40)


def batch(offset: int, size: int) -> bytes:
    return encode_batch([Record(offset, NOW_MS, b"%d" % offset, _RANDOM.randbytes(size))])


def write_topic(root: Path, name: str, sizes: list[int]) -> bytes:
    """Write a partition with one-record batches of these sizes. Returns its bytes."""
    batches = [batch(n, size) for n, size in enumerate(sizes)]
    write_segment(root / name, 0, batches, mtime_ms=NOW_MS)
    return b"".join(batches)


@contextmanager
def broken(root: Path, state: Path, sizes: list[int]) -> Iterator[str]:
    """A server of the log root, behind connections that break."""
    proxy, where = BreakingProxy(sizes), f"127.0.0.1:{free_ports(1)[0]}"
    with (
        lastwrite.serve(str(root), listen=where, advertise=proxy.address, state=str(state)),
        proxy.before(where),
    ):
        yield f"kafka://{proxy.address}"
        assert proxy.breaks


def stored(archive: Path, name: str) -> bytes:
    topic, _, number = name.rpartition("-")
    folder = archive / "kafka" / topic / number / "data"
    segments = sorted(folder.glob("*/*.log"), key=lambda path: path.name)
    return b"".join(path.read_bytes() for path in segments)


@pytest.mark.parametrize("most", [6_000, 40_000])
def test_fetch_completes_through_broken_connections(tmp_path: Path, most: int) -> None:
    root, archive = tmp_path / "root", tmp_path / "archive"
    written = write_topic(root, "t-0", [3_000] * 60)
    random = Random(1)
    sizes = [random.randint(2_000, most) for _ in range(50)]
    with broken(root, tmp_path / "state", sizes) as url:
        found = lastwrite.fetch(url, str(archive))
    assert (found.exit_status, stored(archive, "t-0") == written) == (0, True)


def test_fetch_keeps_complete_batches_before_a_truncated_one(tmp_path: Path) -> None:
    root, archive = tmp_path / "root", tmp_path / "archive"
    written = write_topic(root, "t-0", [3_000] * 20 + [100_000] + [3_000] * 20)
    write_topic(root, "t-1", [100_000])
    with broken(root, tmp_path / "state", [40_000, 9_000, 30_000]) as url:
        found = lastwrite.fetch(url, str(archive), config={"default.api.timeout.ms": 2_000})
    one, other = found.partitions
    assert (one.first_offset, one.end_offset, one.held) == (0, 20, HoldReason.WAITING)
    assert one.reason is not None and "no record from offset 20 on arrived for" in one.reason
    assert "connections break before the batch at that offset has arrived completely" in one.reason
    assert other.reason is not None and other.end_offset is None
    assert found.exit_status == 1
    assert stored(archive, "t-0") == written[: len(stored(archive, "t-0"))] != b""
    # a second run of the command continues there
    with broken(root, tmp_path / "state", [150_000]) as url:
        again = lastwrite.fetch(url, str(archive))
    assert (again.exit_status, again.partitions[0].first_offset) == (0, 20)
    assert stored(archive, "t-0").endswith(written[-3_000:])


def test_abandoned_partition_shortens_the_patience_until_records_arrive() -> None:
    cluster = KafkaCluster(["127.0.0.1:1"], KafkaClientConfig())
    assert cluster.patience_s == 60
    cluster.note_abandoned()
    assert cluster.patience_s == 2
    cluster.note_records()
    assert cluster.patience_s == 60
