"""Tests of logs of formats v0 and v1 against Kafka's own cleaner.

The logs are written by hand, drawn at random, or encoded like those of old brokers.
``tests/support/kafka/judged.py`` checks each round.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lastwrite.encoding.compression import Codec
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.reports.compaction import Status
from tests.support.engine import compact
from tests.support.files import contents
from tests.support.kafka.judged import (
    Round,
    batches_of,
    checked,
    played,
    seen_as_new,
)
from tests.support.kafka.logs import NAME, SCRATCH, read_segments, write_segment
from tests.support.kafka.old_entries import encode_message, encode_wrapper
from tests.support.kafka.oracle import MAP_SLOTS, Oracle, scenario, shut_down
from tests.support.sample import some

START = 1_700_000_000_000
CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": "600",
    "index.interval.bytes": "100",
    "segment.index.bytes": "4096",
    "delete.retention.ms": "1000",
}
CODECS = ("none", "gzip", "snappy", "lz4")
ROLL = {"roll": True}

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    asked = Oracle()
    yield asked
    asked.close()


# ---------------------------------------------------------------------- plans


def old(
    magic: int, codec: str, *records: tuple[str | None, str | None], at: int = START, **more: Any
) -> list[Any]:
    """Actions that append ``records`` (key, value) in one wrapper, or as single messages."""
    found = [
        {"k": unless_none(key), "v": unless_none(value), "t": at + n}
        for n, (key, value) in enumerate(records)
    ]
    spec = {"magic": magic, "codec": codec, **more}
    if codec == "none":
        return [{"batch": {**spec, "records": [record]}} for record in found]
    return [{"batch": {**spec, "records": found}}]


def unless_none(text: str | None) -> str | None:
    return None if text is None else text.encode().hex()


def new(*records: tuple[str | None, str | None], at: int = START) -> list[Any]:
    return [{**old(2, "zstd", *records, at=at)[0]}]


def plan_of(
    *phases: tuple[int, Sequence[Any], int], plain: bool = False, **config: str
) -> dict[str, Any]:
    """A plan of phases: the time of the appends, the actions, and the time of the round."""
    return {
        "name": "by hand",
        "config": {**CONFIG, **config},
        "phases": [
            {
                "actions": [{"clock": clock}, *actions],
                "now_ms": now,
                "replicated": 1.0,
                "raise_log_start": None,
            }
            for clock, actions, now in phases
        ],
        "plain": plain,
    }


def kept(round_: Round) -> list[tuple[int, str | None]]:
    """Offset and key of each record that the cleaner left."""
    return [
        (record.offset, None if record.key is None else record.key.decode())
        for batch in batches_of(round_.left)
        for record in batch.records
    ]


# ---------------------------------------------------------------------- by hand


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_each_magic_and_codec_is_compacted_like_kafka(
    magic: int, codec: str, oracle: Oracle
) -> None:
    """Removes first, last, middle and keyless records of wrappers, and whole wrappers.

    Other wrappers stay unchanged, and some batches have magic 2.
    """
    first = [
        *old(magic, codec, ("a", "1"), ("b", "1"), ("c", "1")),
        *old(magic, codec, ("a", "2"), ("d", "x" * 90), ("b", "2")),
        *old(magic, codec, (None, "keyless"), ("e", "1"), ("", "empty key")),
        *old(magic, codec, ("f", "1"), ("g", ""), ("h", "1")),
        *new(("a", "3"), ("i", "1")),
        *old(magic, codec, ("i", "2")),
        ROLL,
        *old(magic, codec, ("j", "1"), ("k", "1")),
        *old(1 - magic, codec, ("j", "2"), ("k", "2")),
        ROLL,
    ]
    second = [*new(("c", "2"), ("e", None)), *old(magic, codec, ("g", None), ("h", "2")), ROLL]
    plan = plan_of(
        (START, first, START + 10),
        (START + 20, second, START + 30),
        (START + 5000, [ROLL], START + 5000),
    )
    rounds = list(checked(oracle, plan))
    assert kept(rounds[0])[-1] == (18, "k")
    assert {batch.magic for batch in batches_of(rounds[0].left)} == {2}
    assert (8, "") in kept(rounds[0]) and 6 not in dict(kept(rounds[0]))


@pytest.mark.parametrize("codec", CODECS)
def test_append_time_of_a_wrapper_is_kept(codec: str, oracle: Oracle) -> None:
    """All records of a wrapper have its time, also after some are removed.

    Messages have their own.
    """
    first = [
        *old(1, codec, ("a", "1"), ("b", "1"), ("c", "1"), append_time=START + 500),
        *old(1, codec, ("b", "2"), ("d", None), append_time=START + 600),
        *old(1, codec, ("e", "1"), at=START + 5),
        ROLL,
        *old(0, codec, ("c", "2")),
        ROLL,
    ]
    second = [*old(1, codec, ("a", "2"), append_time=START + 700), ROLL]
    plan = plan_of(
        (START, first, START + 700), (START + 700, second, START + 900), plain=codec == "none"
    )
    rounds = list(checked(oracle, plan))
    times = {
        r.offset: r.timestamp_ms for batch in batches_of(rounds[0].left) for r in batch.records
    }
    assert times == {0: START + 500, 3: START + 600, 4: START + 600, 5: START + 5, 6: -1}


@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("past", [-1, 0, 1])
def test_tombstones_expire_with_their_file(
    past: int, magic: int, codec: str, oracle: Oracle
) -> None:
    """A tombstone expires by its file's modification time.

    It must be at most that of the last clean file, minus the retention.
    """
    retention = int(CONFIG["delete.retention.ms"])
    plan = plan_of(
        (START + 50_000, [*old(magic, codec, ("a", "1"), ("b", "1")), ROLL], START + 50_001),
        # The clock goes back, as after a replica is copied from another machine.
        (
            START + 50_000 - retention - past,
            [*old(magic, codec, ("a", None), ("c", "1")), ROLL],
            START + 60_000,
        ),
        (START + 70_000, [*new(("d", "1")), ROLL], START + 70_000),
    )
    rounds = list(checked(oracle, plan))
    tombstone_stays = past < 0
    assert (dict(kept(rounds[1])).get(2) == "a") == tombstone_stays
    horizons = [batch.horizon_ms for batch in batches_of(rounds[1].left) if batch.base_offset == 2]
    assert (START + 60_000 + retention in horizons) == tombstone_stays
    assert 2 not in dict(kept(rounds[2]))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_batch_that_kafka_cannot_clean_becomes_empty(
    magic: int, codec: str, oracle: Oracle
) -> None:
    """An old batch at the high watermark without remaining records becomes magic 2."""
    first = [*old(magic, codec, ("a", "1"), ("b", "1")), ROLL]
    second = [*old(magic, codec, (None, "no key"), (None, "either")), ROLL]
    rounds = list(
        checked(oracle, plan_of((START, first, START + 1), (START + 2, second, START + 3)))
    )
    assert rounds[1].gave_up


@pytest.mark.parametrize("rolled", [True, False])
@pytest.mark.parametrize("magic", [0, 1])
def test_last_record_of_a_final_wrapper_is_kept(magic: int, rolled: bool, oracle: Oracle) -> None:
    """In a closed segment, Kafka ends the batch earlier, which is harmless there.

    In the active segment, which Kafka never cleans, the log itself would end earlier.
    """
    written = [*old(magic, "gzip", ("a", "1"), (None, "no key")), *([ROLL] if rolled else [])]
    with tempfile.TemporaryDirectory(prefix="lastwrite-old-", dir=SCRATCH) as folder:
        [round_] = played(oracle, plan_of((START, written, START + 1)), Path(folder))
        compact(round_.before, round_.config, round_.now_ms, include_active=True)
        left = read_segments(round_.before / NAME)
        [batch] = batches_of(left)
        assert (batch.magic, batch.base_offset, batch.last_offset, len(batch.records)) == (
            2,
            0,
            0 if rolled else 1,
            1,
        )
        assert round_.cleaned == rolled
        assert not rolled or seen_as_new(batches_of(left)) == seen_as_new(batches_of(round_.left))
        # As after a crash: batches and segment names show the log end.
        opened = round_.opened(round_.before / NAME)
        loaded = oracle.ask("load", **opened, clean_shutdown=False, recovery_point=0)
        assert loaded["log_end"] == round_.bounds["log_end"] == 2


def test_unchanged_segment_is_not_rewritten(oracle: Oracle) -> None:
    """An old segment without tombstones that loses no record stays as it is."""
    first = [*old(0, "lz4", ("a", "1"), ("b", "1")), *old(1, "none", ("c", "1")), ROLL]
    plan = plan_of((START, first, START + 1), (START + 2, [*new(("d", "1")), ROLL], START + 3))
    list(checked(oracle, plan))
    with tempfile.TemporaryDirectory(prefix="lastwrite-old-", dir=SCRATCH) as folder:
        for round_ in played(oracle, plan, Path(folder)):
            ours = round_.before
            before = contents(ours / NAME)
            [told] = compact(ours, round_.config, round_.now_ms, like_broker=False).partitions
            assert told.status is Status.UNCHANGED
            assert contents(ours / NAME) == before


# ---------------------------------------------------------------------- random logs


def made_older(plan: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The plan with most of the batches that can have an older format changed to magic 0 or 1."""
    for phase in plan["phases"]:
        actions = []
        for action in phase["actions"]:
            batch = action.get("batch")
            if batch is None or "pid" in batch or rng.random() < 0.2:
                actions.append(action)
                continue
            spec = {**batch, "magic": rng.choice([0, 1])}
            spec["records"] = [
                {name: record[name] for name in ("k", "v", "t")} for record in batch["records"]
            ]
            if spec["codec"] == "zstd":
                spec["codec"] = rng.choice(CODECS[1:])
            if spec["magic"] == 0:
                spec.pop("append_time", None)
            elif rng.random() < 0.2:
                spec["append_time"] = phase["now_ms"] - rng.choice([0, 1, 999])
            if spec["codec"] != "none":
                actions.append({"batch": spec})
                continue
            skip = {"skip": spec.pop("skip")} if "skip" in spec else {}
            for n, record in enumerate(spec["records"]):
                actions.append({"batch": {**spec, **(skip if n == 0 else {}), "records": [record]}})
        phase["actions"] = actions
    return plan


