"""The result of ``sweep`` for the partitions of an archive."""

from __future__ import annotations

from typing import Annotated, ClassVar

from lastwrite.reports.document import UNPRINTED, Document, JsonName, figure, or_none


class SweptPartition(Document, kw_only=True):
    """One partition: the objects that were removed, or would be in a dry run."""

    address: str
    rounds: int = 0  # rounds that ended without a commit
    objects: int = 0  # of such rounds, and replaced ones that no reader needs
    bytes: int = 0
    is_waiting: bool = False  # equally old objects were left, for a round that is running
    reason: Annotated[str, JsonName(or_none)] = ""  # why the partition could not be swept
    attempts: int = 1  # more than one if another writer committed first
    is_damaged: Annotated[bool, UNPRINTED] = False


class SweepReport(Document, kw_only=True):
    """The result of ``sweep``."""

    dry_run: bool
    partitions: list[SweptPartition]
    objects: ClassVar[int] = figure(lambda self: sum(each.objects for each in self.partitions))
    bytes: ClassVar[int] = figure(lambda self: sum(each.bytes for each in self.partitions))
