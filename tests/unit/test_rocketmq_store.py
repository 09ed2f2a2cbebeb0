"""What the engine sees of a RocketMQ store: where queues lie, how far records go, and what it refuses."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

import lastwrite
from lastwrite.errors import InvalidConfig, LogHeld, NotALog
from lastwrite.formats.rocketmq.units import BATCH_UNIT
from lastwrite.logstore.rocketmq import store
from lastwrite.model.log import ProblemKind, TopicPartition
from lastwrite.model.report import PartitionReport, Status
from lastwrite.pipeline.inline import INLINE
from lastwrite.pipeline.system import system_named
from tests.engine import compact
from tests.rocketmq_model import (
    START_MS,
    TOPIC,
    ModelPair,
    ModelQueue,
    message,
    read_files,
    write_store,
)

INDEX_BYTES = 46 * 6
LOG_BYTES = 5 * INDEX_BYTES
LOG, INDEX = "compaction/compactionLog/ctopic/0", "compaction/compactionCq/ctopic/0"
FIRST, SECOND = f"{0:020d}", f"{LOG_BYTES:020d}"


def queue_of(count: int = 23, number: int = 0, **fields: int) -> ModelQueue:
    queue = ModelQueue(LOG_BYTES, INDEX_BYTES, number, **fields)  # type: ignore[arg-type]
    for n in range(count):
        queue.append(message(3 + 2 * n, f"k{n % 7}", b"body %d" % n, START_MS + n, queue=number))
    return queue


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_store(tmp_path / "store", [queue_of(), queue_of(number=11), queue_of(number=2)])
    return tmp_path / "store"


def folder(root: Path, number: int = 0) -> str:
    return store.folder_of(str(root), TopicPartition(TOPIC, number))


def clean(root: Path, **arguments: object) -> dict[int, PartitionReport]:
    return {told.partition: told for told in compact(root, {}, START_MS, **arguments).partitions}


def patch(path: Path, at: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)


# ---------------------------------------------------------------------- where queues lie


def test_queues_are_found_by_number(root: Path) -> None:
    found = store.find_queues(str(root))
    assert [store.name_of(each).partition for each in found] == [0, 2, 11]
    assert store.find_queues(str(root), TOPIC, 2) == [folder(root, 2)]
    assert {store.root_of(each) for each in found} == {str(root)}


@pytest.mark.parametrize(
    "place", ["compaction", "compaction/compactionLog", "compaction/compactionLog/ctopic"]
)
def test_a_folder_above_queues_names_them_all(root: Path, place: str) -> None:
    assert len(store.find_queues(str(root / place))) == 3


@pytest.mark.parametrize("place", [LOG, INDEX, f"{LOG}/{FIRST}", f"{INDEX}/{SECOND}"])
def test_a_queue_or_its_file_names_it(root: Path, place: str) -> None:
    assert store.find_queues(str(root / place)) == [folder(root)]


def test_what_is_not_there(root: Path, tmp_path: Path) -> None:
    with pytest.raises(NotALog, match="no such compaction log"):
        store.find_queues(str(root), "other")
    (tmp_path / "other" / "commitlog").mkdir(parents=True)
    (tmp_path / "other" / "commitlog" / FIRST).write_bytes(b"")
    with pytest.raises(NotALog, match="lastwrite dispatch"):
        store.find_queues(str(tmp_path / "other"))
    with pytest.raises(NotALog, match="not compacted"):
        store.find_queues(str(tmp_path / "other" / "commitlog"))
    with pytest.raises(NotALog):
        store.find_queues(str(tmp_path / "nothing"))


def test_the_system_is_known_by_its_files(root: Path, tmp_path: Path) -> None:
    for place in ("", "compaction", LOG, f"{LOG}/{FIRST}"):
        assert system_named(None, str(root / place)).name == "rocketmq"
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "orders-0" / f"{FIRST}.log").write_bytes(b"")
    for path in (
        tmp_path / "orders-0",
        tmp_path,
        tmp_path / "orders-0" / f"{FIRST}.log",
        tmp_path / "nothing",
    ):
        assert system_named(None, str(path)).name == "kafka"
    assert system_named("rocketmq", str(tmp_path)).name == "rocketmq"


# ---------------------------------------------------------------------- one queue


def test_segments_end_where_records_do(root: Path) -> None:
    queue, log = queue_of(), store.read_queue(folder(root))
    assert not log.problems
    assert [(s.base_offset, s.size_bytes, s.file_bytes) for s in log.segments] == [
        (pair.messages[0].offset, pair.size, LOG_BYTES) for pair in queue.pairs
    ]
    assert [(s.first_batch_timestamp_ms, s.largest_timestamp_ms) for s in log.segments] == [
        (pair.messages[0].store_ms, pair.messages[-1].store_ms) for pair in queue.pairs
    ]
    assert (log.log_start, log.end_offset, log.high_watermark, log.checkpoint) == (3, 48, 48, None)
    assert not log.is_torn
    assert store.record_count(log) == 23
    assert [store.end_offset_of(s) for s in log.segments] == [
        p.messages[-1].offset + 1 for p in queue.pairs
    ]
    assert [store.first_offset_from(log, offset) for offset in (0, 3, 4, 47, 48, 99)] == [
        3,
        3,
        5,
        47,
        48,
        99,
    ]


def test_an_empty_active_file_begins_at_the_end(tmp_path: Path) -> None:
    queue = queue_of()
    queue.pairs.append(ModelPair(queue.pairs[-1].start + LOG_BYTES))
    queue.position = 9
    write_store(tmp_path, [queue])
    log = store.read_queue(folder(tmp_path))
    assert (log.segments[-1].base_offset, log.segments[-1].size_bytes, log.checkpoint) == (
        48,
        0,
        10,
    )
    assert clean(tmp_path)[0].status is Status.CLEANED


def test_a_closed_pair_without_a_record_goes(tmp_path: Path) -> None:
    """A record that fits no file leaves such a pair, and a broker serves nothing before it."""
    queue = queue_of()
    queue.pairs.insert(0, ModelPair(0))
    queue.pairs[1:] = [
        ModelPair(pair.start + LOG_BYTES, pair.messages, pair.is_closed) for pair in queue.pairs[1:]
    ]
    write_store(tmp_path, [queue])
    assert store.read_queue(folder(tmp_path)).log_start == 3
    assert clean(tmp_path)[0].status is Status.CLEANED
    assert f"compactionLog/{TOPIC}/0/{FIRST}" not in read_files(tmp_path)
    assert not store.read_queue(folder(tmp_path)).problems


def end_of_records(root: Path) -> int:
    return store.read_queue(folder(root)).segments[0].size_bytes


DAMAGE = {
    "a log without its index": lambda root: (root / INDEX / SECOND).unlink(),
    "an index without its log": lambda root: (root / LOG / SECOND).unlink(),
    "a file that a broker has on its way out": lambda root: (
        root / LOG / f"{FIRST}.delete"
    ).write_bytes(b"x"),
    "a file of somebody else's": lambda root: (root / LOG / ".crc").write_bytes(b"12 bytes here"),
    "a log file cut short": lambda root: (root / LOG / FIRST).write_bytes(b"x" * 100),
    "a name that is no multiple": lambda root: [
        (root / place / SECOND).rename(root / place / f"{LOG_BYTES + 1000:020d}")
        for place in (LOG, INDEX)
    ],
    "a unit with another address": lambda root: patch(
        root / INDEX / FIRST, 46, struct.pack(">q", 7)
    ),
    "a unit with another size": lambda root: patch(
        root / INDEX / FIRST, 8, struct.pack(">i", 2**31 - 1)
    ),
    "a unit with another offset": lambda root: patch(
        root / INDEX / FIRST, 28, struct.pack(">q", 4)
    ),
    "a unit with another store time": lambda root: patch(
        root / INDEX / FIRST, 20, struct.pack(">q", 4)
    ),
    "offsets that fall": lambda root: patch(root / INDEX / FIRST, 46 + 28, struct.pack(">q", 1)),
    "a unit of several messages": lambda root: patch(
        root / INDEX / FIRST, 36, struct.pack(">h", 2)
    ),
    "a hole in the index": lambda root: patch(root / INDEX / FIRST, 46, b"\0" * 46),
    "an index that lost its end": lambda root: patch(root / INDEX / FIRST, 46 * 4, b"\0" * 92),
    "a body of other bytes": lambda root: patch(root / LOG / FIRST, 88, b"B"),
    "a record of another magic": lambda root: patch(root / LOG / FIRST, 4, b"\0\0\0\0"),
    "a record of another size": lambda root: patch(root / LOG / FIRST, 0, struct.pack(">i", 99)),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_queue_is_left_as_it_is(root: Path, what: str) -> None:
    DAMAGE[what](root)
    before = {place: content for place, content in read_files(root).items() if "/0/" in place}
    told = clean(root)
    assert told[0].status is Status.DAMAGED, (told[0].status, told[0].reason)
    problem = next(p for p in told[0].problems if p.kind is ProblemKind.DAMAGED)
    assert problem.remedy and problem.path.startswith(str(root))
    assert {told[2].status, told[11].status} == {Status.CLEANED}
    assert {
        place: content for place, content in read_files(root).items() if "/0/" in place
    } == before


def test_a_false_address_in_a_record_is_put_right(root: Path) -> None:
    """Clients see it, nobody else: spec section 24.3."""
    patch(root / LOG / FIRST, 28, struct.pack(">q", 12345))
    assert clean(root)[0].status is Status.CLEANED
    queue = queue_of()
    kept = store.read_queue(folder(root)).segments[0]
    assert kept.base_offset in {each.offset for each in queue.messages}
    assert struct.unpack_from(">q", Path(kept.path).read_bytes(), 28)[0] == int(
        Path(kept.path).name
    )


def test_what_a_broken_run_left_behind_does_not_matter(root: Path) -> None:
    (root / LOG / "compacting").mkdir()
    (root / LOG / "compacting" / FIRST).write_bytes(b"x")
    assert clean(root)[0].status is Status.CLEANED
    assert not (root / LOG / "compacting").exists()


# ---------------------------------------------------------------------- what is asked


def test_a_broker_that_was_killed(root: Path) -> None:
    (root / "abort").write_bytes(b"1234")
    before = read_files(root)
    with pytest.raises(LogHeld, match="was killed"):
        clean(root)
    assert read_files(root) == before
    config = {"unclean": "true", "min.cleanable.dirty.ratio": 0}
    report = lastwrite.compact(str(root), config=config, now_ms=START_MS, spark=INLINE)
    assert {told.status for told in report.partitions} == {Status.CLEANED}


def test_the_ratio_decides(root: Path) -> None:
    queue = queue_of()
    queue.position = queue.pairs[-2].messages[0].offset - 1
    write_store(root, [queue])
    settings = {"min.cleanable.dirty.ratio": 0.5}
    told = lastwrite.compact(
        str(root), topic=TOPIC, partition=0, config=settings, now_ms=START_MS, spark=INLINE
    )
    assert told.partitions[0].status is Status.SKIPPED
    assert "min.cleanable.dirty.ratio asks for more than 0.5" in str(told.partitions[0].reason)
    lag = {"min.cleanable.dirty.ratio": 0.5, "max.compaction.lag.ms": 1}
    told = lastwrite.compact(
        str(root), topic=TOPIC, partition=0, config=lag, now_ms=START_MS + 999, spark=INLINE
    )
    assert told.partitions[0].status is Status.CLEANED


def test_scans_are_not_kept_beside_a_queue(root: Path) -> None:
    with pytest.raises(InvalidConfig, match="suffers no file of ours"):
        compact(root, {}, START_MS, keep_scans=True)


def test_a_broker_never_compacts_the_active_file(root: Path) -> None:
    before = read_files(root)
    told = clean(root, like_broker=True, include_active=True)[0]
    assert (told.status, read_files(root)) == (Status.FAILED, before)


def test_one_file_alone_is_the_active_one(tmp_path: Path) -> None:
    write_store(tmp_path, [queue_of(4)])
    told = clean(tmp_path)[0]
    assert told.status is Status.SKIPPED
    assert "the active segment begins at offset 3" in str(told.reason)


def test_units_are_where_the_model_puts_them(root: Path) -> None:
    """The layout of the tests' own model against the table of the format."""
    first = BATCH_UNIT.unpack_from((root / INDEX / FIRST).read_bytes(), 0)
    assert first == (0, message(3, "k0", b"body 0", START_MS).size, 0, START_MS, 3, 1, -1, 0)