@pytest.mark.parametrize("seed", some(range(1, 41), 8))
def test_random_logs_are_compacted_like_kafka(seed: int, oracle: Oracle) -> None:
    rng = random.Random(f"old-{seed}")
    assert list(checked(oracle, made_older(scenario(1000 + seed), rng)))


# ---------------------------------------------------------------------- formats of old brokers


def entries_of_old_brokers(codec: Codec) -> list[bytes]:
    """Wrappers that Kafka still reads but no longer writes."""

    def records(first: int, *keys: bytes, step: int = 1) -> list[Record]:
        return [Record(first + step * n, START + n, key, b"v%d" % n) for n, key in enumerate(keys)]

    return [
        # the first wrapper of a log, at offset 0
        encode_wrapper(records(0, b"z"), 1, codec),
        # KAFKA-4298: messages of magic 0 in a wrapper of magic 1, with either kind of timestamp
        encode_wrapper(records(1, b"a", b"b", b"c"), 1, codec, inner_magic=0),
        encode_wrapper(records(4, b"d", b"e"), 1, codec, inner_magic=0, append_time_ms=START + 77),
        # wrappers with records removed by an earlier compaction; relative offsets begin anywhere
        encode_wrapper(records(6, b"f", b"g", b"a", step=3), 0, codec),
        encode_wrapper(records(20, b"h", b"i", b"b", step=5), 1, codec, inner_offsets=[7, 12, 17]),
        # the wrapper's largest timestamp is not of its last record
        encode_wrapper(
            [Record(31, START + 9, b"j", b"1"), Record(32, START + 8, b"k", b"1")],
            1,
            codec,
            offset=32,
        ),
        encode_message(Record(40, -1, b"l", b"1"), 1),
        encode_message(Record(41, START, b"l", b""), 0),
        encode_batch(
            [
                Record(50, START, b"d", b"2"),
                Record(51, START, b"g", b"2"),
                Record(52, START, b"i", b"2"),
            ]
        ),
    ]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_wrappers_of_old_brokers_are_compacted_like_kafka(codec: Codec, oracle: Oracle) -> None:
    with tempfile.TemporaryDirectory(prefix="lastwrite-old-", dir=SCRATCH) as folder:
        kafka, ours, sparing = (Path(folder) / name for name in ("kafka", "ours", "sparing"))
        write_segment(
            kafka / NAME, 0, entries_of_old_brokers(codec), interval_bytes=100, mtime_ms=START
        )
        write_segment(kafka / NAME, 60, [], mtime_ms=START)
        seen = oracle.ask("state", dir=str(kafka / NAME))["segments"][0]["batches"]
        [segment, _] = read_segments(kafka / NAME)
        for theirs, mine in zip(seen, segment.batches, strict=True):
            assert (theirs["base"], theirs["last"], theirs["max_ts"]) == (
                mine.base_offset,
                mine.last_offset,
                mine.max_timestamp_ms,
            )
        for copy in (ours, sparing):
            shutil.copytree(kafka, copy)
        now_ms = START + 1000
        oracle.ask(
            "clean", dir=str(kafka / NAME), config=CONFIG, now_ms=now_ms, map_slots=MAP_SLOTS
        )
        shut_down(kafka / NAME)
        wanted = seen_as_new(batches_of(read_segments(kafka / NAME)))
        for copy, like_broker in ((ours, True), (sparing, False)):
            compact(copy, CONFIG, now_ms, like_broker=like_broker)
            # Base timestamps are not compared: readers ignore them with an append time, and Kafka
            # writes -1 for magic 0.
            assert seen_as_new(batches_of(read_segments(copy / NAME))) == wanted
