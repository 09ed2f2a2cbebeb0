"""Tests of reading a RocketMQ store that a broker has open: its end, and changes during the read."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.errors import CommitConflict, CorruptLog, LogHeld
from lastwrite.model.log import ProblemKind, TopicPartition
from lastwrite.reports.compaction import Status
from lastwrite.rocketmq.format import sides
from lastwrite.rocketmq.format.record import encode_message, make_message
from lastwrite.rocketmq.look import dump, find
from lastwrite.rocketmq.look.columns import ROWS
from lastwrite.rocketmq.store import compacted, live_files, reading
from lastwrite.rows.reading import read_rows, row_units
from lastwrite.spark.inline import INLINE
from lastwrite.storage.reading import TRIES
from tests.support.rocketmq.queues import INDEX_BYTES, LOG_BYTES, Sent, paths_of, write_queue
from tests.support.rocketmq.stores import StoreWriter
from tests.unit.test_rocketmq_lock import _BROKER, other_process

NAME = TopicPartition("t", 0)
CONFIG = {"min.cleanable.dirty.ratio": 0, "delete.retention.ms": 0}
# The delete of b is in a closed file, so that a compaction by the broker removes b.
FILES = [
    [Sent(0, "a", b"1"), Sent(1, "b", b"2"), Sent(2, "c", b"3")],
    [Sent(3, "b", b""), Sent(4, "a", b"5")],
    [Sent(5, "d", b"6"), Sent(6, "c", b"7")],
]
TABLE = {"a": b"5", "c": b"7", "d": b"6"}


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A queue in a store that a broker has open."""
    store = tmp_path / "store"
    write_queue(store, "t", 0, FILES)
    (store / "config").mkdir()
    (store / "config" / "topics.json").write_text(
        '{"topicConfigTable":{"t":{"attributes":{"cleanup.policy":"COMPACTION"},'
        '"topicName":"t","readQueueNums":1,"writeQueueNums":1}}}'
    )
    (store / "lock").write_bytes(b"lock")
    (store / "abort").write_text("4711")  # exists as long as the broker runs
    with other_process(_BROKER, store):
        yield store


def folders(root: Path) -> tuple[Path, Path]:
    log, index = paths_of(root, "t", 0, 0)
    return log.parent, index.parent


def exchanged(root: Path) -> None:
    """Replace the closed pairs by one and write the position, as a compaction by the
    broker does.
    """
    write_queue(root / "new", "t", 0, [[Sent(2, "c", b"3"), Sent(4, "a", b"5")]])
    for old, new in zip(folders(root), folders(root / "new"), strict=True):
        for number in (0, 1):
            (old / f"{number * LOG_BYTES:020d}").unlink()
        shutil.move(new / f"{0:020d}", old)
    shutil.rmtree(root / "new")
    path = root / "compaction" / "position-checkpoint"
    path.write_bytes(sides.encode_positions({"t_0": 4}))


def appended(root: Path) -> None:
    """Append a message to the last pair. The index has the size of a memory-mapped file."""
    write_queue(root / "new", "t", 0, [*FILES[:2], [*FILES[2], Sent(7, "e", b"8")]])
    for old, new in zip(paths_of(root, "t", 0, 2), paths_of(root / "new", "t", 0, 2), strict=True):
        with old.open("r+b") as file:
            file.write(new.read_bytes())
    shutil.rmtree(root / "new")


def rolled(root: Path) -> None:
    """Close the last pair and add two more."""
    write_queue(root / "new", "t", 0, [*FILES, [Sent(7, "e", b"8")], [Sent(8, "f", b"9")]])
    for number in (2, 3, 4):
        for old, new in zip(
            paths_of(root, "t", 0, number), paths_of(root / "new", "t", 0, number), strict=True
        ):
            with old.open("r+b" if old.exists() else "wb") as file:
                file.write(new.read_bytes())
    shutil.rmtree(root / "new")


def in_the_middle(
    monkeypatch: pytest.MonkeyPatch, move: Callable[[Path], None], times: int = 1
) -> None:
    """Change the store during a read, just after its files were listed."""
    real, left = live_files.read_pairs, [times]

    def read(root: str, name: TopicPartition) -> live_files.Pairs:
        found = real(root, name)
        if left[0]:
            left[0] -= 1
            move(Path(root))
        return found

    for module in (live_files, compacted, dump, find):
        monkeypatch.setattr(module, "read_pairs", read)


