"""What ``restore`` did, as values."""

from __future__ import annotations

from dataclasses import dataclass, field

from lastwrite.model.log import TopicPartition
from lastwrite.model.report import CompactionReport


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredQueue:
    """One queue: what came from the broker, and what the store had."""

    name: TopicPartition
    broker: str
    pulled: int  # messages from the broker
    pulled_below: int  # they lie below this queue offset
    kept: int  # messages of the store that were put together with them; 0 where nothing came
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        return {
            "topic": self.name.topic,
            "partition": self.name.partition,
            "broker": self.broker,
            "pulled": self.pulled,
            "pulled_below": self.pulled_below,
            "kept": self.kept,
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """All queues, and the compaction that followed; None where there was nothing to compact."""

    queues: tuple[RestoredQueue, ...]
    compaction: CompactionReport | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def exit_status(self) -> int:
        return 0 if self.compaction is None else self.compaction.exit_status

    def to_dict(self) -> dict[str, object]:
        return {
            "queues": [queue.to_dict() for queue in self.queues],
            "compaction": None if self.compaction is None else self.compaction.to_dict(),
            "notes": list(self.notes),
        }
