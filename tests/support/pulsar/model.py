"""A plain model of a Pulsar compaction: two passes over a list of entries, with a dict as key map.

It is slow and shares no code with the engine. The slow decoders decode its entries. Source:
docs/formats/pulsar-compaction.md.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lastwrite.pulsar.format.codecs import PulsarCodec
from lastwrite.pulsar.format.entry import (
    BrokerMetadata,
    EncryptionKey,
    Entry,
    Metadata,
    PulsarMessage,
    decode_entry,
    encode_batch,
    encode_entry,
    encode_single,
    is_undecodable,
    messages_of,
    plain_payload,
    rebatched,
)
from lastwrite.pulsar.format.position import Position

COMMIT, ABORT = 21, 22

Place = tuple[Position, int | None]  # the position of a message, with its index in a batch


@dataclass(frozen=True)
class Rules:
    """The settings of a round."""

    retain: bool = False
    event_time: bool = False
    like_broker: bool = False
    keeps_prefix: bool = False


@dataclass
class ModelTopic:
    """A topic's raw entries, and the result of its rounds."""

    raw: list[tuple[Position, bytes]] = field(default_factory=list)
    compacted: list[tuple[Position, bytes]] = field(default_factory=list)
    horizon: Position | None = None

    def compact(self, rules: Rules) -> bool:
        """Run one round. Returns whether the horizon moved."""
        fresh = [
            (place, decode_entry(body, *place))
            for place, body in self.raw
            if self.horizon is None or place > self.horizon
        ]
        outcomes = {
            entry.metadata.transaction: entry.metadata.marker_type
            for _, entry in fresh
            if entry.metadata.marker_type in (COMMIT, ABORT)
        }
        read: list[tuple[Position, Entry]] = []
        horizon = None
        for place, entry in fresh:
            transaction = entry.metadata.transaction
            if not entry.is_marker and transaction is not None:
                if transaction not in outcomes:
                    break
                if outcomes[transaction] == ABORT:
                    continue
            if entry.is_marker:
                continue
            read.append((place, entry))
            horizon = place
        if horizon is None:
            return False
        everything = [(place, decode_entry(body, *place)) for place, body in self.compacted] + read
        latest = _latest(everything, rules)
        stray = _stray_parts(everything, rules)
        kept = [
            (place, None if place in stray else _copied(place, entry, latest, rules))
            for place, entry in everything
        ]
        self.compacted = [(place, body) for place, body in kept if body is not None]
        self.horizon = horizon
        return True


def _latest(
    entries: Sequence[tuple[Position, Entry]], rules: Rules
) -> dict[bytes, tuple[Place, int]]:
    """Phase one: the position and event time of each key's winning message."""
    latest: dict[bytes, tuple[Place, int]] = {}

    def see(key: bytes | None, place: Place, size: int, time: int) -> None:
        if key is None:
            return
        if rules.event_time and key in latest:
            known = latest[key][1]
            if time < known or (time == known and place[1] is not None):
                return
        if size > 0:
            latest[key] = (place, time)
        else:
            latest.pop(key, None)

    for place, entry in entries:
        if is_undecodable(entry):
            continue
        meta = entry.metadata
        if entry.is_readable_batch:
            for message in messages_of(entry):
                if not message.compacted_out:
                    see(message.key, (place, message.index), len(message.value), message.event_time)
        elif not is_part(entry, rules):
            see(meta.partition_key, (place, None), _size(entry, rules), meta.event_time or 0)
    return latest


def _stray_parts(entries: Sequence[tuple[Position, Entry]], rules: Rules) -> set[Position]:
    """The chunks that the last record of their key supersedes, unless it is of their message.

    Empty with ``event_time``.
    """
    last: dict[bytes, Entry] = {}
    stray: set[Position] = set()
    for place, entry in reversed(entries) if not rules.event_time else ():
        meta = entry.metadata
        if is_undecodable(entry):
            continue
        if entry.is_readable_batch:
            for message in messages_of(entry):
                if message.key is not None and not message.compacted_out:
                    last.setdefault(message.key, entry)
        elif meta.partition_key is not None:
            if not is_part(entry, rules):
                last.setdefault(meta.partition_key, entry)
            elif meta.partition_key in last:
                other = last[meta.partition_key].metadata
                if (
                    (other.num_chunks_from_msg or 0) < 2
                    or other.uuid is None
                    or other.uuid != meta.uuid
                ):
                    stray.add(place)
    return stray


