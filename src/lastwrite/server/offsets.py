"""Committed offsets of consumer groups: a log like a broker's, in a folder of the server.

    STATE/__consumer_offsets-0/00000000000000000000.log

Keys and values have Kafka's format. The log can therefore be compacted, read by all commands, and
copied to a broker. A commit is confirmed after its write call has returned, so that killing the
server loses no confirmed commit. If the last batch is incomplete, the next start removes it, as a
broker does.

Source: ``kafka.cluster.commits``; docs/formats/kafka.md.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from lastwrite.kafka.cluster.commits import Commit, GroupPartition, OffsetCommits, key_of, value_of
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
    "Until the group commits a new offset, a client that fetches this offset gets "
    "KAFKA_STORAGE_ERROR. To set the offset, run kafka-consumer-groups.sh --reset-offsets"
)
_NAME = TopicPartition(GROUPS_TOPIC, 0)
_SEGMENT_BYTES = 16 << 20


class Offsets:
    """The committed offsets of all groups, in the folder ``state``, created if missing.

    Raises:
        LogHeld: another server uses the folder.
        LogError: the log cannot be written, or is damaged.
    """

    def __init__(self, state: str) -> None:
        self._lock = threading.Lock()
        make_folder(state)
        with ExitStack() as stack:
            stack.enter_context(lock.hold(state, [_NAME]))
            self._log = AppendedLog(os.path.join(state, folder_name(_NAME)), _SEGMENT_BYTES)
            self._positions = OffsetCommits()
            self._positions.take(self._log.batches())
            self._sources: list[GroupPositions] = []
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Close the log, and release the folder's lock so that another server can use it."""
        self._stack.close()

    def of(self, place: GroupPartition) -> Commit | None:
        return self._positions.offsets.get(place)

    def of_group(self, group: str) -> list[tuple[GroupPartition, Commit]]:
        """All committed offsets of a group, by partition."""
        with self._lock:
            found = [each for each in self._positions.offsets.items() if each[0].group == group]
        return sorted(found)

    @property
    def unread(self) -> list[str]:
        """A message for each unreadable record of the log.

        The committed offset in such a record is lost.
        """
        return [
            f"the record at offset {each.offset}, a commit of group {each.group or '?'}, cannot "
            f"be read: {each.reason}. {UNREAD_REMEDY}"
            for each in self._positions.unread.values()
        ]

    def groups(self) -> set[str]:
        with self._lock:
            return {place.group for place in self._positions.offsets}

    def kind_of(self, group: str) -> GroupKind:
        """The protocol of a group, according to the files of the stopped broker."""
        kinds = (each.kinds[group] for each in self._sources if group in each.kinds)
        return next(kinds, GroupKind())

    def is_unread(self, place: GroupPartition) -> bool:
        """Whether the newest commit for ``place``, a group and a partition, may be unreadable."""
        return any(
            each.group in (None, place.group) and each.partition in (None, place)
            for each in self._positions.unread.values()
        ) or any(each.unread_of(place) for each in self._sources)

    def start_from(self, commits: Sequence[tuple[GroupPartition, Commit]], now_ms: int) -> None:
        """Add initial committed offsets.

        A group and partition with any earlier commit is skipped.
        """
        here = self._positions.offsets.keys() | self._positions.deleted
        fresh = [(place, commit) for place, commit in commits if place not in here]
        if fresh:
            self.commit(fresh, now_ms)

    def continue_from(self, source: GroupPositions, is_served: Callable[[str], bool]) -> None:
        """Add the committed offsets of a stopped broker, with their times.

        An offset that was deleted in this log stays deleted. An offset that was committed in this
        log stays, unless the broker's commit is later. Topics for which ``is_served`` is false are
        skipped.
        """
        self._sources.append(source)
        known, gone = self._positions.offsets, self._positions.deleted
        self._note(
            [
                (place, commit)
                for place, commit in source.offsets.items()
                if is_served(place.topic)
                and place not in gone
                and place not in source.expired
                and (place not in known or known[place].at_ms < commit.at_ms)
            ],
            time.time_ns() // 1_000_000,
        )

    def commit(self, commits: Sequence[tuple[GroupPartition, Commit | None]], now_ms: int) -> None:
        """Store commits, all or none. A commit of None deletes the committed offset.

        Raises:
            LogError: the commits could not be written. None of them is stored.
        """
        self._note(
            [(place, commit and commit._replace(at_ms=now_ms)) for place, commit in commits], now_ms
        )

    def _note(self, dated: Sequence[tuple[GroupPartition, Commit | None]], now_ms: int) -> None:
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
