"""Tests of ``dispatch`` with damage, gaps, stale bytes, locked stores and unusual settings."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

import lastwrite
from lastwrite.errors import CorruptLog, InvalidConfig, LogError, LogHeld, NotALog
from lastwrite.model.log import Problem, TopicPartition
from lastwrite.rocketmq.format.sides import Checkpoint, encode_checkpoint
from lastwrite.rocketmq.reports import DispatchReport
from lastwrite.rocketmq.store import lock
from lastwrite.spark.inline import INLINE
from lastwrite.storage import files
from lastwrite.storage.files import FaultPoints
from tests.support.rocketmq.dispatch import (
    BATCHED,
    COMPACTED,
    Broker,
    Sizes,
    read_dispatched,
    send,
    write_store,
)

NOW = 1_700_000_500_000


def dispatch(root: Path, broker: Broker, **more: object) -> DispatchReport:
    return lastwrite.dispatch(
        str(root), config=broker.sizes.config(), now_ms=NOW, spark=INLINE, **more
    )  # type: ignore[arg-type]


def some(count: int = 40, topic: str = "plain") -> Broker:
    broker = Broker()
    for n in range(count):
        send(broker, topic, n % 2, n // 2, keys=f"k{n % 5}", body=b"v" * 50)
    return broker


def copy(broker: Broker, count: int) -> Broker:
    """A broker after the first ``count`` messages."""
    made = Broker()
    for n in range(count):
        send(made, "plain", n % 2, n // 2, keys=f"k{n % 5}", body=b"v" * 50)
    return made


def patch(root: Path, broker: Broker, address: int, data: bytes) -> None:
    size = broker.sizes.commit_log
    path = root / "commitlog" / f"{address // size * size:020d}"
    content = bytearray(path.read_bytes())
    content[address % size : address % size + len(data)] = data
    path.write_bytes(content)


def lost_of(topic: str, queue: int, first: int, last: int, source: str) -> dict[str, object]:
    return {"topic": topic, "queue": queue, "first": first, "last": last, "source": source}


@pytest.mark.parametrize(
    "harm", [b"\0\0\0\0", b"\0\0\0\x10", b"\x7f\xff\xff\xff", b"\0\0\0\xa0\xff\xff\xff\xff"]
)
def test_damage_before_the_end_stops_all_queues_there(tmp_path: Path, harm: bytes) -> None:
    broker = some()
    root = write_store(tmp_path / "store", broker)
    patch(root, broker, broker.addresses[25], harm)
    report = dispatch(root, broker)
    assert report.exit_status == 3
    (problem,) = report.problems
    assert problem.kind == "damaged" and problem.remedy
    assert report.log_end == broker.addresses[25]
    file, at = divmod(broker.addresses[25], broker.sizes.commit_log)
    assert (problem.path, problem.position) == (str(root / "commitlog" / f"{file * 4096:020d}"), at)
    assert report.damage is not None and report.damage.physical_offset == broker.addresses[25]
    assert (report.damage.resumes_at, report.damage.records_beyond) == (broker.addresses[26], 14)
    assert [one.to_dict() for one in report.damage.lost] == [lost_of("plain", 1, 12, 12, "records")]
    assert [(one.queue, one.first, one.last) for one in report.damage.beyond] == [
        (0, 13, 19),
        (1, 13, 19),
    ]
    assert (
        f"physical offset {broker.addresses[25]}; queue offsets plain-1 12 are lost"
        in problem.message
    )
    assert read_dispatched(root) == copy(broker, 25).dispatched()
    patch(root, broker, broker.addresses[25], broker.log_bytes(25))
    assert dispatch(root, broker).exit_status == 0
    assert read_dispatched(root) == broker.dispatched()


def test_torn_last_record_ends_the_log(tmp_path: Path) -> None:
    broker = some()
    root = write_store(tmp_path / "store", broker)
    patch(root, broker, broker.addresses[-1] + 4, bytes(4))
    report = dispatch(root, broker)
    assert report.exit_status == 0
    assert [problem.kind for problem in report.problems] == ["recovered"]
    assert read_dispatched(root) == copy(broker, 39).dispatched()


def test_stale_bytes_after_the_end_are_not_records(tmp_path: Path) -> None:
    broker = some()
    root = write_store(tmp_path / "store", broker)
    end = broker.addresses[-1] + len(broker.log_bytes(-1))
    patch(root, broker, end, broker.log_bytes(3))
    report = dispatch(root, broker)
    assert report.exit_status == 0 and report.log_end == end
    assert read_dispatched(root) == broker.dispatched()


def test_body_that_contains_a_record_is_not_dispatched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The body is a record whose address is its actual position."""
    broker = some(5)
    address = broker.addresses[-1] + len(broker.log_bytes(-1))
    other = Broker(first_address=0)
    other.log, other.wrote = [bytearray(broker.sizes.commit_log)], address + 88
    send(other, "evil", 0, 0)
    send(broker, "plain", 1, 2, body=other.log_bytes(0))
    for n in range(3, 9):
        send(broker, "plain", 1, n)
    root = write_store(tmp_path / "store", broker)
    monkeypatch.setattr("lastwrite.rocketmq.jobs.dispatch._MOST_PIECE_BYTES", address + 40)
    report = dispatch(root, broker)
    assert report.exit_status == 0
    assert read_dispatched(root) == broker.dispatched()


