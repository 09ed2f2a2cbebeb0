"""What consumer groups have committed: a log as a broker's own, in a folder that the server has for
itself.

    STATE/__consumer_offsets-0/00000000000000000000.log

Keys and values are Kafka's, so our cleaner cleans it, every reader of ours shows it, and a broker
can be given it. A commit is answered when the kernel has it: the server may be killed, and nothing
answered is lost. What a kill tore off at the end is cut at the next start, as a broker does.

Source: ``kafka.cluster.commits``; docs/formats/kafka.md.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from lastwrite.kafka.cluster.commits import Commit, Place, Positions, key_of, value_of
from lastwrite.kafka.cluster.group_states import GroupKind
from lastwrite.kafka.cluster.internal_topics import GROUPS_TOPIC
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.names import folder_name
from lastwrite.kafka.store import lock
from lastwrite.kafka.store.appended import AppendedLog
from lastwrite.kafka.store.positions import GroupPositions
from lastwrite.model.log import TopicPartition
from lastwrite.storage.files import make_folder

UNREAD_REMEDY = (
    "Until the group commits again, a client that asks for it gets KAFKA_STORAGE_ERROR. "
    "kafka-consumer-groups.sh --reset-offsets sets it"
)
_NAME = TopicPartition(GROUPS_TOPIC, 0)
_SEGMENT_BYTES = 16 << 20


class Offsets:
    """The positions of all groups. ``state``: the server's own folder, made where it is not there.

    Raises:
        LogHeld: another server has it.
        LogError: it cannot be written, or is damaged.
    """

    def __init__(self, state: str) -> None:
        self._lock = threading.Lock()
        make_folder(state)
        with ExitStack() as stack:
            stack.enter_context(lock.hold(state, [_NAME]))
            self._log = AppendedLog(os.path.join(state, folder_name(_NAME)), _SEGMENT_BYTES)
            self._positions = Positions()
            self._positions.take(self._log.batches())
            self._sources: list[GroupPositions] = []
            self._held = stack.pop_all()

    def close(self) -> None:
        """Let another server have the folder."""
        self._held.close()

    def of(self, place: Place) -> Commit | None:
        return self._positions.known.get(place)

    def of_group(self, group: str) -> list[tuple[Place, Commit]]:
        """All positions of a group, by partition."""
        with self._lock:
            found = [each for each in self._positions.known.items() if each[0].group == group]
        return sorted(found)

    @property
    def unread(self) -> list[str]:
        """Sentences about records of the log that cannot be read, each a position that is lost."""
        return [
            f"the record at offset {each.offset}, a position of group {each.group or '?'}, cannot "
            f"be read: {each.reason}. {UNREAD_REMEDY}"
            for each in self._positions.unread.values()
        ]

    def groups(self) -> set[str]:
        with self._lock:
            return {place.group for place in self._positions.known}

    def kind_of(self, group: str) -> GroupKind:
        """The protocol of a group at the stopped broker that had it."""
        kinds = (each.kinds[group] for each in self._sources if group in each.kinds)
        return next(kinds, GroupKind())

    def is_unread(self, place: Place) -> bool:
        """Whether a record that cannot be read may be the newest position at ``place``."""
        return any(
            each.group in (None, place.group) and each.place in (None, place)
            for each in self._positions.unread.values()
        ) or any(each.unread_of(place) for each in self._sources)

    def start_from(self, commits: Sequence[tuple[Place, Commit]], now_ms: int) -> None:
        """Take positions that somebody else has noted, of groups that have and had none here."""
        here = self._positions.known.keys() | self._positions.gone
        fresh = [(place, commit) for place, commit in commits if place not in here]
        if fresh:
            self.commit(fresh, now_ms)

    def continue_from(self, source: GroupPositions, is_served: Callable[[str], bool]) -> None:
        """Take the positions of a stopped broker, with the times of their commits.

        A position that was committed or deleted here stays, unless the broker's commit is later
        than the one here. ``is_served``: whether a topic's positions are wanted.
        """
        self._sources.append(source)
        known, gone = self._positions.known, self._positions.gone
        self._note(
            [
                (place, commit)
                for place, commit in source.known.items()
                if is_served(place.topic)
                and place not in gone
                and place not in source.expired
                and (place not in known or known[place].at_ms < commit.at_ms)
            ],
            time.time_ns() // 1_000_000,
        )

    def commit(self, commits: Sequence[tuple[Place, Commit | None]], now_ms: int) -> None:
        """Note positions, all or none; None takes one away.

        Raises:
            LogError: they could not be written, and are not noted.
        """
        self._note(
            [(place, commit and commit._replace(at_ms=now_ms)) for place, commit in commits], now_ms
        )

    def _note(self, dated: Sequence[tuple[Place, Commit | None]], now_ms: int) -> None:
        if not dated:
            return
        with self._lock:
            at = self._log.end_offset
            self._log.append(
                [
                    Record(at + n, now_ms, key_of(place), None if each is None else value_of(each))
                    for n, (place, each) in enumerate(dated)
                ]
            )
            for place, each in dated:
                self._positions.note(place, each)
