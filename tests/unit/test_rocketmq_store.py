"""Tests of reading a RocketMQ store for the engine: queues, their ends, and refused stores."""

from __future__ import annotations

import ast
import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest

import lastwrite
from lastwrite.commands.systems import system_at
from lastwrite.errors import CorruptLog, InvalidConfig, LogHeld, NotALog
from lastwrite.model.log import ProblemKind, TopicPartition
from lastwrite.reports.compaction import PartitionReport, Status
from lastwrite.rocketmq.format.names import CUT_GUARD
from lastwrite.rocketmq.format.record import COMPRESSED, encode_message, make_message
from lastwrite.rocketmq.format.units import BATCH_UNIT, batch_units
from lastwrite.rocketmq.store import dispatched, queues, reading
from lastwrite.spark.inline import INLINE
from tests.support.engine import compact
from tests.support.rocketmq.dispatch import COMPACTED, Broker, send
from tests.support.rocketmq.dispatch import write_store as write_commit_log
from tests.support.rocketmq.model import (
    START_MS,
    TOPIC,
    ModelMessage,
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
    return queues.folder_of(str(root), TopicPartition(TOPIC, number))


def clean(root: Path, **arguments: object) -> dict[int, PartitionReport]:
    return {told.partition: told for told in compact(root, {}, START_MS, **arguments).partitions}


def patch(path: Path, at: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)


# ---------------------------------------------------------------------- where queues lie


def test_queues_are_found_by_number(root: Path) -> None:
    found = queues.find_queues(str(root))
    assert [queues.name_of(each).partition for each in found] == [0, 2, 11]
    assert queues.find_queues(str(root), TOPIC, 2) == [folder(root, 2)]
    assert {queues.root_of(each) for each in found} == {str(root)}


@pytest.mark.parametrize(
    "place", ["compaction", "compaction/compactionLog", "compaction/compactionLog/ctopic"]
)
def test_folder_above_queues_selects_them_all(root: Path, place: str) -> None:
    assert len(queues.find_queues(str(root / place))) == 3


@pytest.mark.parametrize("place", [LOG, INDEX, f"{LOG}/{FIRST}", f"{INDEX}/{SECOND}"])
def test_queue_folder_or_file_selects_the_queue(root: Path, place: str) -> None:
    assert queues.find_queues(str(root / place)) == [folder(root)]


def test_missing_or_uncompacted_topic_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(NotALog, match="no compacted topic 'other' — there are: "):
        queues.find_queues(str(root), "other")
    with pytest.raises(NotALog, match="has no queue 9 — there are: "):
        queues.find_queues(str(root), TOPIC, 9)
    (tmp_path / "other" / "commitlog").mkdir(parents=True)
    (tmp_path / "other" / "commitlog" / FIRST).write_bytes(b"")
    with pytest.raises(NotALog, match="lastwrite dispatch"):
        queues.find_queues(str(tmp_path / "other"))
    with pytest.raises(NotALog, match="not a compaction log"):
        queues.find_queues(str(tmp_path / "other" / "commitlog"))
    with pytest.raises(NotALog):
        queues.find_queues(str(tmp_path / "nothing"))


def test_system_is_recognised_by_its_files(root: Path, tmp_path: Path) -> None:
    for place in ("", "compaction", LOG, f"{LOG}/{FIRST}"):
        assert system_at(str(root / place)).name == "rocketmq"
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "orders-0" / f"{FIRST}.log").write_bytes(b"")
    for path in (
        tmp_path / "orders-0",
        tmp_path,
        tmp_path / "orders-0" / f"{FIRST}.log",
        tmp_path / "nothing",
    ):
        assert system_at(str(path)).name == "kafka"
    assert system_at(str(tmp_path), "rocketmq").name == "rocketmq"


# ---------------------------------------------------------------------- one queue


def test_segments_end_where_their_records_end(root: Path) -> None:
    queue, log = queue_of(), queues.read_queue(folder(root))
    assert not log.problems
    assert [(s.base_offset, s.size_bytes, s.file_bytes) for s in log.segments] == [
        (pair.messages[0].offset, pair.size, LOG_BYTES) for pair in queue.pairs
    ]
    assert [(s.first_batch_timestamp_ms, s.largest_timestamp_ms) for s in log.segments] == [
        (pair.messages[0].store_ms, pair.messages[-1].store_ms) for pair in queue.pairs
    ]
    assert (log.log_start, log.end_offset, log.high_watermark, log.checkpoint) == (3, 48, 48, None)
    assert not log.is_torn
    assert queues.record_count(log) == 23
    assert [queues.end_offset_of(s) for s in log.segments] == [
        p.messages[-1].offset + 1 for p in queue.pairs
    ]
    assert [queues.first_offset_from(log, offset) for offset in (0, 3, 4, 47, 48, 99)] == [
        3,
        3,
        5,
        47,
        48,
        99,
    ]