def is_part(entry: Entry, rules: Rules) -> bool:
    """Whether the entry is a chunk other than its message's last one.

    It does not compete for its key. False with ``like_broker``: to a broker, each chunk is a
    message.
    """
    meta = entry.metadata
    parts = meta.num_chunks_from_msg or 0
    return not rules.like_broker and parts > 1 and (meta.chunk_id or 0) < parts - 1


def _size(entry: Entry, rules: Rules) -> int:
    if rules.like_broker:
        size = entry.metadata.uncompressed_size
        return len(entry.payload) if size is None else size
    return entry.value_bytes


def _copied(
    place: Position, entry: Entry, latest: dict[bytes, tuple[Place, int]], rules: Rules
) -> bytes | None:
    """Phase two: the entry after compaction. None if it is removed."""

    def is_latest(key: bytes | None, index: int | None) -> bool:
        if key is None:
            return rules.retain
        return key in latest and latest[key][0] == (place, index)

    body = whole(entry)
    if not rules.keeps_prefix:
        body = body[len(entry.prefix) :]
    if is_undecodable(entry) or (
        is_part(entry, rules) and entry.metadata.partition_key is not None
    ):
        return body
    if not entry.is_readable_batch:
        return body if is_latest(entry.metadata.partition_key, None) else None
    keys = {message.index: message.key for message in messages_of(entry)}
    found = rebatched(entry, lambda index: is_latest(keys[index], index))
    return found if found is None or rules.keeps_prefix else found[len(entry.prefix) :]


def whole(entry: Entry) -> bytes:
    """The entry's bytes as stored."""
    body = len(entry.metadata_bytes).to_bytes(4, "big") + entry.metadata_bytes + entry.payload
    if entry.checksum is not None:
        body = b"\x0e\x01" + entry.checksum.to_bytes(4, "big") + body
    return entry.prefix + body


def content(place: Position, body: bytes) -> tuple[object, ...]:
    """What two compactions of an entry must share: its bytes, or a batch's decompressed ones."""
    entry = decode_entry(body, *place)
    assert entry.crc_holds is not False
    if entry.is_readable_batch and not is_undecodable(entry):
        return place, entry.prefix, entry.metadata_bytes, plain_payload(entry)
    return place, body


# ---------------------------------------------------------------------- topics drawn at random

START_MS = 1_700_000_000_000
KEYS = (b"a", b"b", b"c", b"", "ü".encode(), b"a longer key, of more bytes than sixteen")


