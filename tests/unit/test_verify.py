"""Tests that ``verify`` finds each lost, changed, duplicated, moved or revived record.

It must also find every kind of damage. The original log has an example of everything, and its
compacted log is hand-made. Each test changes one thing.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.encoding.compression import Codec
from lastwrite.errors import InvalidConfig, LogHeld, NotALog
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.look.proof import PROOF as KAFKA_PROOF
from lastwrite.kafka.system import KAFKA
from lastwrite.model.log import ProblemKind
from lastwrite.reports.verification import PartitionVerification, VerifyReport, VerifyStatus
from lastwrite.spark.inline import INLINE
from lastwrite.verification import contents as contents_module
from lastwrite.verification import logs as verify_module
from tests.support.kafka.logs import write_checkpoint, write_segment

T = 1_700_000_000_000
NOW = T + 1000


@dataclass(frozen=True)
class B:
    """A batch to encode."""

    records: tuple[Record, ...]
    base: int
    last: int
    codec: Codec = Codec.NONE
    horizon: int | None = None
    epoch: int = 0
    append_time: bool = False
    max_timestamp: int | None = None
    producer_id: int = -1

    def encode(self) -> bytes:
        return encode_batch(
            self.records,
            base_offset=self.base,
            last_offset=self.last,
            codec=self.codec,
            append_time=self.append_time,
            delete_horizon_ms=self.horizon,
            leader_epoch=self.epoch,
            max_timestamp_ms=self.max_timestamp,
            producer_id=self.producer_id,
            producer_epoch=0 if self.producer_id >= 0 else -1,
            base_sequence=0 if self.producer_id >= 0 else -1,
        )


Log = dict[int, tuple[B, ...]]  # named by the segment's base offset


def R(offset: int, key: str | None, value: str | None, headers: Any = ()) -> Record:
    return Record(offset, T + offset, key and key.encode(), value and value.encode(), headers)


BEFORE: Log = {
    0: (
        B(
            (
                R(0, "a", "0"),
                R(1, "b", "1"),
                R(2, None, "keyless"),
                R(3, "c", "3", ((b"h", None),)),
            ),
            0,
            3,
        ),
        B((R(4, "a", "4"), R(5, "d", "5")), 4, 6, Codec.LZ4),  # offset 6 has no record
        # e: its horizon has passed
        B((R(7, "e", None), R(8, "f", "8")), 7, 8, Codec.ZSTD, horizon=T + 500),
        # g: its horizon has not passed
        B((R(9, "g", None), R(10, "h", "10")), 9, 10, horizon=T + 2000),
    ),
    11: (
        B((R(11, "b", "11"), R(12, "i", None)), 11, 12, epoch=1),  # i: no horizon yet
        B((R(13, "j", "13"), R(14, "f", None)), 13, 14, Codec.GZIP, epoch=1),
        B(
            tuple(replace(R(n, "k", str(n)), timestamp_ms=T + 99) for n in (15, 16)),
            15,
            16,
            append_time=True,
            max_timestamp=T + 99,
            epoch=1,
        ),
        B((R(17, "c", "17"),), 17, 17, Codec.SNAPPY, epoch=1),
    ),
    18: (
        B((R(18, "d", "18"), R(19, "a", "19")), 18, 19, epoch=2),
    ),  # the active segment; offset 19 is above the high watermark
}
HIGH_WATERMARK = 19


def kept(*offsets: int, log: Log = BEFORE, horizon: int = NOW + 5000) -> Log:
    """The batches of ``log`` with only these records. Batches with a kept tombstone get
    a horizon.
    """
    out: Log = {}
    for base, batches in log.items():
        thinned = []
        for b in batches:
            records = tuple(r for r in b.records if r.offset in offsets)
            if records:
                stamp = (
                    horizon
                    if b.horizon is None and any(r.value is None and r.key for r in records)
                    else b.horizon
                )
                thinned.append(replace(b, records=records, horizon=stamp))
        out[base] = tuple(thinned)
    return out


SURVIVORS = (4, 9, 10, 11, 12, 13, 14, 16, 17, 18, 19)
AFTER = kept(*SURVIVORS)


def write(root: Path, log: Log, name: str = "t-0") -> Path:
    for base, batches in log.items():
        write_segment(root / name, base, [b.encode() for b in batches], 0)
    last = max(log)
    end = log[last][-1].last + 1 if log[last] else last
    write_checkpoint(root, "replication-offset-checkpoint", {name: min(HIGH_WATERMARK, end)})
    (root / name / "partition.metadata").write_text(
        "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n"
    )
    epochs = [f"{epoch} {start}\n" for epoch, start in enumerate((0, 11, 18)) if start <= end]
    (root / name / "leader-epoch-checkpoint").write_text(f"0\n{len(epochs)}\n{''.join(epochs)}")
    return root


def verify(
    after: Path, before: Path | None = None, now_ms: int | None = NOW, **arguments: Any
) -> VerifyReport:
    was = None if before is None else str(before)
    arguments.setdefault("drop_keyless", True)
    return lastwrite.verify(str(after), was, now_ms=now_ms, spark=INLINE, **arguments)


def found(report: VerifyReport) -> list[tuple[str, int | None]]:
    return [(violation.promise, violation.offset) for violation in report.violations]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("before"), BEFORE)


# ---------------------------------------------------------------------- nothing was lost


def test_correct_compaction_is_verified(tmp_path: Path, before: Path) -> None:
    report = verify(write(tmp_path, AFTER), before)
    (partition,) = report.partitions
    assert (partition.status, report.exit_status, found(report)) == (VerifyStatus.VERIFIED, 0, [])
    comparison = partition.comparison
    assert comparison is not None
    figures = comparison.to_dict()
    assert {name: figures[name] for name in figures if name not in ("folder", "violations")} == {
        "records_before": 19,
        "records_after": 11,
        "superseded": 6,
        "expired": 1,
        "keyless": 1,
        "first_keyless_offset": 2,
        "aborted": 0,
        "markers": 0,
        "below_start": 0,
        "keys": 11,
        "keys_alive": 7,
        "violation_count": 0,
    }
    assert report.to_dict()["totals"]["keys_alive"] == 7


def test_unchanged_log_is_verified_against_itself(before: Path) -> None:
    assert verify(before, before).exit_status == 0


def test_extra_records_that_kafka_may_keep_are_accepted(tmp_path: Path, before: Path) -> None:
    """Superseded records, keyless records and expired tombstones may be kept."""
    for n, extra in enumerate([(0, 1), (2,), (3, 5), (7,), (15,)]):
        assert (
            verify(write(tmp_path / str(n), kept(*SURVIVORS, *extra)), before).exit_status == 0
        ), extra


@pytest.mark.parametrize("offset", SURVIVORS)
def test_each_lost_record_is_found(offset: int, tmp_path: Path, before: Path) -> None:
    report = verify(write(tmp_path, kept(*(n for n in SURVIVORS if n != offset))), before)
    promise = {9: "lost_delete", 12: "lost_delete", 14: "lost_delete", 19: "lost_tail"}.get(
        offset, "lost"
    )
    # Offset 4 is the last write of its key below the high watermark. 18 is in the last batch, with
    # 19.
    assert (promise, offset) in found(report)
    assert report.exit_status == 5 and not report.ok
    assert {Path(str(v.path)).name for v in report.violations if v.offset == offset} == {
        f"{max(base for base in BEFORE if base <= offset):020d}.log"
    }


def test_tombstone_may_be_removed_after_its_horizon(tmp_path: Path, before: Path) -> None:
    after = write(tmp_path, kept(*(n for n in SURVIVORS if n != 9)))
    assert found(verify(after, before, now_ms=T + 1999)) == [("lost_delete", 9)]
    assert verify(after, before, now_ms=T + 2000).exit_status == 0
    assert verify(after, before, now_ms=None).exit_status == 0
    early = write(tmp_path / "early", AFTER)
    assert found(verify(early, before, now_ms=T + 499)) == [("lost_delete", 7)]


def test_removed_tombstone_must_revive_no_value(tmp_path: Path) -> None:
    log: Log = {
        0: (B((R(0, "x", "old"), R(1, "y", "1")), 0, 1), B((R(2, "x", None),), 2, 2, horizon=T)),
        3: (B((R(3, "z", "1"),), 3, 3),),
    }
    before = write(tmp_path / "before", log)
    assert verify(write(tmp_path / "right", kept(1, 3, log=log)), before).exit_status == 0
    report = verify(write(tmp_path / "wrong", kept(0, 1, 3, log=log)), before)
    assert found(report) == [("revived", 0)]


def everywhere(log: Log, change: Callable[[Record], Record]) -> Iterable[tuple[int, Log]]:
    """For each record, the log with only that record changed."""
    for base, batches in log.items():
        for n, b in enumerate(batches):
            for k, record in enumerate(b.records):
                records = (*b.records[:k], change(record), *b.records[k + 1 :])
                yield (
                    record.offset,
                    {**log, base: (*batches[:n], replace(b, records=records), *batches[n + 1 :])},
                )


CHANGES: dict[str, Callable[[Record], Record]] = {
    "key": lambda r: replace(r, key=b"other"),
    "key of another": lambda r: replace(r, key=b"a" if r.key != b"a" else b"b"),
    "empty key": lambda r: replace(r, key=b""),
    "no key": lambda r: replace(r, key=None),
    "value": lambda r: replace(r, value=(r.value or b"") + b"!"),
    "delete or empty": lambda r: replace(r, value=None if r.value is not None else b""),
    "header": lambda r: replace(r, headers=(*r.headers, (b"h", b""))),
    "time": lambda r: replace(r, timestamp_ms=r.timestamp_ms + 1),
}


@pytest.mark.parametrize("what", CHANGES)
def test_each_changed_record_is_found(what: str, tmp_path: Path, before: Path) -> None:
    for n, (offset, log) in enumerate(everywhere(AFTER, CHANGES[what])):
        # the batch has append time for all its records; another test changes it
        if what == "time" and offset == 16:
            continue
        report = verify(write(tmp_path / str(n), log), before)
        assert report.exit_status == 5, (what, offset)
        assert offset in [at for _, at in found(report)]
        assert {promise for promise, at in found(report) if at == offset} & {"changed", "added"}


def test_changed_append_time_is_found(tmp_path: Path, before: Path) -> None:
    for n, b in enumerate(
        [{"max_timestamp": T + 98}, {"append_time": False, "max_timestamp": None}]
    ):
        log = {
            base: tuple(replace(x, **b) if x.base == 15 else x for x in batches)
            for base, batches in AFTER.items()
        }
        report = verify(write(tmp_path / str(n), log), before)
        assert ("batch_changed", 15) in found(report)


def test_record_moved_to_another_offset_is_found(tmp_path: Path, before: Path) -> None:
    """A record is moved to a gap in its batch, with unchanged key and content."""
    for n, (base, b) in enumerate((base, b) for base, batches in AFTER.items() for b in batches):
        free = sorted(set(range(b.base, b.last + 1)) - {r.offset for r in b.records})
        if not free:
            continue
        records = tuple(
            sorted((replace(b.records[0], offset=free[0]), *b.records[1:]), key=lambda r: r.offset)
        )
        log = {
            **AFTER,
            base: tuple(replace(x, records=records) if x is b else x for x in AFTER[base]),
        }
        report = verify(write(tmp_path / str(n), log), before)
        assert report.exit_status == 5
        # Offsets 15 and 16 are in one batch and have the same key.
        assert ("changed" if free[0] == 15 else "added", free[0]) in found(report)


def test_duplicate_batch_is_damage_or_growth(tmp_path: Path, before: Path) -> None:
    """A batch repeated in place is damage, because offsets must rise. After the end it is log
    growth.
    """
    for base, batches in AFTER.items():
        for n in range(len(batches)):
            root = write(tmp_path / f"{base}-{n}", AFTER)
            write_segment(
                root / "t-0", base, [b.encode() for b in (*batches[: n + 1], *batches[n:])], 0
            )
            report = verify(root, before)
            assert report.exit_status == 3
            assert "offsets do not increase" in str(report.partitions[0].reason)
    shifted = replace(BEFORE[18][0], base=20, last=21, records=(R(20, "d", "18"), R(21, "a", "19")))
    report = verify(write(tmp_path / "shifted", {**AFTER, 18: (*AFTER[18], shifted)}), before)
    assert found(report) == [] and "has grown" in str(report.partitions[0].advice)


def test_each_lost_batch_is_found(tmp_path: Path, before: Path) -> None:
    for base, batches in AFTER.items():
        for n, b in enumerate(batches):
            report = verify(
                write(tmp_path / f"{base}-{n}", {**AFTER, base: (*batches[:n], *batches[n + 1 :])}),
                before,
            )
            assert report.exit_status == 5
            assert {r.offset for r in b.records} <= {offset for _, offset in found(report)}


HEADS: list[dict[str, Any]] = [
    {"epoch": 7},
    {"producer_id": 5},
    {"codec": Codec.GZIP},
    {"base": -1},
    {"last": 1},
]


@pytest.mark.parametrize("change", HEADS, ids=str)
def test_each_changed_batch_header_is_found(
    change: dict[str, Any], tmp_path: Path, before: Path
) -> None:
    for base, batches in AFTER.items():
        for n, b in enumerate(batches):
            if "base" in change or "last" in change:
                changed = replace(
                    b, base=b.base + change.get("base", 0), last=b.last + change.get("last", 0)
                )
                lowest = batches[n - 1].last + 1 if n else base
                following = (
                    [b.base for b in batches[n + 1 :]]
                    + [other for other in AFTER if other > base]
                    + [99]
                )
                if changed.base < lowest or changed.last >= min(following):
                    continue
            elif b.codec is change.get("codec"):
                changed = replace(b, codec=Codec.NONE)
            else:
                changed = replace(b, **change)
            log = {**AFTER, base: (*batches[:n], changed, *batches[n + 1 :])}
            report = verify(write(tmp_path / f"{base}-{n}", log), before)
            promise = (
                "batch_recoded"
                if "codec" in change
                else "batch_added"
                if "base" in change
                else "batch_changed"
            )
            assert (promise, changed.base) in found(report)
            assert report.exit_status == 5


def test_changed_horizon_is_found(tmp_path: Path, before: Path) -> None:
    first = AFTER[0]
    for n, horizon in enumerate([T + 2001, T + 1999, None]):
        moved = (*first[:-1], replace(first[-1], horizon=horizon))
        assert found(verify(write(tmp_path / str(n), {**AFTER, 0: moved}), before)) == [
            ("horizon_moved", 9)
        ]


def test_empty_batch_may_replace_its_records(tmp_path: Path, before: Path) -> None:
    """As with the batch at the high watermark: the offsets stay, but not codec and horizon."""
    emptied = B((), 7, 8, max_timestamp=T + 8)
    log = {**AFTER, 0: (AFTER[0][0], emptied, AFTER[0][1])}
    report = verify(write(tmp_path, log), before)
    assert report.exit_status == 0
    assert report.partitions[0].empty_batches == 1


def test_wrong_max_timestamp_is_found(tmp_path: Path, before: Path) -> None:
    log = {**AFTER, 18: (replace(AFTER[18][0], max_timestamp=T + 777),)}
    assert found(verify(write(tmp_path, log), before)) == [("batch_misdated", 18)]


def test_lost_log_end_is_found(tmp_path: Path) -> None:
    log: Log = {0: BEFORE[0], 11: (), 12: ()}
    was = {0: BEFORE[0], 11: (B((), 11, 17, max_timestamp=T),), 18: ()}
    report = verify(write(tmp_path / "after", log), write(tmp_path / "before", was))
    assert found(report) == [("log_end", 12)]


GROWN: Log = {
    **BEFORE,
    20: (B((R(20, "a", "20"), R(21, None, "keyless"), R(22, "h", "22")), 20, 22, epoch=2),),
}


def grown(root: Path, log: Log, high_watermark: int = 23) -> Path:
    write(root, log)
    write_checkpoint(root, "replication-offset-checkpoint", {"t-0": high_watermark})
    return root


def test_grown_log_is_verified(tmp_path: Path, before: Path) -> None:
    report = verify(grown(tmp_path, GROWN), before)
    (partition,) = report.partitions
    assert (report.exit_status, found(report)) == (0, [])
    assert partition.advice == [
        "the log has grown: it ended at offset 20, and now ends at 23; verify cannot compare the "
        "appended records"
    ]


def test_appended_records_supersede_earlier_ones(tmp_path: Path, before: Path) -> None:
    """``a@20`` and ``h@22`` supersede ``a@4``, ``a@19`` and ``h@10`` once they are below the high
    watermark.
    """
    rest = (n for n in (*SURVIVORS, 20, 21, 22) if n not in (4, 10, 19))
    after = kept(*rest, log=GROWN)
    assert verify(grown(tmp_path / "1", after), before).exit_status == 0
    assert ("lost", 10) in found(verify(grown(tmp_path / "2", after, 21), before))


@pytest.mark.parametrize("offset", [3, 5, 8, 10, 12, 16])
def test_lost_record_is_found_in_a_grown_log(offset: int, tmp_path: Path, before: Path) -> None:
    log = kept(*(n for n in range(20) if n != offset))
    log = {**log, 20: (B((R(20, "new", "1"),), 20, 20, epoch=2),)}
    report = verify(grown(tmp_path, log, 21), before)
    wanted = [] if offset in (3, 5, 8) else [offset]  # c@17, d@18 and f@14 are newer writes
    assert [at for _, at in found(report)] == wanted
    assert report.exit_status == (5 if wanted else 0)


def test_log_that_ends_earlier_is_found(tmp_path: Path) -> None:
    before = grown(tmp_path / "before", GROWN)
    assert ("log_end", 20) in found(verify(write(tmp_path / "after", BEFORE), before))


@pytest.mark.parametrize("horizon", [-1, -(2**63), -(2**63) + NOW])
def test_negative_horizon_never_expires(tmp_path: Path, horizon: int) -> None:
    """A sum of clock and ``delete.retention.ms`` that overflowed is not a time that can pass."""
    log: Log = {
        0: (B((R(0, "x", None), R(1, "y", "1")), 0, 1, horizon=horizon),),
        2: (B((R(2, "z", "1"),), 2, 2),),
    }
    before = write(tmp_path / "before", log)
    rest = B((R(1, "y", "1"),), 0, 1)  # if it kept the horizon, the batch would be damaged
    gone = write(tmp_path / "gone", {**log, 0: (rest,)})
    for now_ms in (NOW, None):
        assert ("lost_delete", 0) in found(verify(gone, before, now_ms=now_ms))
    # a round replaces the horizon by a valid one
    first = replace(log[0][0], horizon=NOW + 5000)
    mended = verify(write(tmp_path / "mended", {**log, 0: (first,)}), before)
    assert found(mended) == []


@pytest.mark.parametrize("retention_ms", [2**63 - 1, 2**62])
def test_tombstone_with_endless_retention_does_not_expire(
    tmp_path: Path, retention_ms: int
) -> None:
    """In formats v0 and v1 a tombstone's age is that of its file."""
    rules = KAFKA_PROOF.rules(
        KAFKA.read(str(write(tmp_path, BEFORE) / "t-0")), {"delete.retention.ms": retention_ms}
    )
    assert -(2**63) <= rules.old_tombstones_until_ms < 0 or not rules.old_tombstones_until_ms


