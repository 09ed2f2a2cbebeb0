"""Tests of the kernels for Pulsar's entries and the format built from them, against the slow
reader.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.encoding.fingerprint import SECRET_WORDS, fingerprint, secret_from
from lastwrite.errors import CorruptLog, LogError, OutOfMemoryBudget, UnsupportedFormat
from lastwrite.model.columns import (
    ABORTED,
    COPY,
    DROP,
    IN_GROUP,
    IS_ABORTED,
    IS_TRANSACTIONAL,
    NO_HORIZON,
    REBUILD,
    ROW_COLUMNS,
    BatchTable,
    ByteArray,
)
from lastwrite.pulsar.format.chunk import KEEPS_PREFIX, LIKE_BROKER, TELLS_GROUPS, PulsarFormat
from lastwrite.pulsar.format.codecs import PulsarCodec, PulsarCodecs
from lastwrite.pulsar.format.entry import (
    Metadata,
    PulsarMessage,
    decode_entry,
    encode_batch,
    encode_entry,
    encode_single,
    patched,
    plain_payload,
    rebatched,
)
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.format.survey import EntrySurveyor
from tests.support.pulsar.bytes import EXAMPLES
from tests.support.pulsar.drawn import (
    START_MS,
    as_records,
    buffer_of,
    data_object,
    entries,
    slots_of,
)

SECRET = secret_from(bytes(range(1, 9)) * SECRET_WORDS)
LEDGER = 10
BASE = LEDGER << 32
SINGLE = encode_entry(*encode_single(PulsarMessage(key=b"k", value=b"v", publish_time=START_MS)))


def walked(
    form: PulsarFormat, buffer: ByteArray, table: BatchTable
) -> tuple[list[int], list[tuple[int, bytes, int]]]:
    """The states of all records, and ordinal, key and version of those that compete for a key."""
    records = int(table["records"].sum())
    states = np.full(records, 255, dtype=np.uint8)
    found = np.zeros((records + 1, 3), dtype=np.uint64)
    keys = np.zeros((records + 1, 2), dtype=np.int64)
    competing: list[tuple[int, bytes, int]] = []
    filled = at = 0
    for run in form.opened(buffer, table):
        before = filled
        filled = form.walk(run, table, SECRET, at + 5, states[at:], found, filled, keys)
        for (one, two, version), (start, length) in zip(
            found[before:filled].tolist(), keys[before:filled].tolist(), strict=True
        ):
            first, second = fingerprint(run.plain, start, length, SECRET)
            assert one == int(first)
            assert two >> 32 == int(second) >> 32
            competing.append(
                ((two & 0xFFFFFFFF) - 5, run.plain[start : start + length].tobytes(), version)
            )
        at += int(table["records"][run.first : run.last].sum())
    assert at == records
    return states.tolist(), competing


def rebuilt(
    form: PulsarFormat,
    buffer: ByteArray,
    table: BatchTable,
    keep: Sequence[int],
    has_room: bool = True,
) -> list[tuple[bytes, int]]:
    """The remaining entries for the flags ``keep``, with the number of records in each."""
    kept = np.array(keep, dtype=np.uint8)
    actions = np.empty(len(table), dtype=np.uint8)
    at = 0
    for b, records in enumerate(table["records"].tolist()):
        here = kept[at : at + records]
        at += records
        actions[b] = DROP if not here.any() else COPY if here.all() else REBUILD
    rows = np.empty((len(table), ROW_COLUMNS), dtype=np.int64)
    horizons = np.full(len(table), NO_HORIZON)
    out = np.empty(form.rebuilt_size(table, len(keep)) if has_room else 0, dtype=np.uint8)
    out, size, filled = form.rebuild(buffer, table, actions, horizons, kept, out, rows)
    stays = table[actions != DROP]
    rows = rows[:filled]
    assert size == int(rows[:, 1].sum())
    assert rows[:, 0].tolist() == [0, *np.cumsum(rows[:, 1]).tolist()[:-1]][:filled]
    for column, name in ((2, "next_offset"), (3, "max_timestamp"), (4, "base_offset")):
        assert rows[:, column].tolist() == stays[name].tolist()
    return [(out[row[0] : row[0] + row[1]].tobytes(), int(row[5])) for row in rows]


def group_number(uuid: bytes) -> int:
    """The number that the chunks of one message share as their version, without the chunk flag."""
    return int(fingerprint(buffer_of(uuid), 0, len(uuid), SECRET)[0]) & ~IN_GROUP


def split_whole(
    form: PulsarFormat, data: bytes, lowest: int = BASE
) -> tuple[ByteArray, BatchTable]:
    buffer = buffer_of(data)
    table, consumed, wanted, held = form.split(buffer, 0, len(buffer), lowest)
    assert (held is buffer, consumed, wanted) == (True, len(data), -1)
    return buffer, table


@given(
    st.lists(entries(), max_size=8),
    st.integers(0, 7),
    st.integers(200, 900),
    st.booleans(),
    st.data(),
)
def test_round_on_random_entries_equals_the_slow_reader(
    bodies: list[bytes], reading: int, block_bytes: int, is_compacted: bool, data: st.DataObject
) -> None:
    positions = [Position(LEDGER, 3 * n + 1 if is_compacted else n) for n in range(len(bodies))]
    laid = as_records(bodies, positions) if is_compacted else bodies
    form = PulsarFormat(reading=reading)
    buffer, table = split_whole(form, data_object(laid, 0, block_bytes))
    assert len(table) == len(bodies)
    decoded = [
        decode_entry(body, *position) for body, position in zip(bodies, positions, strict=True)
    ]
    for row, entry, body in zip(table, decoded, bodies, strict=True):
        assert (
            row["base_offset"]
            == row["next_offset"] - 1
            == Position(entry.ledger, entry.entry).offset
        )
        assert buffer[row["position"] : row["position"] + row["size"]].tobytes() == body
        assert row["max_timestamp"] == entry.metadata.publish_time
        txn = entry.metadata.transaction
        assert bool(row["flags"] & IS_TRANSACTIONAL) == (txn is not None and not entry.is_marker)
        assert row["producer_id"] == (-1 if txn is None else txn[0] << 48 | txn[1])

    states, competing = walked(form, buffer, table)
    group_of = group_number if reading & TELLS_GROUPS else None
    slots = [slots_of(entry, bool(reading & LIKE_BROKER), group_of) for entry in decoded]
    expected_states: list[int] = []
    expected_keys: list[tuple[int, bytes, int]] = []
    keep: list[int] = []
    expected: list[tuple[bytes, int]] = []
    for entry, body, some, records in zip(
        decoded, bodies, slots, table["records"].tolist(), strict=True
    ):
        bare = body if reading & KEEPS_PREFIX else body[len(entry.prefix) :]
        if some is None:
            stays = data.draw(st.booleans())
            expected_states += [0] * records
            keep += [stays] * records
            assert records
            if stays:
                expected.append((bare, records))
            continue
        assert records == len(some)
        for slot in some:
            if slot.key is not None:
                expected_keys.append((len(expected_states), slot.key, slot.version))
            expected_states.append(slot.state)
        keeps = [slot.state != 8 and data.draw(st.booleans()) for slot in some]
        keep += keeps
        if any(keeps):
            says = (
                entry.metadata.compacted_batch_indexes
                and entry.metadata.uncompressed_size is not None
            )
            if entry.is_readable_batch and not (all(keeps) and says):
                held = {slot.index for slot, stays in zip(some, keeps, strict=True) if stays}
                again = rebatched(entry, held.__contains__)
                assert again is not None
                bare = again if reading & KEEPS_PREFIX else again[len(entry.prefix) :]
            expected.append((bare, sum(keeps)))
    assert states == expected_states
    assert competing == expected_keys
    made = rebuilt(form, buffer, table, keep, has_room=data.draw(st.booleans()))
    for (one, left), (other, count) in zip(made, expected, strict=True):
        assert left == count
        assert alike(one) == alike(other)


def alike(body: bytes) -> tuple[object, ...]:
    """The entry's parts, with decompressed payload if possible."""
    entry = decode_entry(body, 0, 0)
    assert entry.crc_holds is not False
    payload = entry.payload
    if entry.is_readable_batch:
        try:
            payload = plain_payload(entry)
        except LogError:
            pass
    return entry.prefix, entry.checksum is None, entry.metadata_bytes, payload


