"""Check the invariants of compaction over the contents of a log before and after it.

The smallest case: before ``a@1 b@2 a@3``, after ``b@2 a@3``. ``a@1`` may be missing, because a
later record has its key. If ``a@3`` were missing instead, the last write of ``a`` would be lost.
The rules for each key, judged from the entire earlier log, without the engine's election:

- a record of the present log exists once, and is in the earlier log with the same offset and
  content;
- a missing record was superseded by a later record of its key in the replicated part of the log, at
  or after its start; or was an expired delete and its key's last record; or had no key; or was
  below the log's start;
- if the last record of a key was an expired delete and is missing, no older record of the key is
  left, because consumers would read it as the key's value;
- at or above the last stable offset nothing is missing;
- a record of an aborted transaction is never a last write, and may be missing; a transaction's
  marker may be missing once no batch of the transaction is left and its horizon has come;
- the first and last offset, leader epoch, producer fields, timestamp type and codec of a batch do
  not change, and neither does a delete horizon once it is set. A batch's largest timestamp equals
  the largest timestamp of its records. The last batch of an active producer stays.

The engine finds superseded records with a set, in one pass from the log's end. This module uses
another method on purpose: the rows of both logs are sorted by key and offset and compared.
``verification.rows`` defines rows. ``batch_invariants`` has determined which transactions were
aborted, and which batches must stay. A bucket that does not fit in memory is judged in parts, from
the log's end backwards. One carried row for each key summarises the parts that were judged before.

If a topic's last writes are chosen by timestamp or header (``compaction.strategy``), "later" means:
of a greater version, or of the same version and a greater offset. An earlier part may then contain
the superseding record, so a bucket is judged at once. If a delete was removed, no older record of
its key may be left anywhere. The log's last record stays.

Source: docs/formats/kafka-cleaning.md; KIP-280.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

from enum import IntEnum

import numpy as np

from lastwrite.encoding.kernel import njit
from lastwrite.model.columns import NO_HORIZON, ByteArray, Int64Array, UInt64Array
from lastwrite.verification.rows import (
    AFTER,
    BATCH,
    CARRIED,
    CODEC_SHIFT,
    CONTROL,
    COUNTED,
    DISCARDABLE,
    DUE,
    EMPTY,
    FLAG_BITS,
    GONE,
    HONEST,
    IN_TRANSACTION,
    KEYLESS,
    OLD,
    OWED,
    ROW_WORDS,
    SEEN,
    SIMPLE,
    TOMBSTONE,
)


class Finding(IntEnum):
    """The judgement of a record or a batch. ``LOST`` and all higher values are violations."""

    KEPT = 0
    SUPERSEDED = 1  # a later record has its key
    EXPIRED = 2  # a delete past its horizon that was the last record of its key
    KEYLESS = 3
    BELOW_START = 4  # the record was below the log start
    BATCH_KEPT = 5
    BATCH_GONE = 6  # the batch was removed with all its records
    NOT_JUDGED = 7  # a summary (carried) row, or a record appended after the earlier log was copied
    ABORTED = 8  # a record of an aborted transaction
    MARKER_SPENT = 9  # a marker past its horizon whose transaction has no batch left
    BATCH_CONVERTED = 10  # batch of an older format; ``batch_invariants`` checks the conversion

    LOST = 11
    LOST_DELETE = 12
    LOST_TAIL = 13
    LOST_CONTROL = 14
    ADDED = 15
    CHANGED = 16
    DOUBLED = 17
    REVIVED = 18
    BATCH_LOST = 19
    BATCH_ADDED = 20
    BATCH_CHANGED = 21
    BATCH_RECODED = 22
    HORIZON_MOVED = 23
    BATCH_MISDATED = 24

    @property
    def label(self) -> str:
        return self.name.lower()

    @property
    def is_broken(self) -> bool:
        return self >= Finding.LOST

    @property
    def sentence(self) -> str:
        """The finding in words, for the report."""
        return _SENTENCES[self]


_SENTENCES = {
    Finding.KEPT: "the record is present and unchanged",
    Finding.SUPERSEDED: "a later record has its key",
    Finding.EXPIRED: "the record is a tombstone whose delete horizon has passed",
    Finding.KEYLESS: "the record has no key to compact by",
    Finding.BELOW_START: "the record was below the log's start",
    Finding.BATCH_KEPT: "the batch is present",
    Finding.BATCH_GONE: "no record of the batch remains",
    Finding.NOT_JUDGED: "",
    Finding.ABORTED: "the record's transaction was aborted",
    Finding.MARKER_SPENT: (
        "the transaction marker is past its delete horizon, and no batch of its transaction remains"
    ),
    Finding.BATCH_CONVERTED: "the batch was converted from an older format",
    Finding.LOST: "the last record of its key is missing",
    Finding.LOST_DELETE: (
        "a tombstone is missing, although it was the last record of its key and its delete "
        "horizon has not passed"
    ),
    Finding.LOST_TAIL: "a record at or above the last stable offset is missing",
    Finding.LOST_CONTROL: (
        "a control record is missing. A transaction marker may be removed only after its delete "
        "horizon, when no batch of the transaction remains"
    ),
    Finding.ADDED: "the log before had no such record, or the record had another key",
    Finding.CHANGED: "the record's value, headers or timestamp have changed",
    Finding.DOUBLED: "the record is present twice",
    Finding.REVIVED: "the record is present, although a later tombstone of its key was removed",
    Finding.BATCH_LOST: "the last batch of an active producer is missing",
    Finding.BATCH_ADDED: "the log before had no batch at this offset",
    Finding.BATCH_CHANGED: (
        "the batch's offsets, leader epoch, producer, timestamp type or kind have changed"
    ),
    Finding.BATCH_RECODED: "the batch's compression has changed",
    Finding.HORIZON_MOVED: "the batch's delete horizon has changed",
    Finding.BATCH_MISDATED: "the batch's largest timestamp differs from that of its records",
}

FINDINGS = len(Finding)
# The values of findings, for kernels.
_KEPT = int(Finding.KEPT)
_SUPERSEDED = int(Finding.SUPERSEDED)
_EXPIRED = int(Finding.EXPIRED)
_KEYLESS_GONE = int(Finding.KEYLESS)
_BELOW_START = int(Finding.BELOW_START)
_BATCH_KEPT = int(Finding.BATCH_KEPT)
_BATCH_GONE = int(Finding.BATCH_GONE)
_NOT_JUDGED = int(Finding.NOT_JUDGED)
_ABORTED_GONE = int(Finding.ABORTED)
_MARKER_SPENT = int(Finding.MARKER_SPENT)
_BATCH_CONVERTED = int(Finding.BATCH_CONVERTED)
_LOST = int(Finding.LOST)
_LOST_DELETE = int(Finding.LOST_DELETE)
_LOST_TAIL = int(Finding.LOST_TAIL)
_LOST_CONTROL = int(Finding.LOST_CONTROL)
_ADDED = int(Finding.ADDED)
_CHANGED = int(Finding.CHANGED)
_DOUBLED = int(Finding.DOUBLED)
_REVIVED = int(Finding.REVIVED)
_BATCH_LOST = int(Finding.BATCH_LOST)
_BATCH_ADDED = int(Finding.BATCH_ADDED)
_BATCH_CHANGED = int(Finding.BATCH_CHANGED)
_BATCH_RECODED = int(Finding.BATCH_RECODED)
_HORIZON_MOVED = int(Finding.HORIZON_MOVED)
_BATCH_MISDATED = int(Finding.BATCH_MISDATED)

# The argument ``appended`` for a log that has not grown: both numbers are above all offsets.
NOT_GROWN = ((1 << 63) - 1, (1 << 63) - 1)

# Indexes in the array of counts, after the counts of findings.
KEYS = 2 * FINDINGS  # distinct keys in the earlier log
KEYS_ALIVE = 2 * FINDINGS + 1  # keys whose last record in the present log is not a delete
COUNTS = 2 * FINDINGS + 2


def bucket_bits(rows: int, rows_a_bucket: int) -> int:
    """The number of bits of a key's digest that select a bucket, at most 14.

    With this number, each bucket gets about ``rows_a_bucket`` rows of the total of ``rows``.
    """
    return min(14, max(0, rows // max(1, rows_a_bucket)).bit_length())


def judged(
    rows: UInt64Array,
    log_start: int,
    limit: int,
    counts: Int64Array,
    carries: bool = False,
    by_version: bool = False,
    last_offset: int = -1,
    appended: tuple[int, int] = NOT_GROWN,
) -> tuple[UInt64Array, ByteArray, UInt64Array]:
    """Judge all records and batches whose keys are in ``rows``.

    Args:
        rows: carried rows (see the module), then rows of the earlier log, then rows of the present
            log, each by offset.
        limit: the last stable offset.
        counts: an array to which are added the numbers of findings in the earlier log, the numbers
            of findings in the present log, and the numbers of keys.
        carries: whether to return carried rows.
        by_version: whether records have versions.
        last_offset: the log's last offset, if ``by_version``.
        appended: the end of the earlier log, and the end of the records appended since that may
            supersede others.

    Returns:
        The rows sorted by key; the finding of each row; and, if ``carries``, a carried row for each
        key, for judging the preceding part of the log.
    """
    # A stable sort, so that the rows of a key stay in order.
    ordered = rows[np.argsort(rows[:, 0], kind="stable")]
    if not is_ordered(ordered):
        lane, flags = rows[:, 1] >> np.uint64(FLAG_BITS), rows[:, 1]
        side = (flags & np.uint64(AFTER)) * np.uint64(2) + ((flags & np.uint64(CARRIED)) == 0)
        ordered = rows[np.lexsort((rows[:, 2], side, lane, rows[:, 0]))]
    findings = np.empty(len(rows), dtype=np.uint8)
    carried = np.empty((len(rows) if carries else 0, ROW_WORDS), dtype=np.uint64)
    filled = int(
        _judge(
            ordered, log_start, limit, by_version, last_offset, appended, findings, counts, carried
        )
    )
    return ordered, findings, carried[:filled]


@njit(cache=True, nogil=True)
def by_bucket(rows, count, bits, out, ends):
    """Sort ``rows[:count]`` by bucket into ``out``, in stable order, and write the buckets' ends.

    ``ends`` receives the end of each bucket.
    """
    shift = np.uint64(63 - bits)
    one = np.uint64(1)
    for b in range(len(ends)):
        ends[b] = 0
    for i in range(count):
        ends[(rows[i, 0] >> one) >> shift] += 1
    total = np.uint32(0)
    for b in range(len(ends)):
        n = ends[b]
        ends[b] = total
        total += n
    for i in range(count):
        b = (rows[i, 0] >> one) >> shift
        place = ends[b]
        for k in range(ROW_WORDS):
            out[place, k] = rows[i, k]
        ends[b] = place + np.uint32(1)


@njit(cache=True, nogil=True, inline="always")
def _same_key(rows, i, j):
    return rows[i, 0] == rows[j, 0] and (rows[i, 1] ^ rows[j, 1]) >> np.uint64(FLAG_BITS) == 0


@njit(cache=True, nogil=True)
def is_ordered(rows):
    """Whether rows are sorted by key, then by log (the earlier log first), then by offset."""
    for i in range(1, len(rows)):
        if rows[i, 0] < rows[i - 1, 0]:
            return False
        if rows[i, 0] > rows[i - 1, 0]:
            continue
        if not _same_key(rows, i, i - 1):
            return False
        flags, before = rows[i, 1], rows[i - 1, 1]
        if before & np.uint64(CARRIED):
            continue
        if flags & np.uint64(CARRIED) or (flags & np.uint64(AFTER)) < (before & np.uint64(AFTER)):
            return False
        same_side = (flags & np.uint64(AFTER)) == (before & np.uint64(AFTER))
        if same_side and np.int64(rows[i, 2]) < np.int64(rows[i - 1, 2]):
            return False
    return True


@njit(cache=True, nogil=True)
def _judge(rows, log_start, limit, by_version, last_offset, appended, findings, counts, carried):
    filled = 0
    begin = 0
    while begin < len(rows):
        middle = begin  # the key's first row of the present log
        while (
            middle < len(rows)
            and _same_key(rows, middle, begin)
            and not rows[middle, 1] & np.uint64(AFTER)
        ):
            middle += 1
        end = middle
        while end < len(rows) and _same_key(rows, end, begin):
            end += 1
        kind = np.int64(rows[begin, 1])
        if kind & BATCH:
            _judge_batch(rows, begin, middle, end, log_start, appended, findings)
        else:
            last, bits = _judge_key(
                rows,
                begin,
                middle,
                end,
                log_start,
                limit,
                by_version,
                last_offset,
                appended,
                findings,
                counts,
            )
            if not kind & (KEYLESS | CONTROL) and len(carried):
                carried[filled, 0] = rows[begin, 0]
                lane = rows[begin, 1] >> np.uint64(FLAG_BITS) << np.uint64(FLAG_BITS)
                carried[filled, 1] = lane | np.uint64(CARRIED | bits)
                carried[filled, 2] = np.uint64(last)
                carried[filled, 3] = 0
                carried[filled, 4] = 0
                filled += 1
        for i in range(begin, end):
            if rows[i, 1] & np.uint64(AFTER):
                counts[FINDINGS + findings[i]] += 1
            else:
                counts[findings[i]] += 1
        begin = end
    return filled


@njit(cache=True, nogil=True)
def _judge_key(
    rows, begin, middle, end, log_start, limit, by_version, last_offset, appended, findings, counts
):
    """Judge the rows of one key.

    Returns the offset of the key's last write, and bits for the carried row: ``GONE``, ``SEEN`` and
    ``COUNTED``; see ``verification.rows``.
    """
    kind = np.int64(rows[begin, 1])
    is_key = not kind & (KEYLESS | CONTROL)
    last = np.int64(-1)
    gone = seen = counted = False
    first = begin
    if kind & CARRIED:
        last = np.int64(rows[begin, 2])
        gone, seen, counted = kind & GONE != 0, kind & SEEN != 0, kind & COUNTED != 0
        findings[begin] = _NOT_JUDGED
        first = begin + 1
    greatest = np.int64(0)  # the version of the record at offset ``last``
    grown_from, grown_limit = appended
    i = end - 1
    while is_key and i >= middle and np.int64(rows[i, 2]) >= grown_from:
        offset = np.int64(rows[i, 2])
        if not np.int64(rows[i, 1]) & DISCARDABLE and offset < grown_limit:
            version = np.int64(rows[i, 4]) if by_version else np.int64(0)
            if last < 0 or version > greatest:
                last = offset
                greatest = version
        i -= 1
    i = middle - 1
    while is_key and i >= first and (last < 0 or not counted or by_version):
        offset = np.int64(rows[i, 2])
        if not np.int64(rows[i, 1]) & DISCARDABLE:
            if not counted:
                counted = True
                counts[KEYS] += 1
            version = np.int64(rows[i, 4]) if by_version else np.int64(0)
            if log_start <= offset < limit and (last < 0 or version > greatest):
                last = offset
                greatest = version
        i -= 1
    newest = np.int64(-1)  # the row of the key's last write in the present log
    i = end - 1
    while is_key and i >= middle and not seen and (newest < 0 or by_version):
        if not np.int64(rows[i, 1]) & DISCARDABLE:
            if newest < 0 or np.int64(rows[i, 4]) > np.int64(rows[newest, 4]):
                newest = i
        i -= 1
    if newest >= 0:
        seen = True
        if not np.int64(rows[newest, 1]) & TOMBSTONE:
            counts[KEYS_ALIVE] += 1
    j = middle
    previous = np.int64(-1)  # the offset of the previous row of the present log
    for i in range(first, middle):
        offset = np.int64(rows[i, 2])
        flags = np.int64(rows[i, 1])
        version = np.int64(rows[i, 4]) if by_version else np.int64(0)
        while j < end and np.int64(rows[j, 2]) < offset:
            findings[j] = _DOUBLED if np.int64(rows[j, 2]) == previous else _ADDED
            previous = np.int64(rows[j, 2])
            j += 1
        if j < end and np.int64(rows[j, 2]) == offset:
            same = rows[j, 3] == rows[i, 3] and rows[j, 4] == rows[i, 4]
            findings[j] = _KEPT if same else _CHANGED
            findings[i] = _KEPT
            previous = offset
            j += 1
        elif offset < log_start:
            findings[i] = _BELOW_START
        elif offset >= limit and not (
            last >= grown_from and is_key and (greatest > version or greatest == version)
        ):
            findings[i] = _LOST_TAIL
        elif flags & CONTROL:
            findings[i] = _MARKER_SPENT if flags & DISCARDABLE and flags & DUE else _LOST_CONTROL
        elif flags & DISCARDABLE:
            findings[i] = _ABORTED_GONE
        elif flags & KEYLESS:
            findings[i] = _KEYLESS_GONE
        elif by_version and offset == last_offset:
            findings[i] = _LOST
        elif last >= 0 and (greatest > version or (greatest == version and last > offset)):
            findings[i] = _SUPERSEDED
        elif flags & TOMBSTONE and flags & DUE:
            findings[i] = _EXPIRED
            gone = True
        elif flags & TOMBSTONE:
            findings[i] = _LOST_DELETE
        else:
            findings[i] = _LOST
    while j < end:
        findings[j] = _DOUBLED if np.int64(rows[j, 2]) == previous else _ADDED
        if findings[j] == _ADDED and np.int64(rows[j, 2]) >= grown_from:
            findings[j] = _NOT_JUDGED
        previous = np.int64(rows[j, 2])
        j += 1
    if gone:
        for j in range(middle, end):
            offset = np.int64(rows[j, 2])
            version = np.int64(rows[j, 4]) if by_version else np.int64(0)
            older = greatest > version or (greatest == version and last > offset)
            shown = not np.int64(rows[j, 1]) & DISCARDABLE and log_start <= offset
            if shown and older and findings[j] == _KEPT:
                findings[j] = _REVIVED
    return last, (GONE if gone else 0) | (SEEN if seen else 0) | (COUNTED if counted else 0)


@njit(cache=True, nogil=True)
def _judge_batch(rows, begin, middle, end, log_start, appended, findings):
    """Judge the batches with the same base offset. Without violations, each log has at most one."""
    for i in range(begin, middle):
        owed = np.int64(rows[i, 1]) & OWED and np.int64(rows[i, 2]) >= log_start
        findings[i] = _BATCH_KEPT if middle < end else _BATCH_LOST if owed else _BATCH_GONE
    for j in range(middle, end):
        flags = np.int64(rows[j, 1])
        simple = flags & SIMPLE != 0
        if j > middle or (begin == middle and not simple):
            is_new = j == middle and np.int64(rows[j, 2]) >= appended[0]
            findings[j] = _NOT_JUDGED if is_new else _BATCH_ADDED
            continue
        empty = flags & EMPTY != 0
        if begin == middle:
            findings[j] = _BATCH_CONVERTED if flags & HONEST else _BATCH_MISDATED
            if flags & HONEST and np.int64(rows[j, 2]) >= appended[0]:
                findings[j] = _NOT_JUDGED
            continue
        was = np.int64(rows[begin, 1])
        converted = simple and was & OLD != 0
        horizon = np.int64(rows[begin, 3])
        if rows[j, 4] != rows[begin, 4] and not converted:
            findings[j] = _BATCH_CHANGED
        elif not empty and (flags ^ was) >> CODEC_SHIFT & 7:
            findings[j] = _BATCH_RECODED
        elif not empty and horizon != NO_HORIZON and np.int64(rows[j, 3]) != horizon:
            findings[j] = _HORIZON_MOVED
        elif not flags & HONEST and was & HONEST:
            findings[j] = _BATCH_MISDATED
        else:
            findings[j] = _BATCH_CONVERTED if converted else _BATCH_KEPT


def mark_discardable(rows: UInt64Array, intervals: Int64Array) -> None:
    """Set DISCARDABLE on the records in ``rows`` whose offset is in one of ``intervals``.

    ``intervals`` has rows (first, last offset), ascending.
    """
    if not len(intervals):
        return
    flags = rows[:, 1]
    asked = np.flatnonzero(
        flags & np.uint64(IN_TRANSACTION | BATCH | CARRIED) == np.uint64(IN_TRANSACTION)
    )
    offsets = rows[asked, 2].view(np.int64)
    place = np.searchsorted(intervals[:, 0], offsets, side="right") - 1
    inside = (place >= 0) & (offsets <= intervals[place, 1])
    flags[asked[inside]] |= np.uint64(DISCARDABLE)


def mark_owed(rows: UInt64Array, bases: Int64Array) -> None:
    """Set OWED on the batches in ``rows`` whose base offset is in ``bases``, which is ascending."""
    if not len(bases):
        return
    flags = rows[:, 1]
    asked = np.flatnonzero(flags & np.uint64(BATCH))
    offsets = rows[asked, 2].view(np.int64)
    place = np.minimum(np.searchsorted(bases, offsets), len(bases) - 1)
    flags[asked[bases[place] == offsets]] |= np.uint64(OWED)