def test_skipped_queue_offsets_stop_the_dispatch(tmp_path: Path) -> None:
    broker = some(20)
    gap = send(broker, "plain", 0, 15)
    send(broker, "plain", 1, 10)
    root = write_store(tmp_path / "store", broker)
    report = dispatch(root, broker)
    assert report.exit_status == 3 and report.log_end == gap
    assert "queue offset 15 of plain-0, but offset 10 is expected" in report.problems[0].message
    assert read_dispatched(root) == copy(broker, 20).dispatched()


def test_single_lost_queue_is_rebuilt_with_whole_log(tmp_path: Path) -> None:
    broker = some()
    # Without a batch queue it would be unknown whether there was one, and the whole log would be
    # read.
    send(broker, BATCHED, 0, 0)
    root = write_store(tmp_path / "store", broker)
    dispatch(root, broker)
    shutil.rmtree(root / "consumequeue" / "plain" / "0")
    dispatch(root, broker)
    assert not (root / "consumequeue" / "plain" / "0").exists()
    report = dispatch(root, broker, whole_log=True)
    assert read_dispatched(root) == broker.dispatched()
    assert report.read_from == 0 and report.total("files_written") == 3
    assert not report.index_entries


def test_new_message_in_a_lost_queue_reveals_the_loss(tmp_path: Path) -> None:
    broker = some()
    send(broker, BATCHED, 0, 0)
    root = write_store(tmp_path / "store", broker)
    dispatch(root, broker)
    shutil.rmtree(root / "consumequeue" / "plain" / "0")
    send(broker, "plain", 1, 20)
    send(broker, "plain", 0, 20)
    write_store(root, broker)
    report = dispatch(root, broker)
    assert read_dispatched(root) == broker.dispatched()
    assert report.read_from == 0 and report.index_entries == 2


@pytest.mark.parametrize("at", [4, 8, 28])
def test_units_beyond_damage_are_kept(tmp_path: Path, at: int) -> None:
    """The queues have all their units. Truncating them at the damage would hide the undamaged
    records after it.
    """
    broker = some()
    root = write_store(tmp_path / "store", broker)
    dispatch(root, broker)
    before = read_dispatched(root)
    patch(root, broker, broker.addresses[24] + at, b"\xff" * 40)
    patch(root, broker, broker.addresses[25] + at, b"\xff" * 40)
    report = dispatch(root, broker, whole_log=True)
    assert read_dispatched(root) == before
    assert report.exit_status == 3 and {str(queue.status) for queue in report.queues} == {"damaged"}
    assert report.damage is not None and report.damage.physical_offset == broker.addresses[24]
    assert report.damage.resumes_at == broker.addresses[26]
    assert [one.to_dict() for one in report.damage.lost] == [
        lost_of("plain", 0, 12, 12, "consume queue"),
        lost_of("plain", 1, 12, 12, "consume queue"),
    ]
    assert "nothing was changed" in str(report.problems[0].remedy)


def test_log_that_lost_its_end_after_a_clean_shutdown_is_damage(tmp_path: Path) -> None:
    """The broker was stopped in order, so no power failure explains the loss. The units are kept
    unless an option discards them.
    """
    broker, fewer = some(40), copy(some(40), 21)
    root = write_store(tmp_path / "store", broker)
    dispatch(root, broker)
    before = read_dispatched(root)
    shutil.rmtree(root / "commitlog")
    write_store(root, fewer)
    report = dispatch(root, fewer)
    assert report.exit_status == 3 and read_dispatched(root) == before
    assert report.damage is not None and report.damage.resumes_at is None
    assert [(one.queue, one.first, one.last) for one in report.damage.lost] == [
        (0, 11, 19),
        (1, 10, 19),
    ]
    shutil.rmtree(root / "commitlog")
    (root / "commitlog").mkdir()
    report = dispatch(root, fewer)
    assert report.exit_status == 3 and read_dispatched(root) == before
    assert "physical offset 0, but records after that were lost" in report.problems[0].message


