"""Tests of records without a key in a compacted topic.

The topic is not compacted until an option allows it.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lastwrite
from lastwrite.cleaner.events import Event, PartitionQuarantined, RoundEnded
from lastwrite.cli.clean import event_line
from lastwrite.cli.plan import keyless_line
from lastwrite.config.keyless import is_over_limit
from lastwrite.encoding.compression import Codec
from lastwrite.errors import InvalidConfig
from lastwrite.kafka.format.batch import ControlType, encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.reports.compaction import PartitionReport, Status
from lastwrite.reports.explanation import Rule
from lastwrite.spark.inline import INLINE
from tests.support.files import contents
from tests.support.kafka.logs import write_segment
from tests.support.kafka.old_entries import encode_message, encode_wrapper
from tests.support.kafka.single import encode_control_record
from tests.support.pulsar.folders import single
from tests.support.pulsar.topics import put_ledger, topic_folder
from tests.support.rocketmq.model import START_MS, ModelPair, ModelQueue, message, write_store

NOW = 1_700_000_000_000


def keyed(count: int, keyless: Sequence[int], first: int = 0) -> list[Record]:
    return [
        Record(n, NOW - 9, None if n in keyless else b"k%d" % (n % 2), b"v")
        for n in range(first, first + count)
    ]


def partition(root: Path, *segments: list[bytes], end: int = 10**6) -> Path:
    """Write closed segments of some batches each and an empty active one."""
    folder = root / "t-0"
    for batches in segments:
        base = int.from_bytes(batches[0][:8], "big")
        write_segment(folder, base, batches, mtime_ms=NOW)
    write_segment(folder, end, [], mtime_ms=NOW)
    return folder


def compact(folder: Path, **arguments: Any) -> PartitionReport:
    return lastwrite.compact(str(folder), now_ms=NOW, spark=INLINE, **arguments).partitions[0]


def plan(folder: Path, **arguments: Any) -> PartitionReport:
    return lastwrite.plan(str(folder), now_ms=NOW, spark=INLINE, **arguments).partitions[0]


def test_partition_with_a_keyless_record_is_left_unchanged(tmp_path: Path) -> None:
    folder = partition(tmp_path, [encode_batch(keyed(10, [4, 7, 8]))])
    before = contents(folder)
    for told in (plan(folder), compact(folder)):
        assert told.status is Status.SKIPPED and told.is_keyless
        assert (told.keyless_records, told.first_keyless_offset) == (3, 4)
        assert "3 of 10 records in range have no key, the first at offset 4" in (told.reason or "")
        assert "--drop-keyless" in (told.reason or "")
        assert told.records_after == told.records_before == 10
    assert contents(folder) == before
    copied = compact(folder, to=str(tmp_path / "copy"))
    assert copied.is_keyless
    assert [path.read_bytes() for path in sorted((tmp_path / "copy" / "t-0").glob("*.log"))][
        0
    ] == before[f"{0:020d}.log"]
    done = compact(folder, drop_keyless=True)
    assert done.status is Status.CLEANED and not done.is_keyless
    assert done.records_after == 2 and done.verdicts["keyless"] == 3


def test_ratio_allows_a_share_of_keyless_records(tmp_path: Path) -> None:
    folder = partition(tmp_path, [encode_batch(keyed(10, [4, 7]))])
    refused = plan(folder, config={"max.keyless.ratio": 0.19})
    assert refused.is_keyless and "max.keyless.ratio = 0.19 allows fewer" in (refused.reason or "")
    assert plan(folder, config={"max.keyless.ratio": 0.2}).status is Status.CLEANED
    with pytest.raises(InvalidConfig, match="exclude each other"):
        plan(folder, config={"max.keyless.ratio": 0.2}, drop_keyless=True)


def test_markers_aborted_records_and_tombstones_are_not_keyless(tmp_path: Path) -> None:
    writer: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    aborted = encode_batch([Record(2, NOW, None, b"v")], base_sequence=0, **writer)
    marker = encode_batch(
        [encode_control_record(3, NOW, ControlType.ABORT)], control=True, **writer
    )
    deletes = encode_batch([Record(0, NOW, b"k", b"v"), Record(1, NOW, b"k", None)])
    folder = partition(tmp_path, [deletes, aborted, marker])
    (folder / f"{0:020d}.txnindex").unlink(missing_ok=True)
    told = compact(folder)
    assert told.status is Status.CLEANED, told.reason
    assert (told.keyless_records, told.first_keyless_offset) == (0, None)


@pytest.mark.parametrize("codec", list(Codec))
def test_first_keyless_offset_is_exact(tmp_path: Path, codec: Codec) -> None:
    records = [
        Record(5, NOW, b"a", b"v"),
        Record(9, NOW, b"b", b"v"),
        Record(70, NOW, None, b"v" * 99),
    ]
    told = plan(partition(tmp_path, [encode_batch(records, codec=codec, last_offset=99)]))
    assert (told.keyless_records, told.first_keyless_offset) == (1, 70)


@pytest.mark.parametrize("magic", [0, 1])
def test_keyless_records_of_older_formats_are_counted(tmp_path: Path, magic: int) -> None:
    records = keyed(4, [2])
    told = plan(partition(tmp_path, [encode_message(each, magic) for each in records]))
    assert (told.is_keyless, told.first_keyless_offset) == (True, 2)
    wrapped = encode_wrapper(keyed(4, [1, 3]), magic, Codec.GZIP)
    write_segment(tmp_path / "w" / "t-0", 0, [wrapped], mtime_ms=NOW)
    write_segment(tmp_path / "w" / "t-0", 99, [], mtime_ms=NOW)
    told = plan(tmp_path / "w" / "t-0")
    assert (told.keyless_records, told.first_keyless_offset) == (2, 1)


def test_keyless_record_above_the_range_is_ignored(tmp_path: Path) -> None:
    folder = partition(tmp_path, [encode_batch(keyed(6, []))], end=6)
    write_segment(folder, 6, [encode_batch(keyed(6, [8], first=6))], mtime_ms=NOW)
    assert compact(folder).status is Status.CLEANED


@given(
    st.lists(st.lists(st.booleans(), min_size=1, max_size=8), min_size=1, max_size=9),
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    st.sampled_from(list(Codec)),
    st.integers(100, 2000),
)
def test_keyless_counts_equal_the_model(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: list[list[bool]],
    most: float,
    codec: Codec,
    piece_bytes: int,
) -> None:
    """For pieces of any size: the count, the first offset, and whether the partition is left
    unchanged.
    """
    root = tmp_path_factory.mktemp("keyless")
    offset, batches, missing = 0, [], []
    for flags in drawn:
        records = []
        for flag in flags:
            records.append(Record(offset, NOW, None if flag else b"k%d" % (offset % 3), b"v"))
            missing += [offset] if flag else []
            offset += 3
        batches.append(encode_batch(records, codec=codec))
    folder = partition(root, *([batch] for batch in batches))
    before = contents(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lastwrite.engine.pieces._PIECE_BYTES", piece_bytes)
        told = compact(folder, config={"max.keyless.ratio": most})
    data = sum(map(len, drawn))
    assert told.keyless_records == len(missing)
    assert told.first_keyless_offset == (missing[0] if missing else None)
    assert (
        told.is_keyless == (len(missing) > most * data) == is_over_limit(len(missing), data, most)
    )
    if told.is_keyless:
        assert contents(folder) == before
    else:
        assert told.verdicts["keyless"] == len(missing)
    shutil.rmtree(root)


# ---------------------------------------------------------------------- the other commands


def test_explain_names_keyless_records(tmp_path: Path) -> None:
    folder = partition(tmp_path, [encode_batch(keyed(10, [4]))])
    (told,) = lastwrite.explain(str(folder), now_ms=NOW).partitions
    assert not told.is_due and "1 of 10 records in range have no key" in told.summary
    assert [reason.rule for reason in told.reasons if reason.rule is Rule.KEYLESS]
    (told,) = lastwrite.explain(str(folder), now_ms=NOW, drop_keyless=True).partitions
    assert told.is_due and told.waiting is not None and told.waiting.keyless_next == 1


def test_daemon_quarantines_the_partition_without_reading_it_each_time(tmp_path: Path) -> None:
    folder = partition(tmp_path, [encode_batch(keyed(10, [4]))])
    before = contents(folder)
    events: list[Event] = []
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
    assert (
        lastwrite.clean([str(tmp_path)], config, once=True, spark=INLINE, tell=events.append) == 0
    )
    (staged,) = [event for event in events if isinstance(event, PartitionQuarantined)]
    assert "1 of 10 records in range have no key" in event_line(staged)
    assert contents(folder) == before
    lastwrite.release(str(tmp_path))
    events.clear()
    lastwrite.clean(
        [str(tmp_path)], config, once=True, spark=INLINE, tell=events.append, drop_keyless=True
    )
    (done,) = [event for event in events if isinstance(event, RoundEnded)]
    assert (
        "1 record without a key dropped, at 4, by --drop-keyless (max.keyless.ratio)"
        in event_line(done)
    )


def test_verify_counts_the_removed_keyless_records(tmp_path: Path) -> None:
    folder = partition(tmp_path, [encode_batch(keyed(10, [4, 6]))])
    shutil.copytree(folder, tmp_path / "was" / "t-0")
    compact(folder, drop_keyless=True)
    told = lastwrite.verify(str(folder), str(tmp_path / "was"), now_ms=NOW, spark=INLINE)
    assert told.exit_status == 5
    (violation,) = told.violations
    assert (violation.promise, violation.offset) == (
        "keyless",
        4,
    ) and "2 records without a key" in violation.message
    agreed = lastwrite.verify(
        str(folder), str(tmp_path / "was"), now_ms=NOW, spark=INLINE, drop_keyless=True
    )
    found = agreed.partitions[0].comparison
    assert agreed.exit_status == 0 and found is not None
    assert (found.keyless, found.first_keyless_offset, found.violation_count) == (2, 4, 0)


# ------------------------------------------------------------------ messages, and the other systems


def test_plan_warns_of_keyless_records(tmp_path: Path) -> None:
    folder = partition(tmp_path, [encode_batch(keyed(10, [4, 6]))])
    line = keyless_line(plan(folder, drop_keyless=True), is_plan=True)
    assert line == (
        "t-0: WARNING: 2 records without a key would be dropped, the first at 4, by --drop-keyless (max.keyless.ratio)"
    )
    assert keyless_line(plan(folder)) == "", "nothing goes: the reason says why"


def rocketmq_store(root: Path) -> Path:
    """A queue of a closed file and an active one.

    The first has a message without a key, as a program other than the broker may write it.
    """
    queue = ModelQueue(log_bytes=3680, index_bytes=368)
    made = [message(n, None if n == 1 else "k", b"x", START_MS + n) for n in range(3)]
    queue.pairs = [
        ModelPair(0, tuple(made), is_closed=True),
        ModelPair(3680, (message(9, "k", b"y", START_MS + 9),)),
    ]
    root.mkdir()
    write_store(root, [queue])
    return root


def test_rocketmq_uses_its_own_setting(tmp_path: Path) -> None:
    root = rocketmq_store(tmp_path / "store")
    later = START_MS + 10**9
    (told,) = lastwrite.plan(str(root), now_ms=later, spark=INLINE).partitions
    assert told.status is Status.CLEANED and told.verdicts["keyless"] == 1, told.reason
    assert "1 record without a key would be dropped, at 1, by keyless.messages" in keyless_line(
        told, is_plan=True
    )
    with pytest.raises(
        InvalidConfig, match="only for topics of Kafka — leave it out; keyless.messages decides"
    ):
        lastwrite.compact(str(root), spark=INLINE, drop_keyless=True)


def test_pulsar_uses_its_own_setting(tmp_path: Path) -> None:
    folder = topic_folder(tmp_path)
    put_ledger(folder, 3, [single("k", b"v"), single(None, b"w"), single(None, b"x")], 1 << 20)
    (told,) = lastwrite.plan(str(folder), spark=INLINE).partitions
    line = keyless_line(told, is_plan=True)
    assert (
        "2 records without a key would be dropped, the first at 3:1, by topicCompactionRetainNullKey"
        in line
    )
    with pytest.raises(InvalidConfig, match="leave it out; topicCompactionRetainNullKey decides"):
        lastwrite.compact(str(folder), spark=INLINE, drop_keyless=True)
    shutil.copytree(folder, tmp_path / "was")
    (done,) = lastwrite.compact(str(folder), spark=INLINE).partitions
    assert done.verdicts["keyless"] == 2 and keyless_line(done)
