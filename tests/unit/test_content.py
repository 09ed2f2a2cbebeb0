"""Tests of content rows: equal after compaction, and different after any other change."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.encoding.compression import Codec
from lastwrite.errors import CorruptLog
from lastwrite.kafka.format.batch import (
    ControlType,
    decode_batch,
    encode_batch,
    rebuild_batch,
    seal_batch,
)
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.chunk import KafkaFormat
from lastwrite.kafka.look.content import KafkaContents, digest, seed_from
from lastwrite.model.columns import NO_HORIZON
from lastwrite.verification.rows import (
    ABORT_MARKER,
    AFTER,
    BATCH,
    BY_HEADER,
    BY_OFFSET,
    BY_TIMESTAMP,
    CODEC_SHIFT,
    COMMIT_MARKER,
    CONTROL,
    DUE,
    EMPTIED_MARKER,
    EMPTY,
    FACT_WORDS,
    HONEST,
    IDEMPOTENT_DATA,
    IN_TRANSACTION,
    KEYLESS,
    NO_VERSION,
    OLD,
    OLD_DATA,
    ROW_WORDS,
    SEED_WORDS,
    SIMPLE,
    SIMPLE_DATA,
    TALLIES,
    TOMBSTONE,
    TRANSACTION_DATA,
)
from tests.support.kafka.old_entries import encode_message, encode_wrapper
from tests.support.kafka.single import encode_control_record

START = 1_700_000_000_000
SEED = seed_from(os.urandom(8 * SEED_WORDS))
FLAGS = np.uint64(0xFFFF)


def rows_of(
    data: bytes,
    is_after: bool = False,
    now_ms: int | None = None,
    order: int = BY_OFFSET,
    header: str = "",
) -> tuple[list[tuple[int, ...]], list[int]]:
    """All rows of a segment's bytes, with flags as the last number, and the tally."""
    buffer = np.frombuffer(data, dtype=np.uint8).copy()
    format, contents = KafkaFormat(), KafkaContents(SEED, is_after, now_ms, order, header)
    table, _, _, buffer = format.split(buffer, 0, len(buffer), 0)
    rows = np.zeros((len(table) + int(table["records"].sum()), ROW_WORDS), dtype=np.uint64)
    facts = np.zeros((len(table), FACT_WORDS), dtype=np.int64)
    tally, filled = np.zeros(TALLIES, dtype=np.int64), 0
    for run in format.opened(buffer, table):
        filled, _ = contents.take(run, table, buffer, rows, filled, tally, facts, 0)
    assert filled == len(rows)
    split = [(*map(int, row), int(row[1] & FLAGS)) for row in rows]
    return [(a, b >> 16, c, d, e, flags) for a, b, c, d, e, flags in split], tally.tolist()


def facts_of(data: bytes, seed: bool = True) -> list[list[int]]:
    """The facts about the batches of a segment's bytes."""
    buffer = np.frombuffer(data, dtype=np.uint8).copy()
    format, contents = KafkaFormat(), KafkaContents(SEED if seed else None, False, None)
    found = []
    at = 0
    while at < len(buffer):
        split = format.split(buffer, at, len(buffer), 0)
        rows = np.zeros(
            (len(split.table) + int(split.table["records"].sum()), ROW_WORDS), dtype=np.uint64
        )
        facts = np.zeros((len(split.table), FACT_WORDS), dtype=np.int64)
        tally, noted = np.zeros(TALLIES, dtype=np.int64), 0
        for run in format.opened(split.buffer, split.table):
            _, noted = contents.take(run, split.table, split.buffer, rows, 0, tally, facts, noted)
        found += facts[:noted].tolist()
        at = split.consumed
    return found


def record_row(record: Record, **batch: object) -> tuple[int, ...]:
    return rows_of(encode_batch([record], **batch))[0][0]  # type: ignore[arg-type]


content = st.none() | st.binary(max_size=40)


@st.composite
def records(draw: st.DrawFn, base: int = 1000) -> list[Record]:
    header_lists = st.lists(st.tuples(st.binary(max_size=3), content), max_size=2).map(tuple)
    return [
        Record(
            base + place,
            draw(st.integers(START, START + 99)),
            draw(content),
            draw(content),
            draw(header_lists),
        )
        for place in sorted(draw(st.sets(st.integers(0, 30), min_size=1, max_size=8)))
    ]


