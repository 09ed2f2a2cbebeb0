"""Tests of entries and compacted records against hand-made bytes and an independent slow reader."""

from __future__ import annotations

import pytest

from lastwrite.errors import CorruptLog, OutOfMemoryBudget, TruncatedLog, UnsupportedFormat
from lastwrite.pulsar.format.codecs import PulsarCodec, PulsarCodecs
from lastwrite.pulsar.format.compacted import (
    decode_record,
    encode_record,
    is_record,
    ledger_custom_metadata,
)
from lastwrite.pulsar.format.entry import (
    TXN_COMMIT,
    BrokerMetadata,
    EncryptionKey,
    Metadata,
    PulsarMessage,
    batch_parts,
    checked,
    decode_entry,
    encode_batch,
    encode_entry,
    encode_part,
    encode_properties,
    encode_single,
    is_undecodable,
    messages_of,
    patched,
    rebatched,
)
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.format.protobuf import put
from tests.support.pulsar.bytes import EXAMPLES, T


def entry_of(name: str):  # type: ignore[no-untyped-def]
    return decode_entry(EXAMPLES[name], 10, 0)


def seen(name: str) -> list[tuple[int | None, bytes | None, bytes]]:
    return [(m.index, m.key, m.value) for m in messages_of(entry_of(name))]


def test_single_message_round_trips() -> None:
    entry = checked(entry_of("A"))
    meta = entry.metadata
    assert (meta.producer_name, meta.sequence_id, meta.publish_time) == ("p-1", 7, T)
    assert (meta.partition_key, meta.uncompressed_size, meta.compression, entry.payload) == (
        b"k1",
        2,
        None,
        b"v1",
    )
    assert not (entry.is_batch or entry.is_marker or entry.is_encrypted or entry.is_readable_batch)
    assert entry.value_bytes == 2 and entry.prefix == b"" and entry.broker is None
    (message,) = messages_of(entry)
    assert (message.index, message.key, message.value, message.sequence_id) == (
        None,
        b"k1",
        b"v1",
        7,
    )
    assert (
        encode_entry(
            *encode_single(PulsarMessage(key=b"k1", value=b"v1", sequence_id=7, publish_time=T))
        )
        == EXAMPLES["A"]
    )


def test_broker_prefix_is_outside_the_checksum() -> None:
    entry = entry_of("B")
    assert entry.broker is not None
    assert (entry.broker.broker_timestamp, entry.broker.index) == (T + 123, 41)
    assert entry.crc_holds and entry.checksum == entry_of("A").checksum
    assert entry.prefix + EXAMPLES["A"] == EXAMPLES["B"]
    meta, payload = encode_single(
        PulsarMessage(key=b"k1", value=b"v1", sequence_id=7, publish_time=T)
    )
    assert (
        encode_entry(meta, payload, broker=BrokerMetadata(broker_timestamp=T + 123, index=41))
        == EXAMPLES["B"]
    )


@pytest.mark.parametrize(("name", "states_size"), [("C", True), ("C2", False)])
def test_tombstone_is_decoded_with_and_without_its_size(name: str, states_size: bool) -> None:
    entry = entry_of(name)
    assert entry.value_bytes == 0 and entry.metadata.null_value
    assert (entry.metadata.uncompressed_size is not None) == states_size
    message = PulsarMessage(key=b"k1", is_null=True, sequence_id=8, publish_time=T + 1)
    assert encode_entry(*encode_single(message, states_size=states_size)) == EXAMPLES[name]


def test_value_length_comes_from_the_metadata() -> None:
    """The encrypted form of an empty value is not empty. Without the size field the payload's
    length is used.
    """
    meta = Metadata(producer_name="p", sequence_id=0, publish_time=0, partition_key=b"k")
    assert decode_entry(encode_entry(meta), 1, 0).value_bytes == 0
    assert decode_entry(encode_entry(meta, b"xy"), 1, 0).value_bytes == 2
    zero = Metadata(producer_name="p", sequence_id=0, publish_time=0, uncompressed_size=0)
    assert decode_entry(encode_entry(zero, b"tag"), 1, 0).value_bytes == 0


@pytest.mark.parametrize("name", ["D", "G", "H"])
def test_batch_is_decoded_in_each_compression(name: str) -> None:
    assert seen(name) == [(0, b"k1", b"v1a"), (1, b"k2", b"v2"), (2, b"k1", b"v1b")]
    assert [m.sequence_id for m in messages_of(entry_of(name))] == [9, 10, 11]
    assert all(
        m.publish_time == T + 2 and m.producer_name == "p-1" for m in messages_of(entry_of(name))
    )
    assert entry_of(name).is_readable_batch