def test_empty_active_file_begins_at_the_log_end(tmp_path: Path) -> None:
    queue = queue_of()
    queue.pairs.append(ModelPair(queue.pairs[-1].start + LOG_BYTES))
    queue.position = 9
    write_store(tmp_path, [queue])
    log = queues.read_queue(folder(tmp_path))
    assert (log.segments[-1].base_offset, log.segments[-1].size_bytes, log.checkpoint) == (
        48,
        0,
        10,
    )
    assert clean(tmp_path)[0].status is Status.CLEANED


def test_closed_file_pair_without_a_record_is_removed(tmp_path: Path) -> None:
    """A record that fits into no file leaves such a closed pair. A broker serves
    nothing before it.
    """
    queue = queue_of()
    queue.pairs.insert(0, ModelPair(0, is_closed=True))
    queue.pairs[1:] = [
        ModelPair(pair.start + LOG_BYTES, pair.messages, pair.is_closed) for pair in queue.pairs[1:]
    ]
    write_store(tmp_path, [queue])
    assert queues.read_queue(folder(tmp_path)).log_start == 3
    assert clean(tmp_path)[0].status is Status.CLEANED
    assert f"compactionLog/{TOPIC}/0/{FIRST}" not in read_files(tmp_path)
    assert not queues.read_queue(folder(tmp_path)).problems


def end_of_records(root: Path) -> int:
    return queues.read_queue(folder(root)).segments[0].size_bytes


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
def test_damaged_queue_is_left_unchanged(root: Path, what: str) -> None:
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


def test_wrong_address_in_a_record_is_corrected(root: Path) -> None:
    """Only clients see this address."""
    patch(root / LOG / FIRST, 28, struct.pack(">q", 12345))
    assert clean(root)[0].status is Status.CLEANED
    queue = queue_of()
    kept = queues.read_queue(folder(root)).segments[0]
    assert kept.base_offset in {each.offset for each in queue.messages}
    assert struct.unpack_from(">q", Path(kept.path).read_bytes(), 28)[0] == int(
        Path(kept.path).name
    )


def test_leftovers_of_a_failed_round_are_removed(root: Path) -> None:
    (root / LOG / "compacting").mkdir()
    (root / LOG / "compacting" / FIRST).write_bytes(b"x")
    assert clean(root)[0].status is Status.CLEANED
    assert not (root / LOG / "compacting").exists()


# ---------------------------------------------------------------------- what a kill leaves

NEXT = f"{queue_of().pairs[-1].start + LOG_BYTES:020d}"


@pytest.fixture
def rolling(root: Path) -> Path:
    """A store whose broker was killed between the creations of the two files of a pair."""
    (root / "abort").touch()
    (root / LOG / NEXT).write_bytes(bytes(LOG_BYTES))
    return root


def test_file_of_an_interrupted_roll_is_not_damage(root: Path, rolling: Path) -> None:
    """A broker's start removes the file, which has no record."""
    name, added = TopicPartition(TOPIC, 0), NEXT
    log = queues.read_queue(folder(rolling))
    assert [(each.kind, Path(each.path).name) for each in log.problems] == [
        (ProblemKind.RECOVERED, added)
    ]
    state = dispatched.read_log_state(str(rolling), name)
    found = lastwrite.inspect(str(rolling / LOG)).to_dict()
    assert "damaged" not in str(found["partitions"]) and added in str(found["partitions"])
    told = compact(rolling, {"unclean": True}, START_MS).partitions[0]
    assert told.status is Status.CLEANED and not (rolling / LOG / added).exists()
    assert dispatched.read_log_state(str(rolling), name)[0].highest == state[0].highest


