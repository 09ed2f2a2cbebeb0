"""Tests that a transaction marker outlives its aborted data.

They use every layout in which brokers have dropped a marker too early. A ``read_committed``
consumer hides data by the transaction index, and a broker that rebuilds the index uses the
producer's next marker. After every round the marker and its index entry must exist as long as the
log has one of its aborted records. The rounds continue past every horizon until the log is empty.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.support.engine import compact
from tests.support.kafka import reference
from tests.support.kafka.logs import (
    NAME,
    bases,
    encode_model,
    headers_of,
    read_segments,
    write_checkpoint,
    write_segment,
)
from tests.support.kafka.model import (
    ModelAborted,
    ModelBatch,
    ModelRecord,
    ModelSegment,
    aborted_offsets,
)
from tests.support.kafka.producers import Known, apply, write_snapshot

RETENTION_MS = 1000
CONFIG = {"cleanup.policy": "compact", "delete.retention.ms": str(RETENTION_MS)}
EXPIRING = {**CONFIG, "producer.id.expiration.ms": "1"}
NOW_MS = 1_700_000_000_000
BOB, EVE = 7, 8


def data(offset: int, keys: str, producer: int = -1, sequence: int = 0) -> ModelBatch:
    """A batch with a record ``x=<offset>`` for each letter of ``keys``.

    It is transactional if it has a producer.
    """
    records = tuple(
        ModelRecord(n, NOW_MS, key.encode(), b"%d" % n) for n, key in enumerate(keys, offset)
    )
    transactional = producer >= 0
    return ModelBatch(
        offset,
        offset + len(keys) - 1,
        records,
        max_timestamp_ms=NOW_MS,
        producer_id=producer,
        producer_epoch=0 if transactional else -1,
        base_sequence=sequence if transactional else -1,
        transactional=transactional,
    )


def marker(offset: int, producer: int, kind: str = "abort") -> ModelBatch:
    key = b"\0\0\0\0" if kind == "abort" else b"\0\0\0\1"
    record = ModelRecord(offset, NOW_MS, key, b"\0\0\0\0\0\0")
    return ModelBatch(
        offset,
        offset,
        (record,),
        max_timestamp_ms=NOW_MS,
        producer_id=producer,
        producer_epoch=0,
        transactional=True,
        control=True,
    )


class Log:
    """A log of the given segments with transaction indexes and a snapshot.

    It also knows which of its records were aborted.
    """

    def __init__(self, root: Path, segments: dict[int, list[ModelBatch]]) -> None:
        self.root = root
        self.folder = root / NAME
        # later than any producer expires if the expiration is one millisecond
        self.now_ms = NOW_MS + 10
        state: dict[int, Known] = {}
        for base, batches in segments.items():
            if base:
                write_snapshot(self.folder, base, state)
            entries = [entry for batch in batches if (entry := apply(state, batch)) is not None]
            write_segment(
                self.folder,
                base,
                [encode_model(b) for b in batches],
                mtime_ms=NOW_MS,
                aborted=entries,
            )
        self.end = reference.listed(root).end_offset
        write_snapshot(self.folder, self.end, state)
        self.aborted = aborted_offsets(self.read())

    def read(self) -> tuple[ModelSegment, ...]:
        return read_segments(self.folder)

    def batch(self, offset: int) -> ModelBatch | None:
        found = [
            batch
            for segment in self.read()
            for batch in segment.batches
            if batch.base_offset == offset
        ]
        return found[0] if found else None

    def entries(self) -> list[ModelAborted]:
        return [entry for segment in self.read() for entry in segment.aborted]

    def dirty(self) -> None:
        """Append a record and roll the segment, so that the next round has work."""
        last = bases(self.folder)[-1]
        there = (self.folder / f"{last:020d}.log").read_bytes()
        old = [
            there[at : at + header.size_bytes]
            for at, header in headers_of(self.folder / f"{last:020d}.log")
        ]
        new = encode_model(data(self.end, "z"))
        write_segment(
            self.folder, last, [*old, new], mtime_ms=self.now_ms, aborted=self.read()[-1].aborted
        )
        self.end += 1
        write_segment(self.folder, self.end, [], mtime_ms=self.now_ms)

    def round(self, like_broker: bool, config: dict[str, str] = CONFIG, after_ms: int = 0) -> None:
        self.now_ms += after_ms
        [told] = compact(self.root, config, self.now_ms, like_broker=like_broker).partitions
        assert not told.problems, told.problems
        self.check()

    def check(self) -> None:
        """Check that all aborted data is hidden, by the log and by the index entry of its marker's
        segment.
        """
        segments = self.read()
        present = {
            record.offset: batch.producer_id
            for segment in segments
            for batch in segment.batches
            for record in batch.records
            if record.offset in self.aborted
        }
        assert present.keys() <= aborted_offsets(segments), "the marker of aborted data is gone"
        for offset, producer in present.items():
            covering = [
                entry
                for segment in segments
                for entry in segment.aborted
                if entry.producer_id == producer
                and entry.first_offset <= offset < entry.last_offset
            ]
            assert covering, f"no entry of a transaction index hides {offset}"

    def until_nothing_is_left(self, like_broker: bool, config: dict[str, str] = CONFIG) -> None:
        for _ in range(6):
            self.dirty()
            self.round(like_broker, config, after_ms=RETENTION_MS)
        assert not any(batch.control for segment in self.read() for batch in segment.batches)
        assert self.entries() == []


both = pytest.mark.parametrize("like_broker", [True, False], ids=["like-a-broker", "sparing"])


@both
def test_marker_in_a_later_segment_outlives_its_data(tmp_path: Path, like_broker: bool) -> None:
    log = Log(
        tmp_path,
        {
            0: [data(0, "ab"), data(2, "ac", BOB)],
            4: [data(4, "cd", BOB, 2), data(6, "d")],
            7: [marker(7, BOB), data(8, "e")],
            9: [],
        },
    )
    log.round(like_broker, EXPIRING)
    # Aborted data is removed at once and supersedes nothing: the last committed writes are a@0 and
    # d@6.
    assert [r.offset for s in log.read() for b in s.batches for r in b.records] == [0, 1, 6, 7, 8]
    assert (stays := log.batch(7)) is not None and stays.horizon_ms is None
    assert log.entries() == [ModelAborted(BOB, 2, 7, 8)]

    log.dirty()
    log.round(like_broker, EXPIRING)
    assert (stays := log.batch(7)) is not None and stays.horizon_ms == log.now_ms + RETENTION_MS
    assert log.entries() == []

    log.dirty()
    log.round(like_broker, EXPIRING, after_ms=RETENTION_MS - 1)
    assert log.batch(7) is not None
    log.dirty()
    log.round(like_broker, EXPIRING, after_ms=1)
    assert log.batch(7) is None


@both
@pytest.mark.parametrize("lost", ["all", "one", "first-offset"])
def test_lost_index_entries_are_rebuilt_from_the_log(
    tmp_path: Path, like_broker: bool, lost: str
) -> None:
    """The markers in the log show what was aborted. The new segments get complete indexes."""
    log = Log(
        tmp_path,
        {
            0: [data(0, "ab"), data(2, "ab", BOB), data(4, "c", EVE)],
            5: [marker(5, BOB), marker(6, EVE), data(7, "b", EVE, 1)],
            8: [marker(8, EVE, "commit")],
            9: [],
        },
    )
    index = log.folder / f"{5:020d}.txnindex"
    entries = index.read_bytes()
    if lost == "all":
        index.unlink()
    elif lost == "one":
        index.write_bytes(entries[34:])
    else:  # the entry's first offset lies after its data
        index.write_bytes(entries[:10] + (4).to_bytes(8, "big") + entries[18:])
    # A broker keeps the last batch of an active producer, so its marker stays, too.
    log.round(like_broker)
    assert [r.offset for s in log.read() for b in s.batches for r in b.records] == [0, 5, 6, 7, 8]
    assert (shell := log.batch(2)) is not None and not shell.records
    # The remaining data is hidden even by an entry whose first offset is too late.
    if like_broker or lost != "first-offset":
        assert {(entry.producer_id, entry.last_offset) for entry in log.entries()} == {
            (BOB, 5),
            (EVE, 6),
        }
    log.dirty()
    log.round(like_broker)
    assert {entry.producer_id for entry in log.entries()} == {BOB}  # no aborted data of Eve is left
    for _ in range(6):
        log.dirty()
        log.round(like_broker, EXPIRING, after_ms=RETENTION_MS)
    left = [batch.marker for segment in log.read() for batch in segment.batches if batch.control]
    assert left == ["commit"]  # b@7 is still there


@both
def test_index_that_claims_committed_data_is_ignored(tmp_path: Path, like_broker: bool) -> None:
    log = Log(
        tmp_path,
        {
            0: [data(0, "ab", BOB), marker(2, BOB, "commit"), data(3, "c", BOB, 2)],
            4: [marker(4, BOB)],
            5: [],
        },
    )
    index = log.folder / f"{4:020d}.txnindex"
    index.write_bytes(index.read_bytes()[:10] + (0).to_bytes(8, "big") + index.read_bytes()[18:])
    log.round(like_broker, EXPIRING)
    assert [r.offset for s in log.read() for b in s.batches for r in b.records] == [0, 1, 2, 4]


@both
def test_marker_stays_if_a_round_removes_only_its_data(tmp_path: Path, like_broker: bool) -> None:
    """The marker's segment is too young for the first round, so its files are left unchanged."""
    young = [
        replace(batch, max_timestamp_ms=NOW_MS + 5000, append_time=True)
        for batch in (marker(3, BOB), data(4, "c"))
    ]
    log = Log(tmp_path, {0: [data(0, "a"), data(1, "ab", BOB)], 3: young, 5: []})
    lagging = {**EXPIRING, "min.compaction.lag.ms": "1000"}
    untouched = (log.folder / f"{3:020d}.log").read_bytes()
    log.round(like_broker, lagging, after_ms=2000)
    assert [r.offset for r in log.read()[0].batches[0].records] == [0]
    assert log.batch(1) is None
    assert (log.folder / f"{3:020d}.log").read_bytes() == untouched
    assert len(log.entries()) == 1

    log.round(like_broker, lagging, after_ms=10_000)
    assert (stays := log.batch(3)) is not None and stays.horizon_ms == log.now_ms + RETENTION_MS
    log.until_nothing_is_left(like_broker, EXPIRING)


