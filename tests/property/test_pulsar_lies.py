"""Properties of entries with random bytes and valid checksums.

Malformed entries are reported or kept unchanged, and no stated size causes a large allocation.
"""

from __future__ import annotations

import struct

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.encoding.fingerprint import SECRET_WORDS, secret_from
from lastwrite.errors import CorruptLog, LogError, OutOfMemoryBudget
from lastwrite.model.columns import COPY, DROP, REBUILD, ROW_COLUMNS, SHADOWED
from lastwrite.pulsar.format import kernels
from lastwrite.pulsar.format.chunk import PulsarFormat
from lastwrite.pulsar.format.codecs import PulsarCodec, PulsarCodecs
from lastwrite.pulsar.format.compacted import decode_record, is_record
from lastwrite.pulsar.format.entry import Metadata, decode_entry, encode_entry
from lastwrite.pulsar.format.position import Position
from tests.support.pulsar.drawn import (
    START_MS,
    as_records,
    buffer_of,
    data_object,
    entries,
    slots_of,
)

SECRET = secret_from(bytes(range(1, 9)) * SECRET_WORDS)
BASE = 10 << 32
LIMIT = 1 << 16
UGLY = (
    b"\xff",
    b"\x00",
    b"\x7f",
    b"\x80",
    b"\xff\xff\xff\xff\x07",
    b"\xff" * 9 + b"\x01",
    b"\x7f\xff\xff\xff",
    b"\xf8\x01\x00",
)


@st.composite
def lying(draw: st.DrawFn) -> bytes:
    """An entry with changed bytes and a checksum that is valid for them."""
    body = bytearray(draw(entries()))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(body) - 1))
        new = draw(st.sampled_from(UGLY) | st.binary(min_size=1, max_size=3))
        if draw(st.booleans()):
            body[at : at + len(new)] = new
        else:
            body[at:at] = new
    at = 0
    if body[:2] == b"\x0e\x02" and len(body) >= 6:
        at = min(len(body), 6 + struct.unpack_from(">I", body, 2)[0])
    if body[at : at + 2] == b"\x0e\x01" and len(body) - at >= 6:
        struct.pack_into(">I", body, at + 2, google_crc32c.value(bytes(body[at + 6 :])))
    return bytes(body)


@given(st.lists(lying(), min_size=1, max_size=5), st.booleans(), st.data())
def test_malformed_entries_do_not_crash_a_round(
    bodies: list[bytes], is_compacted: bool, data: st.DataObject
) -> None:
    positions = [Position(10, n) for n in range(len(bodies))]
    laid = as_records(bodies, positions) if is_compacted else bodies
    content = data_object(laid)
    form, buffer = PulsarFormat(LIMIT), buffer_of(content)
    start, lowest, number = 0, BASE, 0
    try:
        while start < len(content):
            table, start, wanted, _ = form.split(buffer, start, len(content), lowest)
            assert wanted == -1
            number += len(table)
            lowest = int(table["next_offset"][-1])
            check_round(form, buffer, table, data)
    except CorruptLog as error:
        if number < len(bodies):
            with pytest.raises(LogError):
                check_slow(laid[number])
                # The slow decoder does not check these.
                assert any(word in error.problem for word in ("checksum", "entry ids"))
                raise
    except OutOfMemoryBudget:
        pass
    except LogError as error:
        assert "not supported" in error.problem


def check_slow(body: bytes) -> None:
    """Decode a raw entry or a record with the slow decoder. Raises its error."""
    inner = body
    if is_record(body):
        _, _, inner = decode_record(body)
    decode_entry(inner, 10, 0)


