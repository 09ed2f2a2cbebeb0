"""Tests of offsets far apart.

No index entry may exceed its segment's base offset by more than 31 bits.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from tests.support.engine import compact
from tests.support.kafka.logs import NAME, bases, check_indexes, read_segments, write_segment

NOW = 1_700_000_000_000
SPAN = 2**31 - 1  # the largest offset that fits, counted from a segment's base offset


def batch(offset: int, key: bytes, last: int | None = None, **fields: int) -> bytes:
    records = [Record(offset, NOW - 1000, key, b"value", ())]
    return encode_batch(records, base_offset=offset, last_offset=last, **fields)


def surviving(folder: Path) -> dict[int, list[int]]:
    return {
        s.base_offset: [r.offset for b in s.batches for r in b.records]
        for s in read_segments(folder)
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / NAME).mkdir()
    return tmp_path / NAME


def test_last_offset_that_fits_stays_in_its_segment(folder: Path) -> None:
    write_segment(folder, 0, [batch(0, b"a"), batch(1, b"b"), batch(SPAN, b"a")], interval_bytes=1)
    write_segment(folder, 2**31, [])
    compact(folder.parent, {}, NOW)
    assert surviving(folder) == {0: [1, SPAN], 2**31: []}
    check_indexes(folder, 0)


def test_offset_that_does_not_fit_begins_another_segment(folder: Path) -> None:
    """A segment with offsets too far from its base offset is rewritten as several segments
    (KAFKA-20036).
    """
    far = [2**31, 2**31 + 5, 2**32 + 7, 2**32 + 2**31 + 6, 2**32 + 2**31 + 7]
    batches = [
        batch(0, b"a"),
        batch(1, b"b"),
        *(batch(offset, b"k%d" % offset) for offset in far),
        batch(2**34, b"a"),
    ]
    write_segment(
        folder, 0, batches, interval_bytes=2**30
    )  # Kafka could not have indexed it either
    write_segment(folder, 2**35, [batch(2**35, b"z")])
    [report] = compact(folder.parent, {}, NOW).partitions
    assert str(report.status) == "cleaned", report.reason
    assert report.segments_after == 6
    assert surviving(folder) == {
        0: [1],
        2**31: far[:2],
        2**32 + 7: far[2:4],
        2**32 + 2**31 + 7: [far[4]],
        2**34: [2**34],
        2**35: [2**35],
    }
    for base in bases(folder)[:-1]:
        check_indexes(folder, base)


def test_segments_too_far_apart_are_not_merged(folder: Path) -> None:
    write_segment(folder, 0, [batch(0, b"a"), batch(1, b"b")], interval_bytes=1)
    write_segment(folder, 2, [batch(2, b"c"), batch(SPAN - 1, b"b", last=SPAN)], interval_bytes=1)
    write_segment(folder, 2**31, [batch(2**31, b"c")], interval_bytes=1)
    write_segment(folder, 2**31 + 1, [])
    compact(folder.parent, {"segment.bytes": str(2**30)}, NOW, like_broker=True)
    assert surviving(folder) == {0: [0, SPAN - 1], 2**31: [2**31], 2**31 + 1: []}
    check_indexes(folder, 0)


def test_gap_at_a_segment_end_does_not_stop_the_round(folder: Path) -> None:
    write_segment(folder, 10, [batch(10, b"a"), batch(12, b"b")], interval_bytes=1)
    write_segment(folder, 5000, [], interval_bytes=1)
    write_segment(folder, 2**31 + 9, [batch(2**31 + 9, b"a")], interval_bytes=1)
    write_segment(folder, 2**31 + 100, [batch(2**31 + 100, b"a")], interval_bytes=1)
    [report] = compact(folder.parent, {}, NOW).partitions
    assert report.first_uncleanable_offset == 2**31 + 100
    assert [offset for offsets in surviving(folder).values() for offset in offsets] == [
        12,
        2**31 + 9,
        2**31 + 100,
    ]


def test_transaction_index_is_split_with_its_segment(folder: Path) -> None:
    """The ABORT marker is in the second segment, so its index entry is there, too."""
    from lastwrite.kafka.format.batch import ControlType
    from tests.support.kafka.logs import read_aborted
    from tests.support.kafka.model import ModelAborted
    from tests.support.kafka.single import encode_control_record

    data = batch(5, b"a", transactional=True, producer_id=7, producer_epoch=0, base_sequence=0)
    end = encode_control_record(2**31 + 50, NOW - 1000, ControlType.ABORT)
    marker = encode_batch([end], control=True, transactional=True, producer_id=7, producer_epoch=0)
    entry = ModelAborted(7, 5, 2**31 + 50, 2**31 + 51)
    write_segment(folder, 0, [data, batch(6, b"b"), batch(7, b"b"), marker], 2**30, aborted=[entry])
    write_segment(folder, 2**32, [])
    compact(folder.parent, {}, NOW)
    assert bases(folder) == [0, 2**31 + 50, 2**32]
    assert [r.offset for s in read_segments(folder) for b in s.batches for r in b.records] == [
        7,
        2**31 + 50,
    ]
    assert read_aborted(folder, 0) == ()
    assert read_aborted(folder, 2**31 + 50) == (entry,)
