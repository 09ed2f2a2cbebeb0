"""The positions of consumer groups, as values that print as JSON. Field names are a contract."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from msgspec import field

from lastwrite.errors import CorruptLog, LogError
from lastwrite.reports.document import Document, FrozenDocument, figure


class GroupPosition(FrozenDocument, frozen=True, kw_only=True):
    """The position of a consumer group in one partition."""

    group: str
    topic: str
    partition: int
    position: int  # next offset that the group reads
    # end offset of the partition for consumers; null if it does not exist or cannot be read
    end_offset: int | None
    metadata: str  # metadata of the group's commit
    committed_ms: int | None  # time of the group's commit; null if unknown
    # offsets from the position to the end, including those that compaction removed
    lag: ClassVar[int | None] = figure(lambda self: self.behind())

    def behind(self) -> int | None:
        """The value of ``lag``. None if the partition's end offset is unknown."""
        return None if self.end_offset is None else max(self.end_offset - self.position, 0)


class UnreadPosition(FrozenDocument, frozen=True, kw_only=True):
    """Positions of groups that could not be read.

    These are the positions in one record, all positions in a partition of ``__consumer_offsets``,
    or all positions of one group, for example if a broker denies access to the group.
    """

    source: str = field(name="path")  # file, folder of the partition, or broker
    offset: int | None = None  # offset of the unreadable record; null if it is not a single record
    group: str | None = None  # group of the positions; null if unknown, or for all groups
    topic: str | None = None
    partition: int | None = None
    reason: str
    is_damaged: bool = field(default=True, name="damaged")
    message: ClassVar[str] = figure(lambda self: self.words())

    def words(self) -> str:
        """A sentence about the unread positions."""
        if self.offset is None:
            whose = "the groups in this partition" if self.group is None else f"group {self.group}"
            return f"{self.source}: the offsets of {whose} were not read: {self.reason}"
        whose = "a group" if self.group is None else f"group {self.group}"
        where = "" if self.topic is None else f" in {self.topic}-{self.partition}"
        return (
            f"{self.source}: the record at offset {self.offset}, an offset commit of "
            f"{whose}{where}, cannot be read: {self.reason}. All other offsets were read; the "
            "group's next commit replaces this record"
        )


def unread_because(
    error: LogError | OSError, source: str, group: str | None = None
) -> UnreadPosition:
    """The positions at ``source`` that could not be read because of ``error``.

    ``group`` is the group of the positions; None means all groups.
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
    """The exit status that unread positions cause."""
    return max((3 if each.is_damaged else 1 for each in unread), default=0)


class GroupsReport(Document, kw_only=True):
    """All positions of consumer groups that were found, by group, topic and partition."""

    positions: list[GroupPosition]
    unread: list[UnreadPosition] = []
    exit_status: ClassVar[int] = figure(lambda self: worst_of(self.unread))
