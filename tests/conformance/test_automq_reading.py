"""Tests of buckets of a real AutoMQ, against the consumer of its broker."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.kafka.look.read import Isolation, KafkaReading
from lastwrite.kafka.store import automq
from lastwrite.kafka.store.log_dir import read_partition
from lastwrite.kafka.store.partitions import find_partitions
from lastwrite.storage.objects.folder import FolderStore
from tests.support.kafka.automq_stages import LEVELS, STAGES, Stage, unpack_stage


@pytest.fixture(scope="module", params=STAGES)
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return unpack_stage(request.param, tmp_path_factory.mktemp("automq"))


def consumed(rows: Any) -> Iterator[dict[str, Any]]:
    """The fields of ``read`` that a consumer has."""
    for row in rows:
        yield {
            "offset": row["offset"],
            "timestamp": row["timestamp"],
            "timestamp_type": "create" if row["timestamp_type"] == "CreateTime" else "append",
            "key": row["key"],
            "value": row["value"],
            "headers": row["headers"],
            "leader_epoch": row["leader_epoch"],
        }


@pytest.mark.parametrize("level", LEVELS)
def test_reading_a_bucket_gives_what_a_consumer_got(stage: Stage, level: str) -> None:
    source = stage.source
    for topic, number in stage.names():
        reading = lastwrite.read(
            str(stage.bucket), topic, queue=number, isolation_level=level, **source
        )
        source = {"system": "kafka"}  # the bucket's partitions are located now
        assert [*consumed(reading)] == stage.expected(topic, number, level)
        end, wanted = reading.summary(), stage.partitions[f"{topic}-{number}"]
        assert end["log_start_offset"] == wanted["beginning"]
        assert end["high_watermark"] == wanted["end_read_uncommitted"]
        assert end["last_stable_offset"] == wanted["end_read_committed"]


def first_reading(folder: Path, topic: str) -> list[KafkaReading]:
    """Readings of all partitions of a topic, from one look at the bucket."""
    automq.locate(str(folder / "bucket"), str(folder / "__cluster_metadata-0"))
    return [
        KafkaReading(read_partition(found), Isolation.UNCOMMITTED, None, None, None)
        for found in find_partitions(str(folder / "bucket"), topic)
    ]


class ChangingBucket:
    """A bucket that has the objects and the metadata log of a later stage from request ``at`` on.

    A cluster deletes the objects that it has replaced.
    """

    def __init__(self, before: Stage, after: Stage, at: int, folder: Path) -> None:
        self.folder, self._before, self._after, self._at = folder, before, after, at
        self.requests = 0
        self._hold(before)

    def _hold(self, stage: Stage) -> None:
        for name in ("bucket", "__cluster_metadata-0"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            shutil.copytree(stage.folder / name, self.folder / name)

    def request(self) -> None:
        """Count a request, before it is answered."""
        self.requests += 1
        if self.requests == self._at:
            self._hold(self._after)

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """Answer the requests to folders of this process from this bucket."""
        for name in ("head", "get", "read_into", "list"):
            answer = getattr(FolderStore, name)

            def counted(*given: Any, _answer: Any = answer, **named: Any) -> Any:
                self.request()
                return _answer(*given, **named)

            patch.setattr(FolderStore, name, counted)


@pytest.mark.parametrize("topic", ["orders", "plain"])
def test_objects_exchanged_between_requests_give_a_state_that_existed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    before, after = (unpack_stage(name, tmp_path) for name in ("stage3-live", "stage4"))
    numbers = [number for each, number in before.names() if each == topic]
    states = [
        [each.expected(topic, number, LEVELS[0]) for number in numbers] for each in (before, after)
    ]
    seen = set()
    at, requests = 1, 2
    while at < requests:
        with monkeypatch.context() as patch:
            bucket = ChangingBucket(before, after, at, tmp_path / "changing")
            bucket.patch(patch)
            found = [[*consumed(each)] for each in first_reading(bucket.folder, topic)]
            requests = bucket.requests
        for number, rows in zip(numbers, found, strict=True):
            assert rows in (states[0][number], states[1][number]), at
        seen.add(found == states[1])
        at += max(1, requests // 12)
    assert seen == {True, False}
