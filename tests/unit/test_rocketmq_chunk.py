"""Tests of the kernels of a round on RocketMQ records against slow models and rejected input."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.encoding.fingerprint import SECRET_WORDS, fingerprint, secret_from
from lastwrite.errors import CorruptLog, OutOfMemoryBudget
from lastwrite.model.columns import COPY, DROP, KEYLESS, ROW_COLUMNS, TOMBSTONE
from lastwrite.rocketmq.format.chunk import RocketmqFormat
from lastwrite.rocketmq.format.chunk_kernels import FITS, NONE, PLACE, compare_units, place
from lastwrite.rocketmq.format.units import BATCH_UNIT
from tests.support.rocketmq.model import COMPRESSIONS, START_MS, ModelMessage, message

SECRET = secret_from(bytes(range(1, 9)) * SECRET_WORDS)


@st.composite
def some_messages(draw: st.DrawFn) -> list[ModelMessage]:
    made, offset = [], draw(st.integers(0, 3))
    for n in range(draw(st.integers(0, 12))):
        made.append(
            message(
                offset,
                draw(st.sampled_from((None, " ", "a", "b", "ü" * 20))),
                draw(st.binary(max_size=30)),
                START_MS + n,
                tag=draw(st.sampled_from((None, "TagA"))),
                v6=draw(st.booleans()),
                compression=draw(st.sampled_from([*COMPRESSIONS])),
            )
        )
        offset += draw(st.integers(1, 3))
    return made


def buffer_of(some: list[ModelMessage], behind: bytes = b"") -> np.ndarray:
    return np.frombuffer(b"".join(each.content for each in some) + behind, dtype=np.uint8).copy()


@given(some_messages(), st.binary(max_size=7))
def test_record_is_a_batch_of_one(some: list[ModelMessage], behind: bytes) -> None:
    data = buffer_of(some, behind)
    form = RocketmqFormat()
    table, consumed, wanted, held = form.split(data, 0, len(data), 0)
    assert held is data
    assert consumed == len(data) - len(behind)
    assert wanted == (8 if behind else -1)
    at = 0
    for row, each in zip(table, some, strict=True):
        assert (row["position"], row["size"], row["origin"], row["origin_size"]) == (
            at,
            each.size,
            at,
            each.size,
        )
        assert (row["base_offset"], row["next_offset"], row["records"]) == (
            each.offset,
            each.offset + 1,
            1,
        )
        assert (row["max_timestamp"], row["horizon"], row["flags"]) == (
            each.store_ms,
            each.store_ms,
            0,
        )
        at += each.size


@given(some_messages())
def test_walk_recognises_keys_and_tombstones(some: list[ModelMessage]) -> None:
    data = buffer_of(some)
    form = RocketmqFormat()
    table, *_ = form.split(data, 0, len(data), 0)
    states = np.full(len(some), 255, dtype=np.uint8)
    entries = np.zeros((len(some) + 1, 2), dtype=np.uint64)
    keys = np.zeros((len(some) + 1, 2), dtype=np.int64)
    filled = 0
    for run in form.opened(data, table):
        filled = form.walk(run, table, SECRET, 5, states, entries, filled, keys)
    keyed = [(n, each) for n, each in enumerate(some) if each.key is not None and each.key.strip()]
    assert filled == len(keyed)
    assert states.tolist() == [
        KEYLESS if each.key is None or not each.key.strip() else TOMBSTONE if each.is_delete else 0
        for each in some
    ]
    for (n, each), (one, two), (at, length) in zip(
        keyed, entries[:filled], keys[:filled], strict=True
    ):
        assert each.key is not None
        assert data[at : at + length].tobytes() == each.key.encode()
        first, second = fingerprint(data, at, length, SECRET)
        assert int(one) == first
        assert int(two) == (second & ~0xFFFFFFFF) | (n + 5)


@given(some_messages(), st.data())
def test_kept_records_are_copied_with_new_positions(
    some: list[ModelMessage], data: st.DataObject
) -> None:
    keep = data.draw(st.lists(st.booleans(), min_size=len(some), max_size=len(some)))
    bytes_in = buffer_of(some)
    form = RocketmqFormat()
    table, *_ = form.split(bytes_in, 0, len(bytes_in), 0)
    out = np.empty(form.rebuilt_size(table, len(some)), dtype=np.uint8)
    rows = np.zeros((len(some), ROW_COLUMNS), dtype=np.int64)
    actions = np.array([COPY if stays else DROP for stays in keep], dtype=np.uint8)
    horizons, kept = np.zeros(len(some), dtype=np.int64), np.array(keep, dtype=np.uint8)
    out, size, filled = form.rebuild(bytes_in, table, actions, horizons, kept, out, rows)
    left = [each for each, stays in zip(some, keep, strict=True) if stays]
    assert out[:size].tobytes() == b"".join(each.content for each in left)
    assert filled == len(left)
    units = np.zeros(BATCH_UNIT.size * len(left), dtype=np.uint8)
    place(out, rows, 0, filled, 5060, units, 0)
    wanted_log, wanted_units = b"", b""
    for each in left:
        address = 5060 + len(wanted_log)
        wanted_log += each.at(address)
        wanted_units += BATCH_UNIT.pack(
            address, each.size, each.tags_code, each.store_ms, each.offset, 1, -1, 0
        )
    assert out[:size].tobytes() == wanted_log
    assert units.tobytes() == wanted_units


def test_kept_record_is_verified_again_and_a_removed_one_is_not() -> None:
    data = buffer_of([message(n, f"k{n}", b"body" * 9, START_MS) for n in range(5)])
    at = data.tobytes().index(b"bodybody", len(data) // 5 * 2)
    data[at] ^= 1  # damages the third record, as after the scan
    form = RocketmqFormat()
    with pytest.raises(CorruptLog, match="checksum"):
        table, end, *_ = form.split(data, 0, len(data), 0)
        form.split(data, end, len(data), 2)
    table, *_ = form.split_proven(data, 0, len(data), 0)
    none = np.zeros(5, dtype=np.int64)
    out = np.empty(len(data), dtype=np.uint8)
    rows = np.zeros((5, ROW_COLUMNS), dtype=np.int64)
    for stays in range(5):
        actions = np.array([COPY if n == stays else DROP for n in range(5)], dtype=np.uint8)
        if stays == 2:
            with pytest.raises(CorruptLog, match="checksum") as caught:
                form.rebuild(data, table, actions, none, actions, out, rows)
            assert caught.value.at == int(table["position"][2]) + 8
        else:
            _, size, filled = form.rebuild(data, table, actions, none, actions, out, rows)
            assert (size, filled) == (int(table["size"][stays]), 1)


@pytest.mark.parametrize(
    ("limit", "tables"), [(1 << 20, [4096, 4096, 808]), (4 << 20, [4096, 4904])]
)
def test_table_grows_with_the_records_of_a_chunk(limit: int, tables: list[int]) -> None:
    one = message(0, "a", b"", START_MS)
    data = np.tile(np.frombuffer(one.content, np.uint8), (9000, 1))
    data[:, 20:28] = np.arange(9000, dtype=">i8").view(np.uint8).reshape(-1, 8)
    data = data.ravel()
    form, found, at = RocketmqFormat(plain_limit=limit), [], 0
    while at < len(data):
        table, end, _, _ = form.split(data, at, len(data), sum(found))
        assert (table["base_offset"] == np.arange(sum(found), sum(found) + len(table))).all()
        (run,) = form.opened(data, table)
        assert (run.first, run.last) == (0, len(table))
        found.append(len(table))
        at = end
    assert found == tables


def test_queue_offsets_must_rise() -> None:
    data = buffer_of([message(n, "a", b"x", START_MS) for n in (3, 4, 4, 9)])
    form = RocketmqFormat()
    table, consumed, wanted, _ = form.split(data, 0, len(data), 3)
    assert (len(table), wanted) == (2, -1)
    with pytest.raises(CorruptLog, match="queue offset 4, but 5 or more is expected"):
        form.split(data, consumed, len(data), 5)


@pytest.mark.parametrize("behind", [b"\0" * 100, bytes.fromhex("000003e8cbd43194") + b"\0" * 92])
def test_bytes_before_the_end_must_be_records(behind: bytes) -> None:
    data = buffer_of([], behind)
    with pytest.raises(CorruptLog):
        RocketmqFormat().split(data, 0, len(data), 0)


def test_undecompressable_body_is_damage() -> None:
    broken = message(0, "a", b"x" * 50, START_MS, compression="zlib").content
    at = broken.index(b"\x78\x5e") if b"\x78\x5e" in broken else broken.index(b"\x78")
    data = bytearray(broken)
    data[at + 5] ^= 0xFF
    length = int.from_bytes(data[84:88], "big")
    data[8:12] = (zlib.crc32(data[88 : 88 + length]) & 0x7FFFFFFF).to_bytes(4, "big")
    array = np.frombuffer(bytes(data), dtype=np.uint8).copy()
    form = RocketmqFormat()
    table, *_ = form.split(array, 0, len(array), 0)
    with pytest.raises(CorruptLog):
        list(form.opened(array, table))


def test_body_that_decompresses_beyond_the_limit_is_refused() -> None:
    data = buffer_of([message(0, "a", b"x" * 100_000, START_MS, compression="zstd")])
    form = RocketmqFormat(plain_limit=1000)
    table, *_ = form.split(data, 0, len(data), 0)
    with pytest.raises(OutOfMemoryBudget):
        list(form.opened(data, table))


def test_invalid_index_unit_is_found() -> None:
    some = [message(n, "a", b"body", START_MS + n) for n in range(3)]
    data = buffer_of(some)
    table = RocketmqFormat().split(data, 0, len(data), 0)[0]
    rows = [
        (each["origin"], each["size"], 0, each["max_timestamp"], each["base_offset"], 1, -1, 0)
        for each in table
    ]
    units = np.frombuffer(b"".join(BATCH_UNIT.pack(*map(int, row)) for row in rows), np.uint8)
    assert compare_units(units.copy(), table, 0) == (FITS, 0)
    assert compare_units(units[:-1].copy(), table, 0) == (NONE, 2)
    never_written, moved = units.copy(), units.copy()
    never_written[BATCH_UNIT.size :] = 0
    moved[BATCH_UNIT.size + 7] ^= 1
    assert compare_units(never_written, table, 0) == (NONE, 1)
    assert compare_units(moved, table, 0) == (PLACE, 1)