def test_batch_is_encoded_as_in_the_example() -> None:
    messages = [
        PulsarMessage(key=key, value=value, sequence_id=9 + i, publish_time=T + 2)
        for i, (key, value) in enumerate([(b"k1", b"v1a"), (b"k2", b"v2"), (b"k1", b"v1b")])
    ]
    assert encode_entry(*encode_batch(messages)) == EXAMPLES["D"]
    assert encode_entry(*encode_batch(messages, codec=PulsarCodec.ZLIB)) == EXAMPLES["G"]


def test_marker_has_no_messages() -> None:
    entry = entry_of("I")
    assert (
        entry.is_marker
        and entry.metadata.marker_type == TXN_COMMIT
        and entry.metadata.transaction == (1, 5)
    )
    assert messages_of(entry) == []


def test_encrypted_batch_counts_as_one_message() -> None:
    entry = entry_of("J")
    assert entry.is_batch and entry.is_encrypted and not entry.is_readable_batch
    (message,) = messages_of(entry)
    assert (
        message.is_encrypted
        and message.key == b"k3"
        and message.value == bytes.fromhex("deadbeef" * 4)
    )
    (key,) = entry.metadata.encryption_keys
    assert EncryptionKey.decode(key).key == "app.key"


def test_keyless_and_deleted_messages_in_a_batch_are_decoded() -> None:
    assert [(m.key, m.value, m.is_null) for m in messages_of(entry_of("K"))] == [
        (None, b"nk", False),
        (b"k2", b"", True),
        (b"k4", b"v4", False),
    ]


def test_binary_key_is_decoded_as_base64() -> None:
    (message,) = messages_of(entry_of("M"))
    assert message.key == b"/wA=" and message.is_b64


@pytest.mark.parametrize(
    ("source", "record", "position", "keeps"),
    [
        ("D", "N0", (10, 1), {2}),
        ("K", "N1", (10, 2), {2}),
        ("K", "N1r", (10, 2), {0, 2}),
        ("D", "F", (10, 4), {1, 2}),
    ],
)
def test_batch_is_rebuilt_as_the_real_compactor_does(
    source: str, record: str, position: tuple[int, int], keeps: set[int]
) -> None:
    body = rebatched(entry_of(source), keeps.__contains__)
    assert body is not None
    assert encode_record(Position(*position), -1, body) == EXAMPLES[record]
    assert decode_record(EXAMPLES[record]) == (Position(*position), -1, body)
    again = decode_entry(body, *position)
    assert [m.index for m in messages_of(again) if not m.compacted_out] == sorted(keeps)
    assert again.metadata.num_messages_in_batch == entry_of(source).metadata.num_messages_in_batch
    assert again.metadata.compacted_batch_indexes == tuple(sorted(keeps))
    assert rebatched(again, lambda _: True) == body
    assert rebatched(again, lambda index: index not in keeps) is None


def test_framed_record_contains_its_entry() -> None:
    assert decode_record(EXAMPLES["F"])[2] == EXAMPLES["E"]
    assert decode_record(EXAMPLES["F2"]) == (Position(10, 3), -1, EXAMPLES["B"])


@pytest.mark.parametrize("codec", list(PulsarCodec))
def test_rebuilt_batch_keeps_its_codec_and_prefix(codec: PulsarCodec) -> None:
    messages = [
        PulsarMessage(key=b"k%d" % i, value=b"v" * 50, sequence_id=i, publish_time=T)
        for i in range(20)
    ]
    meta, payload = encode_batch(messages, codec=codec)
    entry = decode_entry(encode_entry(meta, payload, broker=BrokerMetadata(index=19)), 1, 0)
    body = rebatched(entry, lambda index: index % 3 == 0)
    assert body is not None
    again = decode_entry(body, 1, 0)
    assert (
        again.prefix == entry.prefix
        and again.crc_holds
        and again.metadata.compression == entry.metadata.compression
    )
    assert [m for m in messages_of(again) if not m.compacted_out] == [
        m for m in messages_of(entry) if m.index % 3 == 0
    ]  # type: ignore[operator]


def test_unknown_fields_keep_their_position() -> None:
    messages = [
        PulsarMessage(key=b"a", value=b"1", sequence_id=1),
        PulsarMessage(key=b"b", value=b"2", sequence_id=2),
    ]
    meta, payload = encode_batch(messages)
    odd = put(40, b"later") + meta.encode() + put(9, 1) + put(35, 7) + put(31, 0)
    entry = decode_entry(encode_entry(odd, payload), 1, 0)
    assert entry.metadata.unknown == put(40, b"later") + put(35, 7)
    body = rebatched(entry, lambda index: index == 1)
    assert body is not None
    found = decode_entry(body, 1, 0)
    assert found.metadata.unknown == entry.metadata.unknown
    assert found.metadata.compacted_batch_indexes == (1,) and found.metadata.uncompressed_size == 20
    assert found.metadata_bytes == put(9, 20) + put(31, 1) + put(
        40, b"later"
    ) + meta.encode() + put(35, 7)