def test_marker_in_an_unchanged_segment_keeps_its_index_entry(tmp_path: Path) -> None:
    """Only the data's segment is rewritten. The marker's segment keeps its bytes and its entry,
    although the entry hides nothing any more.
    """
    many = [data(3 + n, chr(200 + n)) for n in range(30)]
    log = Log(
        tmp_path, {0: [data(0, "a"), data(1, "ab", BOB)], 3: [*many, marker(33, BOB)], 34: []}
    )
    before = {
        suffix: (log.folder / f"{3:020d}{suffix}").read_bytes() for suffix in (".log", ".txnindex")
    }
    log.round(like_broker=False, config=EXPIRING)
    assert log.batch(1) is None
    assert {suffix: (log.folder / f"{3:020d}{suffix}").read_bytes() for suffix in before} == before
    log.until_nothing_is_left(like_broker=False, config=EXPIRING)


@both
def test_marker_outlives_the_empty_last_batch_of_its_producer(
    tmp_path: Path, like_broker: bool
) -> None:
    """While the producer is active, its empty last batch, the marker and the index entry stay."""
    log = Log(tmp_path, {0: [data(0, "a"), data(1, "ab", BOB), marker(3, BOB)], 4: []})
    for _ in range(4):
        log.dirty()
        log.round(like_broker, after_ms=RETENTION_MS)
        assert (shell := log.batch(1)) is not None and not shell.records
        assert (stays := log.batch(3)) is not None and stays.horizon_ms is None
        assert len(log.entries()) == 1
    log.until_nothing_is_left(like_broker, EXPIRING)