def test_checkpoint_reveals_a_lost_log_end(tmp_path: Path) -> None:
    broker = some(10)
    root = write_store(tmp_path / "store", broker)
    end = broker.addresses[-1] + len(broker.log_bytes(-1))
    (root / "checkpoint").write_bytes(encode_checkpoint(Checkpoint(0, 0, 0, 0, end, end)))
    assert dispatch(root, broker).exit_status == 0
    (root / "checkpoint").write_bytes(encode_checkpoint(Checkpoint(0, 0, 0, 0, end + 1, end)))
    report = dispatch(root, broker)
    assert (
        report.exit_status == 3
        and f"the checkpoint has physical offset {end + 1}" in report.problems[0].message
    )


def test_file_without_a_record_in_the_middle_is_named(tmp_path: Path) -> None:
    broker = some(60)
    root = write_store(tmp_path / "store", broker)
    path = root / "commitlog" / f"{4096:020d}"
    path.write_bytes(b"")
    os.truncate(path, 4096)
    report = dispatch(root, broker)
    assert (
        report.exit_status == 3
        and "the file that begins at physical offset 4096 contains no record"
        in report.problems[0].message
    )
    assert (
        report.damage is not None
        and report.damage.physical_offset < 4096 <= (report.damage.resumes_at or 0) - 4096
    )


def test_log_with_a_full_last_page_needs_no_dispatch(tmp_path: Path) -> None:
    """A file system distinguishes holes from data by pages, so the newest record may end exactly at
    a page's end.
    """
    broker = Broker(Sizes(commit_log=65536))
    for n in range(3):
        send(broker, "plain", 0, n, body=b"v" * (4096 - 105))
    send(broker, "plain", 0, 3, body=b"")
    grow = 4096 * 4 - (broker.addresses[-1] + len(broker.log_bytes(-1)))
    broker = Broker(Sizes(commit_log=65536))
    for n in range(3):
        send(broker, "plain", 0, n, body=b"v" * (4096 - 105))
    send(broker, "plain", 0, 3, body=b"v" * grow)
    assert broker.addresses[-1] + len(broker.log_bytes(-1)) == 4096 * 4
    root = write_store(tmp_path / "store", broker)
    path = root / "commitlog" / f"{0:020d}"
    os.truncate(path, 4096 * 4)
    os.truncate(path, 65536)
    for _ in range(2):
        assert dispatch(root, broker).exit_status == 0
    assert read_dispatched(root) == broker.dispatched()


def test_units_of_records_lost_by_a_killed_broker_are_removed(tmp_path: Path) -> None:
    broker, fewer = some(40), copy(some(40), 21)
    root = write_store(tmp_path / "store", broker)
    dispatch(root, broker)
    shutil.rmtree(root / "commitlog")
    shutil.rmtree(root / "index")
    write_store(root, fewer)
    (root / "abort").write_text("")
    report = dispatch(root, fewer, unclean=True)
    assert read_dispatched(root) == fewer.dispatched()
    (problem,) = report.problems
    assert (
        problem.kind == "recovered"
        and "queue offsets plain-0 11 to 19, plain-1 10 to 19" in problem.message
    )


def test_record_too_large_for_a_compaction_log_is_reported(tmp_path: Path) -> None:
    broker = Broker()
    send(broker, COMPACTED, 0, 0, body=b"v" * 3000)
    send(broker, COMPACTED, 0, 1)
    root = write_store(tmp_path / "store", broker)
    report = dispatch(root, broker)
    assert read_dispatched(root) == broker.dispatched()
    assert report.exit_status == 0 and report.total("records_too_large") == 1
    assert [problem.kind for problem in report.problems] == ["unsupported"]


