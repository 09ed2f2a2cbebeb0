"""Tests of Kafka's record batch against bytes of Kafka's own classes, and of damaged batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.encoding.compression import Codec, compress
from lastwrite.encoding.varint import encode_varint
from lastwrite.errors import (
    CorruptLog,
    LogError,
    OutOfMemoryBudget,
    TruncatedLog,
    UnsupportedFormat,
)
from lastwrite.kafka.format.batch import (
    ControlType,
    decode_batch,
    decode_batch_header,
    decode_control_record,
    encode_batch,
    iter_batches,
    rebuild_batch,
    seal_batch,
)
from lastwrite.kafka.format.batch_layout import (
    BATCH_HEADER,
    Batch,
    BatchAttributes,
    BatchHeader,
    Record,
    decode_attributes,
)
from tests.support.kafka.single import encode_control_record

TWO = (Record(0, 283843, b"key1", b"value1"), Record(1, 1234, b"key2", b"value2"))
TWO_BYTES = bytes.fromhex(
    "000000000000000000000055ffffffff02e58cf1ff00000000000100000000000454c300000000000454c3ffffffffffffffff"
    "ffffffffffff0000000220000000086b6579310c76616c756531002400e1bf2202086b6579320c76616c75653200"
)
TWO_COMPRESSED = {
    Codec.GZIP: (
        1647778364,
        "1f8b08000000000000ff53606060e0c84ead34e4294bcc294d3564506178b85f890924640411326200005993009b24000000",
    ),
    Codec.SNAPPY: (
        2804541919,
        "82534e4150505900000000010000000100000026248c20000000086b6579310c76616c756531002400e1bf2202086b6579320c"
        "76616c75653200",
    ),
    Codec.LZ4: (
        2745969314,
        "04224d186040822400008020000000086b6579310c76616c756531002400e1bf2202086b6579320c76616c7565320000000000",
    ),
    Codec.ZSTD: (
        1045715214,
        "28b52ffd005820010020000000086b6579310c76616c756531002400e1bf2202086b6579320c76616c75653200010000",
    ),
}
NULLS = (
    Record(1000, 1700000000000, b"k", None, ((b"h1", b"x"), (b"h2", None))),
    Record(1001, 1700000000005, None, b"v"),
)
NULLS_BYTES = bytes.fromhex(
    "00000000000003e80000004a00000007026bade58f0000000000010000018bcfe568000000018bcfe56805ffffffffffffffff"
    "ffffffffffff0000000220000000026b01040468310278046832010e000a0201027600"
)
HORIZON_BEFORE = bytes.fromhex(
    "00000000000000000000004b000003e602b087be600000000000020000000000000005000000000000000fffffffffffffffff"
    "ffffffffffff000000031000000002300230000e000a0202310100100014040232023200"
)
HORIZON_AFTER = bytes.fromhex(
    "000000000000000000000057000003e60277b88261004000000002000000003fffffff000000000000000fffffffffffffffff"
    "ffffffffffff000000031800f3ffffff070002300230001600e9ffffff0702023101001800dfffffff07040232023200"
)
HORIZON_LATER = bytes.fromhex(
    "00000000000000000000004b000003e602324b15d9004000000002000000003fffffff000000000000000fffffffffffffffff"
    "ffffffffffff000000021800f3ffffff070002300230001800dfffffff07040232023200"
)
PRODUCER = bytes.fromhex(
    "00000000000000030000004c0000012502c7f72765000000000002000000000000000d000000000000000f00000000000000170005"
    "0000000a00000003100000000261026400100002020262026500100004040263026600"
)
PRODUCER_ONE_KEPT = bytes.fromhex(
    "00000000000000030000003a000001250220e7e932000000000002000000000000000e000000000000000e00000000000000170005"
    "0000000a00000001100000020262026500"
)
PRODUCER_EMPTIED = bytes.fromhex(
    "0000000000000003000000310000012502f9b208f5000000000002ffffffffffffffff000000000000000f00000000000000170005"
    "0000000a00000000"
)
COMMIT = bytes.fromhex(
    "00000000000003d7000000420000001d02050d7e510030000000000000018bcfe568000000018bcfe568000000000000000049000d"
    "ffffffff000000012000000008000000010c00000000015b00"
)
COMMIT_HORIZON = bytes.fromhex(
    "00000000000003d7000000450000001d02696b9aba0070000000000000018bd50d4aa00000018bcfe568000000000000000049000d"
    "ffffffff000000012600bf8abf520008000000010c00000000015b00"
)
COMMIT_EMPTIED = bytes.fromhex(
    "00000000000003d7000000310000001d0235ed4776003000000000ffffffffffffffff0000018bcfe568000000000000000049000d"
    "ffffffff00000000"
)
APPEND_TIME = bytes.fromhex(
    "000000000000000000000043ffffffff021563f73400080000000100000000000000010000000000001388000000000000004d0001"
    "0000000000000002100000000261027800100002020262027900"
)
APPEND_TIME_THINNED = bytes.fromhex(
    "00000000000000000000003affffffff02b0338cfa00080000000100000000000013880000000000001388000000000000004d0001"
    "0000000000000001100000020262027900"
)
KAFKAS = [
    TWO_BYTES,
    NULLS_BYTES,
    HORIZON_BEFORE,
    HORIZON_AFTER,
    HORIZON_LATER,
    PRODUCER,
    PRODUCER_ONE_KEPT,
    PRODUCER_EMPTIED,
    COMMIT,
    COMMIT_HORIZON,
    COMMIT_EMPTIED,
    APPEND_TIME,
    APPEND_TIME_THINNED,
]


def check_decoder(decode: Callable[[memoryview, int], Any], encoded: bytes, expected: Any) -> None:
    """Decode alone, with bytes after it, with bytes before it, and cut at every byte."""
    assert decode(memoryview(encoded), 0) == expected
    assert decode(memoryview(encoded + b"\xff"), 0) == expected
    assert decode(memoryview(b"\xff\xff\xff" + encoded), 3) == expected
    for cut in range(len(encoded)):
        with pytest.raises(TruncatedLog):
            decode(memoryview(encoded[:cut]), 0)


def resealed(batch: bytes, payload: bytes | None = None, **fields: int) -> bytes:
    """Change fields or the payload of ``batch`` and recompute its CRC, so that only
    they are wrong.
    """
    header = decode_batch_header(batch, 0)._replace(**fields)
    return seal_batch(header, batch[BATCH_HEADER.size :] if payload is None else payload)


# ------------------------------------------------------------------------- Kafka's own bytes


@pytest.mark.parametrize("encoded", KAFKAS)
def test_decoder_accepts_kafkas_batches_and_no_truncation_of_them(encoded: bytes) -> None:
    check_decoder(decode_batch, encoded, decode_batch(encoded, 0))


@pytest.mark.parametrize("encoded", [b for b in KAFKAS if b is not APPEND_TIME])
def test_encoder_reproduces_kafkas_batches(encoded: bytes) -> None:
    batch = decode_batch(encoded, 0)
    horizon_ms = batch.header.delete_horizon_ms
    assert rebuild_batch(batch.header, batch.records, delete_horizon_ms=horizon_ms) == encoded


def test_batch_of_two_records_matches_known_bytes() -> None:
    batch = decode_batch(TWO_BYTES, 0)
    assert batch.records == TWO
    assert batch.header.crc == 0xE58CF1FF
    assert batch.header.size_bytes == 97
    assert (batch.header.last_offset, batch.header.next_offset) == (1, 2)
    assert batch.header.delete_horizon_ms is None
    assert batch.header.last_sequence == -1
    assert batch.attributes == BatchAttributes()
    assert encode_batch(TWO) == TWO_BYTES


@pytest.mark.parametrize("codec", list(TWO_COMPRESSED))
def test_compressed_batch_is_decoded(codec: Codec) -> None:
    crc, payload = TWO_COMPRESSED[codec]
    header = decode_batch_header(TWO_BYTES, 0)._replace(attributes=int(codec))
    encoded = seal_batch(header, bytes.fromhex(payload))
    batch = decode_batch(encoded, 0)
    assert batch.header.crc == crc
    assert batch.records == TWO
    assert batch.attributes == BatchAttributes(codec)
    check_decoder(decode_batch, encoded, batch)
    assert decode_batch(encode_batch(TWO, codec=codec), 0).records == TWO


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_compressed_batch_equals_kafkas_bytes(codec: Codec) -> None:
    header = decode_batch_header(TWO_BYTES, 0)._replace(attributes=int(codec))
    assert encode_batch(TWO, codec=codec) == seal_batch(
        header, bytes.fromhex(TWO_COMPRESSED[codec][1])
    )


def test_null_and_empty_are_distinct() -> None:
    assert decode_batch(NULLS_BYTES, 0).records == NULLS
    assert encode_batch(NULLS, leader_epoch=7) == NULLS_BYTES
    empties = (Record(0, 0, b"", b"", ((b"", b""), (b"", None))), Record(1, 0, None, None))
    assert decode_batch(encode_batch(empties), 0).records == empties


def test_delete_horizon_is_stored_in_the_base_timestamp() -> None:
    before, after, later = (
        decode_batch(b, 0) for b in (HORIZON_BEFORE, HORIZON_AFTER, HORIZON_LATER)
    )
    assert before.header.delete_horizon_ms is None
    assert after.header.delete_horizon_ms == later.header.delete_horizon_ms == 1073741823
    assert before.records == after.records
    assert later.records == (before.records[0], before.records[2])
    assert (
        rebuild_batch(before.header, before.records, delete_horizon_ms=1073741823) == HORIZON_AFTER
    )
    assert rebuild_batch(after.header, later.records, delete_horizon_ms=1073741823) == HORIZON_LATER


def test_batch_keeps_its_sequences_when_records_are_removed() -> None:
    batch = decode_batch(PRODUCER, 0)
    assert [batch.header.sequence_of(r.offset) for r in batch.records] == [10, 11, 12]
    assert batch.header.last_sequence == 12
    assert rebuild_batch(batch.header, batch.records[1:2]) == PRODUCER_ONE_KEPT
    assert rebuild_batch(batch.header, ()) == PRODUCER_EMPTIED
    assert decode_batch(PRODUCER_EMPTIED, 0).records == ()
    assert decode_batch(PRODUCER_EMPTIED, 0).header.next_offset == 6


def test_emptied_batch_has_no_codec_and_no_horizon() -> None:
    compressed = decode_batch(encode_batch(TWO, codec=Codec.ZSTD, delete_horizon_ms=5), 0)
    emptied = decode_batch(rebuild_batch(compressed.header, (), delete_horizon_ms=5), 0)
    assert emptied.attributes == BatchAttributes()
    assert emptied.header.base_timestamp_ms == -1
    assert emptied.header.max_timestamp_ms == compressed.header.max_timestamp_ms


def test_append_time_applies_to_every_record() -> None:
    batch = decode_batch(APPEND_TIME, 0)
    assert [record.timestamp_ms for record in batch.records] == [5000, 5000]
    assert rebuild_batch(batch.header, batch.records[1:]) == APPEND_TIME_THINNED
    as_created = (Record(0, 1, b"a", b"x"), Record(1, 2, b"b", b"y"))
    assert APPEND_TIME == encode_batch(
        as_created,
        append_time=True,
        max_timestamp_ms=5000,
        producer_id=77,
        producer_epoch=1,
        base_sequence=0,
    )


def test_transaction_marker_is_decoded_and_keeps_its_horizon() -> None:
    batch = decode_batch(COMMIT, 0)
    assert batch.attributes.control and batch.attributes.transactional
    (marker,) = batch.records
    control = decode_control_record(marker)
    assert (control.type, control.coordinator_epoch, control.label) == (
        ControlType.COMMIT,
        347,
        "commit",
    )
    assert marker == encode_control_record(983, 1700000000000, ControlType.COMMIT, 347)
    assert (
        rebuild_batch(batch.header, batch.records, delete_horizon_ms=1700086500000)
        == COMMIT_HORIZON
    )
    assert rebuild_batch(batch.header, ()) == COMMIT_EMPTIED


def test_unknown_control_record_is_decoded_or_refused() -> None:
    assert (
        decode_control_record(Record(0, 0, bytes.fromhex("0001000200"), None)).label
        == "leader-change"
    )
    assert (
        decode_control_record(Record(0, 0, bytes.fromhex("00000063"), None)).label == "unknown-99"
    )
    assert (
        decode_control_record(Record(0, 0, bytes.fromhex("0000ffff"), None)).label == "unknown--1"
    )
    for key, value in (
        (None, None),
        (b"\0\0\0", None),
        (b"\xff\xff\0\0", b"\0" * 6),
        (b"\0\0\0\0", None),
        (b"\0\0\0\1", b"\0" * 5),
        (b"\0\0\0\1", b"\xff\xff\0\0\0\0"),
    ):
        with pytest.raises(CorruptLog) as caught:
            decode_control_record(Record(0, 0, key, value), 77)
        assert caught.value.at == 77


# ------------------------------------------------------------------------- lies


@pytest.mark.parametrize("encoded", KAFKAS)
def test_every_flipped_bit_after_the_crc_is_detected(encoded: bytes) -> None:
    for place in range(17, len(encoded)):
        flipped = bytearray(encoded)
        flipped[place] ^= 1 << (place % 8)
        with pytest.raises(CorruptLog):
            decode_batch(flipped, 0)


def test_batches_of_other_magics_are_decoded_or_refused() -> None:
    v1 = bytes.fromhex(
        "0000000000000000000000200685b364010000000000000454c3000000046b6579310000000676616c756531"
    )
    assert decode_batch(b"\0" + v1, 1).records == (Record(0, 283843, b"key1", b"value1"),)
    assert decode_batch(b"\0" + v1, 1).header == decode_batch_header(v1, 0)
    assert [at for at, _ in iter_batches(v1 + TWO_BYTES + v1)] == [0, len(v1), len(v1 + TWO_BYTES)]
    for magic in (3, 127, 128, 255):
        broken = bytearray(TWO_BYTES)
        broken[16] = magic
        with pytest.raises(UnsupportedFormat, match="magic"):
            decode_batch(broken, 0)


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 13, 14, 48])
def test_length_below_a_header_is_refused(length: int) -> None:
    broken = TWO_BYTES[:8] + length.to_bytes(4, "big", signed=True) + TWO_BYTES[12:]
    with pytest.raises(CorruptLog, match="length") as caught:
        decode_batch(broken, 0)
    assert type(caught.value) is CorruptLog and caught.value.at == 8


def test_length_beyond_the_segment_is_a_torn_tail() -> None:
    with pytest.raises(TruncatedLog):
        decode_batch(TWO_BYTES[:8] + b"\x7f\xff\xff\xff" + TWO_BYTES[12:], 0)


@pytest.mark.parametrize(
    ("fields", "at"),
    [
        ({"record_count": -1}, 57),
        ({"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 1}, 61),
        ({"record_count": 3, "last_offset_delta": 5}, 61 + 36),
        ({"record_count": 1}, 61 + 17),
        ({"record_count": 0}, 61),
        ({"record_count": 3}, 57),
        ({"last_offset_delta": -1}, 23),
        ({"last_offset_delta": 0}, 57),
        ({"base_offset": -1}, 0),
        ({"base_offset": 2**63 - 2}, 23),
    ],
)
def test_header_with_an_impossible_field_is_refused(fields: dict[str, int], at: int) -> None:
    with pytest.raises(CorruptLog) as caught:
        decode_batch(b"\xee" * 5 + resealed(TWO_BYTES, **fields), 5)
    assert type(caught.value) is CorruptLog
    assert caught.value.at == 5 + at


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec_is_refused(codec: int) -> None:
    with pytest.raises(UnsupportedFormat, match=f"codec {codec}"):
        decode_batch(resealed(TWO_BYTES, attributes=codec), 0)


def test_high_byte_of_the_attributes_is_ignored() -> None:
    assert decode_attributes(0x7F80) == BatchAttributes()


def record_bytes(*parts: int | bytes, length: int | None = None) -> bytes:
    """A record from its attributes on. Numbers are encoded as varints."""
    body = b"".join(part if isinstance(part, bytes) else encode_varint(part) for part in parts)
    return encode_varint(len(body) if length is None else length) + body


ONE = resealed(TWO_BYTES, b"", record_count=1, last_offset_delta=3)
BROKEN_RECORDS = {
    "negative length": record_bytes(0, 0, 0, -1, -1, 0, length=-1),
    "length too short": record_bytes(0, 0, 0, -1, -1, 0, length=5),
    "length too long": record_bytes(0, 0, 0, -1, -1, 0, length=7),
    "longest length": record_bytes(0, 0, 0, -1, -1, 0, length=2**31 - 1),
    "length without end": b"\xff" * 12,
    "length of six bytes": b"\x8c\x80\x80\x80\x80\x00" + bytes(6),
    "key of length -2": record_bytes(0, 0, 0, -2, -1, 0),
    "key beyond the record": record_bytes(0, 0, 0, 4, b"abc"),
    "value beyond the record": record_bytes(0, 0, 0, -1, 2**31 - 1, b"a", 0),
    "value of length -9": record_bytes(0, 0, 0, -1, -9, 0),
    "negative header count": record_bytes(0, 0, 0, -1, -1, -1),
    "endless headers": record_bytes(0, 0, 0, -1, -1, 2**31 - 1),
    "header without name": record_bytes(0, 0, 0, -1, -1, 1, -1, -1),
    "header value beyond": record_bytes(0, 0, 0, -1, -1, 1, 1, b"n", 3, b"ab"),
    "bytes behind the headers": record_bytes(0, 0, 0, -1, -1, 0, 0),
    "timestamp of eleven bytes": record_bytes(0, b"\xff" * 10 + b"\x01", 0, -1, -1, 0),
    "varint runs out": record_bytes(0, 0, 0, -1, -1, b"\x80"),
    "offset below the base": record_bytes(0, 0, -1, -1, -1, 0),
    "offset above the last": record_bytes(0, 0, 4, -1, -1, 0),
    "bytes behind the record": record_bytes(0, 0, 0, -1, -1, 0) + b"\0",
}


@pytest.mark.parametrize("plain", BROKEN_RECORDS.values(), ids=BROKEN_RECORDS)
@pytest.mark.parametrize("codec", list(Codec))
def test_malformed_records_are_refused(plain: bytes, codec: Codec) -> None:
    with pytest.raises(CorruptLog) as caught:
        decode_batch(resealed(ONE, compress(codec, plain), attributes=int(codec)), 0)
    # Not TruncatedLog, because the file continues after the batch.
    assert type(caught.value) is CorruptLog
    assert caught.value.at is not None and caught.value.at >= 61


def test_offset_that_does_not_rise_is_refused() -> None:
    again = record_bytes(0, 0, 1, -1, -1, 0)
    with pytest.raises(CorruptLog, match="offset delta 1; the record before has 1"):
        decode_batch(resealed(ONE, again + again, record_count=2), 0)


def test_decompression_stops_at_the_size_limit() -> None:
    for codec in (Codec.GZIP, Codec.LZ4, Codec.ZSTD, Codec.SNAPPY):
        bomb = encode_batch([Record(0, 0, b"k", bytes(50_000_000))], codec=codec)
        with pytest.raises(OutOfMemoryBudget):
            decode_batch(bomb, 0, limit_bytes=1_000_000)


def test_compressed_damage_under_a_valid_crc_is_refused() -> None:
    for codec in list(Codec)[1:]:
        payload = compress(codec, bytes(5000))
        for broken in (payload[:-1], payload[: len(payload) // 2], payload[:1], b""):
            with pytest.raises(CorruptLog) as caught:
                decode_batch(resealed(ONE, broken, attributes=int(codec)), 0)
            assert caught.value.at is not None and caught.value.at >= 61


# ------------------------------------------------------------------------- sentences

texts = st.binary(max_size=40)
maybe = st.none() | texts
i64s = st.integers(-(2**63), 2**63 - 1)


@st.composite
def record_lists(draw: st.DrawFn, base: int = 0) -> list[Record]:
    gaps = draw(st.lists(st.integers(1, 1000), min_size=1, max_size=8))
    records, offset = [], base - 1
    for gap in gaps:
        offset += gap
        headers = draw(st.lists(st.tuples(texts, maybe), max_size=3).map(tuple))
        records.append(
            Record(offset, draw(st.integers(-1, 2**62)), draw(maybe), draw(maybe), headers)
        )
    return records


@given(
    records=record_lists(base=70_000_000_000),
    codec=st.sampled_from(Codec),
    transactional=st.booleans(),
    control=st.booleans(),
    horizon_ms=st.none() | i64s,
    producer=st.tuples(i64s, st.integers(-(2**15), 2**15 - 1), st.integers(-(2**31), 2**31 - 1)),
    gap=st.integers(0, 50),
)
def test_encoded_batch_round_trips(
    records: list[Record],
    codec: Codec,
    transactional: bool,
    control: bool,
    horizon_ms: int | None,
    producer: tuple[int, int, int],
    gap: int,
) -> None:
    encoded = encode_batch(
        records,
        base_offset=records[0].offset - gap,
        last_offset=records[-1].offset + gap,
        codec=codec,
        transactional=transactional,
        control=control,
        delete_horizon_ms=horizon_ms,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    )
    batch = decode_batch(memoryview(b"before" + encoded + b"after"), 6)
    assert batch.records == tuple(records)
    assert batch.attributes == BatchAttributes(
        codec, False, transactional, control, horizon_ms is not None
    )
    header = batch.header
    assert header[9:12] == producer
    assert (header.base_offset, header.last_offset) == (
        records[0].offset - gap,
        records[-1].offset + gap,
    )
    assert header.max_timestamp_ms == max(r.timestamp_ms for r in records)
    assert rebuild_batch(header, batch.records, delete_horizon_ms=horizon_ms) == encoded


@given(records=record_lists(), codec=st.sampled_from(Codec), data=st.data())
def test_damage_under_a_valid_crc_raises_only_log_errors(
    records: list[Record], codec: Codec, data: st.DataObject
) -> None:
    encoded = bytearray(encode_batch(records, codec=codec))
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    encoded[17:21] = google_crc32c.value(bytes(encoded[21:])).to_bytes(4, "big")
    try:
        decode_batch(encoded, 0, limit_bytes=1 << 20)
    except LogError as error:
        assert error.at is not None


@given(st.binary(max_size=200), st.integers(0, 200))
def test_random_bytes_raise_only_log_errors(noise: bytes, at: int) -> None:
    if at <= len(noise):
        try:
            decode_batch(noise, at)
        except LogError as error:
            assert error.at is not None


def test_iteration_stops_at_the_torn_tail() -> None:
    segment = TWO_BYTES + NULLS_BYTES + PRODUCER[:-1]
    seen: list[tuple[int, Batch]] = []
    with pytest.raises(TruncatedLog) as caught:
        seen.extend(iter_batches(segment))
    assert caught.value.at == len(TWO_BYTES) + len(NULLS_BYTES)
    batches = iter_batches(segment)
    assert [next(batches)[0], next(batches)[0]] == [0, len(TWO_BYTES)]
    assert [at for at, _ in iter_batches(TWO_BYTES + NULLS_BYTES, len(TWO_BYTES))] == [
        len(TWO_BYTES)
    ]
    assert list(iter_batches(b"")) == []


def test_sequence_wraps_after_its_maximum() -> None:
    header = decode_batch_header(PRODUCER, 0)._replace(base_sequence=2**31 - 2)
    assert [header.sequence_of(o) for o in (3, 4, 5)] == [2**31 - 2, 2**31 - 1, 0]
    assert header.last_sequence == 0


def test_encoder_refuses_records_that_no_reader_can_decode() -> None:
    for records in (
        [Record(1, 0, None, None), Record(1, 0, None, None)],
        [Record(-1, 0, None, None)],
    ):
        with pytest.raises(ValueError, match="do not increase"):
            encode_batch(records)
    with pytest.raises(ValueError, match="do not increase"):
        encode_batch(TWO, base_offset=1)
    with pytest.raises(ValueError, match="do not increase"):
        encode_batch(TWO, last_offset=0)
    with pytest.raises(ValueError, match="without records"):
        encode_batch([])
    with pytest.raises(ValueError, match="32 bits"):
        encode_batch([Record(2**31, 0, None, None)], base_offset=0)
    with pytest.raises(ValueError, match="batch header"):
        encode_batch(TWO, producer_epoch=2**15)


def test_header_fields_have_kafkas_offsets() -> None:
    assert [field.offset for field in BATCH_HEADER.fields] == [
        0,
        8,
        12,
        16,
        17,
        21,
        23,
        27,
        35,
        43,
        51,
        53,
        57,
    ]
    assert BatchHeader._fields == tuple(field.name for field in BATCH_HEADER.fields)