@both
def test_expired_marker_stays_while_its_data_remains(tmp_path: Path, like_broker: bool) -> None:
    """Kafka leaves such a marker after raising the log start over a transaction: with horizon,
    without entry.

    Kafka's next round drops the marker. Ours first removes the aborted data, which a reader of an
    archive would otherwise get.
    """
    stamped = replace(marker(3, BOB), horizon_ms=NOW_MS - 1, base_timestamp_ms=NOW_MS - 1)
    log = Log(tmp_path, {0: [data(0, "a"), data(1, "ab", BOB), stamped], 4: []})
    (log.folder / f"{0:020d}.txnindex").unlink()
    log.round(like_broker, EXPIRING)
    assert [r.offset for s in log.read() for b in s.batches for r in b.records] == [0, 3]
    log.until_nothing_is_left(like_broker, EXPIRING)


@both
@pytest.mark.parametrize("piece_bytes", [1, 150])
def test_round_in_small_pieces_equals_a_round_in_one_piece(
    tmp_path: Path, like_broker: bool, piece_bytes: int
) -> None:
    """State about a marker is passed from piece to piece."""
    segments = {
        0: [data(0, "ab", BOB), data(2, "cd", EVE), data(4, "ef", BOB, 2), data(6, "gh")],
        8: [data(8, "a", EVE, 2), marker(9, BOB), data(10, "b", BOB, 4), marker(11, BOB, "commit")],
        12: [data(12, "cg"), marker(14, EVE)],
        15: [],
    }
    log, whole = Log(tmp_path / "pieces", segments), Log(tmp_path / "whole", segments)
    for _ in range(4):
        log.dirty()
        whole.dirty()
        with patch("lastwrite.engine.pieces._PIECE_BYTES", piece_bytes):
            log.round(like_broker, EXPIRING, after_ms=RETENTION_MS)
        whole.round(like_broker, EXPIRING, after_ms=RETENTION_MS)
        assert log.read() == whole.read()


@both
def test_copy_has_the_markers_that_hide_aborted_data(tmp_path: Path, like_broker: bool) -> None:
    log = Log(
        tmp_path / "log",
        {0: [data(0, "a"), data(1, "ab", BOB)], 3: [marker(3, BOB), data(4, "c")], 5: []},
    )
    shutil.copytree(log.root, tmp_path / "other")
    write_checkpoint(
        tmp_path / "other", "replication-offset-checkpoint", {NAME: 3}
    )  # the marker is not replicated
    other = Log.__new__(Log)
    other.root, other.folder, other.now_ms, other.end = (
        tmp_path / "other",
        tmp_path / "other" / NAME,
        NOW_MS,
        log.end,
    )
    other.aborted = log.aborted
    report = compact(
        other.root, EXPIRING, NOW_MS, like_broker=like_broker, to=str(tmp_path / "copy")
    )
    assert not report.partitions[0].problems
    other.folder = tmp_path / "copy" / NAME
    other.check()
    assert any(
        record.offset in other.aborted
        for s in other.read()
        for b in s.batches
        for record in b.records
    )