@given(st.lists(entries(), min_size=1, max_size=8), st.integers(150, 900), st.data())
def test_chunks_may_end_anywhere(
    bodies: list[bytes], block_bytes: int, data: st.DataObject
) -> None:
    content = data_object(bodies, 0, block_bytes)
    whole = PulsarFormat()
    _, expected = split_whole(whole, content)
    expected_origins = expected["origin"].tolist()
    form, buffer = PulsarFormat(), buffer_of(content)
    at, lowest, origins = 0, BASE, []
    while at < len(content):
        end = data.draw(st.integers(at + 1, len(content)))
        while True:
            table, at, wanted, _ = form.split(buffer, at, end, lowest)
            origins += table["origin"].tolist()
            if len(table):
                lowest = int(table["next_offset"][-1])
            if at >= end or wanted < 0:
                break
            assert wanted > end - at
            assert wanted <= len(content) - at
            end = at + wanted
    assert origins == expected_origins


def test_documented_examples_are_walked_and_rebuilt() -> None:
    form = PulsarFormat()
    names = ("A", "D", "K", "I")
    buffer, table = split_whole(form, data_object([EXAMPLES[name] for name in names]))
    assert table["records"].tolist() == [1, 3, 3, 0]
    first = rebuilt(form, buffer, table, [0, 0, 0, 1, 0, 0, 1])
    laid = as_records([body for body, _ in first], [Position(10, 1), Position(10, 2)])
    assert laid == [EXAMPLES["N0"], EXAMPLES["N1"]]
    buffer, table = split_whole(form, data_object(laid), 0)
    assert table["base_offset"].tolist() == [BASE + 1, BASE + 2]
    assert walked(form, buffer, table) == ([0, 0], [(0, b"k1", 0), (1, b"k4", 0)])
    assert rebuilt(form, buffer, table, [0, 1]) == first[1:]
    assert [body for body, _ in rebuilt(form, buffer, table, [1, 1])] == [body for body, _ in first]


