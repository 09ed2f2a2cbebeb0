"""Tests of ``inspect``: its counts, the dirty ratio, and damage reported by file and byte."""

from __future__ import annotations

import itertools
import struct
from dataclasses import replace
from pathlib import Path

import google_crc32c
import pytest

import lastwrite
from lastwrite.cli import run
from lastwrite.encoding.compression import Codec
from lastwrite.errors import InvalidConfig, LogHeld, NotALog, UnsupportedFormat
from lastwrite.kafka.format.batch import ControlType, encode_batch, iter_batches
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.look.inspection import InspectReport, PartitionInspection
from lastwrite.kafka.store import lock
from lastwrite.model.log import ProblemKind, TopicPartition
from lastwrite.reports.compaction import Status
from lastwrite.spark.inline import INLINE
from tests.support.kafka.old_entries import encode_message, encode_wrapper
from tests.support.kafka.single import encode_control_record
from tests.unit.test_dump import segments, single, write
from tests.unit.test_verify_transactions import DAY, LOG, T


def only(report: InspectReport) -> PartitionInspection:
    (partition,) = report.partitions
    return partition


def inspected(path: Path, **options: object) -> PartitionInspection:
    return only(lastwrite.inspect(str(path), **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", list(Codec))
def test_counts_equal_those_of_the_slow_decoder(tmp_path: Path, codec: Codec) -> None:
    folder = write(tmp_path, codec=codec)
    batches = [
        batch
        for path in segments(folder)
        for _, batch in iter_batches(memoryview(path.read_bytes()))
    ]
    records = [record for batch in batches for record in batch.records]
    found = inspected(tmp_path)
    assert not found.is_damaged and found.problem_count == 0
    assert found.contents.batches == len(batches)
    assert found.contents.records == len(records) == 300
    assert found.contents.tombstones == sum(record.value is None for record in records)
    assert found.contents.keyless == found.contents.control_records == 0
    assert found.contents.codecs == {codec.label: len(batches)}
    assert found.contents.formats == {"v2": len(batches)}
    assert (found.contents.first_offset, found.contents.last_offset) == (0, 299)
    assert found.contents.max_timestamp == 1299
    assert (found.log_start, found.high_watermark, found.end_offset) == (0, 300, 300)
    assert [segment.base_offset for segment in found.segments] == [
        int(path.stem) for path in segments(folder)
    ]
    assert [segment.is_active for segment in found.segments][-2:] == [False, True]
    assert sum(segment.contents.records for segment in found.segments) == 300
    assert found.bytes == sum(path.stat().st_size for path in segments(folder))
    for segment in found.segments:
        assert segment.index_entries == Path(segment.file).with_suffix(".index").stat().st_size // 8
        assert (
            segment.time_index_entries
            == Path(segment.file).with_suffix(".timeindex").stat().st_size // 12
        )
    assert found.keys == len({record.key for record in records if record.key is not None})


def test_dirty_ratio_follows_the_rules_of_a_round(tmp_path: Path) -> None:
    folder = write(tmp_path)
    closed = segments(folder)[:-1]
    found = inspected(tmp_path)
    assert not found.is_due and "the policy of topic orders is unknown" in (found.reason or "")
    found = inspected(tmp_path, topic="orders")
    assert found.first_dirty_offset == 0 and found.dirty_bytes == found.bytes and found.is_due
    assert found.cleanable_bytes == sum(path.stat().st_size for path in closed)
    base = int(closed[1].stem)
    (tmp_path / "cleaner-offset-checkpoint").write_text(f"0\n1\norders 0 {base}\n")
    found = inspected(tmp_path, topic="orders", config={"min.cleanable.dirty.ratio": "1"})
    assert found.first_dirty_offset == found.checkpoint == base
    assert found.dirty_bytes == found.bytes - closed[0].stat().st_size
    assert found.is_due is False and "min.cleanable.dirty.ratio" in (found.reason or "")
    closed_bytes = sum(path.stat().st_size for path in closed)
    assert found.dirty_ratio == pytest.approx(1 - closed[0].stat().st_size / closed_bytes)


def test_batches_of_all_kinds_are_counted(tmp_path: Path) -> None:
    path = single(
        tmp_path / "t-0",
        encode_batch(
            [Record(0, 5, None, b"x"), Record(1, 6, b"", None)],
            producer_id=7,
            producer_epoch=2,
            base_sequence=0,
        ),
        encode_batch(
            [Record(2, 7, b"k", b"v")],
            producer_id=9,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        ),
        encode_batch(
            [encode_control_record(3, 10, ControlType.ABORT)],
            producer_id=9,
            producer_epoch=0,
            transactional=True,
            control=True,
        ),
        encode_batch([], base_offset=4, last_offset=8, max_timestamp_ms=3),
        encode_batch([Record(9, 7, b"k", None)], delete_horizon_ms=500),
    )
    found = inspected(path.parent)
    contents = found.contents
    assert (contents.batches, contents.records, contents.empty_batches) == (5, 5, 1)
    assert (contents.tombstones, contents.keyless, contents.control_records) == (2, 1, 1)
    assert (contents.transactional_batches, contents.producer_batches, found.producers) == (2, 3, 2)
    assert (contents.horizon_batches, contents.earliest_horizon) == (1, 500)
    assert contents.last_offset == 9 and not found.is_damaged


def test_old_formats_are_counted(tmp_path: Path) -> None:
    records = [Record(offset, 7 + offset, b"a", None) for offset in range(6)]
    path = single(
        tmp_path / "t-0",
        encode_message(records[0], 0),
        encode_wrapper(records[1:3], 1, Codec.LZ4),
        encode_wrapper(records[3:5], 0, Codec.GZIP),
        encode_batch(records[5:], codec=Codec.LZ4),
    )
    found = inspected(path.parent)
    assert found.contents.formats == {"v0": 2, "v1": 1, "v2": 1}
    assert found.contents.codecs == {"none": 1, "lz4": 2, "gzip": 1}
    assert (found.contents.batches, found.contents.records, found.contents.tombstones) == (4, 6, 6)
    assert (found.contents.first_offset, found.contents.last_offset) == (0, 5)
    assert not found.is_damaged and not found.problems
    broken = bytearray(path.read_bytes())
    broken[60] ^= 1
    path.write_bytes(broken)
    found = inspected(path.parent)
    assert found.is_damaged and found.problems[0].position == 39  # position of the wrapper's CRC
    assert found.contents.formats == {"v0": 2, "v2": 1}


def test_each_flipped_byte_of_a_segment_is_found_and_located(tmp_path: Path) -> None:
    folder = write(tmp_path, 30)
    path = segments(folder)[0]
    whole = path.read_bytes()
    batches = list(iter_batches(memoryview(whole)))
    starts = [at for at, _ in batches] + [len(whole)]
    unproven = range(12, 16)  # the CRC does not cover the leader epoch
    for at in range(0, len(whole), 13):
        start, end = next((a, b) for a, b in itertools.pairwise(starts) if at < b)
        if at - start in unproven or at - start < 8:  # nor does it cover the base offset
            continue
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        found = inspected(tmp_path)
        assert found.is_damaged, at
        places = [problem.position for problem in found.problems if problem.path == str(path)]
        assert any(position is not None and start <= position < end for position in places), (
            at,
            places,
        )
        assert found.contents.batches < len(batches)


def test_bad_batch_hides_no_other_batch(tmp_path: Path) -> None:
    folder = write(tmp_path)
    path = segments(folder)[1]
    data = bytearray(path.read_bytes())
    batches = list(iter_batches(memoryview(bytes(data))))
    for number in (0, 2):
        data[batches[number][0] + 80] ^= 1
    path.write_bytes(bytes(data))
    found = inspected(tmp_path)
    assert [problem.position for problem in found.problems] == [
        batches[0][0] + 17,
        batches[2][0] + 17,
    ]
    lost = batches[0][1].header.record_count + batches[2][1].header.record_count
    assert found.contents.records == 300 - lost


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_malformed_records_under_a_valid_checksum_are_found(tmp_path: Path, codec: Codec) -> None:
    good = [encode_batch([Record(n, n, b"k", b"v" * 20)], codec=codec) for n in (0, 2)]
    bad = bytearray(encode_batch([Record(1, 1, b"k", b"v" * 20)]))
    bad[61] ^= 2  # length of the record
    import google_crc32c

    bad[17:21] = google_crc32c.value(bytes(bad[21:])).to_bytes(4, "big")
    path = single(tmp_path / "t-0", good[0], bytes(bad), good[1])
    found = inspected(path.parent)
    assert found.contents.records == 2
    (problem,) = [problem for problem in found.problems if problem.path == str(path)]
    assert len(good[0]) <= (problem.position or 0) < len(good[0]) + len(bad)


def test_wrong_index_and_missing_index_are_reported(tmp_path: Path) -> None:
    folder = write(tmp_path)
    first, second = segments(folder)[:2]
    index = first.with_suffix(".index")
    data = bytearray(index.read_bytes())
    data[-1] ^= 1
    index.write_bytes(bytes(data))
    second.with_suffix(".index").unlink()
    found = inspected(tmp_path)
    assert found.contents.records == 300
    places = [(problem.path, problem.position) for problem in found.problems]
    assert places == [(str(second.with_suffix(".index")), None), (str(index), len(data) - 8)]
    assert found.segments[1].index_entries is None


def test_torn_tail_is_located(tmp_path: Path) -> None:
    folder = write(tmp_path, 50)
    path = [path for path in segments(folder) if path.stat().st_size][-1]
    data = path.read_bytes()
    at = list(iter_batches(memoryview(data)))[-1][0]
    path.write_bytes(data[:-3])
    found = inspected(tmp_path)
    assert (str(path), at) in [(problem.path, problem.position) for problem in found.problems]


def test_all_problems_are_counted_and_twenty_are_listed(tmp_path: Path) -> None:
    batches = [bytearray(encode_batch([Record(n, n, b"k", b"v" * 20)])) for n in range(100)]
    for batch in batches[::2]:
        batch[70] ^= 1
    path = single(tmp_path / "t-0", *map(bytes, batches))
    found = inspected(path.parent)
    assert found.problem_count == 50 and len(found.problems) == 20
    assert found.contents.records == 50


def test_damaged_partition_does_not_hide_the_others(tmp_path: Path) -> None:
    write(tmp_path, 20, "a")
    write(tmp_path, 20, "b")
    segments(tmp_path / "a-0")[0].write_bytes(b"\xff" * 100)
    report = lastwrite.inspect(str(tmp_path))
    assert [partition.is_damaged for partition in report.partitions] == [True, False]
    assert report.partitions[1].contents.records == 20
    assert report.damaged and report.exit_status == 3
    totals = report.to_dict()["totals"]
    assert (totals["partitions"], totals["damaged"], totals["records"]) == (2, 1, 20)


def test_batch_larger_than_the_limit_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lastwrite.storage.problems.CHUNK_BYTES", 1000)
    values = [b"v" * size for size in (10, 900, 5000, 20, 30_000, 40)]
    path = single(
        tmp_path / "t-0", *(encode_batch([Record(n, n, b"k", v)]) for n, v in enumerate(values))
    )
    assert inspected(path.parent).contents.records == 6
    found = inspected(path.parent, memory=10_000)
    assert found.contents.records < 6
    (problem,) = [problem for problem in found.problems if "the limit of" in problem.message]
    assert problem.position == sum(
        len(encode_batch([Record(n, n, b"k", v)])) for n, v in enumerate(values[:4])
    )


def test_single_files_are_inspected(tmp_path: Path) -> None:
    folder = write(tmp_path)
    path = segments(folder)[1]
    (found,) = lastwrite.inspect(str(path)).files
    assert (found.kind, found.topic, found.partition) == ("log", "orders", 0)
    assert found.segment is not None and found.segment.contents.first_offset == int(path.stem)
    (found,) = lastwrite.inspect(str(path.with_suffix(".index"))).files
    assert (found.kind, found.entries) == ("index", path.with_suffix(".index").stat().st_size // 8)
    checkpoint = tmp_path / "cleaner-offset-checkpoint"
    checkpoint.write_text("0\n1\norders 0 4711\n")
    (found,) = lastwrite.inspect(str(checkpoint)).files
    assert (found.kind, found.entries, found.is_damaged) == ("cleaner-offset-checkpoint", 1, False)
    checkpoint.write_text("0\n9\norders 0 4711\n")
    report = lastwrite.inspect(str(checkpoint))
    assert report.exit_status == 3
    assert lastwrite.inspect(str(tmp_path)).exit_status == 3


def test_missing_paths_wrong_settings_and_locked_logs_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(NotALog):
        lastwrite.inspect(str(tmp_path / "missing"))
    with pytest.raises(InvalidConfig):
        lastwrite.inspect(str(tmp_path), config={"no.such.setting": "1"})
    with lock.hold(str(tmp_path), [TopicPartition("orders", 0)]), pytest.raises(LogHeld):
        lastwrite.inspect(str(tmp_path))


def test_inspect_and_dump_change_nothing_on_disk(tmp_path: Path) -> None:
    write(tmp_path)
    before = {
        path: (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(tmp_path.rglob("*"))
    }
    lastwrite.inspect(str(tmp_path))
    list(lastwrite.dump(str(tmp_path)))
    assert before == {
        path: (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(tmp_path.rglob("*"))
    }


def test_transactions_are_counted_and_open_ones_listed(tmp_path: Path) -> None:
    found = inspected(LOG.write(tmp_path), now_ms=T + DAY + 9)
    assert found.transactions is not None
    assert found.transactions.to_dict() == {
        "open": 1,
        "aborted": 1,
        "committed": 2,
        "aborted_records": 4,
    }
    assert [transaction.to_dict() for transaction in found.open_transactions] == [
        {"producer_id": 3, "first_offset": 12}
    ]
    assert found.last_stable_offset == 12 and found.high_watermark == 15
    # Producer 1 last wrote at T + 10, producer 2 at T + 8. Producer 3 has an open transaction,
    # which does not expire.
    assert (found.producers, found.active_producers, found.expired_producers) == (3, 2, 1)
    told = found.to_dict()
    assert told["open_transactions"] == [{"producer_id": 3, "first_offset": 12}]
    assert told["transactions"]["aborted_records"] == 4 and told["abort_markers"] == 1
    assert [segment["commit_markers"] for segment in told["segments"]] == [1, 1, 0]


@pytest.mark.parametrize(
    "aborted", [LOG.aborted, (), ((1, 5, 7, 4),), ((1, 2, 7, 4), (1, 8, 10, 11))], ids=str
)
def test_aborted_records_do_not_count_as_keys(
    aborted: tuple[tuple[int, int, int, int], ...], tmp_path: Path
) -> None:
    """Also if the transaction index contradicts the log."""
    found = inspected(replace(LOG, aborted=aborted).write(tmp_path))
    assert found.keys == len({"a", "b", "e", "z"})


def test_text_output_lists_transactions(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(LOG.write(tmp_path)), "--now", str(T)]) == 0
    told = capfd.readouterr().out
    assert "2 committed, 1 aborted with 4 records left, 1 open" in told
    assert "open: producer 3 from offset 12" in told


@pytest.mark.parametrize("kind", ["magic", "codec"])
def test_newer_batch_format_is_unsupported_not_damage(tmp_path: Path, kind: str) -> None:
    records = [Record(0, 1, b"a", b"1")]
    data = bytearray(encode_batch(records))
    if kind == "magic":
        data[16] = 3
    else:
        data[22] |= 6
        struct.pack_into(">I", data, 17, google_crc32c.value(bytes(data[21:])))
    single(tmp_path / "t-0", bytes(data), encode_batch([Record(1, 1, b"b", b"2")]))
    report = lastwrite.inspect(str(tmp_path))
    [problem] = only(report).problems
    assert problem.kind is ProblemKind.UNSUPPORTED and problem.position == (
        16 if kind == "magic" else 22
    )
    assert only(report).contents.records == 1 and report.exit_status == 1
    with pytest.raises(UnsupportedFormat):
        list(lastwrite.dump(str(tmp_path)))
    config = {"cleanup.policy": "compact"}
    plan = lastwrite.plan(str(tmp_path), config=config, include_active=True, spark=INLINE)
    assert plan.partitions[0].status is Status.SKIPPED and plan.exit_status == 1
    assert kind in str(plan.partitions[0].reason)


def test_damaged_checkpoint_is_printed_once_with_its_own_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    (tmp_path / "cleaner-offset-checkpoint").write_text("orders 0 9\n")
    assert run(["inspect", str(tmp_path)]) == 3
    printed = capsys.readouterr().out
    assert printed.count("'orders 0 9' is not a number") == 1
    assert "repair the file by hand" in printed and "move the partition's folder" not in printed