def test_patched_metadata_keeps_ascending_field_order() -> None:
    meta = Metadata(
        producer_name="p", sequence_id=0, publish_time=0, num_messages_in_batch=3, schema_id=b"s"
    )
    assert patched(meta.encode(), [0, 2], 9) == (
        Metadata(
            producer_name="p",
            sequence_id=0,
            publish_time=0,
            uncompressed_size=9,
            num_messages_in_batch=3,
            compacted_batch_indexes=(0, 2),
            schema_id=b"s",
        ).encode()
    )


def test_dense_batch_layout_is_decoded() -> None:
    messages = [
        PulsarMessage(key=b"a", value=b"1", sequence_id=1),
        PulsarMessage(key=b"b", value=b"2", sequence_id=2),
    ]
    plain = b"".join(encode_part(m) for m in messages)
    meta = Metadata(
        producer_name="p",
        sequence_id=0,
        publish_time=0,
        num_messages_in_batch=9,
        compacted_batch_indexes=(3, 7),
    )
    entry = decode_entry(encode_entry(meta, plain), 1, 0)
    assert [(m.index, m.key) for m in messages_of(entry)] == [(3, b"a"), (7, b"b")]
    body = rebatched(entry, lambda index: index == 7)
    assert body is not None
    parts = messages_of(decode_entry(body, 1, 0))
    assert len(parts) == 9 and [m.index for m in parts if not m.compacted_out] == [7]


@pytest.mark.parametrize(
    ("count", "kept"), [(1 << 30, (3, 7)), (9, (7, 3)), (9, (3, 9)), (9, (-1, 3)), (9, (3, 3))]
)
def test_malformed_dense_batch_is_refused(count: int, kept: tuple[int, ...]) -> None:
    plain = b"".join(encode_part(PulsarMessage(key=b"a", value=b"1")) for _ in range(2))
    meta = Metadata(
        producer_name="p",
        sequence_id=0,
        publish_time=0,
        num_messages_in_batch=count,
        compacted_batch_indexes=kept,
    )
    with pytest.raises(CorruptLog):
        batch_parts(meta, plain)


@pytest.mark.parametrize("count", [0, 2, 4, -1, 2**31 - 1, -(2**31)])
def test_batch_with_a_wrong_message_count_is_undecodable(count: int) -> None:
    meta = Metadata(producer_name="p", sequence_id=0, publish_time=0, num_messages_in_batch=count)
    plain = b"".join(encode_part(PulsarMessage(key=b"a", value=b"1")) for _ in range(3))
    entry = decode_entry(encode_entry(meta, plain), 1, 0)
    assert is_undecodable(entry)
    with pytest.raises(CorruptLog):
        messages_of(entry)


def test_batch_without_messages_is_empty() -> None:
    meta = Metadata(producer_name="p", sequence_id=0, publish_time=0, num_messages_in_batch=0)
    entry = decode_entry(encode_entry(meta), 1, 0)
    assert messages_of(entry) == [] and rebatched(entry, lambda _: True) is None


def test_unknown_codec_is_undecodable() -> None:
    meta, payload = encode_batch([PulsarMessage(key=b"a", value=b"1")])
    entry = decode_entry(encode_entry(meta.encode() + put(8, 5), payload), 1, 0)
    assert is_undecodable(entry)
    with pytest.raises(UnsupportedFormat):
        messages_of(entry)
    assert (
        not is_undecodable(entry_of("D"))
        and not is_undecodable(entry_of("A"))
        and not is_undecodable(entry_of("J"))
    )


@pytest.mark.parametrize("name", "A B C D E G H I J K M".split())
def test_truncated_entry_never_passes_its_checksum(name: str) -> None:
    data = EXAMPLES[name]
    assert (
        encode_entry(entry_of(name).metadata, entry_of(name).payload, broker=entry_of(name).broker)
        == data
    )
    for cut in range(len(data)):
        try:
            entry = decode_entry(data[:cut], 10, 0)
        except TruncatedLog:
            continue
        assert entry.crc_holds is False, cut
    with pytest.raises(CorruptLog, match="does not match"):
        checked(decode_entry(data + b"\0", 10, 0))