@pytest.mark.parametrize(
    "what", ["its broker stopped in order", "a record in it", "no unit before it", "two of them"]
)
def test_other_log_file_without_an_index_is_damage(rolling: Path, what: str) -> None:
    last = rolling / LOG / NEXT
    if what == "its broker stopped in order":
        (rolling / "abort").unlink()
    elif what == "a record in it":
        patch(last, 0, (rolling / LOG / FIRST).read_bytes()[:200])
    elif what == "no unit before it":
        max((rolling / INDEX).iterdir()).write_bytes(bytes(INDEX_BYTES))
    else:
        (rolling / LOG / f"{int(NEXT) + LOG_BYTES:020d}").write_bytes(bytes(LOG_BYTES))
    log = queues.read_queue(folder(rolling))
    assert any(
        each.kind is ProblemKind.DAMAGED and each.path == str(last) for each in log.problems
    ), log.problems
    with pytest.raises(CorruptLog):
        dispatched.read_log_state(str(rolling), TopicPartition(TOPIC, 0))


# ---------------------------------------------------------------------- what is asked


def test_store_of_a_killed_broker_needs_the_unclean_option(root: Path) -> None:
    (root / "abort").write_bytes(b"1234")
    before = read_files(root)
    with pytest.raises(LogHeld, match="was killed"):
        clean(root)
    assert read_files(root) == before
    config = {"unclean": "true", "min.cleanable.dirty.ratio": 0}
    report = lastwrite.compact(str(root), config=config, now_ms=START_MS, spark=INLINE)
    assert {told.status for told in report.partitions} == {Status.CLEANED}


def test_dirty_ratio_decides_whether_a_round_is_due(root: Path) -> None:
    queue = queue_of()
    queue.position = queue.pairs[-2].messages[0].offset - 1
    write_store(root, [queue])
    settings = {"min.cleanable.dirty.ratio": 0.5}
    told = lastwrite.compact(
        str(root), topic=TOPIC, partition=0, config=settings, now_ms=START_MS, spark=INLINE
    )
    assert told.partitions[0].status is Status.SKIPPED
    assert "a round requires more than min.cleanable.dirty.ratio, 0.5" in str(
        told.partitions[0].reason
    )
    lag = {"min.cleanable.dirty.ratio": 0.5, "max.compaction.lag.ms": 1}
    told = lastwrite.compact(
        str(root), topic=TOPIC, partition=0, config=lag, now_ms=START_MS + 999, spark=INLINE
    )
    assert told.partitions[0].status is Status.CLEANED


def test_keep_scans_is_refused_for_a_store(root: Path) -> None:
    with pytest.raises(InvalidConfig, match="allow no other files"):
        compact(root, {}, START_MS, keep_scans=True)


def test_like_broker_refuses_include_active(root: Path) -> None:
    before = read_files(root)
    told = clean(root, like_broker=True, include_active=True)[0]
    assert (told.status, read_files(root)) == (Status.FAILED, before)


def test_single_file_is_the_active_one(tmp_path: Path) -> None:
    write_store(tmp_path, [queue_of(4)])
    told = clean(tmp_path)[0]
    assert told.status is Status.SKIPPED
    assert "the active segment begins at offset 3" in str(told.reason)


def test_model_writes_index_units_in_the_documented_layout(root: Path) -> None:
    """Compares the layout of the tests' own model with the table of the format."""
    first = BATCH_UNIT.unpack_from((root / INDEX / FIRST).read_bytes(), 0)
    assert first == (0, message(3, "k0", b"body 0", START_MS).size, 0, START_MS, 3, 1, -1, 0)


# ---------------------------------------------------------------------- bodies that do not
# decompress the body


def undecodable(offset: int, key: str, store_ms: int) -> ModelMessage:
    """A record with a valid checksum whose body is not a zlib stream, as a faulty
    client sends it.
    """
    made = make_message(
        TOPIC,
        b"no zlib at all",
        {"KEYS": key, "UNIQ_KEY": f"{offset:032X}"},
        queue_offset=offset,
        sys_flag=COMPRESSED,
        store_time_ms=store_ms,
    )
    return ModelMessage(offset, key, b"no zlib at all", store_ms, 0, encode_message(made))


