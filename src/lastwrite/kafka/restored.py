"""The reports of ``restore`` for Kafka."""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from lastwrite.reports.document import FrozenDocument, figure
from lastwrite.reports.untouched import UntouchedFile


class RestoredLog(FrozenDocument, frozen=True, kw_only=True):
    """One restored partition, or the reason why it was not restored."""

    topic: str  # in the log root
    partition: int
    source: str  # its address in the archive
    folder: str = field(name="path")
    first_offset: int | None = None
    end_offset: int | None = None
    is_written: bool = field(
        default=False, name="written"
    )  # else it was already there, or is empty
    segments: int = 0
    size_bytes: int = field(default=0, name="bytes")
    # producers, markers and aborted records were left out, because the topic has another id
    is_other_topic: bool = field(default=False, name="other_topic")
    reason: str | None = None  # why it was not restored
    is_damaged: bool = field(default=False, name="damaged")


class LogsRestored(FrozenDocument, frozen=True, kw_only=True):
    """All partitions of a restore into a Kafka log root."""

    path: str  # the log root
    partitions: tuple[RestoredLog, ...]
    notes: tuple[str, ...] = ()
    # the command that sets the groups' offsets once the broker runs; null if there are none to set
    groups_command: str | None = None
    untouched: tuple[UntouchedFile, ...] = ()  # files of the log root beside partitions
    # 3 where something of the archive is damaged, 1 where something could not be restored
    exit_status: ClassVar[int] = figure(lambda self: self.worst())

    def worst(self) -> int:
        """The exit status."""
        if any(each.is_damaged for each in self.partitions):
            return 3
        return 1 if any(each.reason is not None for each in self.partitions) else 0


class GroupGiven(FrozenDocument, frozen=True, kw_only=True):
    """A consumer group's offset in a partition that was restored to a cluster."""

    group: str
    position: int  # its offset in the archive
    offset: int | None = None  # its committed offset now; null if it has none
    is_set: bool = field(default=False, name="set")  # by this run; else it already had an offset
    reason: str | None = None  # why it was not set


class LogGiven(FrozenDocument, frozen=True, kw_only=True):
    """A partition that was restored to a running cluster; its records have other offsets there."""

    topic: str  # in the cluster
    partition: int
    source: str  # its address in the archive
    folder: str = field(name="path")  # kafka://BROKERS/TOPIC-PARTITION
    first_offset: int | None = None  # in the cluster
    end_offset: int | None = None
    source_end: int | None = None  # the end offset in the archive up to which it was restored
    records: int = 0  # sent by this run
    size_bytes: int = field(default=0, name="bytes")  # sent by this run
    is_written: bool = field(
        default=False, name="written"
    )  # else it was already there, or is empty
    groups: tuple[GroupGiven, ...] = ()
    # ``--groups``: only groups were set; the records already have the archive's offsets there
    is_groups_alone: bool = field(default=False, name="groups_alone")
    reason: str | None = None  # why not all of it was restored
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