def test_missing_middle_segment_is_named(tmp_path: Path) -> None:
    """The log was never compacted. In a compacted log such gaps are allowed."""
    log: Log = {n: (B((R(n, f"k{n}", "v"),), n, n),) for n in range(4)}
    root = write(tmp_path / "gap", {n: log[n] for n in (0, 1, 3)})
    report = verify(root, config={"cleanup.policy": "delete"})
    assert report.exit_status == 3
    assert "offsets 2 to 2 are in no segment" in str(report.partitions[0].reason)
    assert "offsets 2 to 2" in str(verify(root).partitions[0].advice)
    write_checkpoint(root, "cleaner-offset-checkpoint", {"t-0": 3})
    for report in (verify(root, config={"cleanup.policy": "delete"}), verify(root)):
        assert (report.exit_status, report.partitions[0].advice) == (0, [])
    whole = verify(write(tmp_path / "whole", log), config={"cleanup.policy": "delete"})
    assert (whole.exit_status, whole.partitions[0].advice) == (0, [])


def test_records_below_the_log_start_may_be_removed(tmp_path: Path) -> None:
    before = write(tmp_path / "before", BEFORE)
    after = write(tmp_path / "after", kept(*(n for n in SURVIVORS if n != 4)))
    assert found(verify(after, before)) == [("lost", 4)]
    for root in (before, after):
        write_checkpoint(root, "log-start-offset-checkpoint", {"t-0": 5})
    report = verify(after, before)
    assert report.exit_status == 0
    comparison = report.partitions[0].comparison
    assert comparison is not None and comparison.below_start == 5


