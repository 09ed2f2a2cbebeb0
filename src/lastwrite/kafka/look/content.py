"""The contents of Kafka batches as rows by which two logs are compared (see ``verification.rows``).

``verify`` must not trust the code it verifies. Its digest therefore differs from the engine's
fingerprint in function and secret: 112 bits for a key and 128 for the rest of the record. A flaw in
one of the two functions is not repeated in the other function. Value and headers are digested as
they are encoded after the key. A record that compaction copies keeps its digest, and a change of
any byte changes it.

The digest of a batch's header covers the fields that compaction must not change: base and last
offset, leader epoch, producer id, epoch and sequence, and the bits for timestamp type, transaction
and control. If the timestamp type is append time, it covers the largest timestamp too, because
every record has that timestamp. Other rules compare codec, delete horizon and largest timestamp.

Batches of formats v0 and v1 are first converted to v2 (see ``old_format``), so that they have the
same rows as the output of Kafka's cleaner. Their tombstones expire by the file's modification time.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lastwrite.encoding.intrinsics import folded_product, load64, swap64
from lastwrite.encoding.kernel import njit
from lastwrite.errors import CorruptLog
from lastwrite.kafka.format import kernels
from lastwrite.kafka.format.remedy import RESTORE
from lastwrite.model.columns import (
    IS_OLD,
    NO_HORIZON,
    BatchRun,
    BatchTable,
    ByteArray,
    Int64Array,
    UInt64Array,
)
from lastwrite.verification.rows import (
    ABORT_MARKER,
    AFTER,
    BASE,
    BATCH,
    BY_HEADER,
    BY_OFFSET,
    BY_TIMESTAMP,
    CODEC_SHIFT,
    COMMIT_MARKER,
    CONTROL,
    CONTROL_RECORDS,
    DUE,
    EMPTIED_MARKER,
    EMPTY,
    EMPTY_BATCHES,
    EPOCH,
    FLAG_BITS,
    HONEST,
    HORIZON,
    IDEMPOTENT_DATA,
    IN_TRANSACTION,
    KEYLESS,
    KEYLESS_RECORDS,
    KIND,
    LAST,
    NO_VERSION,
    OLD,
    OLD_BATCHES,
    OLD_DATA,
    PRESENT,
    PRODUCER,
    RECORDS,
    SEED_WORDS,
    SHAPE,
    SIMPLE,
    SIMPLE_DATA,
    TIME,
    TOMBSTONE,
    TOMBSTONES,
    TRANSACTION_DATA,
)

_LANE = np.uint64(0xFFFFFFFFFFFFFFFF << FLAG_BITS & 0xFFFFFFFFFFFFFFFF)
_APPEND_TIME = 8
_TRANSACTIONAL = 16
_CONTROL = 32
_HAS_HORIZON = 64  # attribute bit: the base timestamp is the delete horizon (KIP-534)
_KINDS = _APPEND_TIME | _TRANSACTIONAL | _CONTROL
_NO_EPOCH = np.uint64(0xFFFFFFFF)  # leader epoch -1

_WORDS = {
    kernels.BAD_RECORD: "a length inside a record exceeds its batch",
    kernels.BAD_OFFSET: "record offsets do not increase, or are outside of the batch",
    kernels.TRAILING: "bytes follow the batch's last record",
}


def seed_from(random: bytes) -> UInt64Array:
    """The secret of a comparison, from ``8 * SEED_WORDS`` random bytes; all words are large and
    odd.
    """
    words = np.frombuffer(random, dtype="<u8").astype(np.uint64)
    if len(words) != SEED_WORDS:
        raise ValueError(f"a seed must have {8 * SEED_WORDS} bytes")
    return words | np.uint64(1 << 63 | 1)


class _ContentTools(NamedTuple):
    """The parameters of ``KafkaContents`` for converting batches to rows."""

    seed: UInt64Array
    side: int
    now_ms: int
    is_old_due: bool
    emits: bool
    order: int
    header: ByteArray  # name of the header with a record's version, in UTF-8


class KafkaContents:
    """Turns decompressed batches into rows, by which two logs are compared.

    Args:
        seed: the secret of the digests. None means to check and count only.
        is_after: whether the log is the result of a compaction.
        now_ms: the time up to which delete horizons have passed. None means that all have passed.
        order: the rule by which records of a key are ordered.
        header: the name of the header with a record's version.
    """

    def __init__(
        self,
        seed: UInt64Array | None,
        is_after: bool,
        now_ms: int | None,
        order: int = BY_OFFSET,
        header: str = "",
    ) -> None:
        self._tools = _ContentTools(
            seed=np.ones(SEED_WORDS, dtype=np.uint64) if seed is None else seed,
            side=AFTER if is_after else 0,
            now_ms=np.iinfo(np.int64).max if now_ms is None else now_ms,
            is_old_due=False,
            emits=seed is not None,
            order=order,
            header=np.frombuffer(header.encode(), dtype=np.uint8),
        )
        # whether the file is so old that tombstones of old formats may be missing
        self.is_old_due = False

    def take(
        self,
        run: BatchRun,
        table: BatchTable,
        buffer: ByteArray,
        rows: UInt64Array,
        filled: int,
        tally: Int64Array,
        facts: Int64Array,
        noted: int,
    ) -> tuple[int, int]:
        """Write the rows of a run of decompressed batches, whose headers are in ``buffer``.

        ``rows`` gets a row for each record and each batch, from ``rows[filled]`` on. ``facts`` gets
        a row for each batch, from ``facts[noted]`` on, and must have space for all batches. Counts
        are added to ``tally``. Returns the new values of ``filled`` and ``noted``.

        Raises:
            CorruptLog: a record is malformed; the position is relative to ``buffer``.
        """
        means = self._tools._replace(is_old_due=self.is_old_due)
        done, noted, code, b, at = contents(
            run, buffer, table, means, rows, filled, tally, facts, noted
        )
        if code != kernels.OK:
            row = table[b]
            if row["codec"] == 0:
                raise CorruptLog(_WORDS[code], int(at), remedy=RESTORE)
            inside = int(at) - int(row["plain_start"])
            words = f"{_WORDS[code]}, at byte {inside} of the decompressed records"
            raise CorruptLog(words, int(row["origin"]), remedy=RESTORE)
        return int(done), int(noted)


@njit(cache=True, nogil=True)
def digest(data, at, end, seed):
    """A hash of ``data[at:end]`` as two uint64. Mixes in eight bytes at a time, then the length."""
    one = seed[0]
    two = seed[1]
    length = np.uint64(end - at)
    while end - at >= 8:
        word = load64(data, at)
        one = folded_product(one ^ word, seed[2])
        two = folded_product(two + word, seed[3])
        at += 8
    word = np.uint64(0)
    shift = np.uint64(0)
    while at < end:
        word |= np.uint64(data[at]) << shift
        shift += np.uint64(8)
        at += 1
    return _joined(one, two, word, length, seed)


@njit(cache=True, nogil=True, inline="always")
def _joined(one, two, word, more, seed):
    """The two words of a hash after mixing in two more words."""
    one = folded_product(one ^ word, seed[2])
    two = folded_product(two + word, seed[3])
    one = folded_product(one ^ more ^ seed[4], seed[5])
    two = folded_product(two + more + seed[6], seed[7])
    return one, two


@njit(cache=True, nogil=True)
def _version(data, at, end, name):
    """A record's version: the last header ``name`` as an integer, if it has eight bytes.

    ``at`` is the position of the length of the record's value.
    """
    length, at = kernels._varint(data, at, end)
    count, at = kernels._varint(data, at + max(length, 0), end)
    found = np.int64(NO_VERSION)
    while count > 0:
        size, begin = kernels._varint(data, at, end)
        length, at = kernels._varint(data, begin + size, end)
        if size == len(name) and (data[begin : begin + size] == name).all():
            found = np.int64(NO_VERSION)
            if length == 8:
                found = np.int64(swap64(load64(data, at)))
        at += max(length, 0)
        count -= 1
    return found


@njit(cache=True, nogil=True)
def contents(run, buffer, table, means, rows, filled, tally, facts, noted):
    """Write the content of the batches of ``run`` to ``rows``, and a row per batch to ``facts``.

    ``buffer`` has the batches' headers.

    Returns (end in ``rows``, end in ``facts``, code, batch at fault, position in ``run.plain``).
    """
    first, last, plain = run
    seed, side, now_ms, is_old_due, emits, order, header = means
    for b in range(first, last):
        row = table[b]
        head = row.position
        attributes = np.int64(buffer[head + 22])
        base_time = np.int64(swap64(load64(buffer, head + 27)))
        append_time = attributes & _APPEND_TIME != 0
        old = row.flags & IS_OLD != 0
        control = not old and attributes & _CONTROL != 0
        in_transaction = IN_TRANSACTION if not old and attributes & _TRANSACTIONAL else 0
        # A negative horizon results from an overflow and expires no tombstone.
        has_horizon = not old and attributes & _HAS_HORIZON != 0 and base_time >= 0
        horizon = base_time if has_horizon else np.int64(NO_HORIZON)
        due = DUE if has_horizon and horizon <= now_ms else 0
        if old and is_old_due:
            due = DUE
        marker = EMPTIED_MARKER
        at = row.plain_start
        end = row.plain_end
        before = np.int64(-1)
        top = row.next_offset - 1 - row.base_offset
        latest = NO_HORIZON
        for _ in range(row.records):
            stop, stamp, offset_at, delta, key_at, key_length, value_length = kernels._record(
                plain, at, end
            )
            if stop < 0:
                return filled, noted, kernels.BAD_RECORD, b, at
            if delta <= before or delta > top:
                return filled, noted, kernels.BAD_OFFSET, b, at
            before = delta
            flags = side | in_transaction
            if control:
                flags |= CONTROL | due
                tally[CONTROL_RECORDS] += 1
                marker = -1
                if key_length >= 4 and plain[key_at + 2] == 0 and plain[key_at + 3] <= 1:
                    marker = COMMIT_MARKER if plain[key_at + 3] else ABORT_MARKER
            elif key_length < 0:
                flags |= KEYLESS
                tally[KEYLESS_RECORDS] += 1
            elif value_length < 0:
                flags |= TOMBSTONE | due
                tally[TOMBSTONES] += 1
            time = row.max_timestamp if append_time else base_time + stamp
            latest = max(latest, time)
            if emits:
                offset = np.uint64(row.base_offset + delta)
                if flags & (CONTROL | KEYLESS):
                    one, two = _joined(
                        seed[0], seed[1], offset, np.uint64(flags & (CONTROL | KEYLESS)), seed
                    )
                else:
                    one, two = digest(plain, key_at, key_at + key_length, seed)
                rows[filled, 0] = one
                rows[filled, 1] = two & _LANE | np.uint64(flags)
                rows[filled, 2] = offset
                said, also = digest(plain, key_at + max(key_length, 0), stop, seed)
                if flags & CONTROL:  # the key contains the type of a control record
                    one, two = digest(plain, key_at, key_at + max(key_length, 0), seed)
                    said, also = said ^ one, also + two
                rows[filled, 3], rows[filled, 4] = _joined(
                    said, also, np.uint64(time), np.uint64(0), seed
                )
                if order == BY_TIMESTAMP:
                    rows[filled, 4] = np.uint64(time)
                elif order == BY_HEADER:
                    rows[filled, 4] = np.uint64(
                        _version(plain, key_at + max(key_length, 0), stop, header)
                    )
                filled += 1
            at = stop
        if at != end:
            return filled, noted, kernels.TRAILING, b, at
        tally[RECORDS] += row.records
        if row.records == 0:
            tally[EMPTY_BATCHES] += 1
        if old:
            tally[OLD_BATCHES] += 1
        epoch = load64(buffer, head + 8) >> np.uint64(32)  # leader epoch, after the length
        has_producer = not old and np.int64(swap64(load64(buffer, head + 43))) >= 0
        simple = not old and not control and not has_producer and epoch == _NO_EPOCH
        kind = marker
        if not control:
            kind = -1
            if old:
                kind = OLD_DATA
            elif simple:
                kind = SIMPLE_DATA
            elif has_producer:
                kind = TRANSACTION_DATA if in_transaction else IDEMPOTENT_DATA
        if kind >= 0:
            facts[noted, BASE] = row.base_offset
            facts[noted, LAST] = row.next_offset - 1
            facts[noted, PRODUCER] = row.producer_id
            facts[noted, EPOCH] = row.producer_epoch
            facts[noted, KIND] = kind
            facts[noted, HORIZON] = horizon
            facts[noted, TIME] = latest if control and row.records > 0 else row.max_timestamp
            facts[noted, PRESENT] = row.records
            facts[noted, SHAPE] = row.codec | (8 if append_time else 0)
            noted += 1
        if emits:
            flags = side | BATCH | row.codec << CODEC_SHIFT
            if row.records == 0:
                flags |= EMPTY
            if old:
                flags |= OLD
            if simple:
                flags |= SIMPLE
            if append_time or row.records == 0 or latest == row.max_timestamp:
                flags |= HONEST
            base = np.uint64(row.base_offset)
            one, two = _joined(seed[0], seed[1], base, np.uint64(BATCH), seed)
            rows[filled, 0] = one
            rows[filled, 1] = two & _LANE | np.uint64(flags)
            rows[filled, 2] = base
            rows[filled, 3] = np.uint64(horizon)
            # Producer id, epoch and base sequence.
            one, two = digest(buffer, head + 43, head + 57, seed)
            one, two = _joined(one, two, np.uint64(top), epoch, seed)
            time = row.max_timestamp if append_time else np.int64(0)
            one, two = _joined(one, two, np.uint64(attributes & _KINDS), np.uint64(time), seed)
            rows[filled, 4] = one
            filled += 1
    return filled, noted, kernels.OK, last, 0
