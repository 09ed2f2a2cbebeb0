"""What consumer groups have committed: a log as a broker's own, in a folder that the server has for
itself.

    STATE/__consumer_offsets-0/00000000000000000000.log

Keys and values are Kafka's, so our cleaner cleans it, every reader of ours shows it, and a broker
can be given it. A commit is answered when the kernel has it: the server may be killed, and nothing
answered is lost. What a kill tore off at the end is cut at the next start, as a broker does.

    key     i16 1 · group · topic · i32 partition
    value   i16 3 · i64 offset · i32 leader epoch · metadata · i64 commit ms     texts: i16 length

Source: Kafka 4.4 ``OffsetCommitKey.json``, ``OffsetCommitValue.json``; docs/formats/kafka.md.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from lastwrite.kafka.cluster.internal_topics import GROUPS_TOPIC
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.names import folder_name
from lastwrite.kafka.store import lock
from lastwrite.kafka.store.appended import AppendedLog
from lastwrite.model.log import TopicPartition
from lastwrite.storage.files import make_folder

_NAME = TopicPartition(GROUPS_TOPIC, 0)
_SEGMENT_BYTES = 16 << 20
_KEY, _VALUE = struct.Struct(">h"), struct.Struct(">hqi")


class Commit(NamedTuple):
    """A group's position in a partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class Place(NamedTuple):
    """Of which group, in which partition."""

    group: str
    topic: str
    partition: int


class Offsets:
    """The positions of all groups. ``state``: the server's own folder, made where it is not there.

    Raises:
        LogHeld: another server has it.
        LogError: it cannot be written, or is damaged.
    """

    def __init__(self, state: str) -> None:
        self._lock = threading.Lock()
        self._known: dict[Place, Commit] = {}
        make_folder(state)
        with ExitStack() as stack:
            stack.enter_context(lock.hold(state, [_NAME]))
            self._log = AppendedLog(os.path.join(state, folder_name(_NAME)), _SEGMENT_BYTES)
            for record in self._log.records():
                place = _place_of(record.key)
                if place is not None:
                    self._note(place, _commit_of(record.value))
            self._held = stack.pop_all()

    def close(self) -> None:
        """Let another server have the folder."""
        self._held.close()

    def of(self, place: Place) -> Commit | None:
        return self._known.get(place)

    def of_group(self, group: str) -> list[tuple[Place, Commit]]:
        """All positions of a group, by partition."""
        with self._lock:
            found = [each for each in self._known.items() if each[0].group == group]
        return sorted(found)

    def groups(self) -> set[str]:
        with self._lock:
            return {place.group for place in self._known}

    def start_from(self, commits: Sequence[tuple[Place, Commit]], now_ms: int) -> None:
        """Take positions that somebody else has noted, of groups that have none here."""
        fresh = [(place, commit) for place, commit in commits if place not in self._known]
        if fresh:
            self.commit(fresh, now_ms)

    def commit(self, commits: Sequence[tuple[Place, Commit | None]], now_ms: int) -> None:
        """Note positions, all or none; None takes one away.

        Raises:
            LogError: they could not be written, and are not noted.
        """
        with self._lock:
            self._log.append(
                [
                    Record(
                        self._log.end_offset + n, now_ms, _key_of(place), _value_of(commit, now_ms)
                    )
                    for n, (place, commit) in enumerate(commits)
                ]
            )
            for place, commit in commits:
                self._note(place, commit)

    def _note(self, place: Place, commit: Commit | None) -> None:
        if commit is None:
            self._known.pop(place, None)
        else:
            self._known[place] = commit


def _key_of(place: Place) -> bytes:
    partition = struct.pack(">i", place.partition)
    return _KEY.pack(1) + _text(place.group) + _text(place.topic) + partition


def _value_of(commit: Commit | None, now_ms: int) -> bytes | None:
    if commit is None:
        return None
    head = _VALUE.pack(3, commit.offset, commit.leader_epoch)
    return head + _text(commit.metadata) + struct.pack(">q", now_ms)


def _place_of(key: bytes | None) -> Place | None:
    if key is None or int.from_bytes(key[:2], "big") not in (0, 1):
        return None
    group, at = _read_text(key, 2)
    topic, at = _read_text(key, at)
    return Place(group, topic, int.from_bytes(key[at : at + 4], "big", signed=True))


def _commit_of(value: bytes | None) -> Commit | None:
    if value is None:
        return None
    _, offset, epoch = _VALUE.unpack_from(value, 0)
    return Commit(offset, epoch, _read_text(value, _VALUE.size)[0])


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", data, at)
    return data[at + 2 : at + 2 + length].decode(), at + 2 + length