def test_entry_without_a_checksum_is_accepted() -> None:
    meta, payload = encode_single(
        PulsarMessage(key=b"k1", value=b"v1", sequence_id=7, publish_time=T)
    )
    entry = decode_entry(encode_entry(meta, payload, checksum=False), 1, 2)
    assert entry.crc_holds is None and entry.checksum is None and entry.payload == b"v1"
    assert checked(entry) is entry and (entry.ledger, entry.entry) == (1, 2)
    assert not is_record(encode_entry(meta, payload, checksum=False))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_metadata_without_a_required_field_is_refused(number: int) -> None:
    meta = b"".join(put(n, value) for n, value in [(1, b"p"), (2, 1), (3, 1)] if n != number)
    with pytest.raises(CorruptLog, match="of Metadata is missing"):
        decode_entry(encode_entry(meta), 1, 0)


def test_properties_keep_their_order_and_duplicates() -> None:
    properties = (("b", "1"), ("a", ""), ("b", "2"))
    (message,) = messages_of(
        decode_entry(encode_entry(*encode_single(PulsarMessage(properties=properties))), 1, 0)
    )
    assert message.properties == properties
    meta = Metadata(
        producer_name="p", sequence_id=0, publish_time=0, property_fields=(b"\x0a\x01k",)
    )
    with pytest.raises(CorruptLog, match="the field value of KeyValue is missing"):
        _ = meta.properties
    assert encode_properties(()) == ()


# ---------------------------------------------------------------- records of a compacted ledger


@pytest.mark.parametrize("name", ["N0", "N1", "N1r", "F", "F2"])
def test_record_is_distinguished_from_an_entry(name: str) -> None:
    data = EXAMPLES[name]
    assert is_record(data) and not is_record(decode_record(data)[2])
    for cut in range(len(data)):
        with pytest.raises(TruncatedLog):
            decode_record(data[:cut])
    with pytest.raises(CorruptLog, match="follow the body"):
        decode_record(data + b"\0")


@pytest.mark.parametrize("partition", [None, -1, 0, 7])
def test_record_keeps_its_partition(partition: int | None) -> None:
    assert decode_record(encode_record(Position(3, 4), partition, b"x")) == (
        Position(3, 4),
        partition,
        b"x",
    )


def test_record_with_a_negative_position_is_damage() -> None:
    with pytest.raises(CorruptLog, match="-1:4"):
        decode_record(encode_record(Position(-1, 4), -1, b"x"))


def test_compacted_ledger_has_custom_metadata() -> None:
    found = ledger_custom_metadata("persistent://public/default/t", Position(10, 2))
    assert found == {
        "application": b"pulsar",
        "component": b"compacted-ledger",
        "pulsar/compactedTopic": b"persistent://public/default/t",
        "pulsar/compactedTo": bytes.fromhex("080a10023000"),
    }
    assert ledger_custom_metadata("t", Position(10, 2), 3)["pulsar/compactedTo"] == bytes.fromhex(
        "080a100218033000"
    )


# ---------------------------------------------------------------- payloads


@pytest.mark.parametrize("codec", list(PulsarCodec))
@pytest.mark.parametrize("plain", [b"", b"x", b"ab" * 5000, bytes(range(256)) * 9])
def test_payloads_round_trip_in_each_codec(codec: PulsarCodec, plain: bytes) -> None:
    assert (
        PulsarCodecs().decompress(codec, PulsarCodecs().compress(codec, plain), len(plain), 1 << 20)
        == plain
    )


@pytest.mark.parametrize("codec", [codec for codec in PulsarCodec if codec])
def test_wrong_uncompressed_size_is_refused(codec: PulsarCodec) -> None:
    packed = PulsarCodecs().compress(codec, b"ab" * 500)
    for size in (-1, 0, 999, 1001, 1 << 20, 1 << 40):
        if codec is PulsarCodec.ZLIB and 0 <= size < 1000:
            continue  # zlib stops decompressing at the expected size
        with pytest.raises((CorruptLog, OutOfMemoryBudget)):
            PulsarCodecs().decompress(codec, packed, size, 1 << 21)
    with pytest.raises(OutOfMemoryBudget):
        PulsarCodecs().decompress(codec, packed, 1000, 999)
    for cut in range(len(packed) - 1):
        try:
            found = PulsarCodecs().decompress(codec, packed[:cut], 1000, 1 << 20)
        except CorruptLog:
            continue
        assert found == b"ab" * 500  # only the final flush of a zlib stream may be missing


def test_zlib_output_ends_with_a_sync_flush() -> None:
    assert PulsarCodecs().compress(PulsarCodec.ZLIB, b"abc")[-4:] == b"\0\0\xff\xff"
