"""The reports of ``restore`` for Kafka."""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from lastwrite.reports.document import FrozenDocument, figure
from lastwrite.reports.untouched import UntouchedFile


class RestoredLog(FrozenDocument, frozen=True, kw_only=True):
    """One restored partition, or the reason why it was not restored."""

    topic: str  # the topic's name in the log root
    partition: int
    source: str  # the partition's address in the archive
    folder: str = field(name="path")  # the partition's folder in the log root
    first_offset: int | None = None
    end_offset: int | None = None
    # false if the log root already had the partition, or if the partition is empty
    is_written: bool = field(default=False, name="written")
    segments: int = 0
    size_bytes: int = field(default=0, name="bytes")
    # the topic has another id in the cluster: producers, markers and aborted records are left out
    is_other_topic: bool = field(default=False, name="other_topic")
    reason: str | None = None  # why the partition was not restored
    is_damaged: bool = field(default=False, name="damaged")


class LogsRestored(FrozenDocument, frozen=True, kw_only=True):
    """The report on a restore into a Kafka log root: all its partitions."""

    path: str  # the log root
    partitions: tuple[RestoredLog, ...]
    notes: tuple[str, ...] = ()
    # command that sets the groups' committed offsets once the broker runs; null without groups
    groups_command: str | None = None
    untouched: tuple[UntouchedFile, ...] = ()  # other files of the log root, which were not changed
    # 3 if the archive is damaged, 1 if something could not be restored
    exit_status: ClassVar[int] = figure(lambda self: self.worst())

    def worst(self) -> int:
        """The exit status of the command: the worst of its partitions."""
        if any(each.is_damaged for each in self.partitions):
            return 3
        return 1 if any(each.reason is not None for each in self.partitions) else 0


class GroupGiven(FrozenDocument, frozen=True, kw_only=True):
    """A consumer group's committed offset in a partition that was restored to a cluster."""

    group: str
    position: int  # the group's committed offset in the archive
    # the group's committed offset in the cluster, after this run; null if the group has no offset
    offset: int | None = None
    is_set: bool = field(default=False, name="set")  # this run set the group's offset
    reason: str | None = None  # why the group's offset was not set


class LogGiven(FrozenDocument, frozen=True, kw_only=True):
    """A partition that was restored to a running cluster, where its records get new offsets."""

    topic: str  # the topic's name in the cluster
    partition: int
    source: str  # the partition's address in the archive
    folder: str = field(name="path")  # kafka://BROKERS/TOPIC-PARTITION
    first_offset: int | None = None  # first offset of the restored records in the cluster
    end_offset: int | None = None  # end offset of the restored records in the cluster
    source_end: int | None = None  # end offset of the restored records in the archive
    records: int = 0  # records that this run sent
    size_bytes: int = field(default=0, name="bytes")  # bytes that this run sent
    # false if the cluster already had the records, or if the partition is empty
    is_written: bool = field(default=False, name="written")
    groups: tuple[GroupGiven, ...] = ()
    # with ``--groups``: only committed offsets were set; the cluster has the archive's offsets
    is_groups_alone: bool = field(default=False, name="groups_alone")
    reason: str | None = None  # why the partition was not restored completely
    is_damaged: bool = field(default=False, name="damaged")


class LogsGiven(FrozenDocument, frozen=True, kw_only=True):
    """The report on a restore into a running Kafka cluster: all its partitions."""

    path: str  # kafka://…
    partitions: tuple[LogGiven, ...]
    notes: tuple[str, ...] = ()
    # 3 if the archive is damaged, 1 if something could not be restored
    exit_status: ClassVar[int] = figure(lambda self: self.worst())

    def worst(self) -> int:
        """The exit status of the command: the worst of its partitions."""
        if any(each.is_damaged for each in self.partitions):
            return 3
        reasons = [each.reason for each in self.partitions]
        reasons += [group.reason for each in self.partitions for group in each.groups]
        return int(any(reason is not None for reason in reasons))
