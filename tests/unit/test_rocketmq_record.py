"""Tests of records: worked examples, round trips and truncations."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.errors import (
    CorruptLog,
    InvalidConfig,
    OutOfMemoryBudget,
    TruncatedLog,
    UnsupportedFormat,
)
from lastwrite.rocketmq.format import properties
from lastwrite.rocketmq.format.record import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    INNER_BATCH,
    MAGIC_V1,
    MAGIC_V2,
    NEEDS_UNWRAP,
    Compression,
    Host,
    RocketmqMessage,
    body_crc,
    body_of,
    compression_of,
    decode_blank,
    decode_message,
    encode_blank,
    encode_inner,
    encode_message,
    make_message,
    offset_message_id,
    parse_message_id,
    split_inner,
)
from tests.support.rocketmq.records import (
    EXAMPLE_INNER,
    EXAMPLE_RECORD_CRC,
    EXAMPLE_V1,
    EXAMPLE_V1_OLD,
    EXAMPLE_V2,
    EXAMPLE_V3,
    messages,
)

START = 1_700_000_000_000


def decoded(raw: bytes) -> RocketmqMessage:
    return decode_message(raw, 0, len(raw))


def test_v1_example_is_decoded() -> None:
    message = decoded(EXAMPLE_V1)
    assert (message.magic, message.queue_id, message.flag, message.sys_flag) == (MAGIC_V1, 0, 0, 0)
    assert (message.queue_offset, message.physical_offset) == (7, 0)
    assert (message.body, message.body_crc, message.topic) == (b"hello", 907060870, "ctopic")
    assert message.properties == {"KEYS": "order-1", "TAGS": "TagA"}
    assert (message.keys, message.tags, message.unique_key) == ("order-1", "TagA", None)
    assert (message.born_time_ms, str(message.born_host)) == (START, "127.0.0.1:54321")
    assert (message.store_time_ms, str(message.store_host)) == (START + 123, "127.0.0.1:10911")
    assert (message.reconsume_times, message.prepared_offset) == (0, 0)
    assert message.size == 125 and message.body_at == 88 and message.body_crc_holds
    assert offset_message_id(message.store_host, 0) == "7F00000100002A9F0000000000000000"
    assert body_of(message) == b"hello"


def test_record_of_493_omits_the_last_byte_of_its_properties() -> None:
    assert len(EXAMPLE_V1_OLD) == 124
    assert decoded(EXAMPLE_V1_OLD).properties == decoded(EXAMPLE_V1).properties
    assert encode_message(decoded(EXAMPLE_V1_OLD)) == EXAMPLE_V1_OLD


def test_v2_example_with_ipv6_hosts_and_zlib_is_decoded() -> None:
    message = decoded(EXAMPLE_V2)
    assert message.sys_flag == 0x331 and message.magic == MAGIC_V1
    assert (
        str(message.born_host) == "[::1]:54321" and str(message.store_host) == "[2001:db8::7]:10911"
    )
    assert body_of(message) == b"a" * 64 and message.body_crc_holds
    assert (message.queue_id, message.queue_offset, message.physical_offset) == (3, 8, 125)
    assert message.keys == "order-2" and message.size == 146
    assert (
        offset_message_id(message.store_host, 125)
        == "20010DB800000000000000000000000700002A9F000000000000007D"
    )


def test_v3_example_with_a_long_topic_and_no_body_is_decoded() -> None:
    message = decoded(EXAMPLE_V3)
    assert (message.magic, message.topic, message.keys) == (MAGIC_V2, "ctopic", "order-1")
    assert (message.body, message.body_crc, message.size) == (b"", 0, 111)
    assert body_of(message) == b""


def test_record_checksum_is_verified() -> None:
    message = decoded(EXAMPLE_RECORD_CRC)
    assert properties.record_crc_holds(EXAMPLE_RECORD_CRC) is True
    assert properties.record_crc(EXAMPLE_RECORD_CRC) == 1536002737
    assert message.properties["__CRC32#"] == "7372006351"
    bare = replace(message, properties_bytes=message.properties_bytes[:-20])
    assert encode_message(bare, record_crc=True) == EXAMPLE_RECORD_CRC
    moved = EXAMPLE_RECORD_CRC[:28] + (99).to_bytes(8, "big") + EXAMPLE_RECORD_CRC[36:]
    assert properties.record_crc_holds(moved) is False
    assert properties.record_crc_holds(EXAMPLE_V1) is None


def test_inner_batch_of_three_is_split() -> None:
    message = decoded(EXAMPLE_INNER)
    assert message.is_inner_batch and message.size == 282 and message.body_crc_holds
    found = split_inner(message)
    assert [inner.queue_offset for inner in found] == [0, 1, 2]
    assert [inner.body for inner in found] == [b"b0", b"b1", b"b2"]
    assert [inner.keys for inner in found] == ["k0", "k1", "k2"]
    assert {inner.tags for inner in found} == {"T"} and {inner.topic for inner in found} == {
        "btopic"
    }
    assert message.unique_key == "ABC"
    body = encode_inner([(inner.flag, inner.body, inner.properties_bytes) for inner in found])
    assert body == message.body


def test_single_message_is_not_split() -> None:
    message = decoded(EXAMPLE_V1)
    assert split_inner(message) == [message]


@pytest.mark.parametrize(
    "example", [EXAMPLE_V1, EXAMPLE_V2, EXAMPLE_V3, EXAMPLE_RECORD_CRC, EXAMPLE_INNER]
)
def test_examples_round_trip_and_truncations_are_refused(example: bytes) -> None:
    message = decoded(example)
    assert encode_message(message) == example
    assert decode_message(b"\xff" + example + b"\xff", 1, len(example) + 2) == message
    assert decode_message(memoryview(example), 0, len(example)) == message
    for cut in range(len(example)):
        with pytest.raises(TruncatedLog):
            decode_message(example[:cut], 0, cut)
        with pytest.raises(TruncatedLog):
            decode_message(example, 0, cut)


@given(messages())
def test_encoded_message_round_trips(message: RocketmqMessage) -> None:
    raw = encode_message(message)
    assert len(raw) == message.size
    assert decode_message(b"12" + raw, 2, len(raw) + 2) == message
    assert message.body_crc_holds


@given(messages(), st.data())
def test_damage_raises_only_log_errors(message: RocketmqMessage, data: st.DataObject) -> None:
    raw = bytearray(encode_message(message))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode_message(bytes(raw), 0, len(raw))
    except CorruptLog:
        return
    assert found.size <= len(raw)
    assert encode_message(found) == bytes(raw[: found.size])
    for work in (body_of, split_inner):
        try:
            work(found, 1 << 20)
        except (CorruptLog, UnsupportedFormat, OutOfMemoryBudget):
            pass


@pytest.mark.parametrize("claim", [-1, -(2**31), 2**31 - 1, 6, 91])
@pytest.mark.parametrize("at", [0, 84, 93, 100])
def test_impossible_length_is_damage(at: int, claim: int) -> None:
    raw = bytearray(EXAMPLE_V1)
    if at == 93:  # topic length, one byte
        raw[at : at + 1] = (claim & 0xFF).to_bytes(1, "big")
        if claim & 0xFF == 6:
            return
    elif at == 100:  # length of the properties
        raw[at : at + 2] = (claim & 0xFFFF).to_bytes(2, "big")
    else:
        raw[at : at + 4] = claim.to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptLog):
        decoded(bytes(raw))


def test_bytes_that_are_not_a_record_are_refused() -> None:
    with pytest.raises(CorruptLog, match="size is 0"):
        decoded(bytes(200))
    with pytest.raises(CorruptLog, match="blank record"):
        decoded(encode_blank(200) + bytes(192))
    with pytest.raises(CorruptLog, match="magic is DAA320A8"):
        decoded(EXAMPLE_V1[:7] + b"\xa8" + EXAMPLE_V1[8:])
    with pytest.raises(CorruptLog, match="size is 90 bytes"):
        decoded((90).to_bytes(4, "big") + EXAMPLE_V1[4:])


def test_blank_record_round_trips() -> None:
    assert encode_blank(1000) == bytes.fromhex("000003e8 cbd43194")
    assert decode_blank(encode_blank(1000), 0, 8) == 1000
    assert decode_blank(encode_blank(1000), 0, 7) is None
    assert decode_blank(EXAMPLE_V1, 0, len(EXAMPLE_V1)) is None
    with pytest.raises(ValueError, match="in 7 bytes"):
        encode_blank(7)


# 64 × "a", compressed by RocketMQ's own classes
BODIES = {
    COMPRESSION_ZLIB: "785e4b4ca40c0000148d1841",
    0: "785e4b4ca40c0000148d1841",
    COMPRESSION_LZ4: "04224d186070730b0000001f6101002750616161616100000000",
    COMPRESSION_ZSTD: "28b52ffd00584400001061610100930016010000",
}


@pytest.mark.parametrize(("kind", "body"), BODIES.items())
def test_bodies_of_the_real_classes_are_decompressed(kind: int, body: str) -> None:
    message = make_message("t", bytes.fromhex(body), sys_flag=COMPRESSED | kind)
    assert body_of(message) == b"a" * 64
    assert body_of(message, 64) == b"a" * 64
    with pytest.raises(OutOfMemoryBudget):
        body_of(message, 63)
    for cut in range(1, len(message.body)):
        with pytest.raises((CorruptLog, UnsupportedFormat)):
            body_of(replace(message, body=message.body[:cut]))


def test_body_that_decompresses_to_nothing_is_a_tombstone() -> None:
    assert body_of(make_message("t", zlib.compress(b""), sys_flag=COMPRESSED)) == b""
    # A broker does not check the codec of an empty body either.
    assert body_of(make_message("t", b"", sys_flag=COMPRESSED | 0x700)) == b""
    zstd = bytes(cramjam.zstd.compress(b""))
    assert body_of(make_message("t", zstd, sys_flag=COMPRESSED | COMPRESSION_ZSTD)) == b""


def test_zlib_body_is_read_to_its_own_end() -> None:
    assert (
        body_of(make_message("t", zlib.compress(b"abc") + b"rest", sys_flag=COMPRESSED)) == b"abc"
    )


def test_compression_types_are_decoded() -> None:
    assert compression_of(0x700) is Compression.NONE
    assert compression_of(COMPRESSED) is Compression.ZLIB
    assert compression_of(COMPRESSED | 0x300) is Compression.ZLIB
    assert compression_of(COMPRESSED | 0x100) is Compression.LZ4
    assert compression_of(COMPRESSED | 0x200) is Compression.ZSTD
    with pytest.raises(UnsupportedFormat):
        compression_of(COMPRESSED | 0x400)


def test_decompression_of_a_body_stops_at_the_limit() -> None:
    bomb = zlib.compress(bytes(50_000_000), 9)
    with pytest.raises(OutOfMemoryBudget):
        body_of(make_message("t", bomb, sys_flag=COMPRESSED), 1 << 16)


def inner(body: bytes, count: str = "1") -> RocketmqMessage:
    return make_message(
        "t", body, {"INNER_NUM": count, "INNER_BASE": "5"}, sys_flag=NEEDS_UNWRAP | INNER_BATCH
    )


@given(
    st.lists(
        st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=9), st.binary(max_size=9)),
        max_size=5,
    )
)
def test_inner_batches_round_trip(items: list[tuple[int, bytes, bytes]]) -> None:
    body = encode_inner(items)
    found = split_inner(inner(body, str(len(items))))
    assert [(item.flag, item.body, item.properties_bytes) for item in found] == items
    assert [item.queue_offset for item in found] == list(range(5, 5 + len(items)))
    for cut in range(1, len(body)):
        try:
            assert len(split_inner(inner(body[:cut], str(len(items))))) < len(items)
        except CorruptLog:
            pass


@pytest.mark.parametrize(
    "body",
    [
        struct.pack(">iiiii", 21, 0, 0, 0, 0) + b"\0",
        struct.pack(">iiiiih", 22, 0, 0, 0, -1, 0),
        struct.pack(">iiiiih", 22, 0, 0, 0, 1, 0),
        struct.pack(">iiiiih", 22, 0, 0, 0, 0, -1),
        struct.pack(">iiiiih", 22, 0, 0, 0, 0, 1),
        struct.pack(">iiiiih", 2**31 - 1, 0, 0, 0, 0, 0),
        struct.pack(">iiiiih", 22, 0, 0, 0, 0, 0) + b"\0",
    ],
)
def test_malformed_inner_batch_is_damage(body: bytes) -> None:
    with pytest.raises(CorruptLog):
        split_inner(inner(body))


def test_inner_batch_with_a_wrong_count_is_damage() -> None:
    for count in ("2", "0", "x", "9" * 40):
        with pytest.raises(CorruptLog):
            split_inner(inner(struct.pack(">iiiiih", 22, 0, 0, 0, 0, 0), count))


def test_message_ids_round_trip() -> None:
    for host in (Host(bytes([10, 1, 2, 3]), 10911), Host(bytes(range(16)), 1)):
        assert parse_message_id(offset_message_id(host, 12345)) == (host, 12345)
    for text in (
        "",
        "7F",
        "7F00000100002A9F000000000000000",
        "x" * 32,
        "7F00000100002A9FFFFFFFFFFFFFFFFF",
        "7F " * 16,
    ):
        with pytest.raises(InvalidConfig):
            parse_message_id(text)


def test_message_that_does_not_fit_is_not_encoded() -> None:
    with pytest.raises(ValueError):
        encode_message(make_message("t" * 128))
    assert len(encode_message(make_message("t" * 128, magic=MAGIC_V2))) == 92 + 128
    with pytest.raises(ValueError):
        encode_message(make_message("t", properties={"a": "b" * 40_000}))
    with pytest.raises(ValueError):
        encode_message(replace(make_message("t"), sys_flag=0x10))
    with pytest.raises(ValueError):
        encode_message(replace(make_message("t"), magic=5))


def test_body_checksum_has_no_top_bit() -> None:
    assert body_crc(b"") == 0
    assert all(body_crc(bytes([n])) == zlib.crc32(bytes([n])) % (1 << 31) for n in range(256))
