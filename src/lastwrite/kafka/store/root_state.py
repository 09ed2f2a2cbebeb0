"""The state that all partitions of a log root share: the broker that has it open, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cached_property, lru_cache

from lastwrite.errors import CorruptLog, LogHeld, UnsupportedFormat
from lastwrite.kafka import beside_a_broker
from lastwrite.kafka.format.names import RECOVERY_POINTS
from lastwrite.kafka.recovery import unclean_shutdown
from lastwrite.kafka.store import lock
from lastwrite.kafka.store.checkpoints import read_offsets
from lastwrite.model.log import TopicPartition

RECENT_S = 0.05


class RootState:
    """The state of a log root. Each value is read once, on first use; errors are not cached."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._offsets: dict[str, Mapping[TopicPartition, int]] = {}

    @cached_property
    def broker(self) -> LogHeld | None:
        """The error that names the broker that has the root open. None if no broker has it open."""
        return lock.broker_of(self.root)

    @cached_property
    def was_killed(self) -> bool:
        return unclean_shutdown.was_killed(self.root)

    @cached_property
    def noted_ns(self) -> int:
        """Time in ns at which the broker last wrote its high watermarks; 0 if it never did."""
        return beside_a_broker.noted_ns(self.root)

    def offsets(self, file: str) -> Mapping[TopicPartition, int]:
        """The entries of the offset checkpoint ``file``. Empty if there is no file.

        Raises:
            CorruptLog, UnsupportedFormat, LogError: the file is damaged or cannot be read.
        """
        found = self._offsets.get(file)
        if found is None:
            found = self._offsets[file] = read_offsets(self.root, file)
        return found

    def recovery_point(self, name: TopicPartition) -> int:
        """The offset below which the broker has flushed a log. 0 if unknown."""
        try:
            return self.offsets(RECOVERY_POINTS).get(name, 0)
        except (CorruptLog, UnsupportedFormat):
            return 0


def recent(root: str) -> RootState:
    """A cached state, at most ``RECENT_S`` old, for callers that list many partitions in sequence.

    Raises:
        LogError: the root cannot be read.
    """
    return _at(root, int(time.monotonic() / RECENT_S))


@lru_cache(maxsize=16)
def _at(root: str, _moment: int) -> RootState:
    found = RootState(root)
    # Read the time before the high watermarks. If a caller finds a later time afterwards, the high
    # watermarks were written again.
    _ = found.noted_ns
    return found
