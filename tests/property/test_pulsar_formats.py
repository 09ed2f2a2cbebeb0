"""Properties of the codecs of Pulsar's formats, checked with the slow decoders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.errors import CorruptLog, LogError
from lastwrite.pulsar.format.codecs import PulsarCodec
from lastwrite.pulsar.format.compacted import MessageId, decode_record, encode_record, is_record
from lastwrite.pulsar.format.entry import (
    BrokerMetadata,
    Metadata,
    PulsarMessage,
    SingleMetadata,
    decode_entry,
    encode_batch,
    encode_entry,
    encode_single,
    is_undecodable,
    messages_of,
    rebatched,
)
from lastwrite.pulsar.format.entry_log import (
    decode_map,
    encode_header,
    walk_entry_log,
    walk_journal,
)
from lastwrite.pulsar.format.entry_log import encode_record as log_record
from lastwrite.pulsar.format.ledger_metadata import CustomMetadata, Digest, Ensemble, LedgerMetadata
from lastwrite.pulsar.format.managed_ledger import (
    CursorInfo,
    LedgerInfo,
    LongProperty,
    ManagedLedgerInfo,
    OffloadContext,
    PositionInfo,
    Property,
    from_json,
    wrapped,
)
from lastwrite.pulsar.format.names import TopicName
from lastwrite.pulsar.format.offload import IndexObject, walk_data
from lastwrite.pulsar.format.position import MAX_LEDGER, Position
from lastwrite.pulsar.format.protobuf import inserted, put, spans, without
from lastwrite.pulsar.format.sequence_file import (
    DEFAULT_CODEC,
    GZIP_CODEC,
    walk_sequence_file,
)
from tests.support.pulsar.bytes import EXAMPLES
from tests.support.pulsar.writers import encode_data, encode_sequence_file

U32 = st.integers(0, (1 << 32) - 1)
I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
U64 = st.integers(0, (1 << 64) - 1)
TEXT = st.text(max_size=6)
BLOB = st.binary(max_size=9)
SYNC = bytes(range(16))


def some(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


METADATA = st.builds(
    Metadata,
    producer_name=TEXT,
    sequence_id=U64,
    publish_time=U64,
    property_fields=st.lists(BLOB, max_size=2).map(tuple),
    replicated_from=some(TEXT),
    partition_key=some(BLOB),
    replicate_to=st.lists(TEXT, max_size=2).map(tuple),
    compression=some(I32),
    uncompressed_size=some(U32),
    num_messages_in_batch=some(I32),
    event_time=some(U64),
    encryption_keys=st.lists(BLOB, max_size=1).map(tuple),
    schema_version=some(BLOB),
    partition_key_b64_encoded=some(st.booleans()),
    ordering_key=some(BLOB),
    deliver_at_time=some(I64),
    marker_type=some(I32),
    txnid_least_bits=some(U64),
    txnid_most_bits=some(U64),
    null_value=some(st.booleans()),
    uuid=some(TEXT),
    chunk_id=some(I32),
    compacted_batch_indexes=st.lists(I32, max_size=3).map(tuple),
    schema_id=some(BLOB),
    unknown=st.sampled_from([b"", put(33, 7), put(40, b"later") + put(33, 1)]),
)
SINGLE_METADATA = st.builds(
    SingleMetadata,
    property_fields=st.lists(BLOB, max_size=2).map(tuple),
    partition_key=some(BLOB),
    payload_size=I32,
    compacted_out=some(st.booleans()),
    event_time=some(U64),
    sequence_id=some(U64),
    null_value=some(st.booleans()),
)
PAIRS = st.lists(st.tuples(TEXT, TEXT), max_size=2).map(tuple)
MESSAGE = st.builds(
    PulsarMessage,
    key=some(st.sampled_from([b"", b"a", b"b", "ü".encode()])),
    is_b64=st.booleans(),
    value=st.binary(max_size=40),
    event_time=st.integers(0, 9),
    properties=PAIRS,
    sequence_id=some(st.integers(0, 99)),
    ordering_key=some(BLOB),
)
CODEC = st.sampled_from(PulsarCodec)


@given(METADATA, SINGLE_METADATA)
def test_protobuf_messages_round_trip(meta: Metadata, single: SingleMetadata) -> None:
    assert Metadata.decode(meta.encode()) == meta
    assert SingleMetadata.decode(single.encode()) == single


@given(st.binary(max_size=40) | METADATA.map(Metadata.encode), st.integers(1, 40), BLOB)
def test_fields_are_adjacent_and_can_be_inserted_and_removed(
    data: bytes, number: int, value: bytes
) -> None:
    try:
        found = spans(data)
    except CorruptLog as error:
        assert error.at is not None and 0 <= error.at <= len(data)
        return
    assert b"".join(data[span.start : span.end] for span in found) == data
    rest = without(data, number)
    assert all(span.number != number for span in spans(rest))
    field = put(number, value)
    assert without(inserted(rest, number, field), number) == rest
    again = inserted(rest, number, field)
    assert [s.number for s in spans(again)].count(number) == 1 and len(again) == len(rest) + len(
        field
    )


@given(
    METADATA,
    st.binary(max_size=30),
    some(st.builds(BrokerMetadata, index=some(U64))),
    st.booleans(),
)
def test_entries_round_trip(
    meta: Metadata, payload: bytes, broker: BrokerMetadata | None, checksum: bool
) -> None:
    data = encode_entry(meta, payload, broker=broker, checksum=checksum)
    entry = decode_entry(data, 3, 4)
    assert (entry.metadata, entry.payload, entry.broker) == (meta, payload, broker)
    assert entry.crc_holds is (True if checksum else None) and not is_record(data)
    assert decode_record(encode_record(Position(3, 4), -1, data)) == (Position(3, 4), -1, data)
    assert is_record(encode_record(Position(3, 4), None, data))


@given(
    st.lists(MESSAGE, min_size=1, max_size=7),
    CODEC,
    st.sets(st.integers(0, 6)),
    st.sets(st.integers(0, 6)),
)
def test_batch_can_be_reduced_repeatedly(
    messages: list[PulsarMessage], codec: PulsarCodec, keeps: set[int], then: set[int]
) -> None:
    entry = decode_entry(encode_entry(*encode_batch(messages, codec=codec)), 1, 0)
    before = messages_of(entry)
    assert [m.value for m in before] == [m.value for m in messages]
    assert [m.properties for m in before] == [m.properties for m in messages]
    body = rebatched(entry, keeps.__contains__)
    assert (body is None) == (not keeps & set(range(len(messages))))
    if body is None:
        return
    once = decode_entry(body, 1, 0)
    after = messages_of(once)
    assert len(after) == len(before) and once.crc_holds
    for old, new in zip(before, after, strict=True):
        assert new.compacted_out if old.index not in keeps else new == old
    assert rebatched(once, lambda _: True) == body
    twice = rebatched(once, then.__contains__)
    straight = rebatched(entry, (keeps & then).__contains__)
    assert twice == straight


@given(MESSAGE, CODEC, st.booleans())
def test_single_message_round_trips(
    message: PulsarMessage, codec: PulsarCodec, states_size: bool
) -> None:
    entry = decode_entry(
        encode_entry(*encode_single(message, codec=codec, states_size=states_size)), 1, 0
    )
    (found,) = messages_of(entry)
    assert (found.key, found.value, found.properties) == (
        message.key,
        message.value,
        message.properties,
    )
    assert entry.value_bytes == len(message.value)


@given(
    st.lists(st.binary(max_size=90), max_size=12),
    st.integers(128 + 12 + 90, 400),
    st.integers(0, 5),
)
def test_entries_of_an_object_round_trip(
    entries: list[bytes], block_bytes: int, first: int
) -> None:
    data, blocks = encode_data(entries, block_bytes, first)
    found = [(entry, data[at : at + size]) for entry, at, size in walk_data(data)]
    assert found == list(enumerate(entries, first))
    index = IndexObject(len(data), b"", tuple(blocks))
    assert IndexObject.decode(index.encode()) == index
    for entry in range(first, first + len(entries)):
        block = index.block_of(entry)
        assert block is not None
        part = data[block.offset : index.block_end(block)]
        assert entry in [number for number, _, _ in walk_data(part)]


RECORD = st.tuples(st.integers(0, 3), st.integers(0, 9), st.binary(max_size=300))
GAP = st.sampled_from(
    [b"", bytes(1), bytes(7), bytes(9000), b"\xff" * 5, b"\0\0\0\7", b"\x80\0\0\0"]
)


@given(
    st.lists(st.tuples(GAP, RECORD), max_size=6),
    GAP,
    st.sampled_from([Digest.CRC32C, Digest.CRC32]),
)
def test_records_of_an_entry_log_round_trip(
    parts: list[tuple[bytes, tuple[int, int, bytes]]], tail: bytes, digest: Digest
) -> None:
    data = encode_header()
    for gap, (ledger, entry, payload) in parts:
        data += gap + log_record(ledger, entry, payload, digest=digest)
    data += tail
    found = [
        (one.ledger, one.entry, data[one.at : one.at + one.size], one.digest)
        for one in walk_entry_log(data)
    ]
    assert found == [(*record, digest) for _, record in parts]


@given(
    st.lists(st.tuples(I64, st.binary(max_size=99)), max_size=30),
    st.sampled_from([None, DEFAULT_CODEC, GZIP_CODEC]),
    st.booleans(),
    st.integers(1, 500),
)
def test_pairs_of_a_sequence_file_round_trip(
    pairs: list[tuple[int, bytes]], codec: str | None, has_blocks: bool, block_bytes: int
) -> None:
    data = encode_sequence_file(
        pairs, SYNC, codec=codec, has_blocks=has_blocks, block_bytes=block_bytes
    )
    assert [(pair.key, pair.value) for pair in walk_sequence_file(data)] == pairs


ENSEMBLE = st.builds(Ensemble, bookies=st.lists(TEXT, max_size=2).map(tuple), first_entry=I64)
LEDGER_METADATA = st.builds(
    LedgerMetadata,
    quorum=I32,
    ensemble=I32,
    length=I64,
    last_entry=some(I64),
    state=I32,
    ensembles=st.lists(ENSEMBLE, max_size=2).map(tuple),
    digest=some(I32),
    password=some(BLOB),
    custom_items=st.lists(
        st.builds(CustomMetadata, key=some(TEXT), value=some(BLOB)), max_size=2
    ).map(tuple),
)
INFO = st.builds(
    ManagedLedgerInfo,
    ledgers=st.lists(
        st.builds(
            LedgerInfo,
            ledger=I64,
            entries=some(I64),
            closed_ms=some(I64),
            offload=some(st.uuids().map(OffloadContext.of_uuid)),
            properties=st.lists(st.builds(Property, name=TEXT, value=TEXT), max_size=1).map(tuple),
        ),
        max_size=3,
    ).map(tuple),
)
POSITION_INFO = st.builds(
    PositionInfo,
    ledger=I64,
    entry=I64,
    properties=st.lists(st.builds(LongProperty, name=TEXT, value=I64), max_size=2).map(tuple),
)


@given(LEDGER_METADATA, INFO, POSITION_INFO, CODEC)
def test_metadata_round_trips(
    meta: LedgerMetadata, info: ManagedLedgerInfo, mark: PositionInfo, codec: PulsarCodec
) -> None:
    assert LedgerMetadata.decode_node(meta.encode_node()) == meta
    assert ManagedLedgerInfo.decode_node(wrapped(info.encode(), codec)) == info.in_order
    assert ManagedLedgerInfo.decode(info.encode()) == info
    assert PositionInfo.decode_node(wrapped(mark.encode(), codec)) == mark


@given(st.integers(-1, MAX_LEDGER), st.integers(0, (1 << 32) - 1))
def test_offsets_and_positions_round_trip(ledger: int, entry: int) -> None:
    assert (
        Position.of(Position(ledger, entry).offset)
        == Position(ledger, entry)
        == Position.parse(f"{ledger}:{entry}")
    )


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-1, 9)), min_size=2, max_size=2))
def test_offsets_are_ordered_like_positions(pair: list[tuple[int, int]]) -> None:
    one, other = (Position(*place) for place in pair)
    assert (one < other) == (one.offset < other.offset)


@given(st.text(min_size=1, max_size=12), st.integers(-1, 99))
def test_topic_names_round_trip(local: str, partition: int) -> None:
    try:
        topic = TopicName.parse(f"persistent://t/n/{local}").with_partition(partition)
    except LogError:
        return
    assert TopicName.parse(topic.full).full == topic.full
    assert TopicName.of_managed_ledger(topic.managed_ledger).full == topic.full
    assert topic.managed_ledger.count("/") == 3


# ---------------------------------------------------------------- damage


def walked(walk: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    return lambda data: list(walk(data))


def looked_into(data: bytes) -> None:
    entry = decode_entry(data, 1, 0)
    is_undecodable(entry)
    rebatched(entry, lambda index: index % 2 == 0)
    messages_of(entry)


INDEX = IndexObject(
    999, LedgerMetadata.decode(put(1, 1) + put(2, 1) + put(3, 9) + put(5, 3)).encode(), ()
)
READERS: list[tuple[Callable[[bytes], Any], bytes]] = [
    (looked_into, EXAMPLES["A"]),
    (looked_into, EXAMPLES["B"]),
    (looked_into, EXAMPLES["D"]),
    (looked_into, EXAMPLES["E"]),
    (looked_into, EXAMPLES["G"]),
    (looked_into, EXAMPLES["H"]),
    (decode_record, EXAMPLES["F"]),
    (MessageId.decode, EXAMPLES["F"][4:19]),
    (walked(walk_data), EXAMPLES["O"]),
    (walked(walk_data), encode_data([b"a" * 40, b"b" * 50, b"c"], 200)[0]),
    (IndexObject.decode, EXAMPLES["P"]),
    (walked(walk_entry_log), encode_header(1024) + EXAMPLES["Q"] + EXAMPLES["R"]),
    (decode_map, encode_header(1024) + EXAMPLES["Q"]),
    (walked(walk_journal), b"BKLG\0\0\0\6" + bytes(504) + EXAMPLES["Q"] + EXAMPLES["R"]),
    (walked(walk_sequence_file), encode_sequence_file([(-1, b"m"), (0, b"a" * 50)], SYNC)),
    (
        walked(walk_sequence_file),
        encode_sequence_file([(-1, b"m"), (0, b"a" * 50)], SYNC, has_blocks=True),
    ),
    (
        LedgerMetadata.decode_node,
        LedgerMetadata(quorum=1, ensemble=1, length=1, state=3).encode_node(),
    ),
    (ManagedLedgerInfo.decode_node, wrapped(put(1, put(1, 7) + put(2, 1)), PulsarCodec.LZ4)),
    (CursorInfo.decode_node, put(1, -1) + put(2, 3) + put(3, 4)),
    (PositionInfo.decode_node, EXAMPLES["P0"]),
    (
        lambda data: from_json(data.decode("latin-1")),
        b'{"ledgers": [{"ledgerId": 3, "entries": 4}], "cursors": {}}',
    ),
]
UGLY = [
    b"\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\0\0\0",
    b"\0" * 8,
    b"\xff" * 8,
    b"\x7f" + b"\xff" * 7,
    b"\x80" * 10,
]
HARM = st.tuples(
    st.integers(0, 200), st.sampled_from(UGLY) | st.binary(min_size=1, max_size=4), st.booleans()
)


@pytest.mark.parametrize("number", range(len(READERS)))
@given(
    harms=st.lists(HARM, max_size=3), cut=st.integers(-40, 0), start=st.sampled_from([0, 0, 1024])
)
def test_changed_bytes_raise_only_log_errors(
    number: int, harms: list[tuple[int, bytes, bool]], cut: int, start: int
) -> None:
    read, sound = READERS[number]
    data = bytearray(sound)
    for at, ugly, is_new in harms:
        at = min(len(data), start + at) if len(data) > start else at % (len(data) + 1)
        data[at : at if is_new else at + len(ugly)] = ugly
    try:
        read(bytes(data[: len(data) + cut] if cut > -20 else data))
    except LogError as error:
        assert error.at is None or error.at >= 0


@given(st.binary(max_size=80))
def test_noise_is_refused_or_read(data: bytes) -> None:
    for read, _ in READERS:
        try:
            read(data)
        except LogError:
            continue