@given(records(), st.data())
def test_compaction_of_a_batch_keeps_its_rows(found: list[Record], data: st.DataObject) -> None:
    append_time = data.draw(st.booleans())
    whole = encode_batch(
        found,
        base_offset=990,
        last_offset=1040,
        codec=data.draw(st.sampled_from(Codec)),
        append_time=append_time,
        leader_epoch=3,
        max_timestamp_ms=START + 200 if append_time else None,
    )
    kept = [record for record in found if data.draw(st.booleans())]
    twin = decode_batch(whole, 0)
    horizon = data.draw(st.none() | st.just(START + 5000)) if kept else None
    thinned = rebuild_batch(
        twin.header,
        [r for r in twin.records if r.offset in {k.offset for k in kept}],
        delete_horizon_ms=horizon,
    )
    was, _ = rows_of(whole)
    now, _ = rows_of(thinned, is_after=True, now_ms=START)
    by_offset = {row[2]: row for row in was[:-1]}
    for row in now[:-1]:
        assert row[:5] == by_offset[row[2]][:5]
        assert row[5] == by_offset[row[2]][5] | AFTER
    batch_was, batch_now = was[-1], now[-1]
    assert batch_was[:3] == batch_now[:3] and batch_was[4] == batch_now[4]
    assert batch_now[5] & EMPTY == (0 if kept else EMPTY)
    assert batch_was[5] & batch_now[5] & HONEST


