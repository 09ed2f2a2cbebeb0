"""The result of ``sweep``, which deletes unused objects of an archive."""

from __future__ import annotations

from typing import Annotated, ClassVar

from lastwrite.reports.document import UNPRINTED, Document, JsonName, figure, or_none


class SweptPartition(Document, kw_only=True):
    """The objects of one partition that a sweep deleted, or would delete in a dry run."""

    address: str
    rounds: int = 0  # number of rounds that ended without a commit
    # number of objects of uncommitted rounds, and of replaced objects that no reader needs
    objects: int = 0
    bytes: int = 0
    is_waiting: bool = False  # whether objects were kept because a round is running
    reason: Annotated[str, JsonName(or_none)] = ""  # why the partition could not be swept
    attempts: int = 1  # number of attempts; more than 1 if another writer committed first
    is_damaged: Annotated[bool, UNPRINTED] = False


class SweepReport(Document, kw_only=True):
    """The result of ``sweep``."""

    dry_run: bool
    partitions: list[SweptPartition]
    objects: ClassVar[int] = figure(lambda self: sum(each.objects for each in self.partitions))
    bytes: ClassVar[int] = figure(lambda self: sum(each.bytes for each in self.partitions))
