"""What the cleaner tells of itself, as values; the command line makes lines of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lastwrite.compaction.verdict import Verdict
from lastwrite.model.log import TopicPartition
from lastwrite.model.report import PartitionReport
from lastwrite.model.uncleanable import Uncleanable


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEnded:
    """A partition was cleaned, or nothing in it could go, or expired segments went."""

    time_ms: int
    thread: int
    root: str
    report: PartitionReport
    wave_partitions: int  # partitions that went through the stages together
    seconds: float  # of the whole wave
    stage_seconds: Mapping[str, float]

    @property
    def keyless(self) -> int:
        """Records without a key, which a compacted topic cannot keep."""
        return self.report.verdicts.get(Verdict.KEYLESS.label, 0)

    @property
    def saved_percent(self) -> float:
        before = self.report.bytes_before
        return 100 * (before - self.report.bytes_after) / before if before else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "event": "round",
            "time_ms": self.time_ms,
            "thread": self.thread,
            "root": self.root,
            **self.report.to_dict(),
            "saved_percent": round(self.saved_percent, 2),
            "keyless": self.keyless,
            "wave_partitions": self.wave_partitions,
            "wave_seconds": round(self.seconds, 3),
            "stage_seconds": {
                name: round(seconds, 3) for name, seconds in self.stage_seconds.items()
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """A round failed; the partition is left alone for a while."""

    time_ms: int
    root: str
    name: TopicPartition
    entry: Uncleanable

    def to_dict(self) -> dict[str, Any]:
        return {
            "event": "uncleanable",
            "time_ms": self.time_ms,
            "root": self.root,
            "topic": self.name.topic,
            "partition": self.name.partition,
            **self.entry.to_dict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A sentence about the daemon itself: new settings, a root that a broker has, an end."""

    time_ms: int
    text: str

    def to_dict(self) -> dict[str, Any]:
        return {"event": "note", "time_ms": self.time_ms, "text": self.text}


Event = RoundEnded | SetAside | Note