def check_round(
    form: PulsarFormat, buffer: np.ndarray, table: np.ndarray, data: st.DataObject
) -> None:
    records = int(table["records"].sum())
    assert records <= len(buffer) // 2 + len(table) * (LIMIT // kernels.SMALLEST_MESSAGE)
    states = np.zeros(records, dtype=np.uint8)
    found = np.zeros((records + 1, 3), dtype=np.uint64)
    at = filled = 0
    for run in form.opened(buffer, table):
        assert len(run.plain) <= max(LIMIT, len(buffer))
        filled = form.walk(run, table, SECRET, at, states[at:], found, filled)
        at += int(table["records"][run.first : run.last].sum())
    assert at == records
    whole = [int(kind) == kernels.WHOLE for kind in form.entries["kind"][: len(table)]]
    ends = np.cumsum(table["records"])
    for row, is_whole, end in zip(table, whole, ends, strict=True):
        body = buffer[row["position"] : row["position"] + row["size"]].tobytes()
        try:
            slots = slots_of(decode_entry(body, 10, 0))
        except (LogError, UnicodeDecodeError):
            continue
        here = states[end - row["records"] : end].tolist()
        if is_whole:
            assert not any(here)
        elif slots is not None:
            assert here == [slot.state for slot in slots]
    keep = np.array(
        [data.draw(st.booleans()) for _ in range(min(records, 64))] + [True] * max(0, records - 64),
        dtype=np.uint8,
    )
    keep[states & SHADOWED != 0] = 0
    actions = np.full(len(table), COPY, dtype=np.uint8)
    for b, end in enumerate(ends):
        here = keep[end - table["records"][b] : end]
        if whole[b]:
            here[:] = 1
        if not here.all() or not len(here):
            actions[b] = REBUILD if here.any() else DROP
    out = np.empty(form.rebuilt_size(table, records), dtype=np.uint8)
    rows = np.empty((len(table), ROW_COLUMNS), dtype=np.int64)
    horizons = np.zeros(len(table), dtype=np.int64)
    out, size, count = form.rebuild(buffer, table, actions, horizons, keep, out, rows)
    assert count == int(np.count_nonzero(actions != DROP))
    # The output only grows much for a batch that has bytes for its kept messages only.
    assert size <= 2 * len(buffer) + 9 * records + count * (
        kernels.MOST_DENSE * kernels.PLACEHOLDER_BYTES + 64
    )
    again = PulsarFormat(LIMIT)
    made = [out[row[0] : row[0] + row[1]].tobytes() for row in rows[:count]]
    second = buffer_of(data_object(made))
    if made and not any(is_record(body) for body in made):
        made_table, consumed, _, _ = again.split(second, 0, len(second), BASE)
        assert (len(made_table), consumed) == (len(made), len(second))
        assert made_table["records"].tolist() == [
            row[5] if row[5] else 0 for row in rows[:count].tolist()
        ]


def batch(
    count: int, size: int | None, payload: bytes, codec: PulsarCodec, kept: tuple[int, ...] = ()
) -> bytes:
    meta = Metadata(
        producer_name="p",
        sequence_id=1,
        publish_time=START_MS,
        compression=int(codec),
        uncompressed_size=size,
        num_messages_in_batch=count,
        compacted_batch_indexes=kept,
    )
    return encode_entry(meta, payload)


MESSAGE = bytes.fromhex("000000021800")  # neither a key nor a value


@pytest.mark.parametrize("codec", [codec for codec in PulsarCodec if codec])
@pytest.mark.parametrize("size", [0, 1, 599, 601, 1 << 20, (1 << 32) - 1])
def test_batch_with_a_wrong_size_is_kept_unchanged(codec: PulsarCodec, size: int) -> None:
    payload = PulsarCodecs().compress(codec, MESSAGE * 100)
    states = states_of(batch(100, size, payload, codec))
    if codec is PulsarCodec.ZLIB and size == 599:
        assert states == [0]  # ends inside its last message
    assert not any(states)


@pytest.mark.parametrize("count", [-(2**31), -1, 0, 99, 101, 10**6, 2**31 - 1])
@pytest.mark.parametrize("codec", PulsarCodec)
def test_batch_with_a_wrong_count_is_kept_unchanged(codec: PulsarCodec, count: int) -> None:
    payload = PulsarCodecs().compress(codec, MESSAGE * 100)
    states = states_of(batch(count, 600, payload, codec))
    assert states in ([0], [0] * 99)


def test_wrong_batch_indexes_are_survived() -> None:
    for kept in ((0,), (5, 2), (0, 1, 2, 3), (99,), (-1,), (2**31 - 1,)):
        for count in (1, 3, 50, 10**6, 2**31 - 1):
            states = states_of(batch(count, None, MESSAGE * 3, PulsarCodec.NONE, kept))
            assert states in ([0], [0] * len(kept), [1] * 3)


def test_decompression_bomb_is_refused_or_kept() -> None:
    zeros = bytes(4 << 20)
    for codec in PulsarCodec:
        payload = PulsarCodecs().compress(codec, zeros)
        assert states_of(batch(10, 1000, payload, codec)) in ([0], [0] * 10)
        if codec:
            with pytest.raises(OutOfMemoryBudget, match="decompresses to 4194304"):
                states_of(batch(10, len(zeros), payload, codec))


def states_of(body: bytes) -> list[int]:
    form, buffer = PulsarFormat(LIMIT), buffer_of(data_object([body]))
    table, *_ = form.split(buffer, 0, len(buffer), BASE)
    states = np.zeros(int(table["records"].sum()), dtype=np.uint8)
    found = np.zeros((len(states) + 1, 2), dtype=np.uint64)
    for run in form.opened(buffer, table):
        form.walk(run, table, SECRET, 0, states, found, 0)
    return states.tolist()
