"""Tests of ``fetch --accept-gap`` on RocketMQ.

The archive records lost messages, and commands name the gap.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import lastwrite
from lastwrite import cli
from lastwrite.archive.gaps import RecordsLost
from lastwrite.cleaner.events import DaemonNote, Event
from lastwrite.reports.fetching import FetchedLog, HoldReason
from lastwrite.spark.inline import INLINE
from tests.support.jars import free_ports
from tests.support.rocketmq.live import messages_in
from tests.support.rocketmq.served import TOPIC, ServedQueue, serving

GAP = "messages of queue offsets 4 to 8 were lost before they were fetched"
DECLARED = [(TOPIC, "cleanup.policy", "compact")]


def fetch(url: str, archive: Path, **how: bool) -> FetchedLog:
    report = lastwrite.fetch([url], str(archive), topic=TOPIC, topic_config=DECLARED, **how)
    (found,) = report.partitions
    assert isinstance(found, FetchedLog)
    return found


def offsets(archive: Path) -> list[int]:
    return [message.queue_offset for message, _ in messages_in(archive, TOPIC, 0)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of offsets 0 to 3 and 9 to 11 of an ordinary queue."""
    archive, queue = tmp_path_factory.mktemp("rocketmq") / "archive", ServedQueue()
    with serving(queue) as address:
        url = f"rocketmq://{address}"
        queue.add("k", b"old", 4)
        fetch(url, archive)
        queue.add("k", b"new", 8)
        queue.expire(9)
        refused = fetch(url, archive)
        assert refused.held is HoldReason.GAP
        assert refused.reason is not None and "--accept-gap" in refused.reason
        found = fetch(url, archive, accepts_gap=True)
        assert (found.reason, found.first_offset, found.end_offset) == (None, 4, 12)
        assert found.gap is not None and GAP in found.gap
        queue.add("k", b"newer", 1)
        again = fetch(url, archive)
        assert (again.reason, again.gap, again.end_offset) == (None, None, 13)
    assert offsets(archive) == [0, 1, 2, 3, *range(9, 13)]
    return archive


@pytest.fixture
def archive(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "archive"))


def said(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    capfd.readouterr()
    assert cli.run(list(arguments)) == 0
    out, err = capfd.readouterr()
    return out + err


@pytest.mark.parametrize("command", [["inspect"], ["dump"], ["read", "--queue", "0"], ["explain"]])
@pytest.mark.parametrize("json", [False, True])
def test_commands_name_the_gap(
    archive: Path, capfd: pytest.CaptureFixture[str], command: list[str], json: bool
) -> None:
    name, *options = command
    more = ["--json"] if json else []
    assert GAP in said(capfd, name, str(archive), "--topic", TOPIC, *options, *more)


@pytest.mark.parametrize("json", [False, True])
def test_tables_name_the_gap(
    archive: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], json: bool
) -> None:
    more = ["--json"] if json else []
    to = str(tmp_path / "table")
    assert said(capfd, "table", str(archive), "--to", to, "--as", "parquet", *more).count(GAP) == 1
    assert said(capfd, "table", str(archive), "--verify", to, *more).count(GAP) == 1


def test_latest_and_table_warn_of_the_gap(archive: Path) -> None:
    with pytest.warns(RecordsLost, match=GAP):
        found = lastwrite.latest(str(archive), TOPIC)
    assert (dict(found), [GAP in each.message for each in found.notes]) == ({"k": b"newer"}, [True])
    with pytest.warns(RecordsLost, match=GAP):
        assert len(lastwrite.table(str(archive), TOPIC).notes) == 1


def test_serve_names_the_gap_once(archive: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    where = f"127.0.0.1:{free_ports(1)[0]}"
    with lastwrite.serve(str(archive), listen=where, state=str(tmp_path / "s"), tell=lines.append):
        for to in ("one", "two"):
            assert lastwrite.fetch(f"kafka://{where}", str(tmp_path / to)).exit_status == 0
    assert [GAP in line for line in lines].count(True) == 1


def test_round_names_the_gap_and_keeps_it(archive: Path) -> None:
    events: list[Event] = []
    assert lastwrite.clean([str(archive)], {}, once=True, spark=INLINE, tell=events.append) == 0
    named = [event.text for event in events if isinstance(event, DaemonNote) and GAP in event.text]
    assert len(named) == 1


@pytest.fixture
def compacted(tmp_path: Path) -> Iterator[tuple[ServedQueue, str, Path]]:
    """A queue that its broker compacts, and an archive of its offsets 0 to 3."""
    queue, archive = ServedQueue(is_compacted=True), tmp_path / "archive"
    with serving(queue) as address:
        for key in ("a", "b", "c", "d"):
            queue.add(key, b"old")
        fetch(f"rocketmq://{address}", archive)
        yield queue, f"rocketmq://{address}", archive


def test_tombstones_are_fetched_from_the_commit_log_and_the_rest_is_a_gap(
    compacted: tuple[ServedQueue, str, Path],
) -> None:
    queue, url, archive = compacted
    queue.add("a", b"new")  # offset 4
    queue.add("b", b"")  # offsets 5 and 6: tombstones that the broker has dropped
    queue.add("c", b"")
    queue.add("d", b"new")  # offset 7
    queue.compact(0, 1, 2, 3, 5, 6)
    queue.expire(6)
    refused = fetch(url, archive)
    assert refused.held is HoldReason.DELETES and "--accept-gap" in (refused.reason or "")
    found = fetch(url, archive, accepts_gap=True)
    assert found.gap is not None and "queue offsets 5 to 5 were lost" in found.gap
    assert offsets(archive) == [0, 1, 2, 3, 4, 6, 7]
    with pytest.warns(RecordsLost):
        table = lastwrite.latest(str(archive), TOPIC)
    assert table == {"a": b"new", "b": b"old", "d": b"new"}


def test_gap_at_the_end_of_the_queue_is_recorded(tmp_path: Path) -> None:
    archive, queue = tmp_path / "archive", ServedQueue()
    with serving(queue) as address:
        queue.add("k", b"old", 4)
        fetch(f"rocketmq://{address}", archive)
        queue.add("k", b"new", 5)
        queue.expire(9)
        found = fetch(f"rocketmq://{address}", archive, accepts_gap=True)
        assert (found.end_offset, found.gap is not None and GAP in found.gap) == (9, True)
        assert fetch(f"rocketmq://{address}", archive).reason is None


def test_verify_names_the_gap(archive: Path) -> None:
    report = lastwrite.verify(str(archive), spark=INLINE)
    (queue,) = report.partitions
    assert [GAP in each.message for each in queue.problems] == [True]