def look_at_all(root: Path) -> None:
    """Run every command that reads. None reports damage."""
    store = str(root)
    report = lastwrite.inspect(store)
    [queue] = report.partitions
    assert report.exit_status == 0, report.to_dict()
    kinds = {problem.kind for problem in (*report.problems, *queue.problems)}
    assert kinds == {ProblemKind.OPEN} and report.stopped_in_order is None
    verified = lastwrite.verify(store, spark=INLINE)
    assert verified.ok, verified.to_dict()
    [planned] = lastwrite.plan(store, config=CONFIG, spark=INLINE).partitions
    assert planned.status not in (Status.FAILED, Status.DAMAGED), planned.reason
    [why] = lastwrite.explain(store, key=b"a", config=CONFIG).partitions
    assert "a broker has the log open" in [each.message for each in why.reasons]
    assert not [each for each in why.reasons if "--to" in str(each.change)]
    assert why.records and all(problem.is_note for problem in why.problems)
    assert {"a", "c", "d"} <= dict(lastwrite.latest(store, "t")).keys()
    reading_ = lastwrite.read(store, topic="t", queue=0)
    assert [row["queue_offset"] for row in reading_][-1] >= 6 and not reading_.notes
    said: list[str] = []
    rows = list(lastwrite.dump(store, compacted=True, say=said.append))
    assert rows[-1]["queue_offset"] >= 6 and not said
    assert list(lastwrite.dump(store, compacted=True, index=True))


def test_every_command_reads_beside_a_broker(root: Path) -> None:
    look_at_all(root)
    assert lastwrite.latest(str(root), "t") == TABLE


def test_commands_that_write_or_copy_are_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(LogHeld, match="the store is locked by"):
        lastwrite.compact(str(root), config=CONFIG, spark=INLINE)
    with pytest.raises(
        LogHeld, match=r"so Lastwrite cannot copy the log.*snapshot of the file system"
    ):
        lastwrite.compact(str(root), to=str(tmp_path / "to"), config=CONFIG, spark=INLINE)
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize("torn", [b"", b"\0\0\0\x80", b"\0\0\0\x80\xda\xa3\x20\xa7" + b"\1" * 90])
def test_record_without_a_unit_is_ignored(root: Path, torn: bytes) -> None:
    """A record is written before its unit, so it may be half written or complete."""
    log = paths_of(root, "t", 0, 2)[0]
    end = lastwrite.plan(str(root), spark=INLINE).partitions[0].bytes_before
    used = sum(len(data.rstrip(b"\0")) for data in [log.read_bytes()])
    assert 0 < used < end
    whole = encode_message(make_message("t", b"8", {"KEYS": "e"}, queue_offset=7))
    for behind in (torn, whole):
        with log.open("r+b") as file:
            file.seek(used)
            file.write(behind)
        look_at_all(root)
        assert lastwrite.latest(str(root), "t").end_offsets == {0: 7}


def test_damaged_record_with_a_unit_is_damage_beside_a_broker(root: Path) -> None:
    with paths_of(root, "t", 0, 2)[0].open("r+b") as file:
        file.seek(90)
        byte = file.read(1)
        file.seek(88)
        file.write(b"\xff" + byte + b"\xff")
    assert lastwrite.inspect(str(root)).exit_status == 3
    assert not lastwrite.verify(str(root), spark=INLINE).ok
    with pytest.raises(CorruptLog):
        lastwrite.latest(str(root), "t")


@pytest.mark.parametrize("move", [appended, exchanged, rolled])
def test_change_before_a_read_is_tolerated(
    root: Path, monkeypatch: pytest.MonkeyPatch, move: Callable[[Path], None]
) -> None:
    in_the_middle(monkeypatch, move)
    table = lastwrite.latest(str(root), "t")
    late = {"e": b"8"} if move is appended else {}
    # the table does not have b
    assert table == TABLE | late and table.end_offsets == {0: 7 + len(late)}
    look_at_all(root)


@pytest.mark.parametrize(
    "look",
    [
        lambda root: lastwrite.inspect(root),
        lambda root: lastwrite.latest(root, "t"),
        lambda root: list(lastwrite.read(root, topic="t", queue=0)),
    ],
    ids=["inspect", "latest", "read"],
)
def test_read_gives_up_on_a_store_that_keeps_changing(
    root: Path, monkeypatch: pytest.MonkeyPatch, look: Callable[[str], object]
) -> None:
    def moves(root: Path) -> None:
        for folder in folders(root):
            for path in folder.iterdir():
                shutil.copy2(path, f"{path}x")
                os.replace(f"{path}x", path)

    in_the_middle(monkeypatch, moves, times=100)
    with pytest.raises(CommitConflict, match=f"in {TRIES} attempts|again and again"):
        look(str(root))


