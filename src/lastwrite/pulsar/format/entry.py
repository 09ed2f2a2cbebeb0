"""An entry of a ledger, field by field: a message, a batch of messages, or a marker.

``kernels`` reads the same bytes faster.

The smallest case is one message: ``0e01``, CRC-32C, length of the metadata, metadata, payload.
Other entries:

- A broker may put ``0e02``, a length and broker metadata in front; the checksum does not cover
  them. Entries of very old producers have no ``0e01`` and no checksum.
- A *batch* states its number of messages in ``num_messages_in_batch``; 1 is a batch too. Its
  payload has ``u32 length, SingleMessageMetadata, value`` for each message and is compressed as a
  whole. The key in a batch's metadata belongs to its first message.
- An *encrypted* payload cannot be read: single or batch, it is one record with one key.
- A *marker* is not a message.
- Compaction keeps the indexes of a batch. A removed message becomes a placeholder, ``00000004
  18002001``, and ``compacted_batch_indexes`` lists the indexes of the kept messages. Upstream
  describes a denser layout without placeholders. Lastwrite reads that layout, but no program is
  known to write it.

Decoding is as strict as in a broker: a missing required field or a length that does not add up is
an error. Rebuilding a batch never encodes its metadata from decoded fields. Two fields are replaced
in the encoded bytes, so unknown fields stay byte for byte.

Source: Pulsar 4.2.4 ``Commands``, ``RawBatchConverter``, ``MessageMetadata`` in PulsarApi.proto;
docs/formats/pulsar.md, "Entry"; docs/formats/pulsar-compaction.md, "Batches" and "Order, keys,
deletes".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

import google_crc32c

from lastwrite.encoding.layout import Buffer
from lastwrite.errors import CorruptLog, TruncatedLog, UnsupportedFormat
from lastwrite.pulsar.format.codecs import PulsarCodec, PulsarCodecs
from lastwrite.pulsar.format.protobuf import (
    BOOL,
    BYTES,
    INT32,
    INT64,
    STRING,
    UINT32,
    UINT64,
    ProtoField,
    ProtoMessage,
    inserted,
    put,
    without,
)

MAGIC_CHECKSUM = b"\x0e\x01"
MAGIC_BROKER = b"\x0e\x02"

# Numbers of the fields that a rebuild replaces.
UNCOMPRESSED_SIZE = 9
COMPACTED_BATCH_INDEXES = 31

PLACEHOLDER = bytes.fromhex("0000000418002001")
SMALLEST_MESSAGE_BYTES = 4 + 2  # a message in a batch has at least a length and payload_size
MOST_DENSE = 1 << 14  # limit of num_messages_in_batch in the layout without placeholders

# values of marker_type
TXN_COMMIT = 21
TXN_ABORT = 22

DEFAULT_LIMIT_BYTES = 64 << 20  # maximum decompressed bytes of a payload


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerMetadata(ProtoMessage):
    """Pulsar's protobuf message BrokerEntryMetadata: the data that a broker puts before an entry.

    ``index`` numbers the entry's last message among all messages of the topic.
    """

    broker_timestamp: Annotated[int | None, ProtoField(1, UINT64)] = None
    index: Annotated[int | None, ProtoField(2, UINT64)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValue(ProtoMessage):
    """One property of a message: a name and a value."""

    key: Annotated[str, ProtoField(1, STRING, required=True)]
    value: Annotated[str, ProtoField(2, STRING, required=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptionKey(ProtoMessage):
    """Pulsar's protobuf message EncryptionKeys: a data key, encrypted with the named key."""

    key: Annotated[str, ProtoField(1, STRING, required=True)]
    value: Annotated[bytes, ProtoField(2, BYTES, required=True)]
    metadata: Annotated[tuple[KeyValue, ...], ProtoField(3, KeyValue, repeated=True)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata(ProtoMessage):
    """Pulsar's protobuf message MessageMetadata: the metadata of a whole entry.

    ``property_fields`` and ``encryption_keys`` stay encoded until they are used.
    """

    # fmt: off
    producer_name:             Annotated[str, ProtoField(1, STRING, required=True)]
    # sequence id of the message, or of a batch's first message
    sequence_id:               Annotated[int, ProtoField(2, UINT64, required=True)]
    # time in milliseconds, by the producer's clock
    publish_time:              Annotated[int, ProtoField(3, UINT64, required=True)]
    property_fields: Annotated[
        tuple[bytes, ...], ProtoField(4, BYTES, repeated=True)
    ] = ()
    replicated_from:           Annotated[str | None, ProtoField(5, STRING)] = None
    # key of a message as text; a binary key is sent as Base64
    partition_key:             Annotated[bytes | None, ProtoField(6, BYTES)] = None
    replicate_to:              Annotated[tuple[str, ...], ProtoField(7, STRING, repeated=True)] = ()
    compression:               Annotated[int | None, ProtoField(8, INT32)] = None  # see PulsarCodec
    uncompressed_size:         Annotated[int | None, ProtoField(9, UINT32)] = None
    # present only in a batch
    num_messages_in_batch:     Annotated[int | None, ProtoField(11, INT32)] = None
    event_time:                Annotated[int | None, ProtoField(12, UINT64)] = None
    encryption_keys: Annotated[
        tuple[bytes, ...], ProtoField(13, BYTES, repeated=True)
    ] = ()
    encryption_algo:           Annotated[str | None, ProtoField(14, STRING)] = None
    encryption_param:          Annotated[bytes | None, ProtoField(15, BYTES)] = None
    schema_version:            Annotated[bytes | None, ProtoField(16, BYTES)] = None
    partition_key_b64_encoded: Annotated[bool | None, ProtoField(17, BOOL)] = None
    ordering_key:              Annotated[bytes | None, ProtoField(18, BYTES)] = None
    deliver_at_time:           Annotated[int | None, ProtoField(19, INT64)] = None
    # present only in a marker
    marker_type:               Annotated[int | None, ProtoField(20, INT32)] = None
    txnid_least_bits:          Annotated[int | None, ProtoField(22, UINT64)] = None
    txnid_most_bits:           Annotated[int | None, ProtoField(23, UINT64)] = None
    # sequence id of a batch's last message
    highest_sequence_id:       Annotated[int | None, ProtoField(24, UINT64)] = None
    null_value:                Annotated[bool | None, ProtoField(25, BOOL)] = None
    # an id that all chunks of a message share
    uuid:                      Annotated[str | None, ProtoField(26, STRING)] = None
    num_chunks_from_msg:       Annotated[int | None, ProtoField(27, INT32)] = None
    total_chunk_msg_size:      Annotated[int | None, ProtoField(28, INT32)] = None
    chunk_id:                  Annotated[int | None, ProtoField(29, INT32)] = None
    null_partition_key:        Annotated[bool | None, ProtoField(30, BOOL)] = None
    compacted_batch_indexes:   Annotated[tuple[int, ...], ProtoField(31, INT32, repeated=True)] = ()
    schema_id:                 Annotated[bytes | None, ProtoField(32, BYTES)] = None
    # fmt: on

    @property
    def properties(self) -> tuple[tuple[str, str], ...]:
        """The names and values of the message's properties, in order.

        Raises ``CorruptLog`` if a property is broken. The position is a byte of that property.
        """
        return decode_properties(self.property_fields)

    @property
    def is_marker(self) -> bool:
        return self.marker_type is not None

    @property
    def is_batch(self) -> bool:
        return self.num_messages_in_batch is not None

    @property
    def is_encrypted(self) -> bool:
        return len(self.encryption_keys) > 0

    @property
    def is_chunk(self) -> bool:
        """Whether the entry is a chunk of a message that was too large for one entry."""
        return (self.num_chunks_from_msg or 1) > 1

    @property
    def is_last_chunk(self) -> bool:
        """Whether the entry is the last chunk, with which a reader completes the message."""
        return self.is_chunk and (self.chunk_id or 0) >= (self.num_chunks_from_msg or 1) - 1

    @property
    def transaction(self) -> tuple[int, int] | None:
        """The transaction's id, as its upper and lower 64 bits. None outside of transactions."""
        if self.txnid_most_bits is None or self.txnid_least_bits is None:
            return None
        return self.txnid_most_bits, self.txnid_least_bits


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleMetadata(ProtoMessage):
    """Pulsar's protobuf message SingleMessageMetadata: the metadata of one message in a batch."""

    # fmt: off
    property_fields: Annotated[
        tuple[bytes, ...], ProtoField(1, BYTES, repeated=True)
    ] = ()
    partition_key:             Annotated[bytes | None, ProtoField(2, BYTES)] = None
    payload_size:              Annotated[int, ProtoField(3, INT32, required=True)]
    compacted_out:             Annotated[bool | None, ProtoField(4, BOOL)] = None
    event_time:                Annotated[int | None, ProtoField(5, UINT64)] = None
    partition_key_b64_encoded: Annotated[bool | None, ProtoField(6, BOOL)] = None
    ordering_key:              Annotated[bytes | None, ProtoField(7, BYTES)] = None
    sequence_id:               Annotated[int | None, ProtoField(8, UINT64)] = None
    null_value:                Annotated[bool | None, ProtoField(9, BOOL)] = None
    null_partition_key:        Annotated[bool | None, ProtoField(10, BOOL)] = None
    # fmt: on


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry as stored in its ledger, with decoded metadata."""

    ledger: int
    entry: int
    prefix: bytes  # 0e02, length and BrokerEntryMetadata; empty without broker metadata
    checksum: int | None
    crc_holds: bool | None  # stored CRC-32C; None if the entry has no checksum
    metadata_bytes: bytes
    metadata: Metadata
    payload: bytes  # payload as stored, compressed and encrypted

    @property
    def broker(self) -> BrokerMetadata | None:
        """The metadata that a broker put before the entry. None if absent or unreadable.

        Neither the checksum nor a compactor uses broker metadata, so unreadable broker metadata are
        not damage.
        """
        try:
            return BrokerMetadata.decode(self.prefix, 6) if self.prefix else None
        except CorruptLog:
            return None

    @property
    def is_marker(self) -> bool:
        return self.metadata.is_marker

    @property
    def is_batch(self) -> bool:
        return self.metadata.is_batch

    @property
    def is_encrypted(self) -> bool:
        return self.metadata.is_encrypted

    @property
    def is_readable_batch(self) -> bool:
        """Whether compaction reads the batch's messages one by one."""
        return self.is_batch and not self.is_encrypted and not self.is_marker

    @property
    def value_bytes(self) -> int:
        """The value length of a single message; 0 makes it a tombstone.

        See docs/formats/pulsar-compaction.md, "Order, keys, deletes".
        """
        if self.metadata.null_value:
            return 0
        size = self.metadata.uncompressed_size
        return len(self.payload) if size is None else size


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarMessage:
    """One message as a consumer receives it.

    ``index`` is its index in a batch, or None for a single message.
    """

    index: int | None = None
    key: bytes | None = None
    is_b64: bool = False
    value: bytes = b""
    is_null: bool = False
    event_time: int = 0
    publish_time: int = 0
    properties: tuple[tuple[str, str], ...] = ()
    sequence_id: int | None = None
    ordering_key: bytes | None = None
    schema_version: bytes | None = None
    producer_name: str = ""
    null_key: bool = False
    compacted_out: bool = False
    # whether the message is encrypted; ``value`` is then the encrypted payload
    is_encrypted: bool = False


def decode_properties(encoded: Sequence[bytes]) -> tuple[tuple[str, str], ...]:
    """The names and values of KeyValue messages, in their order.

    Raises ``CorruptLog`` if a message is broken.
    """
    pairs = (KeyValue.decode(item) for item in encoded)
    return tuple((pair.key, pair.value) for pair in pairs)


def encode_properties(properties: Sequence[tuple[str, str]]) -> tuple[bytes, ...]:
    """Encode names and values as KeyValue messages."""
    return tuple(KeyValue(key=key, value=value).encode() for key, value in properties)


def decode_entry(data: Buffer, ledger: int, entry: int) -> Entry:
    """Decode ``data``, a whole framed entry: broker metadata, checksum, metadata, payload.

    A wrong checksum is reported in ``crc_holds``, not raised.

    Raises:
        TruncatedLog: a length exceeds the entry.
        CorruptLog: the metadata are broken, or lack a required field. Positions are bytes of
            ``data``.
    """
    raw = bytes(data)
    at = 0
    if raw[:2] == MAGIC_BROKER:
        at = 6 + _length(raw, 2, "broker metadata")
    prefix = raw[:at]
    checksum: int | None = None
    holds: bool | None = None
    if raw[at : at + 2] == MAGIC_CHECKSUM:
        if len(raw) - at < 6:
            raise TruncatedLog("the entry ends inside the checksum", at)
        checksum = int.from_bytes(raw[at + 2 : at + 6], "big")
        at += 6
        holds = checksum == google_crc32c.value(raw[at:])
    size = _length(raw, at, "metadata")
    at += 4
    return Entry(
        ledger=ledger,
        entry=entry,
        prefix=prefix,
        checksum=checksum,
        crc_holds=holds,
        metadata_bytes=raw[at : at + size],
        metadata=Metadata.decode(raw, at, at + size),
        payload=raw[at + size :],
    )


def _length(raw: bytes, at: int, what: str) -> int:
    """The u32 length at byte ``at``. Raises ``TruncatedLog`` if fewer bytes follow the length."""
    left = len(raw) - at - 4
    if left < 0:
        raise TruncatedLog(f"the data end inside the length of the {what}", at)
    size = int.from_bytes(raw[at : at + 4], "big")
    if size > left:
        raise TruncatedLog(
            f"the length of the {what} is {size} bytes, but only {left} bytes follow", at
        )
    return size


def messages_of(entry: Entry, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> list[PulsarMessage]:
    """The messages of an entry, placeholders included.

    A marker has no messages, a single or an encrypted entry has one, and a batch has as many as it
    states. The value of an encrypted entry is its stored payload, and its key is from the metadata.
    A chunked message is compressed as a whole, so join its chunks first.

    Raises:
        CorruptLog: the payload does not decompress to the stated size, or does not have the stated
            number of messages. Positions are bytes of the decompressed payload. A compactor keeps
            such a batch whole.
        UnsupportedFormat: an unknown codec.
        OutOfMemoryBudget: the payload decompresses to more than ``limit_bytes``.
    """
    meta = entry.metadata
    if meta.is_marker:
        return []
    if meta.is_encrypted:
        return [_message(meta, meta, entry.payload, is_encrypted=True)]
    plain = plain_payload(entry, limit_bytes)
    if not meta.is_batch:
        return [_message(meta, meta, plain)]
    return [
        _message(meta, single, value, index=index, compacted_out=bool(single.compacted_out))
        for index, single, value, _ in batch_parts(meta, plain)
    ]


def _message(
    meta: Metadata, own: Metadata | SingleMetadata, value: bytes, **others: Any
) -> PulsarMessage:
    """One message of an entry.

    ``meta`` is the entry's metadata, ``own`` the message's own metadata.
    """
    return PulsarMessage(
        key=own.partition_key,
        is_b64=bool(own.partition_key_b64_encoded),
        value=value,
        is_null=bool(own.null_value),
        event_time=own.event_time or 0,
        publish_time=meta.publish_time,
        properties=decode_properties(own.property_fields),
        sequence_id=meta.sequence_id if own.sequence_id is None else own.sequence_id,
        ordering_key=own.ordering_key,
        schema_version=meta.schema_version,
        producer_name=meta.producer_name,
        null_key=bool(own.null_partition_key),
        **others,
    )


def plain_payload(entry: Entry, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> bytes:
    """The decompressed payload of an entry that is not encrypted. Errors as ``messages_of``."""
    meta = entry.metadata
    codec = PulsarCodec.of(meta.compression or 0)
    if codec is PulsarCodec.NONE:
        # An uncompressed payload is returned without a check of its stated size, as a broker does.
        return entry.payload
    return PulsarCodecs().decompress(codec, entry.payload, meta.uncompressed_size or 0, limit_bytes)


def batch_parts(meta: Metadata, plain: bytes) -> list[tuple[int, SingleMetadata, bytes, bytes]]:
    """Index, metadata, value and encoding of each message in a batch's plain payload.

    The encoding is the bytes of length, metadata and value.

    Raises:
        CorruptLog: the payload has another number of messages than stated, or bytes after them. In
            the layout without placeholders, also indexes that do not ascend, or too many messages.
    """
    count = meta.num_messages_in_batch or 0
    kept = meta.compacted_batch_indexes
    # Check the count before allocating a list of that size: each message has a minimum size.
    most = len(plain) // SMALLEST_MESSAGE_BYTES
    if not 0 <= count <= (max(most, MOST_DENSE) if kept else most) or len(kept) > min(count, most):
        raise CorruptLog(
            f"the batch states {count} messages and keeps {len(kept)}, but it has only "
            f"{len(plain)} bytes",
            0,
        )
    found: list[tuple[SingleMetadata, bytes, bytes]] = []
    at = 0
    while at < len(plain):
        begin = at + 4 + _length(plain, at, "message's metadata")
        single = SingleMetadata.decode(plain, at + 4, begin)
        if not 0 <= single.payload_size <= len(plain) - begin:
            raise CorruptLog(
                f"the payload's length is {single.payload_size} bytes, but only "
                f"{len(plain) - begin} bytes follow",
                at,
            )
        end = begin + single.payload_size
        found.append((single, plain[begin:end], plain[at:end]))
        at = end
    indexes: Sequence[int] = range(count)
    if len(found) != count:
        indexes = kept
        if not kept or len(found) != len(kept):
            raise CorruptLog(f"the batch states {count} messages, but contains {len(found)}", 0)
        if not all(low < high for low, high in pairwise((-1, *kept, count))):
            raise CorruptLog(
                f"the message indexes in the batch of {count} messages are not in ascending order",
                0,
            )
    return [(index, *parts) for index, parts in zip(indexes, found, strict=True)]


def encode_entry(
    metadata: Metadata | bytes,
    payload: bytes = b"",
    *,
    broker: BrokerMetadata | None = None,
    checksum: bool = True,
) -> bytes:
    """A framed entry. ``payload`` must be compressed and encrypted already."""
    prefix = b""
    if broker is not None:
        encoded = broker.encode()
        prefix = MAGIC_BROKER + len(encoded).to_bytes(4, "big") + encoded
    return prefix + framed(
        metadata if isinstance(metadata, bytes) else metadata.encode(), payload, checksum=checksum
    )


def framed(metadata: bytes, payload: bytes, *, checksum: bool = True) -> bytes:
    """Metadata and payload, preceded by length and checksum."""
    body = len(metadata).to_bytes(4, "big") + metadata + payload
    if not checksum:
        return body
    return MAGIC_CHECKSUM + int(google_crc32c.value(body)).to_bytes(4, "big") + body


def encode_single(
    message: PulsarMessage,
    *,
    codec: PulsarCodec = PulsarCodec.NONE,
    states_size: bool = True,
    producer_name: str = "p-1",
) -> tuple[Metadata, bytes]:
    """Metadata and payload of a single message, as the Java client creates them.

    The C++ client does not state the size of an uncompressed value (``states_size=False``).
    """
    meta = Metadata(
        producer_name=message.producer_name or producer_name,
        sequence_id=message.sequence_id or 0,
        publish_time=message.publish_time,
        property_fields=encode_properties(message.properties),
        partition_key=message.key,
        compression=int(codec) or None,
        uncompressed_size=len(message.value) if states_size or codec else None,
        event_time=message.event_time or None,
        schema_version=message.schema_version,
        partition_key_b64_encoded=message.is_b64 or None,
        ordering_key=message.ordering_key,
        null_value=message.is_null or None,
        null_partition_key=message.null_key or None,
    )
    return meta, PulsarCodecs().compress(codec, message.value)


def encode_batch(
    messages: Sequence[PulsarMessage],
    *,
    codec: PulsarCodec = PulsarCodec.NONE,
    producer_name: str = "p-1",
) -> tuple[Metadata, bytes]:
    """Metadata and payload of a batch, as the Java client creates them from its first message."""
    first, last = messages[0], messages[-1]
    plain = b"".join(encode_part(message) for message in messages)
    meta = Metadata(
        producer_name=first.producer_name or producer_name,
        sequence_id=first.sequence_id or 0,
        publish_time=first.publish_time,
        partition_key=first.key,
        compression=int(codec) or None,
        uncompressed_size=len(plain) if codec else None,
        num_messages_in_batch=len(messages),
        schema_version=first.schema_version,
        ordering_key=first.ordering_key,
        partition_key_b64_encoded=first.is_b64 or None,
        highest_sequence_id=last.sequence_id,
    )
    return meta, PulsarCodecs().compress(codec, plain)


def encode_part(message: PulsarMessage) -> bytes:
    """Encode a message for the uncompressed payload of a batch.

    A ``compacted_out`` message becomes a placeholder.
    """
    if message.compacted_out:
        return PLACEHOLDER
    single = SingleMetadata(
        property_fields=encode_properties(message.properties),
        partition_key=message.key,
        payload_size=len(message.value),
        event_time=message.event_time or None,
        partition_key_b64_encoded=message.is_b64 or None,
        ordering_key=message.ordering_key,
        sequence_id=message.sequence_id,
        null_value=message.is_null or None,
        null_partition_key=message.null_key or None,
    ).encode()
    return len(single).to_bytes(4, "big") + single + message.value


def rebatched(
    entry: Entry, keeps: Callable[[int], bool], limit_bytes: int = DEFAULT_LIMIT_BYTES
) -> bytes | None:
    """The framed entry of a readable batch with only the messages whose index satisfies ``keeps``.

    Returns None if no message is kept. Indexes do not change: a removed message becomes a
    placeholder, and existing placeholders remain. The broker's prefix stays. Errors as
    ``messages_of``; the caller keeps an unreadable batch unchanged.
    """
    parts = batch_parts(entry.metadata, plain_payload(entry, limit_bytes))
    held = {
        index: data for index, single, _, data in parts if not single.compacted_out and keeps(index)
    }
    if not held:
        return None
    count = entry.metadata.num_messages_in_batch or 0
    plain = b"".join(held.get(index, PLACEHOLDER) for index in range(count))
    codec = PulsarCodec.of(entry.metadata.compression or 0)
    metadata = patched(entry.metadata_bytes, sorted(held), len(plain))
    return entry.prefix + framed(metadata, PulsarCodecs().compress(codec, plain))


def patched(metadata: bytes, indexes: Sequence[int], uncompressed_size: int) -> bytes:
    """A copy of a batch's metadata with other kept indexes and another payload size."""
    rest = without(metadata, UNCOMPRESSED_SIZE, COMPACTED_BATCH_INDEXES)
    rest = inserted(rest, UNCOMPRESSED_SIZE, put(UNCOMPRESSED_SIZE, uncompressed_size))
    return inserted(
        rest,
        COMPACTED_BATCH_INDEXES,
        b"".join(put(COMPACTED_BATCH_INDEXES, index) for index in indexes),
    )


def checked(entry: Entry) -> Entry:
    """Return ``entry`` if its checksum matches or is absent.

    Raises:
        CorruptLog: the checksum does not match.
    """
    if entry.crc_holds is False:
        name = f"entry {entry.ledger}:{entry.entry}"
        raise CorruptLog(
            f"{name} has the checksum {entry.checksum:08x}, which does not match its bytes", 0
        )
    return entry


def is_undecodable(entry: Entry, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> bool:
    """Whether the entry is an unreadable batch, which a compactor keeps unchanged."""
    if not entry.is_readable_batch:
        return False
    try:
        batch_parts(entry.metadata, plain_payload(entry, limit_bytes))
    except (CorruptLog, UnsupportedFormat):
        return True
    return False