def test_undecompressable_body_is_kept_if_configured(tmp_path: Path) -> None:
    """It counts as a write: it supersedes older messages of its key, and a later one supersedes it.

    Otherwise the round is an ordinary one.
    """
    queue = ModelQueue(LOG_BYTES, INDEX_BYTES)
    for n in range(23):
        make = (
            undecodable
            if n in (4, 9)
            else lambda offset, key, ms: message(offset, key, b"body", ms)
        )
        queue.append(make(n, f"k{n % 7}" if n != 9 else "alone", START_MS + n))
    root = tmp_path / "store"
    write_store(root, [queue])
    before = read_files(root)
    (told,) = compact(root, {}, START_MS).partitions
    assert told.status is Status.DAMAGED and read_files(root) == before
    assert "undecodable.messages=keep" in str(told.problems[0].remedy)
    (planned,) = lastwrite.plan(
        str(root), config={"undecodable.messages": "keep"}, now_ms=START_MS, spark=INLINE
    ).partitions
    assert [problem.kind for problem in planned.problems] == ["kept", "kept"]
    (told,) = compact(root, {"undecodable.messages": "keep"}, START_MS).partitions
    assert told.status is Status.CLEANED
    assert planned.bytes_written == told.bytes_written > 0
    log = queues.read_queue(folder(root))
    first, second = (each for each in queue.messages if each.body == b"no zlib at all")
    assert [problem.message.split(":")[0] for problem in told.problems] == [
        "queue offset 4",
        "queue offset 9",
    ]
    assert all(problem.position is not None and problem.is_note for problem in told.problems)
    file = next(pair for pair in queue.pairs if second in pair.messages)
    at = sum(each.size for each in file.messages[: file.messages.index(second)])
    assert (Path(told.problems[1].path).name, told.problems[1].position) == (
        f"{file.start:020d}",
        at,
    )
    kept = b"".join(
        Path(segment.path).read_bytes()[: segment.size_bytes] for segment in log.segments
    )
    assert second.content[100:] in kept and first.content[100:] not in kept
    assert queues.record_count(log) == told.records_after


# -------------------------------------------------------------------------- logs that end too early


def problems_of(root: Path) -> list[str]:
    return [problem.message for problem in queues.read_queue(folder(root)).problems]


