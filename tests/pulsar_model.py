"""Compaction of a Pulsar topic in the plainest Python: two passes over a list of entries, a key map that is a dict.

No speed and nothing of the engine's: entries are decoded by the slow twins. Read it beside spec/pulsar.md sections 8 to
12 and 27.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lastwrite.formats.pulsar.entry import Entry, decode_entry, is_undecodable, messages_of, plain_payload, rebatched
from lastwrite.formats.pulsar.position import Position

COMMIT, ABORT = 21, 22

Place = tuple[Position, int | None]  # with the index in a batch


@dataclass(frozen=True)
class Rules:
    """What a round obeys."""

    retain: bool = False
    event_time: bool = False
    like_broker: bool = False
    keeps_prefix: bool = False


@dataclass
class ModelTopic:
    """A topic's entries, and what the rounds so far made of them."""

    raw: list[tuple[Position, bytes]] = field(default_factory=list)
    compacted: list[tuple[Position, bytes]] = field(default_factory=list)
    horizon: Position | None = None

    def compact(self, rules: Rules) -> bool:
        """One round; whether the horizon moved."""
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
        kept = [(place, _copied(place, entry, latest, rules)) for place, entry in everything]
        self.compacted = [(place, body) for place, body in kept if body is not None]
        self.horizon = horizon
        return True


def _latest(entries: Sequence[tuple[Position, Entry]], rules: Rules) -> dict[bytes, tuple[Place, int]]:
    """Phase one: of each key the message that counts, and its event time."""
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


def is_part(entry: Entry, rules: Rules) -> bool:
    """A part of a message that is not its last: it stays, unless a broker is to be followed."""
    meta = entry.metadata
    parts = meta.num_chunks_from_msg or 0
    return not rules.like_broker and parts > 1 and (meta.chunk_id or 0) < parts - 1


def _size(entry: Entry, rules: Rules) -> int:
    if rules.like_broker:
        size = entry.metadata.uncompressed_size
        return len(entry.payload) if size is None else size
    return entry.value_bytes


def _copied(place: Position, entry: Entry, latest: dict[bytes, tuple[Place, int]], rules: Rules) -> bytes | None:
    """Phase two: what becomes of one entry."""

    def is_latest(key: bytes | None, index: int | None) -> bool:
        if key is None:
            return rules.retain
        return key in latest and latest[key][0] == (place, index)

    body = whole(entry)
    if not rules.keeps_prefix:
        body = body[len(entry.prefix) :]
    if is_undecodable(entry) or is_part(entry, rules):
        return body
    if not entry.is_readable_batch:
        return body if is_latest(entry.metadata.partition_key, None) else None
    keys = {message.index: message.key for message in messages_of(entry)}
    found = rebatched(entry, lambda index: is_latest(keys[index], index))
    return found if found is None or rules.keeps_prefix else found[len(entry.prefix) :]


def whole(entry: Entry) -> bytes:
    """The entry's bytes as they lay."""
    body = len(entry.metadata_bytes).to_bytes(4, "big") + entry.metadata_bytes + entry.payload
    if entry.checksum is not None:
        body = b"\x0e\x01" + entry.checksum.to_bytes(4, "big") + body
    return entry.prefix + body


def content(place: Position, body: bytes) -> tuple[object, ...]:
    """What of an entry has to be the same: its bytes, save how a batch's payload was compressed."""
    entry = decode_entry(body, *place)
    assert entry.crc_holds is not False
    if entry.is_readable_batch and not is_undecodable(entry):
        return place, entry.prefix, entry.metadata_bytes, plain_payload(entry)
    return place, body
