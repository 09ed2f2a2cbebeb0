"""Tests of comparing the rows of two logs with a plain model, in one part and in several."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.model.columns import NO_HORIZON
from lastwrite.verification.invariants import (
    COUNTS,
    FINDINGS,
    KEYS,
    KEYS_ALIVE,
    Finding,
    by_bucket,
    judged,
    mark_discardable,
    mark_owed,
)
from lastwrite.verification.rows import (
    AFTER,
    BATCH,
    CARRIED,
    CODEC_SHIFT,
    CONTROL,
    DISCARDABLE,
    DUE,
    EMPTY,
    HONEST,
    IN_TRANSACTION,
    KEYLESS,
    OLD,
    OWED,
    ROW_WORDS,
    SIMPLE,
    TOMBSTONE,
)

LAST = 13  # the log's last offset, which is always kept if records have versions
Found = Counter[tuple[bool, int, Finding]]


@dataclass(frozen=True)
class Rec:
    """A record as a row describes it. Without a key, its offset serves as the key."""

    key: int | None
    offset: int
    flags: int = 0
    content: int = 0


def row(record: Rec, is_after: bool) -> list[int]:
    key = 1000 + record.offset if record.key is None else record.key
    # Keys 2n and 2n + 1 share the first hash lane, so only the second distinguishes them.
    return [
        key // 2 << 40,
        key << 16 | record.flags | AFTER * is_after,
        record.offset,
        record.content,
        record.content,
    ]


def array(before: Sequence[Rec], after: Sequence[Rec]) -> np.ndarray:
    rows = [row(record, False) for record in before] + [row(record, True) for record in after]
    return np.array(rows, dtype=np.uint64).reshape(-1, ROW_WORDS)


def twin(
    before: Sequence[Rec],
    after: Sequence[Rec],
    log_start: int,
    limit: int,
    by_version: bool = False,
) -> tuple[Found, int, int]:
    """A slow model, key by key: the findings, the number of distinct keys and that of live keys."""
    found: Found = Counter()
    was: dict[object, list[Rec]] = defaultdict(list)
    now: dict[object, list[Rec]] = defaultdict(list)
    for side, records in ((was, before), (now, after)):
        for record in records:
            side[("offset", record.offset) if record.key is None else record.key].append(record)
    alive = 0

    def rank(record: Rec) -> tuple[int, int]:
        return (record.content if by_version else 0, record.offset)

    for key in {*was, *now}:
        there = Counter(record.offset for record in now[key])
        counting = [r for r in was[key] if r.key is not None and not r.flags & DISCARDABLE]
        superseding = [rank(r) for r in counting if log_start <= r.offset < limit]
        removed_delete = None
        for record in was[key]:
            if there[record.offset]:
                finding = Finding.KEPT
            elif record.offset < log_start:
                finding = Finding.BELOW_START
            elif record.offset >= limit:
                finding = Finding.LOST_TAIL
            elif record.flags & CONTROL:
                may_go = record.flags & DISCARDABLE and record.flags & DUE
                finding = Finding.MARKER_SPENT if may_go else Finding.LOST_CONTROL
            elif record.flags & DISCARDABLE:
                finding = Finding.ABORTED
            elif record.flags & KEYLESS:
                finding = Finding.KEYLESS
            elif by_version and record.offset == LAST:
                finding = Finding.LOST
            elif any(other > rank(record) for other in superseding):
                finding = Finding.SUPERSEDED
            elif record.flags & TOMBSTONE and record.flags & DUE:
                finding = Finding.EXPIRED
                removed_delete = rank(record)
            elif record.flags & TOMBSTONE:
                finding = Finding.LOST_DELETE
            else:
                finding = Finding.LOST
            found[False, record.offset, finding] += 1
        seen = set()
        originals = {record.offset: record for record in was[key]}
        for record in now[key]:
            if record.offset in seen:
                finding = Finding.DOUBLED
            elif record.offset not in originals:
                finding = Finding.ADDED
            elif originals[record.offset].content != record.content:
                finding = Finding.CHANGED
            elif (
                removed_delete is not None
                and not record.flags & DISCARDABLE
                and log_start <= record.offset
                and rank(record) < removed_delete
            ):
                finding = Finding.REVIVED
            else:
                finding = Finding.KEPT
            seen.add(record.offset)
            found[True, record.offset, finding] += 1
        shown = [record for record in now[key] if not record.flags & DISCARDABLE]
        if isinstance(key, int) and shown:
            alive += not sorted(shown, key=rank)[-1].flags & TOMBSTONE
    keys = {
        record.key for record in before if record.key is not None and not record.flags & DISCARDABLE
    }
    return found, len(keys), alive


def kernel(
    rows: np.ndarray, log_start: int, limit: int, cuts: Sequence[int] = (), by_version: bool = False
) -> tuple[Found, np.ndarray]:
    """The findings and counts of the kernel, in parts divided at the offsets ``cuts``, last part
    first.
    """
    counts = np.zeros(COUNTS, dtype=np.int64)
    found: Found = Counter()
    carried = np.empty((0, ROW_WORDS), dtype=np.uint64)
    borders = [0, *sorted(cuts), 1 << 62]
    for first, end in reversed(list(zip(borders, borders[1:], strict=False))):
        part = rows[(rows[:, 2] >= np.uint64(first)) & (rows[:, 2] < np.uint64(end))]
        rows_now = np.concatenate([carried, part])
        ordered, findings, carried = judged(
            rows_now, log_start, limit, counts, first > 0, by_version, LAST
        )
        for entry, finding in zip(ordered, findings.tolist(), strict=True):
            if not int(entry[1]) & CARRIED:
                found[bool(int(entry[1]) & AFTER), int(entry[2]), Finding(finding)] += 1
    return found, counts


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Rec], list[Rec]]:
    before = []
    for offset in range(draw(st.integers(0, 14))):
        kind = draw(
            st.sampled_from([0, 0, 0, TOMBSTONE, TOMBSTONE | DUE, KEYLESS, CONTROL, CONTROL | DUE])
        )
        key = None if kind & (KEYLESS | CONTROL) else draw(st.integers(0, 5))
        kind |= draw(st.sampled_from([0, 0, DISCARDABLE]))
        before.append(Rec(key, offset, kind, draw(st.integers(0, 1))))
    after = []
    for record in before:
        what = draw(st.sampled_from(["keep", "keep", "drop", "drop", "change", "double"]))
        if what == "change":
            after.append(Rec(record.key, record.offset, record.flags, record.content + 1))
        elif what != "drop":
            after += [record] * (2 if what == "double" else 1)
    for _ in range(draw(st.integers(0, 2))):
        after.append(Rec(draw(st.integers(0, 7)), draw(st.integers(0, 14)), 0, 9))
    return before, sorted(after, key=lambda record: record.offset)


@given(logs(), st.integers(0, 5), st.integers(0, 15))
def test_comparison_equals_the_plain_model(
    both: tuple[list[Rec], list[Rec]], log_start: int, limit: int
) -> None:
    before, after = both
    for by_version in (True, False):
        expected, keys, alive = twin(before, after, log_start, limit, by_version)
        found, counts = kernel(array(before, after), log_start, limit, (), by_version)
        assert found == expected
        assert (counts[KEYS], counts[KEYS_ALIVE]) == (keys, alive)
    assert (counts[KEYS], counts[KEYS_ALIVE]) == (keys, alive)
    for is_after in (False, True):
        sums: Counter[Finding] = Counter()
        for (side, _, finding), times in expected.items():
            sums[finding] += times * (side == is_after)
        assert counts[FINDINGS * is_after :][:FINDINGS].tolist() == [
            sums[finding] for finding in Finding
        ]


@given(logs(), st.integers(0, 5), st.integers(0, 15), st.sets(st.integers(1, 14)))
def test_comparison_in_parts_equals_the_comparison_at_once(
    both: tuple[list[Rec], list[Rec]], log_start: int, limit: int, cuts: set[int]
) -> None:
    rows = array(*both)
    whole, whole_counts = kernel(rows, log_start, limit)
    parts, counts = kernel(rows, log_start, limit, sorted(cuts))
    assert parts == whole
    # A key that the original lacks is counted only in its first part. It is reported anyway.
    if not any(finding is Finding.ADDED for _, _, finding in whole):
        assert counts[KEYS:].tolist() == whole_counts[KEYS:].tolist()
    assert counts[FINDINGS:KEYS].tolist() == whole_counts[FINDINGS:KEYS].tolist()


def batch(
    is_after: bool, *, base: int = 7, flags: int = HONEST, horizon: int = NO_HORIZON, head: int = 1
) -> list[int]:
    return [1 << 50, 9 << 16 | BATCH | flags | AFTER * is_after, base, horizon % (1 << 64), head]


LZ4, ZSTD = 3 << CODEC_SHIFT, 4 << CODEC_SHIFT


@pytest.mark.parametrize(
    ("was", "now", "expected"),
    [
        ({}, {}, Finding.BATCH_KEPT),
        ({}, {"horizon": 5}, Finding.BATCH_KEPT),
        ({"horizon": 5}, {"horizon": 5}, Finding.BATCH_KEPT),
        ({"horizon": 5}, {"horizon": 6}, Finding.HORIZON_MOVED),
        ({"horizon": 5}, {}, Finding.HORIZON_MOVED),
        ({"horizon": 5}, {"flags": HONEST | EMPTY}, Finding.BATCH_KEPT),
        ({"flags": HONEST | LZ4}, {"flags": HONEST | EMPTY}, Finding.BATCH_KEPT),
        ({"flags": HONEST | LZ4}, {"flags": HONEST | ZSTD}, Finding.BATCH_RECODED),
        ({}, {"head": 2}, Finding.BATCH_CHANGED),
        ({}, {"flags": 0}, Finding.BATCH_MISDATED),
        ({"flags": 0}, {"flags": 0}, Finding.BATCH_KEPT),
        ({"flags": 0}, {}, Finding.BATCH_KEPT),
        (None, {}, Finding.BATCH_ADDED),
        (None, {"flags": HONEST | SIMPLE}, Finding.BATCH_CONVERTED),
        (None, {"flags": SIMPLE}, Finding.BATCH_MISDATED),
        ({"flags": HONEST | OLD}, {"flags": HONEST | SIMPLE, "head": 2}, Finding.BATCH_CONVERTED),
        ({"flags": HONEST | OLD | LZ4}, {"flags": HONEST | SIMPLE}, Finding.BATCH_RECODED),
        ({"flags": HONEST | OLD}, {"flags": HONEST | OLD, "head": 2}, Finding.BATCH_CHANGED),
        ({"flags": HONEST | OLD}, {"head": 2}, Finding.BATCH_CHANGED),
        ({"flags": HONEST | OLD}, None, Finding.BATCH_GONE),
        ({}, None, Finding.BATCH_GONE),
        ({"flags": HONEST | OWED}, None, Finding.BATCH_LOST),
        ({"flags": HONEST | OWED, "base": 1}, None, Finding.BATCH_GONE),  # below the log start
        ({"flags": HONEST | OWED}, {"flags": HONEST | EMPTY}, Finding.BATCH_KEPT),
    ],
)
def test_batches_have_the_expected_finding(
    was: dict[str, int] | None, now: dict[str, int] | None, expected: Finding
) -> None:
    rows = [batch(False, **was)] * (was is not None) if was is not None else []
    rows += [batch(True, **now)] if now is not None else []
    counts = np.zeros(COUNTS, dtype=np.int64)
    _, findings, _ = judged(np.array(rows, dtype=np.uint64), 2, 100, counts)
    assert Finding(findings[-1]) is expected
    assert counts[KEYS] == 0


def test_marks_cover_ranges_of_transactional_records_and_required_batches() -> None:
    """Ranges contain only transactional records, and required batches are given by base offset."""
    flags = [
        IN_TRANSACTION,
        0,
        BATCH | HONEST,
        CARRIED | IN_TRANSACTION,
        IN_TRANSACTION | CONTROL | AFTER,
    ]
    rows = np.array(
        [[0, 5 << 16 | flag, offset, 0, 0] for flag in flags for offset in range(12)],
        dtype=np.uint64,
    )

    def marked(bit: int) -> list[tuple[int, int]]:
        return [
            (flags[n // 12], n % 12) for n in np.flatnonzero(rows[:, 1] & np.uint64(bit)).tolist()
        ]

    mark_discardable(rows, np.empty((0, 2), dtype=np.int64))
    mark_owed(rows, np.empty(0, dtype=np.int64))
    assert marked(DISCARDABLE) == []
    mark_discardable(rows, np.array([[1, 1], [3, 5], [9, 40]]))
    inside = [1, 3, 4, 5, 9, 10, 11]
    assert marked(DISCARDABLE) == [(flag, n) for flag in (flags[0], flags[4]) for n in inside]
    rows[:, 1] &= np.uint64(~DISCARDABLE & (1 << 64) - 1)
    mark_owed(rows, np.array([0, 7, 99]))
    assert marked(OWED) == [(flags[2], 0), (flags[2], 7)]


def test_every_finding_has_a_sentence() -> None:
    assert [finding for finding in Finding if not finding.sentence] == [Finding.NOT_JUDGED]
    assert [finding for finding in Finding if finding.is_broken] == list(Finding)[Finding.LOST :]


@given(
    st.lists(st.tuples(st.integers(0, (1 << 64) - 1), st.integers(0, 99)), max_size=50),
    st.integers(0, 5),
)
def test_buckets_keep_the_order_of_their_rows(entries: list[tuple[int, int]], bits: int) -> None:
    rows = np.array(
        [[key, n, at, 0, 0] for at, (key, n) in enumerate(entries)], dtype=np.uint64
    ).reshape(-1, ROW_WORDS)
    out, ends = np.empty_like(rows), np.empty(1 << bits, dtype=np.uint32)
    by_bucket(rows, len(rows), bits, out, ends)

    def bucket(entry: list[int]) -> int:
        return entry[0] >> (64 - bits)

    expected = sorted(rows.tolist(), key=bucket)
    assert out.tolist() == expected
    assert ends.tolist() == [
        sum(bucket(entry) <= b for entry in expected) for b in range(1 << bits)
    ]