def test_topic_without_a_valid_folder_name_is_skipped(tmp_path: Path) -> None:
    broker = some(4)
    send(broker, "../../evil", 0, 0)
    send(broker, "plain", -1, 0)
    root = write_store(tmp_path / "store", broker)
    report = dispatch(root, broker)
    assert report.exit_status == 3 and len(report.problems) == 2
    assert [path.name for path in (root / "consumequeue").iterdir()] == ["plain"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


def test_obstacles_to_a_dispatch_are_named(tmp_path: Path) -> None:
    broker = some(4)
    root = write_store(tmp_path / "store", broker)
    (root / "compaction" / "compactionLog" / "%RETRY%g" / "0").mkdir(
        parents=True
    )  # a name that Kafka would reject
    with lock.hold(str(root), [TopicPartition("lastwrite-dispatch", 0)]), pytest.raises(LogHeld):
        dispatch(root, broker)
    (root / "abort").write_text("123")
    with pytest.raises(LogHeld, match="unclean"):
        dispatch(root, broker)
    assert dispatch(root, broker, unclean=True).exit_status == 0
    assert read_dispatched(root) == broker.dispatched()


def test_disk_error_leaves_each_tree_old_or_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = some(8, COMPACTED)
    origin, root = write_store(tmp_path / "origin", broker), tmp_path / "run"
    expected = broker.dispatched()
    point = refused = 0
    while point == refused:
        point += 1
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(origin, root)
        monkeypatch.setattr(files, "faults", FaultPoints(point, errno.ENOSPC, once=True))
        try:
            dispatch(root, broker)
        except LogError as error:
            refused += 1
            assert error.remedy is not None
        monkeypatch.setattr(files, "faults", FaultPoints())
        found = read_dispatched(root)
        for tree in ("compaction", "index", "consumequeue"):
            mine = {name: data for name, data in found.items() if name.startswith(tree)}
            assert mine in (
                {},
                {name: data for name, data in expected.items() if name.startswith(tree)},
            )
        dispatch(root, broker)
        assert read_dispatched(root) == expected
        assert {path.name for path in root.iterdir()} == {
            "commitlog",
            "config",
            "lock",
            "compaction",
            "index",
            "consumequeue",
        }
    assert point > 30


def test_impossible_dispatch_is_refused(tmp_path: Path) -> None:
    broker = some()
    root = write_store(tmp_path / "store", broker)
    with pytest.raises(NotALog):
        lastwrite.dispatch(str(tmp_path), spark=INLINE)
    for config in (
        {"mappedFileSizeConsumeQeue": 20},
        {"maxIndexNum": "many"},
        {"enableConsumeQueueExt": "true"},
        {"indexRocksDBEnable": "true"},
        {"transRocksDBEnable": "true"},
        {"rocksdbCQDoubleWriteEnable": "true"},
        {"messageIndexEnable": 3},
        {"messageDelayLevel": "1s soon"},
    ):
        with pytest.raises(InvalidConfig):
            lastwrite.dispatch(str(root), config=config, spark=INLINE)
    of_the_broker = {
        "brokerName": "b",
        "flushDiskType": "ASYNC_FLUSH",
        "mappedFileSizeCommitLog": "4096",
    }
    sizes = broker.sizes.config()
    lastwrite.dispatch(str(root), config={**sizes, **of_the_broker}, now_ms=NOW, spark=INLINE)
    before = read_dispatched(root)
    path = root / "consumequeue" / "plain" / "0" / f"{0:020d}"
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(CorruptLog):
        dispatch(root, broker)
    path.write_bytes(path.read_bytes()[:-4])
    assert read_dispatched(root) == before


def test_light_queues_are_built_unless_disabled(tmp_path: Path) -> None:
    broker = Broker()
    named = {"INNER_MULTI_DISPATCH": "%LMQ%room,notes", "INNER_MULTI_QUEUE_OFFSET": "0,0"}
    send(broker, "plain", 1, 0, **named)
    send(broker, "plain", 1, 1, INNER_MULTI_DISPATCH="%LMQ%room", INNER_MULTI_QUEUE_OFFSET="1")
    root = write_store(tmp_path / "store", broker)
    sizes = broker.sizes.config()
    off = {**sizes, "enableMultiDispatch": "false"}
    lastwrite.dispatch(str(root), config=off, now_ms=NOW, spark=INLINE)
    assert [path.name for path in (root / "consumequeue").iterdir()] == ["plain"]
    by_record = {**sizes, "enableLmq": "false"}
    lastwrite.dispatch(str(root), config=by_record, whole_log=True, now_ms=NOW, spark=INLINE)
    assert sorted((root / "consumequeue").glob("*/*")) == [
        root / "consumequeue" / "%LMQ%room" / "1",
        root / "consumequeue" / "notes" / "1",
        root / "consumequeue" / "plain" / "1",
    ]
    shutil.rmtree(root / "consumequeue")
    report = dispatch(root, broker)
    assert not report.problems and read_dispatched(root) == broker.dispatched()


def test_light_queue_without_an_offset_is_named_and_skipped(tmp_path: Path) -> None:
    broker = Broker()
    send(broker, "plain", 0, 0)
    bad = {"INNER_MULTI_DISPATCH": "notes,%LMQ%room", "INNER_MULTI_QUEUE_OFFSET": ",0"}
    address = send(broker, "plain", 0, 1, **bad)
    send(broker, "plain", 0, 2)
    root = write_store(tmp_path / "store", broker)
    report = dispatch(root, broker)
    (problem,) = report.problems
    assert (problem.kind, problem.position) == ("unsupported", address)
    assert problem.path == str(root / "commitlog" / f"{0:020d}")
    assert [queue.next_offset for queue in report.queues] == [3]


def test_consume_queue_extensions_are_named(tmp_path: Path) -> None:
    broker = some(4)
    root = write_store(tmp_path / "store", broker)
    (root / "consumequeue_ext" / "plain" / "0").mkdir(parents=True)
    (root / "consumequeue_ext" / "plain" / "0" / f"{0:020d}").write_bytes(bytes(64))
    report = dispatch(root, broker)
    (problem,) = report.problems
    assert problem.path == str(root / "consumequeue_ext") and report.exit_status == 0


# ---------------------------------------------------------------------- remedies, followed


def all_problems(root: Path) -> list[Problem]:
    report = lastwrite.inspect(str(root))
    return [*report.problems, *(one for queue in report.partitions for one in queue.problems)]


def test_remedy_for_a_single_lost_queue_works(tmp_path: Path) -> None:
    broker = some()
    root = write_store(tmp_path / "store", broker)
    dispatch(root, broker)
    assert not all_problems(root)
    shutil.rmtree(root / "consumequeue" / "plain" / "0")
    (problem,) = all_problems(root)
    assert problem.path == str(root / "consumequeue" / "plain" / "0")
    assert problem.remedy == (
        "run lastwrite dispatch STORE --whole-log, which builds the consume queue"
    )
    dispatch(root, broker, whole_log=True)
    assert read_dispatched(root) == broker.dispatched() and not all_problems(root)


def test_remedy_for_missing_units_at_a_queue_end_works(tmp_path: Path) -> None:
    broker = some()
    root = write_store(tmp_path / "store", broker)
    dispatch(root, broker)
    last = sorted((root / "consumequeue" / "plain" / "0").iterdir())[-1]
    last.write_bytes(last.read_bytes()[:20].ljust(broker.sizes.queue, b"\0"))
    (problem,) = all_problems(root)
    assert problem.remedy is not None and "dispatch STORE --whole-log" in problem.remedy
    dispatch(root, broker, whole_log=True)
    assert read_dispatched(root) == broker.dispatched() and not all_problems(root)


@pytest.mark.parametrize("harm", ["entry", "slot", "short"])
def test_remedy_for_a_damaged_index_file_works(tmp_path: Path, harm: str) -> None:
    broker = some()
    root = write_store(tmp_path / "store", broker)
    dispatch(root, broker)
    first = sorted((root / "index").iterdir())[0]
    content = bytearray(first.read_bytes())
    if harm == "entry":
        content[40 + 4 * broker.sizes.slots + 20 + 4] = 0x7F
    elif harm == "slot":
        content[40:44] = b"\0\0\0\7"
    first.write_bytes(content[:50] if harm == "short" else content)
    found = all_problems(root)
    assert found and all(problem.path == str(first) or harm == "short" for problem in found)
    assert any("move the folder index out" in str(problem.remedy) for problem in found)
    (root / "index").rename(tmp_path / "kept")
    dispatch(root, broker)
    assert read_dispatched(root) == broker.dispatched() and not all_problems(root)


def test_queue_with_files_of_another_size_is_named(
    tmp_path: Path,
) -> None:
    broker = Broker()
    for n, topic in enumerate(["a", "b", "c"]):
        send(broker, topic, 0, 0, keys=f"k{n}")
    root = write_store(tmp_path / "store", broker)
    dispatch(root, broker)
    for topic in ("a", "c"):
        path = root / "consumequeue" / topic / "0" / f"{0:020d}"
        good = path.read_bytes()
        path.write_bytes(good + bytes(20))
        with pytest.raises(CorruptLog, match="and 2 queues have files of") as refused:
            dispatch(root, broker)
        assert refused.value.path == str(path)
        path.write_bytes(good)
    dispatch(root, broker)


def test_light_queue_without_a_valid_folder_name_is_named_with_its_record(tmp_path: Path) -> None:
    broker = Broker()
    send(broker, "plain", 0, 0)
    odd = {"INNER_MULTI_DISPATCH": "%LMQ%" + "x" * 251, "INNER_MULTI_QUEUE_OFFSET": "0"}
    address = send(broker, "plain", 0, 1, **odd)
    root = write_store(tmp_path / "store", broker)
    report = dispatch(root, broker)
    (problem,) = report.problems
    assert (problem.kind, problem.position) == ("unsupported", address)
    assert report.exit_status == 0 and [queue.next_offset for queue in report.queues] == [2]