def check_plan(root: str) -> None:
    [found] = lastwrite.plan(root, config=CONFIG, spark=INLINE).partitions
    assert found.status is Status.SKIPPED and found.first_dirty_offset == 5, found.reason


def check_verify(root: str) -> None:
    found = lastwrite.verify(root, spark=INLINE)
    assert found.ok and found.partitions[0].records == 4, found.to_dict()


def check_explain(root: str) -> None:
    [found] = lastwrite.explain(root, key=b"a", config=CONFIG).partitions
    assert found.records is not None and [one.offset for one in found.records] == [4]


def check_dump(root: str) -> None:
    found = [row["queue_offset"] for row in lastwrite.dump(root, compacted=True)]
    assert found == [2, 4, 5, 6]


@pytest.mark.parametrize("check", [check_plan, check_verify, check_explain, check_dump])
def test_exchanged_files_are_read_again(
    root: Path, monkeypatch: pytest.MonkeyPatch, check: Callable[[str], None]
) -> None:
    in_the_middle(monkeypatch, exchanged)
    check(str(root))


def test_single_file_is_read_up_to_its_index(root: Path) -> None:
    log, index = paths_of(root, "t", 0, 2)
    whole = encode_message(make_message("t", b"8", {"KEYS": "e"}, queue_offset=7))
    with log.open("r+b") as file:
        file.seek(len(log.read_bytes().rstrip(b"\0")))
        file.write(whole[:-3])
    for path, count in ((log, 2), (index, 2)):
        report = lastwrite.inspect(str(path))
        assert report.exit_status == 0 and [one.entries for one in report.files] == [count]
        assert not report.problems
    assert [row["queue_offset"] for row in lastwrite.dump(str(log))] == [5, 6]


@pytest.mark.parametrize("move", [appended, rolled])
def test_dataframe_ends_where_its_queue_ended(root: Path, move: Callable[[Path], None]) -> None:
    pytest.importorskip("pyarrow", reason="pip install 'lastwrite[frames]'")
    (log,) = ROWS.logs_of(str(root), "t")
    units = row_units(ROWS, log, ["offset"], is_committed=True)
    move(root)
    read = [row["offset"] for unit in units for b in read_rows(unit) for row in b.to_pylist()]
    assert read == list(range(7))
    exchanged(root)
    with pytest.raises(CommitConflict):
        list(read_rows(units[0]))


def test_queue_ends_where_it_ended_when_it_was_listed(root: Path) -> None:
    queue = compacted.CompactedQueue(str(root), NAME)
    appended(root)
    read = [int(offset) for block in queue.blocks() for offset in block.table["queue_offset"]]
    assert read == list(range(7)) and queue.end_offset == 7 and not queue.notes
    queue.refresh()
    assert queue.end_offset == 8


def test_copy_is_compared_with_the_earlier_state_of_its_store(root: Path, tmp_path: Path) -> None:
    """The copy is of a snapshot, so later messages are missing."""
    snapshot, to = tmp_path / "snapshot", tmp_path / "to"
    shutil.copytree(root, snapshot)
    (snapshot / "abort").unlink()
    [made] = lastwrite.compact(
        str(snapshot), to=str(to), config=CONFIG, include_active=True, spark=INLINE
    ).partitions
    assert made.status is Status.CLEANED, made.reason
    for move in (lambda root: None, appended, rolled):
        move(root)
        found = lastwrite.verify(str(to), str(root), config=CONFIG, spark=INLINE)
        assert found.ok, found.to_dict()


# ---------------------------------------------------------------------- listing


def under_way(root: Path, state: str) -> None:
    log, index = folders(root)
    made = {
        "the log's were moved": [(log, 0), (index, 1)],
        "the log's folder is gone": [(index, 1)],
        "all were moved, and the position is not noted": [(log, 0), (index, 0)],
        "old ones are not deleted": [(log, 1), (index, 1)],
    }[state]
    for folder, count in made:
        (folder / "compacting").mkdir()
        if count:
            (folder / "compacting" / f"{0:020d}").write_bytes(bytes(LOG_BYTES))
    if state == "old ones are not deleted":
        (log / f"{0:020d}").rename(log / f"{0:020d}.delete")


