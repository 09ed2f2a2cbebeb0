"""Groups of ``__consumer_offsets`` in every state that matters to the expiry of their offsets."""

from __future__ import annotations

import struct
from typing import NamedTuple

from lastwrite.kafka.cluster.commits import Commit, GroupPartition, key_of, value_of
from lastwrite.kafka.format.batch_layout import Record

DAY_MS = 86_400_000


class ExpiringGroup(NamedTuple):
    """A group's records, and for each committed offset whether it has expired after seven days."""

    records: list[Record]
    positions: list[tuple[GroupPartition, Commit, bool]]


def expiring_groups(now_ms: int, topic: str, other: str) -> list[ExpiringGroup]:
    """All such groups at the time ``now_ms``, with committed offsets in two topics."""
    old, new = now_ms - 8 * DAY_MS, now_ms - DAY_MS
    classic = {
        "empty-long": _classic("empty-long", 3, old),
        "empty-recently": _classic("empty-recently", 3, new),
        "empty-untimed": _classic("empty-untimed", 1, -1),
        "with-member": _classic("with-member", 3, new, has_member=True),
    }
    return [
        _group("simple-old", [], [(topic, old, -1, True)]),
        _group("simple-new", [], [(topic, new, -1, False)]),
        _group("empty-long", [classic["empty-long"]], [(topic, old, -1, True)]),
        _group("empty-recently", [classic["empty-recently"]], [(topic, old, -1, False)]),
        _group("empty-untimed", [classic["empty-untimed"]], [(topic, old, -1, True)]),
        _group("with-member", [classic["with-member"]], [(topic, old, -1, False)]),
        _group("newer", _newer("newer", topic), [(topic, old, -1, False), (other, old, -1, True)]),
        _group("own-time-over", [], [(topic, new, new, True)]),
        _group("own-time-left", [], [(topic, old, now_ms + DAY_MS, False)]),
    ]


def _group(
    name: str, records: list[Record], positions: list[tuple[str, int, int, bool]]
) -> ExpiringGroup:
    found = list(records)
    placed = []
    for topic, at_ms, expires_ms, is_expired in positions:
        place, commit = GroupPartition(name, topic, 0), Commit(5, -1, "", at_ms, expires_ms)
        value = value_of(commit)
        if expires_ms >= 0:  # version 1: without a leader epoch
            value = struct.pack(">hqhqq", 1, commit.offset, 0, at_ms, expires_ms)
        found.append(Record(0, 0, key_of(place), value))
        placed.append((place, commit, is_expired))
    return ExpiringGroup(found, placed)


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _compact(text: str) -> bytes:
    return bytes([len(text) + 1]) + text.encode()


def _classic(group: str, version: int, since_ms: int, has_member: bool = False) -> Record:
    name = _text("range") + _text("m") if has_member else b"\xff\xff\xff\xff"
    value = struct.pack(">h", version) + _text("consumer") + struct.pack(">i", 3) + name
    value += struct.pack(">q", since_ms) if version >= 2 else b""
    value += struct.pack(">i", int(has_member))
    if has_member:
        nothing = struct.pack(">i", 0)
        value += _text("m") + b"\xff\xff" + _text("client") + _text("/127.0.0.1")
        value += struct.pack(">ii", 60_000, 45_000) + nothing + nothing
    return Record(0, 0, struct.pack(">h", 2) + _text(group), value)


def _newer(group: str, topic: str) -> list[Record]:
    member = _text(group) + _text("m")
    says = b"\0\0" + b"\0\0" + _compact("client") + _compact("/127.0.0.1")
    says += b"\x02" + _compact(topic) + b"\0" + struct.pack(">i", 60_000) + b"\0\0"
    return [
        Record(0, 0, struct.pack(">h", 3) + _text(group), struct.pack(">hi", 0, 2) + b"\0"),
        Record(0, 0, struct.pack(">h", 5) + member, says),
        Record(0, 0, struct.pack(">h", 6) + _text(group), struct.pack(">hi", 0, 2) + b"\0"),
        Record(0, 0, struct.pack(">h", 7) + member, b"\0\0\x01\0"),
        Record(
            0, 0, struct.pack(">h", 8) + member, struct.pack(">hiib", 0, 2, 2, 0) + b"\x01\x01\0"
        ),
    ]
