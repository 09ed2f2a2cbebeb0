"""Properties of ``table(…).follow()``, compared with a dictionary.

Between two updates, records are appended, segments are rolled and rounds run.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lastwrite
from lastwrite.commands.table import KeyedTable
from lastwrite.errors import CommitConflict
from lastwrite.kafka.format.text import topic_id_text
from lastwrite.spark.inline import Inline
from tests.support.kafka.growing import GrowingLog, Written
from tests.support.pulsar.folders import single, write_ledger
from tests.support.pulsar.topics import topic_folder
from tests.support.rocketmq.queues import Sent, write_queue

pytest.importorskip("pyarrow", reason="pip install 'lastwrite[frames]'")

CLEAN = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "delete.retention.ms": 0}

RECORDS = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f"]),
        st.sampled_from([None, b"1", b"2", b"3"]),
    ),
    max_size=6,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 1), RECORDS),
        st.tuples(st.sampled_from(["roll", "compact", "look"]), st.integers(0, 1), st.just([])),
    ),
    max_size=14,
)


class Follower:
    """A followed table, and a dictionary that its changes are applied to."""

    def __init__(self, path: Path, topic: str) -> None:
        self.table: KeyedTable = lastwrite.table(path, topic)
        self.own = dict(self.table.items())
        self.seen: set[tuple[int, int]] = set()

    def look(self) -> None:
        for batch in self.table.follow(poll_s=None):
            for row in batch.to_pylist():
                if row["offset"] is not None:
                    place = row["partition"], row["offset"]
                    assert place not in self.seen
                    self.seen.add(place)
                self.own.pop(row["key"], None)
                if row["value"] is not None:
                    self.own[row["key"]] = row["value"]

    def check(self, model: dict[bytes, bytes]) -> None:
        self.look()
        assert self.own == model
        assert dict(self.table.items()) == model
        assert {key: self.table[key] for key in model} == model
        assert len(self.table) == len(model)


def folded(writes: list[list[Written]]) -> dict[bytes, bytes]:
    """The values by key over all partitions."""
    last: dict[bytes, tuple[int, int, bytes | None]] = {}
    for partition, records in enumerate(writes):
        own = {key: (time, partition, value) for key, value, time in records}
        for key, write in own.items():
            assert key is not None
            if key not in last or write[:2] > last[key][:2]:
                last[key] = write
    return {key: value for key, (_, _, value) in last.items() if value is not None}


@settings(deadline=None, max_examples=15)
@given(STEPS, st.integers(1, 2))
def test_followed_table_equals_the_dictionary(
    steps: list[tuple[str, int, list[tuple[bytes, bytes | None]]]],
    partitions: int,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        logs = [GrowingLog(root, n) for n in range(partitions)]
        writes: list[list[Written]] = [[] for _ in logs]
        time = 1_700_000_000_000
        for log, own in zip(logs, writes, strict=True):
            own.append((b"first", b"0", time))
            log.append(own)

        follower = Follower(root, "t")
        for what, number, records in steps:
            number %= partitions
            if what == "append":
                time += 1
                some: list[Written] = [(key, value, time) for key, value in records]
                writes[number] += some
                logs[number].append(some)
            elif what == "roll":
                logs[number].roll()
            elif what == "compact":
                lastwrite.compact(str(root), topic="t", config=CLEAN, spark=Inline())
            else:
                follower.check(folded(writes))
        follower.check(folded(writes))


def test_follow_waits_and_repeats_a_batch_that_was_not_consumed(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path)
    log.append([(b"a", b"1", 5)])
    table = lastwrite.table(tmp_path, "t")
    log.append([(b"a", b"2", 6), (b"b", b"3", 7)])
    changes = table.follow(poll_s=0.01)
    first = next(changes)
    assert first.column("key").to_pylist() == [b"a", b"b"]
    assert table.end_offsets == {0: 3} and table[b"a"] == b"2"
    changes.close()
    changes = table.follow(poll_s=0.01)
    assert next(changes).equals(first)
    log.append([(b"b", None, 8)])
    (row,) = next(changes).to_pylist()
    assert (row["key"], row["value"], row["offset"]) == (b"b", None, 3)
    assert b"b" not in table


def test_missing_records_are_an_error(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path)
    log.append([(b"a", b"1", 5), (b"b", b"1", 5)])
    table = lastwrite.table(tmp_path, "t")
    shutil.rmtree(log.folder)
    again = GrowingLog(tmp_path, topic_id=topic_id_text(bytes(range(16))))
    again.append([(b"a", b"1", 5)] * 3)
    with pytest.raises(CommitConflict, match="its topic id was .*create the table again") as caught:
        list(table.follow(poll_s=None))
    assert caught.value.path == str(log.folder)
    (log.folder / "partition.metadata").unlink()
    shorter = lastwrite.table(tmp_path, "t")
    shutil.rmtree(log.folder)
    GrowingLog(tmp_path).append([(b"a", b"1", 5)])
    (log.folder / "partition.metadata").unlink()
    with pytest.raises(CommitConflict, match="ends before offset 3"):
        list(shorter.follow(poll_s=None))


def test_moved_log_start_is_an_error(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path)
    for n in range(6):
        log.append([(b"k%d" % n, b"1", 5)])
        log.roll()
    table = lastwrite.table(tmp_path, "t")
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nt 0 2\n")
    for base in (0, 1):
        (log.folder / f"{base:020}.log").unlink()
    log.append([(b"k5", b"2", 6)])
    with pytest.raises(CommitConflict, match="create the table again"):
        list(table.follow(poll_s=None))


def test_follow_continues_over_rounds_of_a_rocketmq_queue(tmp_path: Path) -> None:
    first = [Sent(n, f"k{n % 4}", b"%d" % n) for n in range(9)]
    write_queue(tmp_path, "t", 0, [first])
    follower = Follower(tmp_path, "t")
    more = [Sent(9, "k1", b""), Sent(10, "new", b"x"), Sent(11, "k2", b"y")]
    shutil.rmtree(tmp_path / "compaction")
    write_queue(tmp_path, "t", 0, [first, more])
    model = {b"k0": b"8", b"k2": b"y", b"k3": b"7", b"new": b"x"}
    follower.check(model)
    lastwrite.compact(str(tmp_path), topic="t", spark=Inline())
    follower.check(model)


def test_follow_continues_over_rounds_of_a_pulsar_topic(tmp_path: Path) -> None:
    folder = topic_folder(tmp_path, "persistent://public/default/orders")
    write_ledger(folder, 10, [single(f"k{n % 4}", f"{n}", n) for n in range(9)])
    follower = Follower(tmp_path, "orders")
    write_ledger(folder, 11, [single("k1", "", 20), single("new", "x", 21)])
    model = {b"k0": b"8", b"k2": b"6", b"k3": b"7", b"new": b"x"}
    follower.check(model)
    lastwrite.compact(str(tmp_path), spark=Inline())
    follower.check(model)
    # A round drops a delete before the follower has read it.
    write_ledger(folder, 20, [single("k2", "", 30), single("k3", "z", 31)])
    lastwrite.compact(str(tmp_path), spark=Inline())
    del model[b"k2"]
    follower.check(model | {b"k3": b"z"})


def _give_inode(aside: Path, to: Path) -> None:
    """Give the file ``to`` the inode of ``aside``, as a file system that reuses inodes may."""
    seen = to.stat()
    aside.write_bytes(to.read_bytes())
    os.utime(aside, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    os.replace(aside, to)


def _replaced_twice(log: GrowingLog) -> None:
    """Delete a key, and remove the delete by two rounds. The segment grows meanwhile."""
    log.append([(b"gone", None, 6), *((b"k%d" % n, b"x" * 99, 6) for n in range(9))])
    for n in range(2):
        log.roll()
        log.append([(b"b%d" % n, b"1", 7)])
        lastwrite.compact(str(log.root), topic="t", config=CLEAN, spark=Inline())


def test_reused_inode_does_not_hide_a_delete(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path)
    log.append([(b"gone", b"1", 5), (b"a", b"1", 5)])
    first, aside = log.folder / f"{0:020}.log", tmp_path / "aside"
    with lastwrite.table(tmp_path, "t") as table:
        os.link(first, aside)
        size_bytes = first.stat().st_size
        _replaced_twice(log)
        _give_inode(aside, first)
        assert first.stat().st_size > size_bytes and b"gone" not in first.read_bytes()
        for _ in range(2):  # the first attempt did not skip anything
            with pytest.raises(CommitConflict, match="a key was deleted.*create the table again"):
                list(table.follow(poll_s=None))


def test_delete_between_two_updates_is_found_in_the_open_file(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path)
    log.append([(b"gone", b"1", 5), (b"a", b"1", 5)])
    with lastwrite.table(tmp_path, "t") as table:
        assert list(table.follow(poll_s=None)) == []
        _replaced_twice(log)
        rows = [row for batch in table.follow(poll_s=None) for row in batch.to_pylist()]
        assert [row["key"] for row in rows if row["value"] is None] == [b"gone"]
        assert b"gone" not in table and table[b"a"] == b"1"