def test_unreplicated_record_does_not_supersede(tmp_path: Path) -> None:
    """``a@19`` is above the high watermark and may be truncated, so ``a@4`` is the last valid
    write.
    """
    before = write(tmp_path / "before", BEFORE)
    after = write(tmp_path / "after", kept(*(n for n in SURVIVORS if n != 4)))
    for root in (before, after):
        write_checkpoint(root, "replication-offset-checkpoint", {"t-0": 20})
    assert verify(after, before).exit_status == 0
    write_checkpoint(after, "replication-offset-checkpoint", {"t-0": 19})
    assert found(verify(after, before)) == [("lost", 4)]


def test_changed_side_file_is_found(tmp_path: Path, before: Path) -> None:
    for name in ("partition.metadata", "leader-epoch-checkpoint"):
        after = write(tmp_path / name, AFTER)
        (after / "t-0" / name).unlink()
        assert [v.promise for v in verify(after, before).violations] == ["side_file"]
    (after / "t-0" / name).write_text("0\n1\n0 0\n")
    assert [v.promise for v in verify(after, before).violations] == ["side_file"]


def test_leader_epoch_file_of_a_later_version_is_compared_as_bytes(tmp_path: Path) -> None:
    before, after = write(tmp_path / "before", BEFORE), write(tmp_path / "after", AFTER)
    for root in (before, after):
        (root / "t-0" / "leader-epoch-checkpoint").write_text("7\n")
    assert verify(after, before).exit_status == 0
    (after / "t-0" / "leader-epoch-checkpoint").write_text("8\n")
    assert [v.promise for v in verify(after, before).violations] == ["side_file"]


