"""Tests that a symbolic link to a partition's folder uses the lock and checkpoints of its real
root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lastwrite
from lastwrite.errors import InvalidConfig, LogHeld
from lastwrite.kafka.store import links, lock
from lastwrite.model.log import ProblemKind, TopicPartition
from lastwrite.reports.compaction import Status
from lastwrite.spark.inline import INLINE
from tests.support.engine import compact
from tests.support.foreign import CONFIG, NOW_MS, write_root
from tests.unit.test_ownership import ROCKETMQ

_BROKER = """
import fcntl, sys
with open(sys.argv[1], "r+") as file:
    fcntl.lockf(file, fcntl.LOCK_EX, int(sys.argv[2]))
    print("locked", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def broker_on(lock_file: Path, length: int = 0) -> Iterator[None]:
    """A process that locks the root as a broker does."""
    lock_file.touch()
    with subprocess.Popen(
        [sys.executable, "-c", _BROKER, str(lock_file), str(length)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert (
            process.stdout is not None
            and process.stdin is not None
            and process.stdout.readline() == b"locked\n"
        )
        yield
        process.stdin.close()


def contents(root: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in root.rglob("*")
        if path.name != ".lock"
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = write_root(tmp_path / "data")
    (root / "t-0" / f"{0:020d}.log.cleaned").write_bytes(b"the broker's")
    return root


COMMANDS: dict[str, Callable[[str], object]] = {
    "compact": lambda path: compact(Path(path), CONFIG, NOW_MS),
    "compact --to": lambda path: compact(Path(path), CONFIG, NOW_MS, to=f"{path}.copy"),
    "plan": lambda path: lastwrite.plan(path, config=CONFIG, spark=INLINE),
    "verify": lambda path: lastwrite.verify(path),
    "inspect": lambda path: lastwrite.inspect(path),
    "dump": lambda path: list(lastwrite.dump(path)),
    "dump of a segment": lambda path: list(lastwrite.dump(f"{path}/{0:020d}.log")),
    "latest": lambda path: lastwrite.latest(path),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["t-0", "other-7", "x"])
def test_link_into_the_root_of_a_running_broker_is_refused(
    root: Path, tmp_path: Path, command: str, name: str
) -> None:
    link = tmp_path / "links" / name
    link.parent.mkdir()
    link.symlink_to(root / "t-0")
    with broker_on(root / ".lock"):
        before = contents(root)
        with pytest.raises(LogHeld, match="broker"):
            COMMANDS[command](str(link))
        assert contents(root) == before
        assert sorted(path.name for path in link.parent.iterdir()) == [name]


def test_explain_names_the_broker_behind_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "t-0").symlink_to(root / "t-0")
    with broker_on(root / ".lock"):
        [found] = lastwrite.explain(str(tmp_path / "t-0"), config=CONFIG).partitions
    assert "a broker" in found.summary


def test_checkpoints_of_the_real_root_apply_through_a_link(root: Path, tmp_path: Path) -> None:
    link = tmp_path / "links" / "other-7"
    link.parent.mkdir()
    link.symlink_to(root / "t-0")
    config = {
        name: value for name, value in CONFIG.items() if name != "cleanup.policy"
    }  # the link selects one partition
    [report] = compact(link, config, NOW_MS).partitions
    assert (report.topic, report.partition, report.status) == ("t", 0, Status.CLEANED)
    assert (root / "cleaner-offset-checkpoint").exists()
    assert [path.name for path in link.parent.iterdir()] == ["other-7"]


@pytest.fixture
def elsewhere(root: Path, tmp_path: Path) -> Path:
    """The partition's folder is on another disk, and the broker's root has a link to it."""
    disk = tmp_path / "disk2"
    disk.mkdir()
    shutil.move(root / "t-0", disk / "t-0")
    (root / "t-0").symlink_to(disk / "t-0")
    return disk


def test_root_that_contains_the_link_is_the_brokers(root: Path, elsewhere: Path) -> None:
    for path in (root, root / "t-0"):
        with broker_on(root / ".lock"), pytest.raises(LogHeld, match="broker"):
            compact(path, CONFIG, NOW_MS)
    [report] = compact(root, CONFIG, NOW_MS).partitions
    assert report.status is Status.CLEANED
    assert (root / "cleaner-offset-checkpoint").exists() and not (
        elsewhere / "cleaner-offset-checkpoint"
    ).exists()


def test_roots_connected_by_a_link_share_their_locks(root: Path, elsewhere: Path) -> None:
    with broker_on(elsewhere / ".lock"), pytest.raises(LogHeld, match="broker"):
        compact(root, CONFIG, NOW_MS)
    with broker_on(elsewhere / ".lock"), pytest.raises(LogHeld, match="broker"):
        lastwrite.inspect(str(root))


def test_link_between_two_brokers_roots_is_refused(root: Path, elsewhere: Path) -> None:
    (elsewhere / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    before = contents(elsewhere)
    with pytest.raises(LogHeld, match="symbolic link into another broker's log root"):
        compact(root, CONFIG, NOW_MS)
    assert contents(elsewhere) == before


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells who has a file open for writing"
)
def test_open_segment_reveals_a_broker_without_a_root(root: Path, elsewhere: Path) -> None:
    """The broker opens the folder by a path that is unknown here."""
    active = elsewhere / "t-0" / f"{80:020d}.log"
    before = contents(elsewhere)
    with active.open("r+b"), pytest.raises(LogHeld, match="open for writing"):
        compact(elsewhere / "t-0", CONFIG, NOW_MS)
    assert contents(elsewhere) == before
    with active.open("rb"):
        [report] = compact(elsewhere / "t-0", CONFIG, NOW_MS).partitions
    assert report.status is Status.CLEANED, "who reads is in nobody's way"


def test_daemon_locks_the_real_root(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    config = {**CONFIG, "min.cleanable.dirty.ratio": "0"}
    with broker_on(root / ".lock"):
        before = contents(root)
        assert lastwrite.clean([str(tmp_path / "link")], config, once=True, spark=INLINE) == 4
        assert contents(root) == before
    assert lastwrite.clean([str(tmp_path / "link")], config, once=True, spark=INLINE) == 0
    assert (root / "cleaner-offset-checkpoint").exists()


def test_chain_of_links_is_resolved_to_the_first_root(tmp_path: Path) -> None:
    (tmp_path / "c" / "t-0").mkdir(parents=True)
    for name, target in (("b", "../c/t-0"), ("a", "../b/t-0")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "t-0").symlink_to(target)
    folder = str(tmp_path / "a" / "t-0")
    assert list(links.ways_to(folder)) == [str(tmp_path / name / "t-0") for name in "abc"]
    assert links.home_of(folder) == str(tmp_path / "c" / "t-0")
    (tmp_path / "b" / "meta.properties").touch()
    assert links.home_of(folder) == str(tmp_path / "b" / "t-0")
    (tmp_path / "loop").symlink_to("loop")
    assert links.home_of(str(tmp_path / "loop")) == str(tmp_path / "loop")


def test_removed_lock_file_of_a_stopping_broker_is_refused(root: Path) -> None:
    with lock.hold(str(root), [TopicPartition("a", 0)]):
        (root / ".lock").unlink()
        with (
            pytest.raises(LogHeld, match="deleted the lock file"),
            lock.hold(str(root), [TopicPartition("b", 0)]),
        ):
            pass
    with lock.hold(str(root), [TopicPartition("b", 0)]):
        assert (root / ".lock").exists()


# ---------------------------------------------------------------------- the other systems


def store_at(path: Path) -> Path:
    shutil.copytree(ROCKETMQ, path)
    (path / "checkpoint").touch()
    return path


@pytest.mark.parametrize("link", ["compaction/compactionLog/ctopic/0", "compaction", ""])
def test_link_into_a_store_with_a_broker_is_read_only(tmp_path: Path, link: str) -> None:
    root = store_at(tmp_path / "store")
    (tmp_path / "links").mkdir()
    place = tmp_path / "links" / (link.replace("/", "_") or "store")
    place.symlink_to(root / link)
    with broker_on(root / "lock", 1):
        before = contents(root)
        with pytest.raises(LogHeld, match="broker"):
            lastwrite.compact(str(place), system="rocketmq", spark=INLINE)
        planned = lastwrite.plan(str(place), system="rocketmq", spark=INLINE)
        assert planned.partitions
        for partition in planned.partitions:  # reading through the link detects the broker, too
            assert ProblemKind.OPEN in {problem.kind for problem in partition.problems}
        assert lastwrite.inspect(str(place)).exit_status == 0
        assert contents(root) == before
        assert len(os.listdir(place.parent)) == 1


def test_store_with_a_link_into_another_store_is_refused(tmp_path: Path) -> None:
    root, other = store_at(tmp_path / "store"), store_at(tmp_path / "other")
    shutil.rmtree(other / "compaction")
    (other / "compaction").symlink_to(root / "compaction")
    before = contents(root)
    with pytest.raises(InvalidConfig, match="a symbolic link leads from here into the store"):
        lastwrite.compact(str(other), spark=INLINE)
    assert contents(root) == before


def test_store_may_have_its_compaction_tree_on_another_disk(tmp_path: Path) -> None:
    root = store_at(tmp_path / "store")
    (tmp_path / "disk2").mkdir()
    shutil.move(root / "compaction", tmp_path / "disk2" / "compaction")
    (root / "compaction").symlink_to(tmp_path / "disk2" / "compaction")
    with broker_on(root / "lock", 1), pytest.raises(LogHeld, match="broker"):
        lastwrite.compact(str(root / "compaction" / "compactionLog" / "ctopic" / "0"), spark=INLINE)
    report = lastwrite.compact(str(root), spark=INLINE)
    assert {each.status for each in report.partitions} == {Status.CLEANED}
