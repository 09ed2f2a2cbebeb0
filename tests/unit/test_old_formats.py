"""Tests of message formats v0 and v1 against bytes of Kafka's own classes, and of malformed
messages.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.encoding.compression import Codec, compress
from lastwrite.errors import CorruptLog, LogError, OutOfMemoryBudget, TruncatedLog
from lastwrite.kafka.format.batch import decode_batch, decode_batch_header, rebuild_batch
from lastwrite.kafka.format.batch_layout import Batch, Record
from tests.support.kafka.old_entries import encode_message, encode_wrapper

TWO = (Record(0, 283843, b"key1", b"value1"), Record(1, 1234, b"key2", b"value2"))
V1 = bytes.fromhex(
    "0000000000000000000000200685b364010000000000000454c3000000046b6579310000000676616c756531"
)
V1_LZ4 = bytes.fromhex(
    "00000000000000010000006c53e1bee7010300000000000454c3ffffffff0000005604224d18604082470000001600010062200685b36401"
    "1000f0050454c3000000046b6579310000000676616c75650a0000020000230050200509300509000002002304d22c00b0320000000676"
    "616c75653200000000"
)
V0_LZ4 = bytes.fromhex(
    "00000000000000010000005603fd7f3a0003ffffffff0000004804224d1860401a3900000016000100511875f0f41d0f00e0046b65793100"
    "00000676616c75650a0000020011012400301bc3a60d00012400b0320000000676616c75653200000000"
)
START = 1_700_000_000_000
CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
MANY = tuple(Record(100 + n, START + n, b"key-%d" % (n % 3), b"value" * n) for n in range(5))


def timeless(records: tuple[Record, ...]) -> tuple[Record, ...]:
    """The records without timestamps, as in message format v0."""
    return tuple(Record(r.offset, -1, r.key, r.value) for r in records)


def resealed(entry: bytes, change: Callable[[bytearray], Any]) -> bytes:
    """Change the entry, then correct its size and checksum."""
    data = bytearray(entry)
    change(data)
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[12:16] = zlib.crc32(data[16:]).to_bytes(4, "big")
    return bytes(data)


def wrapped(inside: bytes, magic: int = 1, codec: Codec = Codec.GZIP, offset: int = 9) -> bytes:
    """A wrapper message around any bytes."""
    shell = encode_wrapper([Record(offset, START, None, b"")], magic, codec)
    blob = compress(codec, inside)
    at = 34 if magic else 26
    return resealed(
        shell,
        lambda data: data.__setitem__(slice(at - 4, None), struct.pack(">i", len(blob)) + blob),
    )


# ---------------------------------------------------------------------- what Kafka wrote


def test_kafkas_messages_round_trip() -> None:
    crcs = {(0, 0): 1978725405, (0, 1): 1964753830, (1, 0): 109425508, (1, 1): 84488197}
    for (magic, n), crc in crcs.items():
        encoded = encode_message(TWO[n], magic)
        assert decode_batch_header(encoded, 0).crc == crc
        assert decode_batch(encoded, 0).records == (TWO[n] if magic else timeless(TWO)[n],)
    assert encode_message(TWO[0], 1) == V1


@pytest.mark.parametrize(
    ("encoded", "magic", "crc"), [(V1_LZ4, 1, 1407303399), (V0_LZ4, 0, 66944826)]
)
def test_kafkas_wrappers_round_trip(encoded: bytes, magic: int, crc: int) -> None:
    batch = decode_batch(encoded, 0)
    header = batch.header
    assert batch.records == (TWO if magic else timeless(TWO))
    assert (header.magic, header.crc, header.size_bytes) == (magic, crc, len(encoded))
    assert (header.base_offset, header.last_offset, header.record_count) == (0, 1, 2)
    assert (header.partition_leader_epoch, header.producer_id, header.producer_epoch) == (
        -1,
        -1,
        -1,
    )
    assert (header.base_sequence, header.delete_horizon_ms, header.last_sequence) == (-1, None, -1)
    assert header.max_timestamp_ms == (283843 if magic else -1)
    assert batch.attributes.codec is Codec.LZ4
    assert encode_wrapper(TWO, magic, Codec.LZ4) == encoded


def test_header_agrees_with_the_decoded_entry() -> None:
    for encoded in (V1, V1_LZ4, V0_LZ4):
        header, whole = decode_batch_header(encoded[:30], 0), decode_batch(encoded, 0).header
        assert header == whole._replace(
            base_offset=whole.last_offset,
            last_offset_delta=0,
            record_count=1,
            base_timestamp_ms=whole.max_timestamp_ms,
        )


@pytest.mark.parametrize("encoded", [V1, V1_LZ4, V0_LZ4])
def test_entry_is_decoded_among_other_bytes_and_refused_if_truncated(encoded: bytes) -> None:
    assert decode_batch(b"xyz" + encoded + b"\xff", 3) == decode_batch(encoded, 0)
    for cut in range(len(encoded)):
        with pytest.raises(TruncatedLog):
            decode_batch(encoded[:cut], 0)


@pytest.mark.parametrize("encoded", [V1, V1_LZ4, V0_LZ4])
def test_every_flipped_bit_after_the_crc_is_found(encoded: bytes) -> None:
    for place in range(16, len(encoded)):
        flipped = bytearray(encoded)
        flipped[place] ^= 1 << (place % 8)
        with pytest.raises(CorruptLog):
            decode_batch(flipped, 0)


# ---------------------------------------------------------------------- what the formats can say


contents = st.none() | st.binary(max_size=300)


@given(
    st.lists(
        st.tuples(st.integers(1, 9), contents, contents, st.integers(-1, 2**62)),
        min_size=1,
        max_size=20,
    ),
    st.integers(0, 1),
    st.sampled_from(CODECS),
    st.none() | st.integers(0, 2**62),
    st.integers(0, 2**40),
)
def test_encoded_messages_round_trip(
    drawn: list[tuple[int, bytes | None, bytes | None, int]],
    magic: int,
    codec: Codec,
    append_ms: int | None,
    base: int,
) -> None:
    records = []
    for step, key, value, time in drawn:
        base += step
        records.append(Record(base, time, key, value))
    for record in records:
        assert decode_batch(encode_message(record, magic), 0).records == (
            (record,) if magic else timeless((record,))
        )
    batch = decode_batch(encode_wrapper(records, magic, codec, append_time_ms=append_ms), 0)
    assert batch.attributes.append_time == (magic == 1 and append_ms is not None)
    if not magic:
        assert batch.records == timeless(tuple(records))
    elif append_ms is None:
        assert batch.records == tuple(records)
        assert batch.header.max_timestamp_ms == max(record.timestamp_ms for record in records)
    else:
        assert batch.records == tuple(Record(r.offset, append_ms, r.key, r.value) for r in records)
        assert batch.header.max_timestamp_ms == append_ms


@pytest.mark.parametrize("codec", CODECS)
def test_inner_offsets_may_be_absolute_or_relative(codec: Codec) -> None:
    for inner in ([0, 1, 2, 3, 4], [7, 8, 9, 10, 11], None):
        assert decode_batch(encode_wrapper(MANY, 1, codec, inner_offsets=inner), 0).records == MANY
    holes = [Record(100, 5, b"a", b""), Record(107, 6, b"b", b"")]
    assert decode_batch(encode_wrapper(holes, 1, codec, inner_offsets=[2, 9]), 0).records == tuple(
        holes
    )
    assert decode_batch(encode_wrapper(holes, 0, codec), 0).records == timeless(tuple(holes))


def test_wrapper_at_offset_0_counts_from_0() -> None:
    """Old third-party clients left the wrapper's offset at 0. A broker sets it, so a wrapper at
    offset 0 has one message in a log.
    """
    counted = [Record(n, 5, b"k", b"v") for n in range(3)]
    batch = decode_batch(encode_wrapper(counted, 1, Codec.GZIP, offset=0), 0)
    assert [record.offset for record in batch.records] == [
        0,
        1,
        2,
    ] and batch.header.last_offset == 2
    batch = decode_batch(encode_wrapper(counted[:1], 1, Codec.GZIP), 0)
    assert batch.header.last_offset == batch.header.base_offset == 0


def test_magic_0_messages_in_a_magic_1_wrapper_are_decoded() -> None:
    """KAFKA-4298: the wrapper's rules give the offsets. Without append time there are no
    timestamps.
    """
    encoded = encode_wrapper(MANY, 1, Codec.LZ4, inner_magic=0)
    assert decode_batch(encoded, 0).records == timeless(MANY)
    encoded = encode_wrapper(MANY, 1, Codec.LZ4, inner_magic=0, append_time_ms=77)
    assert {record.timestamp_ms for record in decode_batch(encoded, 0).records} == {77}


def test_lz4_header_checksum_is_checked_only_in_v1() -> None:
    """In v0 it is ignored, in v1 it must be correct."""
    for magic, at in ((0, 26), (1, 34)):
        encoded = encode_wrapper(MANY, magic, Codec.LZ4)
        assert encoded[at : at + 6] == bytes.fromhex("04224d186040")
        for checksum in (0x1A, 0x82, 0x00):
            other = resealed(encoded, lambda data, at=at, hc=checksum: data.__setitem__(at + 6, hc))
            if magic == 0 or checksum == 0x82:
                assert len(decode_batch(other, 0).records) == 5
            else:
                with pytest.raises(CorruptLog, match="lz4"):
                    decode_batch(other, 0)


def test_unknown_attribute_bits_are_ignored() -> None:
    for bits in (0x08, 0x10, 0xF8):
        v0 = resealed(encode_message(TWO[0], 0), lambda data, bits=bits: data.__setitem__(17, bits))
        assert decode_batch(v0, 0).attributes.bits == 0
        v1 = resealed(V1, lambda data, bits=bits: data.__setitem__(17, bits))
        assert decode_batch(v1, 0).attributes.bits == bits & 0x08


@pytest.mark.parametrize("codec", CODECS)
def test_rebuilt_wrapper_has_magic_2_and_ends_with_its_records(codec: Codec) -> None:
    batch = decode_batch(encode_wrapper(MANY, 1, codec), 0)
    rebuilt = decode_batch(rebuild_batch(batch.header, batch.records[1:3], delete_horizon_ms=9), 0)
    assert rebuilt.records == MANY[1:3]
    assert (rebuilt.header.magic, rebuilt.header.base_offset, rebuilt.header.last_offset) == (
        2,
        101,
        102,
    )
    assert (rebuilt.attributes.codec, rebuilt.header.delete_horizon_ms) == (codec, 9)
    emptied = decode_batch(rebuild_batch(batch.header, []), 0).header
    assert (emptied.magic, emptied.base_offset, emptied.last_offset, emptied.record_count) == (
        2,
        100,
        104,
        0,
    )


# ---------------------------------------------------------------------- lies


def check_refused(encoded: bytes, words: str) -> None:
    with pytest.raises(CorruptLog, match=words) as caught:
        decode_batch(b"\xee" * 5 + encoded, 5)
    assert type(caught.value) is CorruptLog and caught.value.at is not None
    assert 5 <= caught.value.at < 5 + len(encoded)


@pytest.mark.parametrize(
    ("place", "contradiction", "words"),
    [
        (0, b"\xff" * 8, "offset"),
        (0, b"\x7f" + b"\xff" * 7, "offset"),
        (17, b"\x04", "codec 4"),
        (17, b"\x05", "codec 5"),
        (17, b"\x07", "codec 7"),
        (26, b"\xff\xff\xff\xfe", "key has length -2"),
        (26, b"\x7f\xff\xff\xff", "key has length"),
        (26, b"\x00\x00\x00\x0b", "key has length 11"),
        (26, b"\x00\x00\x00\x03", "value has length"),
        (34, b"\xff\xff\xff\xff", "value has length -1"),
        (34, b"\xff\xff\xff\xfe", "value has length -2"),
        (34, b"\x00\x00\x00\x05", "value has length 5"),
        (34, b"\x7f\xff\xff\xff", "value has length"),
    ],
)
def test_impossible_field_is_refused(place: int, contradiction: bytes, words: str) -> None:
    check_refused(
        resealed(
            V1,
            lambda data: data.__setitem__(slice(place, place + len(contradiction)), contradiction),
        ),
        words,
    )


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 13, 14, 21])
def test_size_below_the_fields_is_refused(size: int) -> None:
    broken = V1[:8] + size.to_bytes(4, "big", signed=True) + V1[12:]
    with pytest.raises(CorruptLog, match="size|length"):
        decode_batch(broken, 0)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(
    ("inside", "words"),
    [
        (b"", "contains no message"),
        (b"\0" * 16, "truncated"),
        (b"\0" * 40, "size 0"),
        (V1[:-1], "truncated"),
        (V1 + b"\0", "truncated"),
        (V1 + V1, "message before it has offset 0"),
        (V1_LZ4, "contains a wrapper message"),
        (resealed(V1, lambda data: data.__setitem__(16, 2)), "magic 2"),
        (V1[:-1] + b"2", "CRC"),
        (b"\xff" + V1[1:], "offset"),
    ],
)
def test_malformed_wrapper_is_refused(magic: int, inside: bytes, words: str) -> None:
    check_refused(wrapped(inside, magic), words)


def test_empty_wrapper_is_refused() -> None:
    null = resealed(
        V1, lambda data: (data.__setitem__(17, 1), data.__setitem__(slice(26, None), b"\xff" * 8))
    )
    check_refused(null, "null")
    check_refused(encode_message(Record(3, 5, None, b""), 1)[:17] + b"\x01" + V1[18:], "CRC")
    empty = resealed(
        encode_message(Record(3, 5, None, b""), 1), lambda data: data.__setitem__(17, 2)
    )
    with pytest.raises(CorruptLog, match="data are empty"):
        decode_batch(empty, 0)


@pytest.mark.parametrize("magic", [0, 1])
def test_wrapper_with_wrong_offsets_is_refused(magic: int) -> None:
    beyond = wrapped(encode_message(Record(10, 5, b"", b""), magic), magic, offset=9)
    check_refused(beyond, "offset 9")
    wide = [encode_message(Record(offset, 5, b"", b""), magic) for offset in (0, 2**31)]
    check_refused(wrapped(b"".join(wide), magic, offset=2**31), "to 2147483648")
    longest = [wide[0], encode_message(Record(2**31 - 1, 5, b"", b""), magic)]
    assert len(decode_batch(wrapped(b"".join(longest), magic, offset=2**31 - 1), 0).records) == 2


@pytest.mark.parametrize("codec", CODECS)
def test_wrapper_above_the_size_limit_is_refused(codec: Codec) -> None:
    bomb = encode_wrapper([Record(0, 5, None, bytes(4 << 20))], 1, codec)
    with pytest.raises(OutOfMemoryBudget):
        decode_batch(bomb, 0, limit_bytes=1 << 20)


@given(st.binary(max_size=200), st.integers(0, 1), st.booleans())
def test_random_bytes_raise_only_log_errors(noise: bytes, magic: int, inside: bool) -> None:
    data = wrapped(noise, magic) if inside else noise[:16] + bytes([magic]) + noise[17:]
    try:
        batch: Batch | None = decode_batch(data, 0)
    except LogError:
        batch = None
    assert batch is None or batch.header.magic in (0, 1)


def test_unencodable_records_are_refused() -> None:
    with pytest.raises(ValueError, match="no headers"):
        encode_message(Record(0, 1, b"k", b"v", ((b"h", b"x"),)), 1)
    for codec, records in (
        (Codec.NONE, TWO),
        (Codec.ZSTD, TWO),
        (Codec.GZIP, ()),
        (Codec.GZIP, TWO[::-1]),
    ):
        with pytest.raises(ValueError, match="wrapper"):
            encode_wrapper(records, 1, codec)