def test_partitions_are_matched_by_name(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    for name in ("t-0", "t-1", "u-0"):
        write(before, BEFORE, name)
        if name != "t-1":
            write(after, AFTER, name)
    report = verify(after, before)
    statuses = {(p.topic, p.partition): p.status for p in report.partitions}
    assert statuses == {("t", 0): "verified", ("t", 1): "broken", ("u", 0): "verified"}
    assert found(report) == [("partition", None)]
    assert verify(after / "u-0", before).exit_status == 0
    assert verify(after / "u-0", before / "t-1").exit_status == 0
    assert verify(after, before, topic="u").exit_status == 0


def test_piece_sizes_do_not_change_the_result(
    tmp_path: Path, before: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With pieces as small as the index allows, small blocks, and buckets that are
    judged in parts.
    """
    changed = next(iter(everywhere(AFTER, CHANGES["value"])))[1]
    cases = {"true": AFTER, "lost": kept(*SURVIVORS[:4], *SURVIVORS[5:]), "changed": changed}
    roots = [write(tmp_path / name, log) for name, log in cases.items()]
    expected = [verify(root, before).to_dict()["partitions"] for root in roots]
    monkeypatch.setattr(verify_module, "_PIECE_BYTES", 60)
    monkeypatch.setattr(verify_module, "_UNIT_BYTES", 100)
    usual = verify_module._Verifier.__init__

    def small(self: Any, *arguments: Any) -> None:
        usual(self, *arguments)
        self._most_rows = 3

    monkeypatch.setattr(verify_module._Verifier, "__init__", small)
    parts: list[int] = []
    usual_parts = contents_module._Buckets.parts
    monkeypatch.setattr(
        contents_module._Buckets,
        "parts",
        lambda self: parts.append(len(usual_parts(self))) or usual_parts(self),
    )
    for bits in (0, 1, 5):
        monkeypatch.setattr(verify_module, "bucket_bits", lambda rows, _: bits)  # noqa: B023
        for root, wanted in zip(roots, expected, strict=True):
            assert verify(root, before).to_dict()["partitions"] == wanted
    assert max(parts) > 3


# ---------------------------------------------------------------------- structure


def structure(root: Path, **arguments: Any) -> PartitionVerification:
    (partition,) = verify(root, **arguments).partitions
    return partition


def test_intact_log_is_verified(before: Path) -> None:
    partition = structure(before)
    assert (
        partition.status is VerifyStatus.VERIFIED
        and partition.problems == []
        and partition.advice == []
    )
    counts = (
        partition.segments,
        partition.batches,
        partition.records,
        partition.tombstones,
        partition.keyless_records,
    )
    assert counts == (3, 9, 19, 4, 1)
    assert (partition.log_start_offset, partition.end_offset) == (0, 20)
    assert partition.comparison is None


LOG, INDEX, TIMES = (f"{0:020d}{kind}" for kind in (".log", ".index", ".timeindex"))
SNAPSHOT = f"{11:020d}.snapshot"
SIZES = [len(b.encode()) for b in BEFORE[0]]
SECOND = SIZES[0]
# one byte after the first byte of the third batch
BESIDE = struct.pack(">i", SIZES[0] + SIZES[1] + 1)


def poke(root: Path, name: str, at: int, data: bytes) -> None:
    path = root / "t-0" / name
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)


def crc_fits(root: Path, at: int) -> None:
    """Correct the CRC of the batch at byte ``at`` of the first segment."""
    import google_crc32c

    content = (root / "t-0" / LOG).read_bytes()
    end = at + 12 + struct.unpack_from(">i", content, at + 8)[0]
    poke(root, LOG, at + 17, struct.pack(">I", google_crc32c.value(content[at + 21 : end])))


def remove(root: Path, name: str) -> None:
    (root / "t-0" / name).unlink()


DAMAGE: dict[str, tuple[Callable[[Path], object], str, int | None, str]] = {
    "flipped byte": (lambda r: poke(r, LOG, SECOND + 70, b"\xff"), LOG, SECOND + 17, "checksum"),
    "too long": (
        lambda r: poke(r, LOG, SECOND + 8, struct.pack(">i", 1 << 20)),
        LOG,
        SECOND,
        "ends inside",
    ),
    "too short": (
        lambda r: poke(r, LOG, SECOND + 8, struct.pack(">i", 3)),
        LOG,
        SECOND + 8,
        "length",
    ),
    "offset back": (
        lambda r: poke(r, LOG, SECOND, struct.pack(">q", 2)),
        LOG,
        SECOND,
        "do not increase",
    ),
    "offset beyond": (
        lambda r: poke(r, LOG, sum(SIZES[:3]), struct.pack(">q", 11)),
        LOG,
        sum(SIZES[:3]),
        "beyond",
    ),
    "count": (
        lambda r: (poke(r, LOG, SECOND + 57, struct.pack(">i", 1)), crc_fits(r, SECOND)),
        LOG,
        SECOND,
        "bytes follow the batch's last record",
    ),
    "compressed": (
        lambda r: (poke(r, LOG, SECOND + 66, b"\xff\xff\xff"), crc_fits(r, SECOND)),
        LOG,
        SECOND,
        "lz4",
    ),
    "record": (
        lambda r: (poke(r, LOG, 61 + 4, b"\x7e"), crc_fits(r, 0)),
        LOG,
        61,
        "a length inside a record",
    ),
    "torn tail of a closed segment": (
        lambda r: (r / "t-0" / LOG).write_bytes((r / "t-0" / LOG).read_bytes()[:-5]),
        LOG,
        sum(SIZES[:3]),
        "inside",
    ),
    "index that lies": (lambda r: poke(r, INDEX, 8 + 4, BESIDE), INDEX, 8, "batch begins"),
    "index behind the end": (lambda r: poke(r, INDEX, 16 + 4, b"\x7f"), INDEX, 16, "byte"),
    "index early": (lambda r: poke(r, INDEX, 3, b"\x01"), INDEX, 0, "after that offset"),
    "index that falls": (
        lambda r: poke(r, INDEX, 8 + 3, b"\x01"),
        INDEX,
        8,
        "not above the entry before it",
    ),
    "index torn": (
        lambda r: (r / "t-0" / INDEX).write_bytes(b"\0\0\0\0\0\0\0"),
        INDEX,
        7,
        "multiple",
    ),
    "index missing": (lambda r: remove(r, INDEX), INDEX, None, "missing"),
    "time index missing": (lambda r: remove(r, TIMES), TIMES, None, "missing"),
    "time index that lies": (
        lambda r: poke(r, TIMES, 0, struct.pack(">q", T + 4)),
        TIMES,
        0,
        "a record there has time",
    ),
    "time index ends early": (
        lambda r: (r / "t-0" / TIMES).write_bytes((r / "t-0" / TIMES).read_bytes()[:-12]),
        TIMES,
        12,
        "the last entry has time",
    ),
    "time index ends late": (
        lambda r: poke(r, TIMES, 24, struct.pack(">q", T + 11)),
        TIMES,
        24,
        "for the batch that ends at offset",
    ),
    "foreign file": (
        lambda r: (r / "t-0" / "notes.txt").write_text("?"),
        "notes.txt",
        None,
        "not a part of a Kafka log",
    ),
    "epochs": (
        lambda r: poke(r, "leader-epoch-checkpoint", 0, b"x"),
        "leader-epoch-checkpoint",
        0,
        "",
    ),
    "metadata": (lambda r: poke(r, "partition.metadata", 0, b"x"), "partition.metadata", 0, ""),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_named(what: str, tmp_path: Path) -> None:
    """The report has the file, the byte and the fault. The neighbouring partition is checked
    nevertheless.
    """
    damage, file, position, words = DAMAGE[what]
    write(tmp_path, BEFORE, "u-0")
    damage(write(tmp_path, BEFORE))
    report = verify(tmp_path)
    bad, good = report.partitions
    assert (bad.status, good.status, report.exit_status) == (
        VerifyStatus.DAMAGED,
        VerifyStatus.VERIFIED,
        3,
    )
    named = [problem for problem in bad.problems if Path(problem.path).name == file]
    assert any(
        words in problem.message and problem.position in (position, None) for problem in named
    ), bad.problems
    assert any(problem.remedy for problem in named)
    assert position is None or any(problem.position == position for problem in named), bad.problems
    assert bad.reason and good.records == 19


def test_recoverable_files_are_noted(tmp_path: Path, before: Path) -> None:
    """A snapshot that a broker would ignore, and leftovers of a crash: the log itself is intact."""
    for n, leave in enumerate(
        (
            lambda folder: (folder / SNAPSHOT).write_bytes(b"\0\1abcd\0\0\0\0"),
            lambda folder: (folder / f"{LOG}.cleaned").write_bytes(b"half of it"),
            lambda folder: (folder / f"{7:020d}.index").write_bytes(b""),
        )
    ):
        root = write(tmp_path / str(n), BEFORE)
        leave(root / "t-0")
        report = verify(root, before)
        (partition,) = report.partitions
        assert (partition.status, report.exit_status, found(report)) == (
            VerifyStatus.VERIFIED,
            0,
            [],
        )
        assert [problem.kind for problem in partition.problems] == [ProblemKind.RECOVERED]


def test_torn_tail_is_damage(tmp_path: Path) -> None:
    root = write(tmp_path, BEFORE)
    active = root / "t-0" / f"{18:020d}.log"
    whole = active.read_bytes()
    for size in range(1, len(whole)):
        active.write_bytes(whole[:size])
        partition = structure(root)
        assert partition.status is VerifyStatus.DAMAGED
        assert {
            problem.position for problem in partition.problems if problem.path == str(active)
        } == {0}


def test_damage_is_named_in_small_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong index divides a segment at wrong positions. The index is reported, not the log."""
    monkeypatch.setattr(verify_module, "_PIECE_BYTES", 60)
    monkeypatch.setattr(verify_module, "_UNIT_BYTES", 100)
    for what in DAMAGE:
        test_damage_is_named(what, tmp_path / what.replace(" ", "-"))
    root = write(tmp_path / "index-only", BEFORE)
    poke(root, INDEX, 8 + 4, BESIDE)
    assert {Path(problem.path).name for problem in structure(root).problems} == {INDEX}


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_every_flipped_bit_is_found(codec: Codec, tmp_path: Path) -> None:
    """In the log or in an index, each is reported as damage or as a difference from the
    original.
    """
    log: Log = {
        0: (
            B((R(0, "a", "0"), R(1, "b", None)), 0, 1, codec, horizon=T + 7),
            B((R(2, "c", "2"),), 2, 2, codec),
        ),
        3: (B((R(3, "d", "3"),), 3, 3),),
    }
    before, after = write(tmp_path / "before", log), write(tmp_path / "after", log)
    for name in (LOG, INDEX, TIMES):
        size = len((after / "t-0" / name).read_bytes())
        for at in range(size):
            whole = (after / "t-0" / name).read_bytes()
            poke(after, name, at, bytes([whole[at] ^ 1 << at % 8]))
            assert verify(after, before).exit_status != 0, (name, at)
            (after / "t-0" / name).write_bytes(whole)
    assert verify(after, before).exit_status == 0


def test_damage_in_either_log_ends_the_comparison(tmp_path: Path, before: Path) -> None:
    for damaged, whole in (("after", before), ("before", None)):
        root = write(tmp_path / damaged, BEFORE)
        poke(root, LOG, SECOND + 70, b"\xff")
        report = verify(root, whole) if whole else verify(before, root)
        assert report.exit_status == 3
        assert report.partitions[0].comparison is None
        assert str(root) in str(report.partitions[0].reason)


def test_preallocated_indexes_of_the_active_segment_are_accepted(tmp_path: Path) -> None:
    root = write(tmp_path, BEFORE)
    for name, size in ((f"{18:020d}.index", 8), (f"{18:020d}.timeindex", 12)):
        path = root / "t-0" / name
        path.write_bytes(path.read_bytes() + bytes(10 * size))
    assert structure(root).problems == []


def test_empty_time_index_is_advice(tmp_path: Path) -> None:
    root = write(tmp_path, BEFORE)
    (root / "t-0" / TIMES).write_bytes(b"")
    partition = structure(root)
    assert partition.status is VerifyStatus.VERIFIED
    assert len(partition.advice) == 1 and "time index is empty" in partition.advice[0]


def test_sparse_index_is_advice(tmp_path: Path) -> None:
    batches = [encode_batch([Record(n, T, b"k", bytes(200_000))]) for n in range(12)]
    write_segment(tmp_path / "t-0", 0, batches)
    write_segment(tmp_path / "t-0", 12, [])
    assert structure(tmp_path).advice == []
    (tmp_path / "t-0" / INDEX).write_bytes(b"")
    (advice,) = structure(tmp_path).advice
    assert "sparse" in advice


def test_control_batches_and_producers_are_verified(tmp_path: Path) -> None:
    data = encode_batch(
        [R(0, "a", "1")], producer_id=4, producer_epoch=0, base_sequence=0, transactional=True
    )
    marker = encode_batch(
        [Record(1, T, b"\0\0\0\1", b"\0\0\0\0\0\0")],
        producer_id=4,
        producer_epoch=0,
        control=True,
        transactional=True,
    )
    roots = []
    for n, batches in enumerate([[data, marker], [data]]):
        write_segment(tmp_path / str(n) / "t-0", 0, batches)
        write_segment(tmp_path / str(n) / "t-0", 2, [])
        roots.append(tmp_path / str(n))
    report = verify(roots[0], roots[0])
    assert report.exit_status == 0
    assert report.partitions[0].control_records == 1
    assert found(verify(roots[1], roots[0])) == [("lost_control", 1), ("redecided", 0)]


def test_missing_paths_and_wrong_settings_are_refused(tmp_path: Path, before: Path) -> None:
    with pytest.raises(NotALog):
        verify(tmp_path)
    with pytest.raises(NotALog):
        verify(before, tmp_path / "nowhere")
    with pytest.raises(InvalidConfig):
        verify(before, config={"no.such.setting": 1})


def test_locked_log_is_refused(tmp_path: Path) -> None:
    root = write(tmp_path, BEFORE)
    holder = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(root / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        with pytest.raises(LogHeld):
            verify(root)
        process.stdin.close()


def test_verify_writes_nothing(tmp_path: Path, before: Path) -> None:
    def listing() -> Sequence[tuple[str, int, bytes]]:
        files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
        return [(str(path), path.stat().st_mtime_ns, path.read_bytes()) for path in files]

    after = write(tmp_path, AFTER)
    shutil.copytree(before, tmp_path / "copy")
    seen = listing()
    verify(after, tmp_path / "copy")
    assert listing() == seen