class Author:
    """Writes entries of every kind that clients and brokers write, determined by ``seed``."""

    def __init__(
        self, seed: int, keys: Sequence[bytes] = KEYS, *, is_checked: bool = False
    ) -> None:
        self._is_checked = is_checked  # each entry has a checksum
        self._random = random.Random(seed)
        self._keys = keys
        self._clock = START_MS
        self._open: list[int] = []  # the open transactions
        self._sequence = 0
        self._transaction = 0

    def entries(self, count: int) -> list[bytes]:
        """About ``count`` next entries of the topic."""
        found: list[bytes] = []
        while len(found) < count:
            found += self._next()
        return found

    def _next(self) -> list[bytes]:
        draw = self._random.random()
        if draw < 0.40:
            return [self._single()]
        if draw < 0.70:
            return [self._batch()]
        if draw < 0.75:
            return [self._encrypted()]
        if draw < 0.80:
            return [self._undecodable()]
        if draw < 0.86:
            return self._chunks()
        if draw < 0.90:
            return [self._marker(self._random.choice((0, 10, 12, 20)), 0)]
        if draw < 0.95 and self._open:
            transaction = self._open.pop(self._random.randrange(len(self._open)))
            return [self._marker(self._random.choice((COMMIT, ABORT)), transaction)]
        return [self._transactional()]

    def end_transactions(self) -> list[bytes]:
        """Markers that end all open transactions."""
        found = [self._marker(self._random.choice((COMMIT, ABORT)), each) for each in self._open]
        self._open = []
        return found

    def _message(self, index: int | None = None) -> PulsarMessage:
        draw, self._sequence = self._random, self._sequence + 1
        kind = draw.random()
        value = draw.randbytes(draw.choice((1, 3, 20, 300))) if kind > 0.2 else b""
        return PulsarMessage(
            index=index,
            key=None if draw.random() < 0.12 else draw.choice(self._keys),
            value=value,
            is_null=not value and draw.random() < 0.5,
            event_time=draw.choice((0, 0, 1, 2, 3)),
            publish_time=self._clock,
            sequence_id=self._sequence,
            is_b64=draw.random() < 0.1,
            properties=(("p", "v"),) if draw.random() < 0.2 else (),
            schema_version=b"\0\1" if draw.random() < 0.2 else None,
        )

    def _framed(self, meta: Metadata, payload: bytes) -> bytes:
        draw = self._random
        self._clock += draw.randrange(50)
        broker = (
            BrokerMetadata(broker_timestamp=self._clock, index=7) if draw.random() < 0.1 else None
        )
        return encode_entry(
            meta, payload, broker=broker, checksum=self._is_checked or draw.random() < 0.95
        )

    def _single(self, **changes: Any) -> bytes:
        codec = self._random.choice(tuple(PulsarCodec))
        meta, payload = encode_single(
            self._message(), codec=codec, states_size=self._random.random() < 0.6
        )
        return self._framed(replace(meta, **changes), payload)

    def _batch(self, **changes: Any) -> bytes:
        messages = [self._message(index) for index in range(self._random.choice((1, 2, 3, 7)))]
        meta, payload = encode_batch(messages, codec=self._random.choice(tuple(PulsarCodec)))
        return self._framed(replace(meta, **changes), payload)

    def _encrypted(self) -> bytes:
        keys = (EncryptionKey(key="k", value=b"wrapped").encode(),)
        changes: dict[str, Any] = {
            "encryption_keys": keys,
            "encryption_param": b"nonce",
            "encryption_algo": "AES",
        }
        meta, _ = encode_single(self._message(), states_size=self._random.random() < 0.6)
        if self._random.random() < 0.5:
            changes |= {"num_messages_in_batch": 3, "uncompressed_size": None}
        return self._framed(replace(meta, **changes), self._random.randbytes(24))

    def _undecodable(self) -> bytes:
        meta, _ = encode_batch([self._message(0), self._message(1)], codec=PulsarCodec.ZLIB)
        return self._framed(replace(meta, uncompressed_size=50), b"\x78\x9cno deflate at all")

    def _chunks(self) -> list[bytes]:
        count = self._random.choice((2, 3))
        meta, payload = encode_single(replace(self._message(), value=b"x" * 30, is_null=False))
        return [
            self._framed(
                replace(
                    meta,
                    uuid=f"u{self._sequence}",
                    num_chunks_from_msg=count,
                    chunk_id=n,
                    total_chunk_msg_size=30,
                ),
                payload,
            )
            for n in range(count)
            if self._random.random() < 0.9
        ]

    def _transactional(self) -> bytes:
        if not self._open or self._random.random() < 0.4:
            self._transaction += 1
            self._open.append(self._transaction)
        least = self._random.choice(self._open)
        changes = {"txnid_least_bits": least, "txnid_most_bits": least % 2}
        return self._single(**changes) if self._random.random() < 0.6 else self._batch(**changes)

    def _marker(self, kind: int, transaction: int) -> bytes:
        meta = Metadata(
            producer_name="pulsar.marker",
            sequence_id=0,
            publish_time=self._clock,
            marker_type=kind,
            txnid_least_bits=transaction if transaction else None,
            txnid_most_bits=transaction % 2 if transaction else None,
        )
        return self._framed(meta, b"\x08\x01" if self._random.random() < 0.3 else b"")
