"""What ``sweep`` removed of the partitions of an archive."""

from __future__ import annotations

from typing import Annotated, ClassVar

from lastwrite.reports.document import UNPRINTED, As, Document, figure, or_none


class SweptPartition(Document, kw_only=True):
    """One partition: what was removed, or of a dry run would be."""

    address: str
    rounds: int = 0  # that ended without a commit
    objects: int = 0  # of such rounds, and those that were replaced and no reader needs
    bytes: int = 0
    is_waiting: bool = False  # something as old was left, for a round that runs
    reason: Annotated[str, As(or_none)] = ""  # why the partition could not be swept
    is_damaged: Annotated[bool, UNPRINTED] = False


class SweepReport(Document, kw_only=True):
    """What ``sweep`` removed."""

    dry_run: bool
    partitions: list[SweptPartition]
    objects: ClassVar[int] = figure(lambda self: sum(each.objects for each in self.partitions))
    bytes: ClassVar[int] = figure(lambda self: sum(each.bytes for each in self.partitions))
