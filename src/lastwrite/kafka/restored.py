"""What ``restore`` gave back of an archive of Kafka, as values."""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from lastwrite.reports.document import FrozenDocument, figure
from lastwrite.reports.untouched import UntouchedFile


class RestoredLog(FrozenDocument, frozen=True, kw_only=True):
    """One partition: what was given back, or why nothing was."""

    topic: str  # in the log root
    partition: int
    source: str  # its address in the archive
    folder: str = field(name="path")
    first_offset: int | None = None
    end_offset: int | None = None
    is_written: bool = field(default=False, name="written")  # else it was there, or is empty
    segments: int = 0
    size_bytes: int = field(default=0, name="bytes")
    # without producers, markers and aborted records: the cluster has it under another id
    is_other_topic: bool = field(default=False, name="other_topic")
    reason: str | None = None  # why nothing of it was restored
    is_damaged: bool = field(default=False, name="damaged")


class LogsRestored(FrozenDocument, frozen=True, kw_only=True):
    """All partitions of a restore into a log root of Kafka."""

    path: str  # the log root
    partitions: tuple[RestoredLog, ...]
    notes: tuple[str, ...] = ()
    # sets the groups' positions once the broker runs; null: the archive has none to be set
    groups_command: str | None = None
    untouched: tuple[UntouchedFile, ...] = ()  # of the log root, beside partitions
    # 3 where something of the archive is damaged, 1 where something could not be restored
    exit_status: ClassVar[int] = figure(lambda self: self.worst())

    def worst(self) -> int:
        """The exit status."""
        if any(each.is_damaged for each in self.partitions):
            return 3
        return 1 if any(each.reason is not None for each in self.partitions) else 0


class GroupGiven(FrozenDocument, frozen=True, kw_only=True):
    """A consumer group's position in a partition that was given to a cluster."""

    group: str
    position: int  # that it had
    offset: int | None = None  # where it stands now; None: nowhere
    is_set: bool = field(default=False, name="set")  # by this run; else it stood somewhere already
    reason: str | None = None  # why not


class LogGiven(FrozenDocument, frozen=True, kw_only=True):
    """One partition that was given to a running cluster; its records have other offsets there."""

    topic: str  # in the cluster
    partition: int
    source: str  # its address in the archive
    folder: str = field(name="path")  # where it went
    first_offset: int | None = None  # there
    end_offset: int | None = None
    source_end: int | None = None  # up to which offset of the archive's log it was given
    records: int = 0  # by this run
    size_bytes: int = field(default=0, name="bytes")  # as they were sent
    is_written: bool = field(default=False, name="written")  # else it was there, or is empty
    groups: tuple[GroupGiven, ...] = ()
    # ``--groups``: the records were there, at the offsets that they had
    is_groups_alone: bool = field(default=False, name="groups_alone")
    reason: str | None = None  # why not all of it was given
    is_damaged: bool = field(default=False, name="damaged")


class LogsGiven(FrozenDocument, frozen=True, kw_only=True):
    """All partitions of a restore into a running cluster of Kafka."""

    path: str  # kafka://…
    partitions: tuple[LogGiven, ...]
    notes: tuple[str, ...] = ()
    # 3 where something of the archive is damaged, 1 where something could not be restored
    exit_status: ClassVar[int] = figure(lambda self: self.worst())

    def worst(self) -> int:
        """The exit status."""
        if any(each.is_damaged for each in self.partitions):
            return 3
        reasons = [each.reason for each in self.partitions]
        reasons += [group.reason for each in self.partitions for group in each.groups]
        return int(any(reason is not None for reason in reasons))
