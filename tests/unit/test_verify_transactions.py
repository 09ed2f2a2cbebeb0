"""Tests of ``verify`` with transactions, producers, older formats and retention.

The original log is small and has one example of each, and its compacted log is hand-made. Each test
changes one thing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.encoding.compression import Codec
from lastwrite.kafka.format.batch import ControlType, decode_batch, encode_batch, rebuild_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.index import AbortedEntry, encode_transaction_index
from lastwrite.kafka.producers.snapshot import ProducerEntry, encode_snapshot
from lastwrite.reports.verification import VerifyReport
from lastwrite.spark.inline import INLINE
from tests.support.kafka.logs import write_checkpoint, write_segment
from tests.support.kafka.old_entries import encode_message, encode_wrapper
from tests.support.kafka.single import encode_control_record

T = 1_700_000_000_000
NOW = T + 1000
DAY = 86_400_000
ABORT, COMMIT = ControlType.ABORT, ControlType.COMMIT


def R(offset: int, key: str | None, value: str | None) -> Record:
    return Record(offset, T + offset, key and key.encode(), value and value.encode())


def data(
    producer: int, sequence: int, *records: Record, epoch: int = 0, in_transaction: bool = True
) -> bytes:
    return encode_batch(
        records,
        leader_epoch=0,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=in_transaction,
    )


def plain(*records: Record, horizon: int | None = None) -> bytes:
    return encode_batch(records, leader_epoch=0, delete_horizon_ms=horizon)


def marker(
    producer: int, offset: int, kind: ControlType, horizon: int | None = None, epoch: int = 0
) -> bytes:
    return encode_batch(
        [encode_control_record(offset, T + offset, kind)],
        leader_epoch=0,
        producer_id=producer,
        producer_epoch=epoch,
        transactional=True,
        control=True,
        delete_horizon_ms=horizon,
    )


def shell(batch: bytes) -> bytes:
    return rebuild_batch(decode_batch(batch, 0).header, ())


def kept(batch: bytes, *offsets: int, horizon: int | None = None) -> bytes:
    whole = decode_batch(batch, 0)
    records = [record for record in whole.records if record.offset in offsets]
    return rebuild_batch(
        whole.header, records, delete_horizon_ms=horizon or whole.header.delete_horizon_ms
    )


@dataclass(frozen=True)
class Log:
    """A log with its transaction indexes, a producer snapshot and the high watermark.

    Batches are by base offset, and ``bases`` are the base offsets of the segments.
    """

    batches: dict[int, bytes]
    bases: tuple[int, ...]
    aborted: tuple[tuple[int, int, int, int], ...] = ()
    snapshot: tuple[int, tuple[ProducerEntry, ...]] | None = None
    high_watermark: int | None = None
    log_start: int = 0

    def write(self, root: Path) -> Path:
        folder = root / "t-0"
        end = 1 << 62
        for base, after in zip(self.bases, [*self.bases[1:], end], strict=True):
            write_segment(
                folder, base, [b for at, b in sorted(self.batches.items()) if base <= at < after], 0
            )
            entries = [
                AbortedEntry(0, *entry) for entry in self.aborted if base <= entry[2] < after
            ]
            if entries:
                (folder / f"{base:020d}.txnindex").write_bytes(encode_transaction_index(entries))
        if self.snapshot is not None:
            (folder / f"{self.snapshot[0]:020d}.snapshot").write_bytes(
                encode_snapshot(self.snapshot[1])
            )
        if self.high_watermark is not None:
            write_checkpoint(root, "replication-offset-checkpoint", {"t-0": self.high_watermark})
        if self.log_start:
            write_checkpoint(root, "log-start-offset-checkpoint", {"t-0": self.log_start})
        return root

    def without(self, *bases: int, aborted: bool = True) -> Log:
        left = {at: batch for at, batch in self.batches.items() if at not in bases}
        return replace(self, batches=left, aborted=self.aborted if aborted else ())

    def having(self, **batches: bytes) -> Log:
        """The log with some batches replaced: ``b7=…`` replaces the batch at offset 7."""
        return replace(
            self,
            batches={**self.batches, **{int(name[1:]): batch for name, batch in batches.items()}},
        )


def verify(
    folder: Path, after: Log, before: Log | None = None, now_ms: int | None = NOW, **more: Any
) -> VerifyReport:
    number = len(list(folder.iterdir()))
    was = None if before is None else str(before.write(folder / f"before-{number}"))
    return lastwrite.verify(
        str(after.write(folder / f"after-{number}")), was, now_ms=now_ms, spark=INLINE, **more
    )


def found(report: VerifyReport) -> list[tuple[str, int | None]]:
    places = [(violation.promise, violation.offset) for violation in report.violations]
    return sorted(places, key=lambda place: (place[0], place[1] or 0))


# Producer 1 aborts, then commits. Producer 2 commits. Producer 3 has an open transaction.
LOG = Log(
    {
        0: plain(R(0, "a", "0"), R(1, "b", "1")),
        2: data(1, 0, R(2, "a", "aborted"), R(3, "c", "aborted")),
        4: data(2, 0, R(4, "b", "4")),
        5: data(1, 2, R(5, "d", None), R(6, None, "aborted")),
        7: marker(1, 7, ABORT),
        8: marker(2, 8, COMMIT),
        9: data(1, 4, R(9, "e", "9")),
        10: marker(1, 10, COMMIT),
        11: plain(R(11, "e", "11")),
        12: data(3, 0, R(12, "a", "open")),
        13: plain(R(13, "b", "13")),
        14: plain(R(14, "z", "14")),
    },
    bases=(0, 9, 14),
    aborted=((1, 2, 7, 4),),
)
# The log after a round: offsets above 12 are unchanged, and each producer's last batch is kept.
CLEAN = replace(
    LOG.without(2, 5).having(b0=LOG.batches[0], b9=shell(LOG.batches[9])),
)


def test_correct_compaction_is_verified(tmp_path: Path) -> None:
    report = verify(tmp_path, CLEAN, LOG)
    assert report.exit_status == 0, report.problems
    (partition,) = report.partitions
    assert partition.transactions is not None and partition.comparison is not None
    assert partition.transactions.to_dict() == {
        "open": 1,
        "aborted": 1,
        "committed": 2,
        "aborted_records": 0,
    }
    figures = partition.comparison.to_dict()
    assert {
        name: figures[name]
        for name in ("superseded", "keyless", "aborted", "markers", "keys", "keys_alive")
    } == {
        "superseded": 1,
        "keyless": 0,
        "aborted": 4,
        "markers": 0,
        "keys": 4,
        "keys_alive": 4,
    }
    was = verify(tmp_path, LOG).partitions[0].transactions
    assert was is not None and was.aborted_records == 4


def test_removable_records_may_stay(tmp_path: Path) -> None:
    for after in (
        LOG,
        LOG.without(2),
        LOG.without(5),
        LOG.having(b2=shell(LOG.batches[2])),
        CLEAN.without(aborted=False),
    ):
        report = verify(tmp_path, after, LOG)
        assert report.exit_status == 0, report.problems


def test_aborted_record_supersedes_nothing(tmp_path: Path) -> None:
    """``a@2`` is aborted and ``a@12`` is undecided, so ``a@0`` is the last valid write. ``b@13`` is
    not stable either.
    """
    after = CLEAN.having(b0=kept(LOG.batches[0], 1))
    assert found(verify(tmp_path, after, LOG)) == [("lost", 0)]
    assert found(verify(tmp_path, CLEAN.having(b4=shell(LOG.batches[4])), LOG)) == [("lost", 4)]
    assert verify(tmp_path, CLEAN.having(b0=kept(LOG.batches[0], 0)), LOG).exit_status == 0


def test_aborted_record_must_not_reappear(tmp_path: Path) -> None:
    before = replace(CLEAN, aborted=())
    report = verify(tmp_path, before.having(b2=LOG.batches[2]), before)
    assert {("added", 2), ("added", 3), ("batch_added", 2), ("transaction_index", None)} <= set(
        found(report)
    )


def test_records_after_an_open_transaction_must_stay(tmp_path: Path) -> None:
    for offset in (12, 13, 14):
        report = verify(tmp_path, CLEAN.without(offset), LOG)
        assert ("lost_tail", offset) in found(report)
    decided = LOG.having(b15=marker(3, 15, COMMIT))
    # The decided transaction supersedes records. The last batch of a producer without writes for a
    # day may be removed, too.
    assert (
        verify(tmp_path, decided.without(2, 5, 4, 0), decided, now_ms=NOW + 2 * DAY).exit_status
        == 0
    )
    # Its marker is not replicated, so the transaction still counts as open.
    lagging = replace(decided, high_watermark=15)
    assert ("lost", 0) in found(
        verify(tmp_path, lagging.without(2, 5, 4, 0), lagging, now_ms=NOW + 2 * DAY)
    )


@pytest.mark.parametrize("with_index", [True, False])
def test_marker_dropped_before_its_aborted_data_is_found(with_index: bool, tmp_path: Path) -> None:
    """Brokers did this. The data then belongs to the producer's next transaction, and aborted
    writes are read as committed.
    """
    after = LOG.without(7, aborted=with_index)
    report = verify(tmp_path, after, LOG)
    expected = [("lost_control", 7), ("redecided", 2), ("redecided", 5)]
    assert found(report) == sorted(
        [*expected, *([("transaction_index", None)] if with_index else [])]
    )
    said = next(str(v) for v in report.violations if v.promise == "redecided")
    assert (
        "a transaction of producer 1 was aborted, and readers now treat its data as committed"
        in said
    )
    if with_index:  # without the entry the log looks as if everything had been committed
        report = verify(tmp_path, after)
        assert report.exit_status == 3 and "points to an abort marker that does not exist" in str(
            report.problems[0]
        )
    # Even an empty batch of the transaction needs the marker.
    before = LOG.without(5).having(b2=shell(LOG.batches[2]))
    assert ("lost_control", 7) in found(verify(tmp_path, before.without(7), before))
    # Without a later marker of the producer the data seems open, but a snapshot has the outcome.
    lonely = LOG.without(7, 9, 10, aborted=False)
    report = verify(tmp_path, lonely, LOG.without(9, 10))
    assert {("lost_control", 7), ("redecided", 2), ("redecided", 5)} <= set(found(report))
    known = (ProducerEntry(1, 0, 3, 6, 1, T, 0, -1), ProducerEntry(3, 0, 0, 12, 0, T, 0, 12))
    report = verify(tmp_path, replace(lonely, snapshot=(14, known)))
    assert (
        report.exit_status == 3
        and "producer 1 began a transaction at offset 2, but the marker that ends it is missing"
        in str(report.problems[0])
    )


def test_aborted_data_without_its_index_entry_is_found(tmp_path: Path) -> None:
    report = verify(tmp_path, LOG.without(aborted=False), LOG)
    assert found(report) == [("transaction_index", None)]
    assert "no entry for the transaction of producer 1" in report.violations[0].message
    assert str(report.violations[0].path).endswith(f"{0:020d}.txnindex")
    assert verify(tmp_path, LOG.without(aborted=False)).exit_status == 3


LIES = [(1, 3, 7, 4), (2, 2, 7, 4), (1, 2, 8, 4), (1, 2, 7, 5), (1, 2, 7, 8)]


@pytest.mark.parametrize("entry", LIES, ids=str)
def test_wrong_index_entry_is_found(entry: tuple[int, int, int, int], tmp_path: Path) -> None:
    """In the compacted log it is damage. If the entry was right before, it is also a broken
    promise.
    """
    after = replace(LOG, aborted=(entry,))
    report = verify(tmp_path, after)
    assert report.exit_status == 3 and report.partitions[0].problems[0].path.endswith(".txnindex")
    assert report.partitions[0].problems[0].position == 0
    assert found(verify(tmp_path, after, LOG)) == [("transaction_index", None)]
    assert verify(tmp_path, after, after).exit_status != 0


def test_marker_may_be_removed_after_its_data_and_horizon(tmp_path: Path) -> None:
    spent = replace(CLEAN, aborted=())
    stamped = spent.having(b7=marker(1, 7, ABORT, NOW))
    assert found(verify(tmp_path, spent.without(7), spent)) == [("lost_control", 7)]
    assert found(verify(tmp_path, stamped.without(7), stamped, now_ms=NOW - 1)) == [
        ("lost_control", 7)
    ]
    for now_ms in (NOW, None):
        report = verify(tmp_path, stamped.without(7), stamped, now_ms=now_ms)
        assert report.exit_status == 0, report.problems
        assert (
            report.partitions[0].comparison is not None
            and report.partitions[0].comparison.markers == 1
        )
    # A commit marker, whose transaction has one batch left, without records.
    emptied = LOG.having(b9=shell(LOG.batches[9]), b10=marker(1, 10, COMMIT, NOW))
    assert found(verify(tmp_path, emptied.without(10), emptied)) == [
        ("lost_control", 10),
        ("redecided", 9),
    ]
    gone = LOG.without(9).having(b10=marker(1, 10, COMMIT, NOW))
    assert verify(tmp_path, gone.without(10), gone).exit_status == 0
    assert verify(tmp_path, gone.having(b10=shell(gone.batches[10])), gone).exit_status == 0
    assert found(verify(tmp_path, gone.having(b10=shell(gone.batches[10])), LOG.without(9))) == [
        ("lost_control", 10)
    ]


def test_last_batch_of_an_active_producer_must_stay(tmp_path: Path) -> None:
    before = Log(
        {
            0: data(5, 0, R(0, "a", "0"), in_transaction=False),
            1: data(5, 1, R(1, "b", "1"), in_transaction=False),
            2: plain(R(2, "a", "2"), R(3, "b", "3")),
            4: plain(R(4, "c", "4")),
        },
        bases=(0, 4),
    )
    emptied = before.without(0).having(b1=shell(before.batches[1]))
    assert verify(tmp_path, emptied, before).exit_status == 0
    assert found(verify(tmp_path, before.without(0, 1), before)) == [("batch_lost", 1)]
    assert found(verify(tmp_path, before.without(0, 1), before, now_ms=T + 1 + DAY - 1)) == [
        ("batch_lost", 1)
    ]
    assert verify(tmp_path, before.without(0, 1), before, now_ms=T + 1 + DAY).exit_status == 0
    assert (
        verify(tmp_path, before.without(0, 1), before, now_ms=None).exit_status == 0
    )  # the producer has expired
    short = {"producer.id.expiration.ms": 10}
    assert verify(tmp_path, before.without(0, 1), before, config=short).exit_status == 0
    head = decode_batch(before.batches[1], 0).header
    for change in (
        {"base_sequence": 2},
        {"producer_epoch": 1},
        {"last_offset_delta": 0, "base_offset": 1},
    ):
        header = head._replace(**change)
        changed = emptied.having(b1=rebuild_batch(header, ()))
        same = header == head
        assert (verify(tmp_path, changed, before).exit_status == 0) is same
    # A snapshot may have a later batch that was removed. Then this batch need not be kept.
    later = replace(before, snapshot=(4, (ProducerEntry(5, 0, 9, 3, 0, T, -1, -1),)))
    assert verify(tmp_path, later.without(0, 1), later).exit_status == 0
    same_one = replace(before, snapshot=(4, (ProducerEntry(5, 0, 1, 1, 0, T, -1, -1),)))
    assert found(verify(tmp_path, same_one.without(0, 1), same_one)) == [("batch_lost", 1)]


def test_marker_that_is_the_only_trace_of_a_producer_must_stay(tmp_path: Path) -> None:
    """The marker begins an epoch, and no other batch of the producer is left."""
    before = Log(
        {
            0: data(6, 0, R(0, "a", "0")),
            1: marker(6, 1, COMMIT, NOW, epoch=1),
            2: plain(R(2, "a", "2")),
            3: plain(R(3, "c", "3")),
        },
        bases=(0, 3),
    ).without(0)
    emptied = before.having(b1=shell(before.batches[1]))
    known = ProducerEntry(6, 1, -1, -1, 0, T, 0, -1)
    for snapshot in (None, (3, (known,))):
        was, now = replace(before, snapshot=snapshot), replace(emptied, snapshot=snapshot)
        assert verify(tmp_path, now, was).exit_status == 0
        assert found(verify(tmp_path, now.without(1), was)) == [("batch_lost", 1)]
        assert verify(tmp_path, now.without(1), was, now_ms=T + 1 + DAY).exit_status == 0
    # After the batch was emptied, only the snapshot has the producer's state.
    was = replace(emptied, snapshot=(3, (known,)))
    assert found(verify(tmp_path, was.without(1), was)) == [("batch_lost", 1)]
    assert verify(tmp_path, emptied.without(1), emptied).exit_status == 0


def test_tombstone_dropped_before_an_older_value_is_found(
    tmp_path: Path,
) -> None:
    """The older value is in a segment that the round rewrote, or in one that it left unchanged."""
    before = Log(
        {
            0: plain(R(0, "x", "old"), R(1, "y", "1")),
            2: plain(R(2, "x", "older"), R(3, "q", "3")),
            4: plain(R(4, "x", None), R(5, "w", "5"), horizon=NOW),
            6: data(1, 0, R(6, "x", "aborted")),
            7: marker(1, 7, ABORT),
            8: plain(R(8, "z", "8")),
        },
        bases=(0, 2, 4, 8),
        aborted=((1, 6, 7, 8),),
    )
    dropped = kept(before.batches[4], 5)
    for clean in (
        before.having(b4=dropped),
        before.having(b4=dropped, b6=shell(before.batches[6])),
    ):
        right = clean.having(b0=kept(before.batches[0], 1), b2=kept(before.batches[2], 3))
        assert verify(tmp_path, right, before).exit_status == 0
        assert found(verify(tmp_path, right.having(b0=before.batches[0]), before)) == [
            ("revived", 0)
        ]
        assert found(verify(tmp_path, right.having(b2=before.batches[2]), before)) == [
            ("revived", 2)
        ]
    # An aborted write does not supersede the tombstone.
    early = before.without(4).having(b5=plain(R(5, "w", "5")))
    assert ("lost_delete", 4) in found(verify(tmp_path, early, before, now_ms=NOW - 1))


# ---------------------------------------------------------------------- older formats


def old_log(magic: int) -> Log:
    return Log(
        {
            0: encode_message(R(0, "a", "0"), magic),
            1: encode_message(R(1, "b", None), magic),
            2: encode_wrapper(
                [R(2, "a", "2"), R(3, "c", "3"), R(5, "d", None), R(6, "c", "6")], magic, Codec.GZIP
            ),
            7: encode_message(R(7, "e", "7"), magic),
            8: plain(R(8, "e", "8"), R(9, "f", "9")),
            10: plain(R(10, "z", "10")),
        },
        bases=(0, 10),
    )


def converted(
    magic: int, *records: Record, codec: Codec = Codec.NONE, horizon: int | None = NOW, **more: Any
) -> bytes:
    records = tuple(
        replace(record, timestamp_ms=-1) if magic == 0 else record for record in records
    )
    return encode_batch(records, codec=codec, delete_horizon_ms=horizon, **more)


@pytest.mark.parametrize("magic", [0, 1])
def test_older_formats_are_compared_with_their_v2_batches(magic: int, tmp_path: Path) -> None:
    before = write_old(tmp_path, magic)
    left = [R(2, "a", "2"), R(5, "d", None), R(6, "c", "6")]
    clean = Log(
        {
            1: converted(magic, R(1, "b", None)),
            2: converted(magic, *left, codec=Codec.GZIP),
            8: plain(R(8, "e", "8"), R(9, "f", "9")),
            10: plain(R(10, "z", "10")),
        },
        bases=(0, 10),
    )

    def check(after: Log, **more: Any) -> VerifyReport:
        number = len(list(tmp_path.iterdir()))
        return lastwrite.verify(
            str(after.write(tmp_path / str(number))), str(before), now_ms=NOW, spark=INLINE, **more
        )

    assert check(clean).exit_status == 0, check(clean).problems
    assert check(old_log(magic)).exit_status == 0  # unchanged
    whole = lastwrite.verify(str(before), spark=INLINE).partitions[0]
    assert (whole.old_batches, whole.records) == (4, 10)
    narrow = converted(magic, *left[1:], codec=Codec.GZIP)
    assert found(check(clean.without(2).having(b5=narrow))) == [("lost", 2)]
    zip_ = {"codec": Codec.GZIP}
    writer = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
    other_time = [replace(record, timestamp_ms=9) for record in left]
    wrong: dict[str, tuple[Log, set[tuple[str, int]]]] = {
        "codec": (clean.having(b2=converted(magic, *left, codec=Codec.LZ4)), {("batch_added", 2)}),
        "offset": (
            clean.having(b2=converted(magic, *left, last_offset=7, **zip_)),
            {("batch_added", 2)},
        ),
        "split": (
            clean.having(
                b2=converted(magic, left[0], **zip_), b5=converted(magic, *left[1:], **zip_)
            ),
            {("batch_added", 5)},
        ),
        "epoch": (
            clean.having(b2=converted(magic, *left, leader_epoch=1, **zip_)),
            {("batch_changed", 2)},
        ),
        "producer": (
            clean.having(b2=converted(magic, *left, **writer, **zip_)),
            {("batch_changed", 2)},
        ),
        "time": (
            clean.having(b2=converted(1, *other_time, **zip_)),
            {("changed", 2), ("changed", 5), ("changed", 6)},
        ),
        "value": (
            clean.having(b2=converted(magic, R(2, "a", "x"), *left[1:], **zip_)),
            {("changed", 2)},
        ),
        "delete": (clean.without(1), {("lost_delete", 1)}),
    }
    for what, (after, expected) in wrong.items():
        report = check(after)
        assert expected <= set(found(report)), (what, report.problems)


def write_old(folder: Path, magic: int) -> Path:
    return old_log(magic).write(folder / "before")


def test_tombstones_of_older_formats_expire_with_their_file(tmp_path: Path) -> None:
    """A tombstone expires by its file's age relative to the last clean segment, not to
    the clock.
    """
    batches = {
        0: encode_message(R(0, "a", None), 1),
        1: encode_message(R(1, "b", "1"), 1),
        2: plain(R(2, "c", "2")),
        3: plain(R(3, "d", "3")),
    }
    before, after = tmp_path / "before", tmp_path / "after"
    for root, all_of_it in ((before, True), (after, False)):
        for base, end, stamp in ((0, 2, T), (2, 3, T + 1000), (3, 9, T + 2000)):
            some = [
                batch
                for at, batch in batches.items()
                if base <= at < end and (all_of_it or at != 0)
            ]
            write_segment(root / "t-0", base, some, mtime_ms=stamp)

    def check(checkpoint: int | None, retention_ms: int) -> list[tuple[str, int | None]]:
        write_checkpoint(
            before, "cleaner-offset-checkpoint", {} if checkpoint is None else {"t-0": checkpoint}
        )
        config = {"delete.retention.ms": retention_ms}
        return found(
            lastwrite.verify(str(after), str(before), config=config, now_ms=NOW, spark=INLINE)
        )

    assert check(3, 1000) == []
    assert check(3, 1001) == [("lost_delete", 0)]
    assert check(2, 0) == []
    assert check(2, 1) == [("lost_delete", 0)]
    assert check(None, 0) == [("lost_delete", 0)]  # no segment is clean


# ---------------------------------------------------------------------- retention


def test_segments_deleted_by_retention_are_accepted(tmp_path: Path) -> None:
    """All batches below the new log start may be missing, including markers and index entries."""
    before = LOG.having(b15=marker(3, 15, ABORT))
    before = replace(before, aborted=(*before.aborted, (3, 12, 15, 16)))
    after = replace(before.without(0, 2, 4, 5, 7, 8), bases=(9, 14), aborted=before.aborted[1:])
    report = verify(tmp_path, after, before)
    assert report.exit_status == 0, report.problems
    comparison = report.partitions[0].comparison
    assert comparison is not None and comparison.below_start == 9
    assert report.partitions[0].advice == ["the log started at offset 0, and now starts at 9"]
    assert found(verify(tmp_path, after.without(11), before)) == [("lost", 11)]
    # The transaction's data is below the log start, and its marker above.
    high = replace(
        before.without(0, 2, 4, 5, 7, 8, 9, 10, 11, 12, 13), bases=(14,), aborted=before.aborted[1:]
    )
    assert verify(tmp_path, high, before).exit_status == 0
    assert found(verify(tmp_path, after, before, config={"cleanup.policy": "compact"})) == [
        ("log_start", 9)
    ]
    assert (
        verify(tmp_path, after, before, config={"cleanup.policy": "compact,delete"}).exit_status
        == 0
    )


# ---------------------------------------------------------------------- other orders


def test_last_write_follows_the_compaction_strategy(tmp_path: Path) -> None:
    def at(offset: int, key: str, value: str | None, time: int, version: int) -> Record:
        headers = ((b"v", version.to_bytes(8, "big")),)
        return Record(offset, T + time, key.encode(), value and value.encode(), headers)

    before = Log(
        {
            0: plain(at(0, "a", "best", 9, 1), at(1, "b", "1", 0, 9)),
            2: plain(at(2, "a", "late", 1, 5), at(3, "b", "3", 0, 2)),
            4: plain(at(4, "x", None, 9, 9), horizon=NOW),
            5: plain(at(5, "x", "older", 5, 5)),
            6: plain(at(6, "z", "6", 0, 0)),
        },
        bases=(0, 6),
    )
    winners = {
        "timestamp": before.having(
            b2=kept(before.batches[2], 3), b0=kept(before.batches[0], 0)
        ).without(4, 5),
        "header": before.having(
            b2=kept(before.batches[2], 2), b0=kept(before.batches[0], 1)
        ).without(4, 5),
    }
    for strategy, after in winners.items():
        config = {"compaction.strategy": strategy, "compaction.strategy.header": "v"}
        assert verify(tmp_path, after, before, config=config).exit_status == 0
        other = winners["header" if strategy == "timestamp" else "timestamp"]
        lost = {"timestamp": [("lost", 0), ("lost", 3)], "header": [("lost", 1), ("lost", 2)]}[
            strategy
        ]
        assert found(verify(tmp_path, other, before, config=config)) == lost
        # The tombstone that won is missing, and a value that it deleted follows.
        revived = after.having(b5=before.batches[5])
        assert found(verify(tmp_path, revived, before, config=config)) == [("revived", 5)]
        assert verify(tmp_path, revived, before).exit_status == 5
    loser = replace(
        before.having(b6=plain(at(6, "a", "6", 0, 0)), b7=plain(at(7, "q", "7", 0, 0))), bases=(0,)
    )
    ends = replace(loser.without(7), bases=(0,))
    config = {"compaction.strategy": "timestamp"}
    emptied = ends.having(b6=shell(ends.batches[6]))
    # The log's last record is always kept.
    assert found(verify(tmp_path, emptied, ends, config=config)) == [("lost", 6)]
    assert verify(tmp_path, loser.without(6), loser, config=config).exit_status == 0
