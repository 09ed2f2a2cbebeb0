"""The positions of consumer groups, as values that print as JSON. Field names are never changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from msgspec import field

from lastwrite.errors import CorruptLog, LogError
from lastwrite.reports.document import Document, FrozenDocument, figure


class GroupPosition(FrozenDocument, frozen=True, kw_only=True):
    """A group's position in one partition."""

    group: str
    topic: str
    partition: int
    position: int  # the offset that it reads next
    # of the partition, as readers see it; null if it does not exist or cannot be read
    end_offset: int | None
    metadata: str  # set by the group
    committed_ms: int | None  # null if unknown
    # offsets from the position to the end, including the holes of a compacted topic
    lag: ClassVar[int | None] = figure(lambda self: self.behind())

    def behind(self) -> int | None:
        """See ``lag``."""
        return None if self.end_offset is None else max(self.end_offset - self.position, 0)


class UnreadPosition(FrozenDocument, frozen=True, kw_only=True):
    """A position that could not be read: one record, a partition of ``__consumer_offsets``, or a
    group.

    A group is unreadable if a broker refuses access to it.
    """

    source: str = field(name="path")  # the file, the partition's folder, or the broker
    offset: int | None = None  # of the record; null if it is no single record
    group: str | None = None  # null if the record does not contain it
    topic: str | None = None
    partition: int | None = None
    reason: str
    is_damaged: bool = field(default=True, name="damaged")
    message: ClassVar[str] = figure(lambda self: self.words())

    def words(self) -> str:
        """A sentence for people."""
        if self.offset is None:
            whose = "the groups in it" if self.group is None else f"group {self.group}"
            return f"{self.source}: the positions of {whose} were not read: {self.reason}"
        whose = "a group" if self.group is None else f"group {self.group}"
        where = "" if self.topic is None else f" in {self.topic}-{self.partition}"
        return (
            f"{self.source}: the record at offset {self.offset}, a position of {whose}{where}, "
            f"cannot be read: {self.reason}. All other positions were read; the group's next "
            "commit replaces the record"
        )


def unread_because(
    error: LogError | OSError, source: str, group: str | None = None
) -> UnreadPosition:
    """The positions that an error at ``source`` makes unreadable: of ``group``, or of all groups
    there.
    """
    is_damaged = isinstance(error, CorruptLog)
    if not isinstance(error, LogError):
        return UnreadPosition(source=source, group=group, reason=str(error), is_damaged=False)
    at = "" if error.at is None else f"byte {error.at}: "
    remedy = "" if error.remedy is None else f". {error.remedy}"
    return UnreadPosition(
        source=error.path or source,
        group=group,
        reason=f"{at}{error.problem}{remedy}",
        is_damaged=is_damaged,
    )


def worst_of(unread: Iterable[UnreadPosition]) -> int:
    """The exit status for unread positions."""
    return max((3 if each.is_damaged else 1 for each in unread), default=0)


class GroupsReport(Document, kw_only=True):
    """All positions that were found, by group, topic and partition."""

    positions: list[GroupPosition]
    unread: list[UnreadPosition] = []
    exit_status: ClassVar[int] = figure(lambda self: worst_of(self.unread))