@pytest.mark.parametrize("codec", PulsarCodec)
def test_payload_is_copied_if_all_messages_stay(codec: PulsarCodec) -> None:
    some = [
        PulsarMessage(key=b"k%d" % n, value=b"value" * n, publish_time=START_MS)
        for n in range(1, 40)
    ]
    meta, payload = encode_batch(some, codec=codec)
    form = PulsarFormat()
    buffer, table = split_whole(form, data_object([encode_entry(meta, payload)]))
    ((body, left),) = rebuilt(form, buffer, table, [1] * 39)
    entry = decode_entry(body, 0, 0)
    assert (entry.payload, left, entry.crc_holds) == (payload, 39, True)
    size = len(
        PulsarCodecs().decompress(codec, payload, meta.uncompressed_size or len(payload), 1 << 20)
    )
    assert entry.metadata_bytes == patched(meta.encode(), range(39), size)


def test_aborted_messages_do_not_compete_for_a_key() -> None:
    some = [PulsarMessage(key=b"a", value=b"v", publish_time=START_MS)] * 3
    form = PulsarFormat()
    buffer, table = split_whole(
        form, data_object([encode_entry(*encode_batch(some)), SINGLE, SINGLE])
    )
    table["flags"][:2] |= IS_ABORTED
    assert walked(form, buffer, table) == ([ABORTED] * 4 + [0], [(4, b"k", 2)])


def test_only_requested_batches_are_decompressed() -> None:
    some = [PulsarMessage(key=b"a", value=b"v", publish_time=START_MS)] * 3
    bodies = [encode_entry(*encode_batch(some, codec=codec)) for codec in PulsarCodec]
    form = PulsarFormat()
    buffer, table = split_whole(form, data_object(bodies))
    wanted = np.array([0, 1, 1, 0, 1], dtype=np.uint8)
    runs = [(run.first, run.last) for run in form.opened(buffer, table, wanted)]
    assert runs == [(1, 3), (4, 5)]
    assert [
        form.records_below(run, table[0], BASE + n)
        for run in form.opened(buffer, table[:1])
        for n in (0, 1)
    ] == [
        0,
        3,
    ]


def test_runs_end_at_the_memory_limit() -> None:
    some = [
        PulsarMessage(key=b"k%d" % n, value=b"v" * 1000, publish_time=START_MS) for n in range(10)
    ]
    body = encode_entry(*encode_batch(some, codec=PulsarCodec.LZ4))
    form = PulsarFormat(plain_limit=25_000)
    buffer, table = split_whole(form, data_object([body] * 5))
    assert [run.last - run.first for run in form.opened(buffer, table)] == [2, 2, 1]
    form = PulsarFormat(plain_limit=9_999)
    buffer, table = split_whole(form, data_object([SINGLE, body]))
    runs = form.opened(buffer, table)
    assert next(runs).last == 1
    with pytest.raises(OutOfMemoryBudget, match="decompresses to"):
        next(runs)