@pytest.mark.parametrize(
    "state",
    [
        "the log's were moved",
        "the log's folder is gone",
        "all were moved, and the position is not noted",
        "old ones are not deleted",
    ],
)
def test_read_waits_for_an_exchange_under_way(
    root: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    under_way(root, state)
    looked = threading.Event()
    real = live_files._at_rest

    def at_rest(store: str, name: TopicPartition) -> Any:
        found = real(store, name)
        looked.set()
        return found

    monkeypatch.setattr(live_files, "_at_rest", at_rest)

    def broker() -> None:
        looked.wait()
        for folder in folders(root):
            for path in folder.glob("compacting/*"):
                path.unlink()
            for path in folder.glob("*.delete"):
                path.rename(path.with_suffix(""))
        exchanged(root)
        for folder in folders(root):
            shutil.rmtree(folder / "compacting", ignore_errors=True)

    thread = threading.Thread(target=broker)
    thread.start()
    pairs = live_files.read_pairs(str(root), NAME)
    thread.join()
    assert pairs.logs.starts == pairs.indexes.starts == (0, 2 * LOG_BYTES)
    assert pairs.positions.of(NAME) == 4 and not pairs.logs.problems


def test_read_does_not_wait_for_a_round_that_writes_new_files(root: Path) -> None:
    for folder in folders(root):
        (folder / "compacting").mkdir()
        (folder / "compacting" / f"{0:020d}").write_bytes(b"half")
    look_at_all(root)


def test_leftover_of_an_exchange_is_reported_as_damage(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker leaves an old file there if a reader of its own has it open, and does not start
    then.
    """
    monkeypatch.setattr(live_files, "_RESTS_S", 0.0)
    left = folders(root)[0] / f"{LOG_BYTES * 9:020d}.delete"
    left.write_bytes(bytes(LOG_BYTES))
    report = lastwrite.inspect(str(root))
    [problem] = [p for p in report.partitions[0].problems if p.kind is ProblemKind.DAMAGED]
    assert problem.path == str(left) and "a broker does not start on the store" in problem.message
    assert lastwrite.latest(str(root), "t") == TABLE


@pytest.mark.parametrize("count", [1, 3])
def test_log_files_without_an_index_yet_are_skipped(root: Path, count: int) -> None:
    for number in range(3, 3 + count):
        paths_of(root, "t", 0, number)[0].write_bytes(bytes(LOG_BYTES))
    look_at_all(root)
    pairs = live_files.read_pairs(str(root), NAME)
    assert [file.is_growing for file in pairs.logs.files] == [False, False, True]
    # A missing file before others is damage.
    paths_of(root, "t", 0, 1)[1].unlink()
    [planned] = lastwrite.plan(str(root), config=CONFIG, spark=INLINE).partitions
    assert planned.status is Status.DAMAGED and "no index file of the same name" in str(
        planned.reason
    )


def test_new_file_pair_without_a_record_is_not_damage(root: Path) -> None:
    log, index = paths_of(root, "t", 0, 3)
    log.write_bytes(encode_message(make_message("t", b"8", {"KEYS": "e"})).ljust(LOG_BYTES, b"\0"))
    index.write_bytes(bytes(INDEX_BYTES))
    look_at_all(root)


def test_small_file_under_replacement_is_read_again(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store")
    writer.send("t", b"1", {"KEYS": "a"})
    path = writer.write() / "config" / "consumerOffset.json"
    whole, tries = path.read_bytes(), []
    path.write_bytes(whole[:9])

    def read() -> object:
        tries.append(1)
        if len(tries) == 2:
            path.write_bytes(whole)
        return sides.decode_consumer_offsets(path.read_bytes())

    with pytest.raises(CorruptLog):  # no broker writes to the file
        live_files.settled(str(writer.root), read)
    tries.clear()
    with other_process(_BROKER, writer.root):
        assert live_files.settled(str(writer.root), read)
    assert len(tries) == 2


# ---------------------------------------------------------------------- the commit log


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[StoreWriter]:
    """A store with two commit log files and two records that are not dispatched.

    The second of these records is only half written.
    """
    writer = StoreWriter(tmp_path / "store")
    for n in range(40):
        writer.send("orders", b"%d" % n * 20, {"KEYS": f"k{n % 7}", "UNIQ_KEY": f"{n:032X}"}, n % 2)
    writer.write()
    sent, log = list(writer.sent), len(writer.log)
    writer.send("orders", b"late", {"KEYS": "k1"})
    writer.send("orders", b"half", {"KEYS": "k1"})
    writer.log[-9:] = bytes(9)
    writer.write_commit_log()
    writer.sent, writer.log = sent, writer.log[:log]
    (writer.root / "abort").write_text("4711")
    with other_process(_BROKER, writer.root):
        yield writer


def bound_of(writer: StoreWriter) -> int | None:
    root = str(writer.root)
    return live_files.up_to_dispatched(root, lambda: reading.read_commit_log(root)).bound


def test_commit_log_is_read_up_to_the_dispatched_end(writer: StoreWriter) -> None:
    root, said = str(writer.root), list[str]()
    assert bound_of(writer) == len(writer.log)
    report = lastwrite.inspect(root)
    assert report.exit_status == 0
    [note] = report.problems
    assert (
        note.kind is ProblemKind.OPEN
        and f"up to physical offset {len(writer.log)}," in note.message
    )
    assert not [problem for queue in report.partitions for problem in queue.problems]
    assert report.commit_log is not None and report.commit_log.contents.records == 40
    assert lastwrite.verify(root, spark=INLINE).ok
    for options in (
        {},
        {"topic": "orders"},
        {"time_ms": writer.sent[0].store_time_ms},
        {"topic": "orders", "time_ms": writer.sent[0].store_time_ms},
    ):
        said.clear()
        rows = lastwrite.dump(root, say=said.append, **options)  # type: ignore[arg-type]
        assert len(list(rows)) == 40
        assert len(said) == 1 and "a broker has the store open" in said[0]
    last = sorted((writer.root / "commitlog").iterdir())[-1]
    alone = list(lastwrite.dump(str(last)))
    assert alone and alone[-1]["physical_offset"] == writer.sent[-1].physical_offset
    assert lastwrite.inspect(str(last)).exit_status == 0
    found = list(lastwrite.dump(root, key=b"k1", say=said.append))
    assert [row["body"] for row in found] and len(found) == 6
    export = lastwrite.export(root, str(writer.root) + ".json", format="json", spark=INLINE)
    assert export.messages == 40 and not export.problems


def test_stopped_broker_leaves_undispatched_records_readable(writer: StoreWriter) -> None:
    with other_process("print('held', flush=True)", writer.root):
        pass
    (writer.root / "lock").unlink()  # no process can have a lock on a missing file
    assert bound_of(writer) is None
    report = lastwrite.inspect(str(writer.root))
    assert {problem.kind for problem in report.problems} == {ProblemKind.RECOVERED}
    assert report.commit_log is not None and report.commit_log.contents.records == 41


def test_units_without_a_record_do_not_extend_the_dispatched_end(writer: StoreWriter) -> None:
    [path] = list((writer.root / "consumequeue" / "orders" / "1").glob(f"{200:020d}"))
    data = bytearray(path.read_bytes())
    data[-20:] = (1 << 40).to_bytes(8, "big") + (99).to_bytes(4, "big") + bytes(8)
    path.write_bytes(data)
    assert bound_of(writer) == writer.sent[-2].physical_offset + writer.sent[-2].size
    shutil.rmtree(writer.root / "consumequeue")
    assert bound_of(writer) == 0
    assert list(lastwrite.dump(str(writer.root))) == []


def test_hole_below_the_dispatched_end_is_damage(writer: StoreWriter) -> None:
    at = writer.sent[30].physical_offset
    path = writer.root / "commitlog" / f"{at - at % writer.log_bytes:020d}"
    with path.open("r+b") as file:
        file.seek(at % writer.log_bytes)
        file.write(bytes(20))
    assert lastwrite.inspect(str(writer.root)).exit_status == 3
    with pytest.raises(CorruptLog):
        list(lastwrite.dump(str(writer.root)))


def test_index_without_the_last_message_is_not_damage(writer: StoreWriter) -> None:
    """The last message has one key in the index. The broker has not entered the other yet."""
    path = sorted((writer.root / "index").iterdir())[-1]
    data = bytearray(path.read_bytes())
    count = int.from_bytes(data[36:40], "big")
    data[36:40] = (count - 1).to_bytes(4, "big")
    path.write_bytes(data)
    report = lastwrite.inspect(str(writer.root))
    assert report.exit_status == 0 and len(report.problems) == 1
    for alone in (path, path.parent):
        assert lastwrite.inspect(str(alone)).exit_status == 0