CHANGES = [
    {"offset": 6},
    {"timestamp_ms": START + 1},
    {"key": b"K"},
    {"key": b""},
    {"key": None},
    {"key": b"k\0"},
    {"value": b""},
    {"value": None},
    {"value": b"w"},
    {"value": b"v\0"},
    {"value": b"v" * 9},
    {"headers": ()},
    {"headers": ((b"h", b""),)},
    {"headers": ((b"h", None), (b"h", None))},
    {"headers": ((b"i", None),)},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_any_change_of_a_record_changes_its_row(change: dict[str, object], codec: Codec) -> None:
    record = Record(5, START, b"k", b"v", ((b"h", None),))
    was, now = record_row(record, codec=codec), record_row(replace(record, **change), codec=codec)  # type: ignore[arg-type]
    assert was[:5] != now[:5]
    same_key = "key" not in change and "offset" not in change
    assert (was[:3] == now[:3]) is same_key


def test_same_record_has_the_same_row_in_any_batch() -> None:
    record = Record(5, START, b"k", b"v" * 100, ((b"h", b"x"),))
    alone = record_row(record)
    others = [Record(3, START - 77, b"a", b"b"), record, Record(9, START + 9, None, b"c")]
    for codec in Codec:
        assert (
            rows_of(encode_batch(others, codec=codec, base_offset=0, last_offset=77))[0][1] == alone
        )
    moved_key = Record(5, START, b"kv", b"v" * 99, ((b"h", b"x"),))
    assert record_row(moved_key)[3:5] != alone[3:5]


HEAD = {
    "leader_epoch": 1,
    "producer_id": 7,
    "producer_epoch": 1,
    "base_sequence": 4,
    "base_offset": 2,
    "last_offset": 9,
}


@pytest.mark.parametrize(
    "change",
    [
        {"leader_epoch": 2},
        {"producer_id": 8},
        {"producer_epoch": 2},
        {"base_sequence": 5},
        {"last_offset": 10},
        {"transactional": True},
        {"append_time": True},
    ],
    ids=str,
)
def test_any_change_of_a_batch_header_changes_its_row(change: dict[str, object]) -> None:
    record = Record(5, START, b"k", b"v")
    was = rows_of(encode_batch([record], **HEAD))[0][-1]  # type: ignore[arg-type]
    now = rows_of(encode_batch([record], **{**HEAD, **change}))[0][-1]  # type: ignore[arg-type]
    assert was[4] != now[4]
    assert rows_of(encode_batch([record], **{**HEAD, "base_offset": 3}))[0][-1][2] == 3  # type: ignore[arg-type]


def test_flags_describe_the_record_and_its_batch() -> None:
    def flags(
        value: bytes | None, key: bytes | None = b"k", now_ms: int | None = None, **batch: object
    ) -> list[int]:
        data = encode_batch([Record(0, START, key, value)], **batch)  # type: ignore[arg-type]
        return [row[5] for row in rows_of(data, now_ms=now_ms)[0]]

    plain = BATCH | HONEST | SIMPLE
    assert flags(b"v") == [0, plain]
    assert flags(b"v", leader_epoch=0) == [0, BATCH | HONEST]
    assert flags(None) == [TOMBSTONE, plain]
    assert flags(None, delete_horizon_ms=50) == [TOMBSTONE | DUE, plain]
    assert flags(None, delete_horizon_ms=50, now_ms=50) == [TOMBSTONE | DUE, plain]
    assert flags(None, delete_horizon_ms=50, now_ms=49) == [TOMBSTONE, plain]
    assert flags(None, key=None, delete_horizon_ms=50) == [KEYLESS, plain]
    assert flags(b"v" * 99, codec=Codec.LZ4) == [0, plain | 3 << CODEC_SHIFT]
    writer = {"transactional": True, "producer_id": 1}
    assert flags(b"v", **writer) == [IN_TRANSACTION, BATCH | HONEST]
    assert flags(b"v", key=b"\0\0\0\1", control=True, **writer) == [
        CONTROL | IN_TRANSACTION,
        BATCH | HONEST,
    ]
    due = flags(b"v", key=b"\0\0\0\1", control=True, delete_horizon_ms=50, now_ms=50, **writer)
    assert due == [CONTROL | IN_TRANSACTION | DUE, BATCH | HONEST]
    empty, tally = rows_of(encode_batch([], base_offset=3, last_offset=5))
    assert [row[5] for row in empty] == [plain | EMPTY]
    assert tally == [0, 0, 0, 0, 1, 0]


def test_facts_describe_producers_and_markers() -> None:
    writer = {"producer_id": 7, "producer_epoch": 3}
    record = Record(5, START, b"k", b"v")

    def marker(kind: ControlType, **batch: object) -> bytes:
        record = encode_control_record(5, START, kind)
        return encode_batch([record], control=True, transactional=True, **{**writer, **batch})  # type: ignore[arg-type]

    def fact(
        kind: int, present: int = 1, horizon: int = NO_HORIZON, shape: int = 0
    ) -> list[list[int]]:
        return [[5, 5, 7, 3, kind, horizon, START, present, shape]]

    assert facts_of(encode_batch([record], **writer)) == fact(IDEMPOTENT_DATA)
    assert facts_of(encode_batch([record], codec=Codec.LZ4, transactional=True, **writer)) == fact(
        TRANSACTION_DATA, shape=3
    )
    assert facts_of(marker(ControlType.ABORT)) == fact(ABORT_MARKER)
    assert facts_of(marker(ControlType.COMMIT), seed=False) == fact(COMMIT_MARKER)
    assert facts_of(marker(ControlType.COMMIT, delete_horizon_ms=9)) == fact(
        COMMIT_MARKER, horizon=9
    )
    emptied = encode_batch(
        [],
        base_offset=5,
        last_offset=5,
        max_timestamp_ms=START,
        control=True,
        transactional=True,
        **writer,
    )
    assert facts_of(emptied) == fact(EMPTIED_MARKER, present=0)
    assert (
        facts_of(
            encode_batch([encode_control_record(5, START, ControlType.LEADER_CHANGE)], control=True)
        )
        == []
    )
    assert facts_of(encode_batch([record], leader_epoch=0)) == []
    assert facts_of(encode_batch([record], append_time=True)) == [
        [5, 5, -1, -1, SIMPLE_DATA, NO_HORIZON, START, 1, 8]
    ]


def test_older_format_has_the_rows_of_its_converted_batch() -> None:
    """They equal the rows of the converted v2 batch, except for flags."""
    records = [Record(n, START + n, b"k%d" % n, None if n == 3 else b"v") for n in (3, 4, 6)]
    for codec in (Codec.NONE, Codec.GZIP, Codec.LZ4):
        messages = b"".join(encode_message(record, 1) for record in records)
        old = encode_wrapper(records, 1, codec) if codec else messages
        assert [fact[4] for fact in facts_of(old)] == [OLD_DATA] * (1 if codec else 3)
        assert [fact[:2] for fact in facts_of(old)] == (
            [[3, 6]] if codec else [[3, 3], [4, 4], [6, 6]]
        )
        was, tally = rows_of(old)
        assert tally[5] == (1 if codec else 3)
        now, _ = rows_of(
            b"".join(
                encode_batch(some, codec=codec)
                for some in ([records] if codec else [[r] for r in records])
            )
        )
        assert [row[:5] for row in was] == [row[:5] for row in now]
        assert [row[5] ^ (OLD if row[5] & BATCH else 0) for row in was] == [
            row[5] ^ (SIMPLE if row[5] & BATCH else 0) for row in now
        ]


def test_version_is_a_timestamp_or_the_last_header_of_its_name() -> None:
    """A timestamp, or the eight bytes in the last header of the configured name."""
    eight = (-5).to_bytes(8, "big", signed=True)
    none = NO_VERSION % (1 << 64)
    cases: list[tuple[tuple[tuple[bytes, bytes | None], ...], int]] = [
        ((), none),
        (((b"v", eight),), -5 % (1 << 64)),
        (((b"v", b"\0" * 7 + b"\x09"),), 9),
        (((b"v", eight), (b"w", b"x"), (b"v", b"\0" * 8)), 0),
        (((b"v", eight), (b"v", b"\0" * 7)), none),
        (((b"v", eight), (b"v", None)), none),
        (((b"vv", eight), (b"", eight)), none),
        (((b"", None), (b"v", eight)), -5 % (1 << 64)),
    ]
    records = [
        Record(n, START - n, b"k", b"v" * 300 if n % 2 else None, headers)
        for n, (headers, _) in enumerate(cases)
    ]
    for codec in (Codec.NONE, Codec.GZIP):
        data = encode_batch(records, codec=codec)
        assert [row[4] for row in rows_of(data, order=BY_HEADER, header="v")[0][:-1]] == [
            want for _, want in cases
        ]
        assert [row[4] for row in rows_of(data, order=BY_TIMESTAMP)[0][:-1]] == [
            START - n for n in range(len(cases))
        ]
        late = encode_batch(records, codec=codec, append_time=True, max_timestamp_ms=START + 7)
        assert {row[4] for row in rows_of(late, order=BY_TIMESTAMP)[0][:-1]} == {START + 7}
    old = encode_message(Record(0, START, b"k", b"v"), 0)
    assert rows_of(old, order=BY_TIMESTAMP)[0][0][4] == -1 % (1 << 64)
    said = [rows_of(encode_batch([r]), order=BY_HEADER, header="v")[0][0][3] for r in records]
    assert len(set(said)) == len(said)


def test_wrong_max_timestamp_clears_the_honest_flag() -> None:
    record = Record(0, START, b"k", b"v")
    for stamp, honest in ((START, HONEST), (START + 1, 0), (START - 1, 0)):
        assert rows_of(encode_batch([record], max_timestamp_ms=stamp))[0][-1][5] & HONEST == honest


def test_tally_counts_records_keys_and_tombstones() -> None:
    records = [
        Record(n, START, key, value)
        for n, (key, value) in enumerate(
            [(b"a", b"1"), (b"a", None), (None, b"2"), (None, None), (b"", b"")]
        )
    ]
    assert rows_of(encode_batch(records))[1] == [5, 1, 2, 0, 0, 0]


def test_damage_inside_a_batch_is_named() -> None:
    whole = decode_batch(encode_batch([Record(0, START, b"k", b"v")]), 0)
    for codec in (Codec.NONE, Codec.GZIP):
        encoded = encode_batch(
            [Record(0, START, b"k", b"v"), Record(1, START, b"k", b"v")], codec=codec
        )
        header = decode_batch(encoded, 0).header
        if codec is Codec.NONE:
            payload = bytearray(encoded[61:])
            payload[3] = 9  # offset delta of the first record: -5
        else:
            import gzip

            plain = bytearray(gzip.decompress(encoded[61:]))
            plain[3] = 9
            payload = bytearray(gzip.compress(bytes(plain)))
        broken = seal_batch(header, bytes(payload))
        with pytest.raises(CorruptLog, match="offset") as caught:
            rows_of(broken)
        assert caught.value.at == (61 if codec is Codec.NONE else 0)
    assert whole.records


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_digest_depends_on_every_byte(a: bytes, b: bytes) -> None:
    def lanes(data: bytes, shift: int = 0) -> tuple[int, int]:
        held = np.frombuffer(b"x" * shift + data + b"yyyyyyyyy", dtype=np.uint8)
        one, two = digest(held, shift, shift + len(data), SEED)
        return int(one), int(two)

    assert lanes(a) == lanes(a, 3)
    assert (lanes(a) == lanes(b)) is (a == b)
    assert lanes(a)[0] != lanes(a + b"\0")[0] and lanes(a)[1] != lanes(a + b"\0")[1]
