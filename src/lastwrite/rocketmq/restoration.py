"""What ``restore`` did, as values."""

from __future__ import annotations

from typing import Annotated, ClassVar

from lastwrite.model.log import TopicPartition
from lastwrite.reports.compaction import CompactionReport
from lastwrite.reports.document import UNPRINTED, FrozenDocument, figure


class RestoredQueue(FrozenDocument, frozen=True, kw_only=True):
    """One queue: what came from the broker, and what the store had."""

    name: Annotated[TopicPartition, UNPRINTED]
    topic: ClassVar[str] = figure(lambda self: self.name.topic)
    partition: ClassVar[int] = figure(lambda self: self.name.partition)
    broker: str
    pulled: int  # messages from the broker
    pulled_below: int  # they lie below this queue offset
    kept: int  # messages of the store that were put together with them; 0 where nothing came
    notes: tuple[str, ...] = ()


class Restoration(FrozenDocument, frozen=True, kw_only=True):
    """All queues, and the compaction that followed; None where there was nothing to compact."""

    queues: tuple[RestoredQueue, ...]
    compaction: CompactionReport | None = None
    notes: tuple[str, ...] = ()

    @property
    def exit_status(self) -> int:
        return 0 if self.compaction is None else self.compaction.exit_status
