"""What the cleaner tells of itself, as values; the command line makes lines of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import RLock
from typing import Annotated, ClassVar

from msgspec import field

from lastwrite.engine.rules.verdict import Verdict
from lastwrite.model.log import TopicPartition
from lastwrite.reports.compaction import PartitionReport, Quarantined
from lastwrite.reports.document import SPREAD, UNPRINTED, FrozenDocument, JsonName, figure
from lastwrite.reports.following import FollowedLog
from lastwrite.reports.table_round import TableRound


def rounded(seconds: float) -> float:
    """As it is printed."""
    return round(seconds, 3)


def each_rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: rounded(each) for name, each in seconds.items()}


class RoundEnded(FrozenDocument, frozen=True, kw_only=True):
    """A partition was cleaned, or nothing in it could go, or expired segments went."""

    event: ClassVar[str] = figure(lambda self: "round")
    time_ms: int
    thread: int
    root: str
    report: Annotated[PartitionReport, SPREAD]
    saved_percent: ClassVar[float] = figure(lambda self: round(self.saved(), 2))
    # records without a key, which a compacted topic cannot keep
    keyless: ClassVar[int] = figure(lambda self: self.report.verdicts.get(Verdict.KEYLESS.label, 0))
    wave_partitions: int  # partitions that went through the stages together
    # of the whole wave
    seconds: Annotated[float, JsonName(rounded)] = field(name="wave_seconds")
    stage_seconds: Annotated[dict[str, float], JsonName(each_rounded)]

    def saved(self) -> float:
        """Percent of the partition's bytes."""
        before = self.report.bytes_before
        return 100 * (before - self.report.bytes_after) / before if before else 0.0


class PartitionQuarantined(FrozenDocument, frozen=True, kw_only=True):
    """A round failed; the partition is left alone for a while."""

    event: ClassVar[str] = figure(lambda self: "uncleanable")
    time_ms: int
    root: str
    name: Annotated[TopicPartition, UNPRINTED]
    topic: ClassVar[str] = figure(lambda self: self.name.topic)
    partition: ClassVar[int] = figure(lambda self: self.name.partition)
    entry: Annotated[Quarantined, SPREAD]


class FollowerFetched(FrozenDocument, frozen=True, kw_only=True):
    """A turn of a follower brought something."""

    event: ClassVar[str] = figure(lambda self: "brought")
    time_ms: int
    partitions: int  # of which something came
    bytes: int
    lag_records: int  # of all partitions, beyond the archive's ends
    held: int  # partitions of which nothing could come
    attempts: int = 1  # the most of a partition; several where another writer changed it first
    seconds: Annotated[float, JsonName(rounded)]


class FetchHeldBack(FrozenDocument, frozen=True, kw_only=True):
    """A turn of a follower could bring nothing of a partition; told once as long as it is so."""

    event: ClassVar[str] = figure(lambda self: "held")
    time_ms: int
    log: Annotated[FollowedLog, SPREAD]


class TableUpdated(FrozenDocument, frozen=True, kw_only=True):
    """A table was made, or brought up to date, and has changed."""

    event: ClassVar[str] = figure(lambda self: "table")
    time_ms: int
    root: str  # of the topic
    report: Annotated[TableRound, SPREAD]
    seconds: Annotated[float, JsonName(rounded)]


class TableFailed(FrozenDocument, frozen=True, kw_only=True):
    """A table could not be brought up to date, and is as it was. The cleaning goes on."""

    event: ClassVar[str] = figure(lambda self: "table_failed")
    time_ms: int
    root: str
    topic: str
    path: str  # of the table, as it was given
    reason: str
    tries: int
    next_try_ms: int | None  # null: not in this run


class DaemonNote(FrozenDocument, frozen=True, kw_only=True):
    """A sentence about the daemon itself: new settings, a root that a broker has, an end."""

    event: ClassVar[str] = figure(lambda self: "note")
    time_ms: int
    text: str


Event = (
    RoundEnded
    | PartitionQuarantined
    | FollowerFetched
    | FetchHeldBack
    | TableUpdated
    | TableFailed
    | DaemonNote
)


class Events:
    """How a daemon speaks, events as they come and what stays true for long only once: hands events
    to ``tell``, one at a time, in the thread that calls; ``now_ms`` is the clock of what it says
    itself.
    """

    def __init__(self, tell: Callable[[Event], None], now_ms: Callable[[], int]) -> None:
        self._tell = tell
        self._now_ms = now_ms
        self._said: dict[str, str] = {}
        self._turn = RLock()

    def tell(self, event: Event) -> None:
        with self._turn:
            self._tell(event)

    def note(self, text: str) -> None:
        self.tell(DaemonNote(time_ms=self._now_ms(), text=text))

    def report_once(self, about: str, text: str | None) -> None:
        """Say ``text`` if it was not the last that was said about it; None: all is well again."""
        with self._turn:
            if text is None:
                self._said.pop(about, None)
            elif self._said.get(about) != text:
                self._said[about] = text
                self.note(text)