def emptied(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def test_closed_file_without_a_record_and_an_end_is_damage(root: Path) -> None:
    """Regression: the next round removed such a file as a leftover of a failed append."""
    for place in (LOG, INDEX):
        emptied(root / place / SECOND)
    before = read_files(root)
    assert problems_of(root) == ["the file is closed, but has no record and no end mark"]
    told = clean(root)
    assert told[0].status is Status.DAMAGED and told[2].status is Status.CLEANED
    assert {name: data for name, data in read_files(root).items() if "/ctopic/0/" in name} == {
        name: data for name, data in before.items() if "/ctopic/0/" in name
    }


def test_log_that_ends_below_its_position_is_damage(tmp_path: Path) -> None:
    queue = queue_of(position=40)
    root = tmp_path / "store"
    write_store(root, [queue])
    assert not problems_of(root)
    last = queue.pairs[-1]
    for place in (LOG, INDEX):
        emptied(root / place / f"{last.start:020d}")
    end = last.messages[0].offset
    assert not problems_of(root) if end > 40 else problems_of(root)
    write_store(root, [queue_of(count=5, position=40)])
    assert problems_of(root) == [
        "the log's records end before queue offset 12, but compaction has reached offset 40"
    ]
    assert clean(root)[0].status is Status.DAMAGED


@pytest.fixture
def dispatched_store(tmp_path: Path) -> tuple[Path, Broker]:
    """A store with its commit log. Its compacted topic has messages with and without keys."""
    broker = Broker()
    for n in range(40):
        send(
            broker,
            COMPACTED,
            0,
            n,
            keys=None if n % 4 == 3 or n > 37 else f"k{n % 9}",
            body=b"v" * 50,
        )
    root = write_commit_log(tmp_path / "store", broker)
    lastwrite.dispatch(str(root), config=broker.sizes.config(), now_ms=START_MS, spark=INLINE)
    return root, broker


def test_records_lost_from_the_compaction_log_are_named(
    dispatched_store: tuple[Path, Broker],
) -> None:
    root, broker = dispatched_store
    name = TopicPartition(COMPACTED, 0)
    place = queues.folder_of(str(root), name)
    assert not queues.read_queue(place).problems
    made = broker.pairs[COMPACTED, 0]
    last = len(made) - 1
    for number in (0, last):
        pair = made[number]
        log, index = (
            root / "compaction" / kind / COMPACTED / "0" / f"{pair.name:020d}"
            for kind in ("compactionLog", "compactionCq")
        )
        before = log.read_bytes(), index.read_bytes()
        units = batch_units(before[1])
        keep = 0 if number == last else 4
        first_lost = int(units["base"][keep])
        index.write_bytes(before[1][: keep * 46].ljust(len(before[1]), b"\0"))
        at = int(units["physical_offset"][keep]) - pair.name
        log.write_bytes(before[0][:at].ljust(len(before[0]), b"\0"))
        (problem,) = queues.read_queue(place).problems
        assert f"the log file ends before queue offset {first_lost}" in problem.message
        assert (problem.path, problem.position) == (str(log), at)
        assert ("lastwrite dispatch" in str(problem.remedy)) == (number == last)
        if number == last:
            # After the step in the remedy the store is complete.
            lastwrite.dispatch(
                str(root), config=broker.sizes.config(), now_ms=START_MS, spark=INLINE
            )
            assert (log.read_bytes(), index.read_bytes()) == before
        log.write_bytes(before[0])
        index.write_bytes(before[1])
        assert not queues.read_queue(place).problems


def test_missing_middle_file_pair_is_named(dispatched_store: tuple[Path, Broker]) -> None:
    """The commit log shows it, because it has the pair's messages."""
    root, broker = dispatched_store
    place = queues.folder_of(str(root), TopicPartition(COMPACTED, 0))
    _, middle, *_ = broker.pairs[COMPACTED, 0]
    files = [
        root / "compaction" / kind / COMPACTED / "0" / f"{middle.name:020d}"
        for kind in ("compactionLog", "compactionCq")
    ]
    lost = int(batch_units(files[1].read_bytes())["base"][0])
    content = {file: file.read_bytes() for file in files}
    for file in files:
        file.unlink()
    (problem,) = queues.read_queue(place).problems
    assert f"the log file ends before queue offset {lost}" in problem.message
    for file, data in content.items():
        file.write_bytes(data)
    assert not queues.read_queue(place).problems


def test_gap_above_the_position_is_damage(tmp_path: Path) -> None:
    """Below the position, compaction also removes emptied file pairs."""
    size, index = 46 * 8 * 6, 46 * 8
    pairs = [
        ModelPair(size * n, (message(at, f"k{at}", b"value", START_MS + at),), True)
        for n, at in ((0, 1), (2, 5), (3, 7), (5, 9))
    ]
    pairs[-1] = replace(pairs[-1], is_closed=False)
    for position, wanted in ((7, []), (5, [4]), (1, [4]), (0, [1, 4])):
        root = tmp_path / str(position)
        write_store(root, [ModelQueue(size, index, position=position, pairs=list(pairs))])
        log = queues.read_queue(queues.find_queues(str(root))[0])
        assert [Path(p.path).name for p in log.problems] == [f"{size * n:020d}" for n in wanted]


def test_remedies_lose_no_message(root: Path) -> None:
    """Regression: one remedy was to remove a file with possibly unique messages, another to remove
    a queue.
    """
    (root / LOG / f"{FIRST}.delete").write_bytes(b"x" * 100)
    (problem,) = reading.read_queue(
        str(root), reading.StoreFolder.COMPACTION_LOG, TopicPartition(TOPIC, 0)
    ).problems
    assert str(problem.remedy).startswith("keep the file")
    (root / LOG / f"{FIRST}.delete").unlink()
    (root / INDEX / SECOND).unlink()
    with pytest.raises(CorruptLog) as refused:
        dispatched.read_log_state(str(root), TopicPartition(TOPIC, 0))
    assert "keep them" in str(refused.value.remedy)
    (root / "commitlog").mkdir()
    (root / "commitlog" / CUT_GUARD).write_bytes(b"old")
    (problem,) = reading.read_commit_log(str(root)).problems
    assert str(problem.remedy) == "leave the file there, and run lastwrite cut STORE --undo"


def test_remedies_never_say_to_remove_a_file() -> None:
    """A remedy moves such a file out of the store, because it may have the only copy of its
    messages.
    """
    package = Path(lastwrite.__file__).parent
    places = [*package.glob("rocketmq/**/*.py"), package / "commands" / "restore.py"]
    wrong = re.compile(r"\b(remove|delete) (it|them|the (queue|folder|file|pair|log)s?\b|both)")
    trees = [ast.parse(path.read_text()) for path in places]
    docstrings = {
        id(node.value) for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Expr)
    }
    texts = {
        node.value
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in docstrings
    }
    assert len(places) > 20 and [text for text in sorted(texts) if wrong.search(text)] == []
