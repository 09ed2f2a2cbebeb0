"""Tests of reading producers and aborted transactions from a folder with missing or broken files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lastwrite.encoding.compression import Codec
from lastwrite.errors import LogError
from lastwrite.kafka.format.batch import ControlType, encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.producers import history as producers
from lastwrite.kafka.producers.history import read_history
from lastwrite.kafka.producers.snapshot import ProducerEntry, encode_snapshot
from lastwrite.kafka.store import log_dir
from lastwrite.model.log import (
    AbortedTransaction,
    PartitionLog,
    Problem,
    ProblemKind,
    ProducerState,
)
from tests.support.kafka.logs import encode_aborted, write_checkpoint, write_segment
from tests.support.kafka.model import ModelAborted
from tests.support.kafka.single import encode_control_record

STAMP = 1_700_000_000_000


def data(
    offset: int, producer: int = 7, *, epoch: int = 0, value: bytes = b"v", txn: bool = True
) -> bytes:
    record = Record(offset, STAMP + offset, b"k", value)
    return encode_batch(
        [record], transactional=txn, producer_id=producer, producer_epoch=epoch, base_sequence=0
    )


def marker(
    offset: int, kind: ControlType, producer: int = 7, epoch: int = 0, codec: Codec = Codec.NONE
) -> bytes:
    record = encode_control_record(offset, STAMP + offset, kind, 3)
    return encode_batch(
        [record],
        transactional=True,
        control=True,
        producer_id=producer,
        producer_epoch=epoch,
        codec=codec,
    )


ABORT, COMMIT = ControlType.ABORT, ControlType.COMMIT
LOG = {
    0: [data(0), data(1, 8), marker(2, ABORT)],
    3: [data(3), marker(4, COMMIT, 8)],
    5: [data(5, 9, txn=False)],
}
END = (
    ProducerState(7, 0, 3, STAMP + 3, open_from=3),
    ProducerState(8, 0, 1, STAMP + 4),
    ProducerState(9, 0, 5, STAMP + 5),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for base, batches in LOG.items():
        write_segment(tmp_path / "t-0", base, batches)
    return tmp_path / "t-0"


def snapshot(folder: Path, offset: int, *entries: ProducerEntry) -> Path:
    file = folder / f"{offset:020d}.snapshot"
    file.write_bytes(encode_snapshot(entries))
    return file


def read(folder: Path) -> PartitionLog:
    return log_dir.read_partition(str(folder))


def test_log_is_walked_without_a_snapshot(folder: Path) -> None:
    log = read(folder)
    assert (log.producers, log.first_unstable_offset, log.last_stable_offset) == (END, 3, 3)
    assert read_history(log)[:3] == (END, (AbortedTransaction(7, 0, 2, 1),), ((7, 3),))


def test_newest_snapshot_is_continued_with_the_log_after_it(folder: Path) -> None:
    # The snapshot has a producer without batches in the log, and for producer 7 other values than
    # the batches below it.
    known = [ProducerEntry(1, 4, -1, -1, 0, STAMP, 3, -1), ProducerEntry(7, 0, 0, 2, 0, 5, 3, 2)]
    snapshot(folder, 3)
    snapshot(folder, 5, *known)
    log = read(folder)
    assert log.producers == (
        ProducerState(1, 4, -1, STAMP),
        ProducerState(7, 0, 2, 5, open_from=2),
        END[2],
    )
    assert log.first_unstable_offset == 2
    snapshot(folder, 6)
    assert (read(folder).producers, read(folder).first_unstable_offset) == ((), None), (
        "one at the log's end"
    )
    snapshot(folder, 7, *known)
    assert read(folder).producers == (), "one above the log's end"


def test_snapshots_at_or_below_the_log_start_are_ignored(folder: Path) -> None:
    snapshot(folder, 3, ProducerEntry(1, 4, -1, -1, 0, STAMP, 3, -1))
    write_checkpoint(folder.parent, "log-start-offset-checkpoint", {"t-0": 3})
    log = read(folder)
    assert log.producers == (END[0], ProducerState(8, 0, -1, STAMP + 4), END[2])
    write_checkpoint(folder.parent, "log-start-offset-checkpoint", {"t-0": 4})
    assert read(folder).producers == (ProducerState(8, 0, -1, STAMP + 4), END[2])


def test_transaction_opened_below_the_log_start_is_unstable_from_there(folder: Path) -> None:
    snapshot(folder, 5, ProducerEntry(7, 0, 0, 3, 0, STAMP, 3, 3))
    write_checkpoint(folder.parent, "log-start-offset-checkpoint", {"t-0": 4})
    assert read(folder).first_unstable_offset == 4


def test_broken_snapshot_is_skipped_and_named(folder: Path) -> None:
    snapshot(folder, 3, *[ProducerEntry(1, 4, -1, -1, 0, STAMP, 3, -1)])
    for harm, at, words in ((b"\0\2", 0, "version 2"), (b"\0\1\0", 2, "CRC")):
        broken = snapshot(folder, 5, ProducerEntry(2, 0, 0, 0, 0, STAMP, 3, -1))
        broken.write_bytes(harm + broken.read_bytes()[len(harm) :])
        log = read(folder)
        assert [producer.producer_id for producer in log.producers] == [1, 7, 8, 9], (
            "the older one and the walk"
        )
        assert [(p.path, p.position) for p in log.problems] == [(str(broken), at)]
        assert words in log.problems[0].message


def test_walk_ends_at_damage_and_at_a_torn_tail(folder: Path) -> None:
    active = folder / f"{5:020d}.log"
    active.write_bytes(active.read_bytes() + data(6, 9)[:-1])
    assert read(folder).producers == END
    middle = folder / f"{3:020d}.log"
    middle.write_bytes(data(3)[:16] + b"\x07" + data(3)[17:] + marker(4, COMMIT, 8))
    producers = read(folder).producers
    assert [producer.producer_id for producer in producers] == [7, 8] and producers[
        1
    ].open_from == 1


def test_marker_above_the_high_watermark_is_undecided_despite_the_snapshot(
    folder: Path,
) -> None:
    snapshot(
        folder,
        5,
        *[ProducerEntry(7, 0, 0, 3, 0, STAMP, 3, 3), ProducerEntry(8, 0, 0, 1, 0, STAMP, 3, -1)],
    )
    for high_watermark, unstable in ((6, 3), (5, 3), (4, 1), (3, 1), (2, 0), (0, 0)):
        write_checkpoint(folder.parent, "replication-offset-checkpoint", {"t-0": high_watermark})
        log = read(folder)
        assert (log.high_watermark, log.first_unstable_offset) == (high_watermark, unstable)
        assert [producer.timestamp_ms for producer in log.producers] == [STAMP, STAMP, STAMP + 5], (
            "as the newest says"
        )


@pytest.mark.parametrize("window_bytes", [61, 100, 256 << 10])
def test_batches_larger_than_the_window_are_read(
    folder: Path, window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the window must hold at least a marker
    monkeypatch.setattr(producers, "_WINDOW_BYTES", max(window_bytes, 78))
    monkeypatch.setattr(producers, "_NARROW_BYTES", min(window_bytes, 4096))
    monkeypatch.setattr(producers, "_ROWS", 2)
    big = [
        data(5, 9, value=b"x" * 400_000),
        marker(6, COMMIT, 9),
        data(7, 9),
        data(8, 9, value=b"x" * 90_000),
    ]
    write_segment(folder, 5, [*big, marker(9, ABORT, 9)])
    assert read_history(read(folder))[:3] == (
        (*END[:2], ProducerState(9, 0, 8, STAMP + 9)),
        (AbortedTransaction(7, 0, 2, 1), AbortedTransaction(9, 7, 9, 3)),
        ((7, 3),),
    )


def test_empty_and_compressed_markers_are_handled(folder: Path) -> None:
    emptied = encode_batch(
        [],
        base_offset=5,
        last_offset=5,
        transactional=True,
        control=True,
        producer_id=7,
        producer_epoch=0,
    )
    leader = encode_batch(
        [Record(6, 0, b"\0\0\0\2", b"")], control=True, producer_id=7, producer_epoch=0
    )
    strange = encode_batch(
        [Record(7, 0, b"\0\0\1\0", b"")], control=True, producer_id=7, producer_epoch=0
    )
    write_segment(folder, 5, [emptied, leader, strange])
    assert read(folder).producers == END[:2]
    write_segment(
        folder,
        5,
        [emptied, marker(6, ABORT, codec=Codec.GZIP), data(7), marker(8, COMMIT, codec=Codec.LZ4)],
    )
    history = read_history(read(folder))
    assert history.producers[0] == ProducerState(7, 0, 7, STAMP + 8)
    assert history.aborted[1:] == (AbortedTransaction(7, 3, 6, 7),)


@pytest.mark.parametrize("key", [None, b"\0\0\0", b"\xff\xff\0\0"])
def test_control_record_without_version_and_type_ends_the_walk(
    folder: Path, key: bytes | None
) -> None:
    """The walk ends at this record, and the scan reports its position."""
    for codec in (Codec.NONE, Codec.ZSTD):
        bad = encode_batch(
            [Record(5, 0, key, b"")], control=True, producer_id=7, producer_epoch=0, codec=codec
        )
        write_segment(folder, 5, [bad, data(6, 9)])
        assert read(folder).producers == END[:2]


def test_old_formats_have_no_producers_and_are_skipped(folder: Path) -> None:
    plain = bytes.fromhex(  # written by Kafka's own classes
        "0000000000000000000000200685b364010000000000000454c3000000046b6579310000000676616c756531"
    )
    old = [(offset).to_bytes(8, "big") + plain[8:] for offset in (3, 4)]
    (folder / f"{3:020d}.log").write_bytes(old[0] + data(4) + old[1][:7] + b"\5" + old[1][8:])
    assert read_history(read(folder)).open == ((8, 1), (7, 4))
    (folder / f"{3:020d}.log").write_bytes(old[0] + old[1])
    assert [producer.producer_id for producer in read(folder).producers] == [7, 8, 9]


def test_vanished_segment_is_an_error(folder: Path) -> None:
    log = read(folder)
    os.unlink(log.segments[1].path)
    with pytest.raises(LogError, match=f"{3:020d}.log"):
        read_history(log)


# ---------------------------------------------------------------------- transaction indexes


def index(folder: Path, base: int, content: bytes) -> Path:
    file = folder / f"{base:020d}.txnindex"
    file.write_bytes(content)
    return file


FIRST, SECOND = ModelAborted(7, 0, 2, 1), ModelAborted(8, 1, 4, 3)


def test_transaction_indexes_of_all_segments_are_merged(folder: Path) -> None:
    index(folder, 3, encode_aborted([SECOND]) + b"half of an entry")
    index(folder, 0, encode_aborted([FIRST]))
    index(folder, 5, b"")
    log = read(folder)
    assert log.aborted == (AbortedTransaction(7, 0, 2, 1), AbortedTransaction(8, 1, 4, 3))
    assert log.problems == ()


@pytest.mark.parametrize(
    ("content", "at", "words"),
    [
        (
            encode_aborted([FIRST]),
            0,
            "the entry has marker offset 2, which is not above the previous entry's 2",
        ),
        (
            encode_aborted([SECOND, SECOND]),
            34,
            "the entry has marker offset 4, which is not above the previous entry's 4",
        ),
        (encode_aborted([SECOND]) + b"\0\1" + encode_aborted([FIRST])[2:], 34, "has version 1"),
        (b"\xff\xff" + encode_aborted([SECOND])[2:], 0, "has version -1"),
    ],
)
def test_wrong_transaction_index_is_damage(
    folder: Path, content: bytes, at: int, words: str
) -> None:
    file = index(folder, 3, content)
    (problem,) = read(folder).problems
    assert isinstance(problem, Problem) and words in problem.message
    assert (problem.kind, problem.path, problem.position) == (ProblemKind.DAMAGED, str(file), at)
    assert problem.remedy is not None and ".index" in problem.remedy
