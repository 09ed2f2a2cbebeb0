"""Tests of ``table`` and ``follow`` beside real brokers: the followed table equals a consumer's.

The sources are a log directory beside its broker's cleaner, and an archive that is fetched and
compacted in turn.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.errors import CommitConflict
from lastwrite.spark.inline import INLINE
from tests.support.kafka.broker import Broker
from tests.support.kafka.clients import consume, create_topic
from tests.support.kafka.trio import wait_for
from tests.system.test_kafka_live import one
from tests.system.test_kafka_live_cleaner import CLEANED, Writer, broker, was_cleaned

pytest.importorskip("kio")
pytest.importorskip("pyarrow", reason="pip install 'lastwrite[frames]'")
pytestmark = [pytest.mark.broker, pytest.mark.long]
__all__ = ["broker"]  # a fixture, imported for this module's tests

ANEW = "create the table again"


class Follower:
    """A table, and a map that is built only from its changes."""

    def __init__(self, path: Path) -> None:
        self.path, self.made, self.looks, self.conflicts = path, 0, 0, 0
        self._begin()

    def _begin(self) -> None:
        while True:
            self.made += 1
            self.table = lastwrite.table(str(self.path), "kept")
            try:
                self.state = dict(self.table.items())
                return
            except CommitConflict:  # the cleaner replaced the segments meanwhile
                self.table.close()

    def look(self) -> bool:
        """Whether all changes were applied. If not, the next call continues after the last one."""
        self.looks += 1
        try:
            for batch in self.table.follow(poll_s=None):
                for row in batch.to_pylist():
                    self._apply(row)
            return True
        except CommitConflict as error:
            if error.remedy == ANEW:
                self.table.close()
                self._begin()
                return True
            self.conflicts += 1
            return False

    def _apply(self, row: dict[str, Any]) -> None:
        if row["value"] is None:
            self.state.pop(row["key"], None)
        else:
            self.state[row["key"]] = row["value"]


def left(broker: Broker) -> dict[bytes, bytes]:
    """The table of a consumer of committed records."""
    table = {seen.key: seen.value for seen in consume(broker, "kept")}
    return {key: value for key, value in table.items() if key is not None and value is not None}


@pytest.mark.parametrize("retention_ms", [3_600_000, 100])
def test_log_directory_under_its_cleaner_is_followed(broker: Broker, retention_ms: int) -> None:
    create_topic(broker, "kept", CLEANED | {"delete.retention.ms": str(retention_ms)})
    wait_for(lambda: (broker.data / "kept-0").is_dir())
    follower, writer = Follower(broker.data), Writer(broker, "kept", retention_ms)
    made = follower.made
    writer.start()
    until = time.monotonic() + 40
    while time.monotonic() < until or follower.looks < 20:
        if follower.look():
            assert len(follower.state) == len(follower.table)
    writer.stop()
    wait_for(lambda: was_cleaned(broker, "kept"))
    expected = left(broker)

    def is_there() -> bool:  # once the broker has written its high watermark
        return follower.look() and follower.state == expected

    wait_for(is_there)
    assert {key: follower.table[key] for key in expected} == expected
    assert len(follower.table) == len(expected)
    if retention_ms > 100_000:
        assert follower.made == made, "no delete had gone"
    print(follower.looks, follower.conflicts, follower.made)


def test_archive_that_is_fetched_and_compacted_is_followed(broker: Broker, tmp_path: Path) -> None:
    create_topic(broker, "kept", CLEANED | {"delete.retention.ms": "3600000"})
    archive, writer = tmp_path / "archive", Writer(broker, "kept", 7)
    writer.start()
    wait_for(lambda: (broker.data / "kept-0").is_dir())
    assert one(broker, archive, "kept").reason is None
    follower = Follower(archive)
    for turn in range(15):
        assert one(broker, archive, "kept").reason is None
        if turn % 3 == 2:
            config = {"min.cleanable.dirty.ratio": 0, "storage.keepReplacedMs": 0}
            done = lastwrite.compact(str(archive), spark=INLINE, config=config)
            assert done.exit_status == 0, done
        if turn % 2:
            follower.look()
            assert follower.state == dict(follower.table.items())
    writer.stop()
    assert one(broker, archive, "kept").reason is None
    follower.look()
    assert follower.state == dict(follower.table.items()) == left(broker)
    assert follower.made == 1