def harmed(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


OBJECT = data_object([SINGLE] * 3)
SECOND = 128 + 12 + len(SINGLE)  # where the second entry begins


@pytest.mark.parametrize(
    ("data", "words", "at"),
    [
        (harmed(OBJECT, SECOND, b"\x9c"), "no entry, block or padding", SECOND),
        (harmed(OBJECT, SECOND, b"\xde\xad\xfe\xdc"), "no entry, block or padding", SECOND),
        (harmed(OBJECT, SECOND, b"\xfe\xdc\xde\xad\x00"), "padding ends", SECOND + 4),
        (harmed(OBJECT, 3, b"\xcc"), "block header", 0),
        (harmed(OBJECT, 11, b"\x7f"), "block header", 0),
        (harmed(OBJECT, 12, b"\xff"), "block header", 0),
        (harmed(OBJECT, 27, b"\x01"), "entry id does not follow", 132),
        (harmed(OBJECT, SECOND + 11, b"\x02"), "entry id does not follow", SECOND + 4),
        (harmed(OBJECT, SECOND + 20, b"\x02"), "checksum", SECOND + 14),
        (harmed(OBJECT, SECOND, b"\0\0\0\x03"), "shorter than its smallest", SECOND),
        (data_object([b"\x0e\x01\0\0\0"]), "length fields", 140),
        (data_object([b"\x0e\x02\0\0\0\x09"]), "length fields", 140),
        (data_object([b"\0\0\0\x05\x0a\x01"]), "length fields", 140),
        (data_object([encode_entry(b"\x0a\x01p\x10\x07", checksum=False)]), "metadata", 149),
        (data_object([encode_entry(b"\x0a\x09p", checksum=False)]), "metadata", 144),
        (data_object([encode_entry(b"\x0b", checksum=False)]), "metadata", 144),
        (data_object([b"\0\0\0\x02\x08\x01\0\0\0\0"]), "record", 144),
        (data_object([b"\0\0\0\x04\x08\x01\x10\x01\0\0\0\x09ab"]), "record", 140),
    ],
)
def test_damage_is_named(data: bytes, words: str, at: int) -> None:
    form, buffer = PulsarFormat(), buffer_of(data)
    start, lowest = 0, BASE
    with pytest.raises(CorruptLog, match=words) as raised:
        while start < len(data):
            table, start, _, _ = form.split(buffer, start, len(buffer), lowest)
            lowest = int(table["next_offset"][-1])
    assert raised.value.at == at


def test_id_that_does_not_fit_in_an_offset_is_refused() -> None:
    form = PulsarFormat()
    for body in (b"\0\0\0\x08" + b"\x08\x80\x80\x80\x80\x08\x10\x01" + b"\0\0\0\x04abcd", SINGLE):
        data = buffer_of(data_object([body], 1 << 32))
        with pytest.raises(UnsupportedFormat, match="2\\^32"):
            form.split(data, 0, len(data), BASE)
    meta = Metadata(
        producer_name="p",
        sequence_id=0,
        publish_time=0,
        txnid_most_bits=1 << 15,
        txnid_least_bits=0,
    )
    data = buffer_of(data_object([encode_entry(meta)]))
    with pytest.raises(UnsupportedFormat, match="transaction"):
        form.split(data, 0, len(data), BASE)


def test_entries_out_of_order_are_damage() -> None:
    form, data = PulsarFormat(), buffer_of(data_object([SINGLE] * 2))
    with pytest.raises(CorruptLog, match="entry id does not follow"):
        form.split(data, 0, len(data), BASE + 1)
    records = as_records([SINGLE] * 2, [Position(10, 4), Position(10, 4)])
    data = buffer_of(data_object(records))
    table, consumed, wanted, _ = form.split(data, 0, len(data), 0)
    assert (len(table), wanted) == (1, -1)
    with pytest.raises(CorruptLog, match="entry id does not follow"):
        form.split(data, consumed, len(data), int(table["next_offset"][0]))


@given(st.lists(entries(), max_size=8))
def test_survey_needs_no_payload(bodies: list[bytes]) -> None:
    surveyor, buffer = EntrySurveyor(), buffer_of(data_object(bodies))
    found, consumed, wanted = surveyor.take(buffer, 0, len(buffer), BASE)
    assert (consumed, wanted, len(found)) == (len(buffer), -1, len(bodies))
    _, table = split_whole(PulsarFormat(), data_object(bodies))
    for row, one, body, number in zip(table, found, bodies, range(len(bodies)), strict=True):
        entry = decode_entry(body, LEDGER, number)
        assert (one["offset"], one["position"]) == (BASE + number, row["origin"])
        assert (one["records"], one["publish_time"]) == (
            row["records"],
            entry.metadata.publish_time,
        )
        marker = entry.metadata.marker_type
        assert one["marker"] == (-1 if marker is None else marker)
        assert one["transaction"] == row["producer_id"]
        chunks = entry.metadata.num_chunks_from_msg or 0
        assert one["is_part"] == (chunks > 1 and (entry.metadata.chunk_id or 0) < chunks - 1)
        if entry.is_batch and entry.is_encrypted and not entry.is_marker:
            assert one["messages"] == max(1, entry.metadata.num_messages_in_batch or 0)
        else:
            assert one["messages"] == row["records"]
