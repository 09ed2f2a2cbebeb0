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
from collections.abc import Sequence
from contextlib import ExitStack

from lastwrite.kafka.cluster.commits import Commit, Place, Positions, key_of, value_of
from lastwrite.kafka.cluster.internal_topics import GROUPS_TOPIC
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.names import folder_name
from lastwrite.kafka.store import lock
from lastwrite.kafka.store.appended import AppendedLog
from lastwrite.model.log import TopicPartition
from lastwrite.storage.files import make_folder

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
            f"be read: {each.reason}. The group begins there as one that never committed"
            for each in self._positions.unread.values()
        ]

    def groups(self) -> set[str]:
        with self._lock:
            return {place.group for place in self._positions.known}

    def start_from(self, commits: Sequence[tuple[Place, Commit]], now_ms: int) -> None:
        """Take positions that somebody else has noted, of groups that have and had none here."""
        here = self._positions.known.keys() | self._positions.gone
        fresh = [(place, commit) for place, commit in commits if place not in here]
        if fresh:
            self.commit(fresh, now_ms)

    def commit(self, commits: Sequence[tuple[Place, Commit | None]], now_ms: int) -> None:
        """Note positions, all or none; None takes one away.

        Raises:
            LogError: they could not be written, and are not noted.
        """
        dated = [(place, commit and commit._replace(at_ms=now_ms)) for place, commit in commits]
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
