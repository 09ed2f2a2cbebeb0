"""Hypothesis strategies for Pulsar entries and data objects, and the records in them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from lastwrite.errors import CorruptLog, UnsupportedFormat
from lastwrite.model.columns import (
    IN_GROUP,
    IS_DELETE,
    IS_SINGLE,
    KEYLESS,
    SHADOWED,
    TIME_SHIFT,
    TOMBSTONE,
    ByteArray,
)
from lastwrite.pulsar.format.codecs import PulsarCodec, PulsarCodecs
from lastwrite.pulsar.format.compacted import encode_record
from lastwrite.pulsar.format.entry import (
    BrokerMetadata,
    EncryptionKey,
    Entry,
    Metadata,
    PulsarMessage,
    batch_parts,
    encode_batch,
    encode_entry,
    encode_part,
    encode_single,
    plain_payload,
)
from lastwrite.pulsar.format.position import Position

START_MS = 1_700_000_000_000
KEYS = (None, b"", b"a", b"b", b"key-0001", "ü".encode() * 20, b"/wA=")
CODECS = st.sampled_from((PulsarCodec.NONE, PulsarCodec.NONE, *PulsarCodec))


@st.composite
def messages(draw: st.DrawFn, may_be_out: bool = False) -> PulsarMessage:
    is_null = draw(st.integers(0, 9)) == 0
    return PulsarMessage(
        key=draw(st.sampled_from(KEYS)),
        value=b"" if is_null else draw(st.binary(max_size=3) | st.just(b"v" * 200)),
        is_null=is_null,
        event_time=draw(st.sampled_from((0, 0, 1, 5, START_MS))),
        publish_time=START_MS,
        sequence_id=draw(st.integers(0, 300)),
        properties=draw(st.sampled_from(((), (("name", "value"),)))),
        compacted_out=may_be_out and draw(st.integers(0, 3)) == 0,
    )


@st.composite
def singles(draw: st.DrawFn) -> bytes:
    meta, payload = encode_single(
        draw(messages()), codec=draw(CODECS), states_size=draw(st.booleans())
    )
    if draw(st.integers(0, 5)) == 0:
        count = draw(st.integers(1, 3))
        meta = replace(
            meta,
            uuid=draw(st.sampled_from(("u", "w", None))),
            num_chunks_from_msg=count,
            chunk_id=draw(st.integers(0, count - 1)),
        )
    return framed(draw, meta, payload)


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """Batches with and without placeholders and lists of kept indexes.

    Some have no bytes for removed messages, and some are malformed.
    """
    some = draw(st.lists(messages(may_be_out=draw(st.booleans())), min_size=1, max_size=6))
    codec = draw(CODECS)
    meta, payload = encode_batch(some, codec=codec)
    kept = tuple(n for n, each in enumerate(some) if not each.compacted_out)
    if len(kept) < len(some) or draw(st.booleans()):
        meta = replace(meta, compacted_batch_indexes=kept)
    if draw(st.booleans()):
        plain = b"".join(map(encode_part, some))
        if kept and draw(st.integers(0, 2)) == 0:
            plain = b"".join(encode_part(some[n]) for n in kept)
            meta = replace(meta, compacted_batch_indexes=kept)
        meta, payload = replace(meta, uncompressed_size=len(plain)), _compressed(codec, plain)
    match draw(st.integers(0, 19)):
        case 0:
            meta = replace(
                meta, num_messages_in_batch=draw(st.sampled_from((-1, 0, 7, 300, 2**31 - 1)))
            )
        case 1:
            meta = replace(meta, uncompressed_size=draw(st.sampled_from((0, 1, 2**32 - 1, None))))
        case 2:
            payload = payload[:-1]
        case 3:
            meta = replace(
                meta, compacted_batch_indexes=draw(st.sampled_from(((), (0,), (0, 1), (5, 2))))
            )
        case 4:
            meta = replace(meta, compression=draw(st.integers(0, 6)))
        case 5:
            payload += b"\0"
        case _:
            pass
    return framed(draw, meta, payload)


@st.composite
def markers(draw: st.DrawFn) -> bytes:
    meta = Metadata(
        producer_name="pulsar.marker",
        sequence_id=0,
        publish_time=START_MS,
        marker_type=draw(st.sampled_from((0, 10, 20, 21, 22))),
    )
    return framed(draw, meta, b"")


def framed(draw: st.DrawFn, meta: Metadata, payload: bytes) -> bytes:
    """The entry, with random variations: encrypted, in a transaction, with an unknown field, with a
    broker's prefix, without a checksum.
    """
    if draw(st.integers(0, 7)) == 0:
        meta = replace(meta, encryption_keys=(EncryptionKey(key="k", value=b"x").encode(),))
    if draw(st.integers(0, 3)) == 0:
        meta = replace(
            meta,
            txnid_most_bits=draw(st.integers(0, 3)),
            txnid_least_bits=draw(st.integers(0, 300)),
        )
    encoded = meta.encode()
    if draw(st.integers(0, 5)) == 0:
        encoded += bytes.fromhex("c23e0401020304")  # the unknown field 1000, with 4 bytes
    broker = (
        BrokerMetadata(broker_timestamp=START_MS, index=7) if draw(st.integers(0, 5)) == 0 else None
    )
    return encode_entry(encoded, payload, broker=broker, checksum=draw(st.integers(0, 5)) > 0)


def entries() -> st.SearchStrategy[bytes]:
    return st.one_of(singles(), batches(), batches(), markers())


def _compressed(codec: PulsarCodec, plain: bytes) -> bytes:
    return PulsarCodecs().compress(codec, plain)


def data_object(bodies: Sequence[bytes], first: int = 0, block_bytes: int = 1 << 30) -> bytes:
    """A data object of entries with ids from ``first``.

    Its blocks have at most ``block_bytes``, unless one entry is larger.
    """
    parts: list[bytes] = []
    at = 0
    while at < len(bodies) or not parts:
        begin, room, block = at, block_bytes - 128, bytearray()
        while at < len(bodies) and (at == begin or len(block) + 12 + len(bodies[at]) <= room):
            block += struct.pack(">iq", len(bodies[at]), first + at) + bodies[at]
            at += 1
        pad = 0 if at == len(bodies) else max(0, room - len(block))
        block += (b"\xfe\xdc\xde\xad" * (pad // 4 + 1))[:pad]
        parts.append(
            struct.pack(">Iqqq100x", 0xFBDBABCB, 128, 128 + len(block), first + begin) + block
        )
    return b"".join(parts)


def as_records(bodies: Sequence[bytes], positions: Sequence[Position]) -> list[bytes]:
    """The entries as records of a compacted ledger."""
    return [
        encode_record(position, -1, body) for position, body in zip(positions, bodies, strict=True)
    ]


def buffer_of(data: bytes) -> ByteArray:
    return np.frombuffer(data, dtype=np.uint8).copy()


@dataclass(frozen=True)
class Slot:
    """A record's state in a round. A record that competes also has a key and a version."""

    state: int
    index: int | None = None  # in its batch
    key: bytes | None = None
    version: int = 0


