"""Tests of the compiled kernels against the slow ``kafka.format.batch``: same bytes in, same bytes
out.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.encoding.compression import Codec
from lastwrite.encoding.fingerprint import SECRET_WORDS, secret_from
from lastwrite.errors import CorruptLog
from lastwrite.kafka.format.batch import decode_batch, encode_batch, rebuild_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.chunk import KafkaFormat
from lastwrite.model.columns import COPY, DROP, EMPTY, KEYLESS, NO_HORIZON, REBUILD, TOMBSTONE

SECRET = secret_from(os.urandom(SECRET_WORDS * 8))
START = 1_700_000_000_000


@st.composite
def records(draw: st.DrawFn, base: int) -> list[Record]:
    places = sorted(draw(st.sets(st.integers(0, 300), max_size=12)))
    content = st.none() | st.binary(max_size=40) | st.binary(min_size=60, max_size=200)
    stamps = st.integers(START - 1000, START + 1000) | st.sampled_from([-1, 0, 2**62])
    headers = st.lists(
        st.tuples(st.binary(max_size=5), st.none() | st.binary(max_size=80)), max_size=3
    )
    return [
        Record(
            base + place,
            draw(stamps),
            draw(content),
            draw(content),
            tuple(draw(headers)) if draw(st.booleans()) else (),
        )
        for place in places
    ]


@st.composite
def batches(draw: st.DrawFn) -> list[bytes]:
    """One to four batches with gaps between and within them. Some are empty, have a horizon or
    append time.
    """
    out, base = [], draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(1, 4))):
        found = draw(records(base))
        last = (found[-1].offset if found else base) + draw(st.integers(0, 3))
        append_time = draw(st.booleans()) if found else False
        out.append(
            encode_batch(
                found,
                base_offset=base,
                last_offset=last,
                codec=draw(st.sampled_from(list(Codec))),
                append_time=append_time,
                delete_horizon_ms=draw(st.none() | st.just(START + 77)) if found else None,
                leader_epoch=draw(st.integers(-1, 9)),
                max_timestamp_ms=START + 5 if append_time else None,
            )
        )
        base = last + 1 + draw(st.integers(0, 9))
    return out


def array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, dtype=np.uint8).copy()


@given(batches())
def test_split_and_walk_equal_the_slow_decoder(encoded: list[bytes]) -> None:
    data = b"".join(encoded)
    format, buffer = KafkaFormat(), array(data)
    table, consumed, wanted, _ = format.split(buffer, 0, len(buffer), 0)
    assert (consumed, wanted) == (len(data), -1)
    states, entries = np.zeros(1000, np.uint8), np.zeros((1000, 2), np.uint64)
    keys = np.zeros((1000, 2), np.int64)
    at = filled = 0
    seen_keys: list[bytes] = []
    for run in format.opened(buffer, table):
        before = filled
        filled = format.walk(run, table, SECRET, at, states[at:], entries, filled, keys)
        at += int(table["records"][run.first : run.last].sum())
        seen_keys += [run.plain[k : k + n].tobytes() for k, n in keys[before:filled]]
    place = 0
    expected_states, expected_keys, ordinals = [], [], []
    for row, raw in zip(table, encoded, strict=True):
        twin = decode_batch(raw, 0)
        assert int(row["position"]) == place and int(row["size"]) == len(raw)
        assert (
            int(row["base_offset"]) == twin.header.base_offset
            and int(row["next_offset"]) == twin.header.next_offset
        )
        assert (
            int(row["records"]) == len(twin.records)
            and int(row["max_timestamp"]) == twin.header.max_timestamp_ms
        )
        horizon = twin.header.delete_horizon_ms
        assert int(row["horizon"]) == (NO_HORIZON if horizon is None else horizon)
        for record in twin.records:
            if record.key is None:
                expected_states.append(KEYLESS)
            else:
                expected_keys.append(record.key)
                ordinals.append(len(expected_states))
                expected_states.append(TOMBSTONE if record.value is None else 0)
        place += len(raw)
    assert states[:at].tolist() == expected_states
    assert seen_keys == expected_keys
    assert (entries[:filled, 1] & np.uint64(0xFFFFFFFF)).tolist() == ordinals
    by_key = {}
    for key, one, two in zip(
        expected_keys,
        entries[:filled, 0].tolist(),
        (entries[:filled, 1] >> np.uint64(32)).tolist(),
        strict=True,
    ):
        assert by_key.setdefault(key, (one, two)) == (one, two)
    assert len(set(by_key.values())) == len(by_key)


@given(batches(), st.data())
def test_rebuild_equals_the_slow_encoder(encoded: list[bytes], data: st.DataObject) -> None:
    format, buffer = KafkaFormat(), array(b"".join(encoded))
    table = format.split(buffer, 0, len(buffer), 0).table.copy()
    total = int(table["records"].sum())
    keep = np.array(
        data.draw(st.lists(st.booleans(), min_size=total, max_size=total)), dtype=np.uint8
    )
    actions, horizons = np.zeros(len(table), np.uint8), np.array(table["horizon"])
    expected: list[bytes] = []
    at = 0
    for b, raw in enumerate(encoded):
        twin = decode_batch(raw, 0)
        chosen = [
            record
            for record, stays in zip(twin.records, keep[at : at + len(twin.records)], strict=True)
            if stays
        ]
        at += len(twin.records)
        horizon = twin.header.delete_horizon_ms
        if not chosen:
            actions[b] = data.draw(st.sampled_from([EMPTY, DROP]))
            if actions[b] == EMPTY:
                expected.append(rebuild_batch(twin.header, []))
            continue
        if horizon is None and data.draw(st.booleans()):
            horizons[b] = horizon = START + 86_400_000
        elif len(chosen) == len(twin.records):
            actions[b] = COPY
            expected.append(raw)
            continue
        actions[b] = REBUILD
        expected.append(rebuild_batch(twin.header, chosen, delete_horizon_ms=horizon))
    out = np.zeros(format.rebuilt_size(table, total), np.uint8)
    rows = np.zeros((len(table), 5), np.int64)
    out, size, filled = format.rebuild(buffer, table, actions, horizons, keep, out, rows)
    assert filled == len(expected)
    for row, want in zip(rows[:filled].tolist(), expected, strict=True):
        position, length, next_offset, largest, base_offset = row
        found = out[position : position + length].tobytes()
        twin = decode_batch(want, 0)
        header = twin.header
        assert (next_offset, largest, base_offset) == (
            header.next_offset,
            header.max_timestamp_ms,
            header.base_offset,
        )
        assert found == want
    assert size == sum(len(want) for want in expected)


@given(batches(), st.data())
def test_flipped_bit_after_the_crc_is_found(encoded: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(encoded)
    starts = [sum(map(len, encoded[:n])) for n in range(len(encoded))]
    n = data.draw(st.integers(0, len(encoded) - 1))
    place = starts[n] + data.draw(st.integers(17, len(encoded[n]) - 1))
    broken = array(whole)
    broken[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptLog) as caught:
        KafkaFormat().split(broken, starts[n], len(broken), 0)
    assert starts[n] <= caught.value.at < starts[n] + len(encoded[n])


def cut(encoded: bytes) -> Sequence[int]:
    return [0, 1, 16, 17, 60, 61, len(encoded) - 1]


def test_split_requests_the_bytes_of_a_truncated_batch() -> None:
    encoded = encode_batch([Record(5, START, b"k", b"v" * 100)])
    buffer = array(encoded)
    for end in cut(encoded):
        table, consumed, wanted, _ = KafkaFormat().split(buffer, 0, end, 0)
        assert (len(table), consumed) == (0, 0)
        assert wanted == (len(encoded) if end >= 17 else 0 if end else -1)


def test_offsets_must_rise_across_batches() -> None:
    later, sooner = (
        encode_batch([Record(9, START, b"k", b"v")]),
        encode_batch([Record(3, START, b"k", b"v")]),
    )
    buffer = array(later + sooner)
    format = KafkaFormat()
    _, consumed, _, _ = format.split(buffer, 0, len(buffer), 0)
    assert consumed == len(later)
    with pytest.raises(CorruptLog, match="offsets"):
        format.split(buffer, consumed, len(buffer), 10)