def slots_of(
    entry: Entry, like_broker: bool = False, group_of: Callable[[bytes], int] | None = None
) -> list[Slot] | None:
    """The records of an entry as a round counts them. None for a batch that cannot be decoded.

    With ``group_of``, versions are groups of chunks. It returns the number of a message's uuid.
    """
    meta = entry.metadata
    if meta.is_marker:
        return []
    if not entry.is_readable_batch:
        size = entry.value_bytes
        if like_broker:
            size = len(entry.payload) if meta.uncompressed_size is None else meta.uncompressed_size
        if meta.partition_key is None:
            return [Slot(KEYLESS)]
        is_part = (meta.num_chunks_from_msg or 1) > (meta.chunk_id or 0) + 1 and not like_broker
        if group_of is not None:
            group = (
                group_of(meta.uuid.encode())
                if (meta.num_chunks_from_msg or 1) > 1 and meta.uuid
                else 0
            )
            state = TOMBSTONE if size == 0 and not is_part else 0
            return [Slot(state, None, meta.partition_key, group | IN_GROUP * is_part)]
        if is_part:
            return [Slot(0)]
        return [_slot(None, meta.partition_key, size == 0, meta.event_time or 0, IS_SINGLE)]
    try:
        parts = batch_parts(meta, plain_payload(entry))
    except (CorruptLog, UnsupportedFormat):
        return None
    kept = meta.compacted_batch_indexes
    if not meta.num_messages_in_batch and (meta.compression or entry.payload):
        return None
    found: list[Slot] = []
    for index, single, value, _ in parts:
        if single.compacted_out:
            if not kept:
                found.append(Slot(SHADOWED, index))
        elif single.partition_key is None:
            found.append(Slot(KEYLESS, index))
        else:
            is_delete = not value or (bool(single.null_value) and not like_broker)
            slot = _slot(index, single.partition_key, is_delete, single.event_time or 0, 0)
            found.append(slot if group_of is None else replace(slot, version=0))
    return None if kept and len(found) != len(kept) else found


def _slot(index: int | None, key: bytes, is_delete: bool, event_time: int, bits: int) -> Slot:
    version = event_time << TIME_SHIFT | bits | (IS_DELETE if is_delete else 0)
    return Slot(TOMBSTONE if is_delete else 0, index, key, version)
