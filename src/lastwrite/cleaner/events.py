"""The events of the cleaner, which the command line prints."""

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
from lastwrite.reports.untouched import UntouchedFile


def rounded(seconds: float) -> float:
    """Round a time to milliseconds, the printed precision."""
    return round(seconds, 3)


def each_rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: rounded(each) for name, each in seconds.items()}


class RoundEnded(FrozenDocument, frozen=True, kw_only=True):
    """A round ended: the partition was cleaned or unchanged, or expired segments were deleted."""

    event: ClassVar[str] = figure(lambda self: "round")
    time_ms: int
    thread: int
    root: str
    report: Annotated[PartitionReport, SPREAD]
    saved_percent: ClassVar[float] = figure(lambda self: round(self.saved(), 2))
    # records that were dropped because they have no key
    keyless: ClassVar[int] = figure(lambda self: self.report.verdicts.get(Verdict.KEYLESS.label, 0))
    wave_partitions: int  # number of partitions that one thread compacted together
    # time for compacting all partitions that the thread compacted together
    seconds: Annotated[float, JsonName(rounded)] = field(name="wave_seconds")
    stage_seconds: Annotated[dict[str, float], JsonName(each_rounded)]

    def saved(self) -> float:
        """The freed part of the partition's bytes, in percent."""
        before = self.report.bytes_before
        return 100 * (before - self.report.bytes_after) / before if before else 0.0


class PartitionQuarantined(FrozenDocument, frozen=True, kw_only=True):
    """A round failed. The partition is skipped until its next attempt."""

    event: ClassVar[str] = figure(lambda self: "uncleanable")
    time_ms: int
    root: str
    name: Annotated[TopicPartition, UNPRINTED]
    topic: ClassVar[str] = figure(lambda self: self.name.topic)
    partition: ClassVar[int] = figure(lambda self: self.name.partition)
    entry: Annotated[Quarantined, SPREAD]


class FollowerFetched(FrozenDocument, frozen=True, kw_only=True):
    """A follower fetched new records."""

    event: ClassVar[str] = figure(lambda self: "brought")
    time_ms: int
    partitions: int  # number of partitions with new records
    bytes: int
    lag_records: int  # records that the archive does not have yet, over all partitions
    held: int  # number of partitions that could not be fetched
    # largest number of attempts for a partition; above 1 if another writer committed first
    attempts: int = 1
    seconds: Annotated[float, JsonName(rounded)]


class FetchHeldBack(FrozenDocument, frozen=True, kw_only=True):
    """A follower could not fetch a partition. It is reported again only if the reason changes."""

    event: ClassVar[str] = figure(lambda self: "held")
    time_ms: int
    log: Annotated[FollowedLog, SPREAD]


class TableUpdated(FrozenDocument, frozen=True, kw_only=True):
    """A table was created or changed."""

    event: ClassVar[str] = figure(lambda self: "table")
    time_ms: int
    root: str  # log root of the topic
    report: Annotated[TableRound, SPREAD]
    seconds: Annotated[float, JsonName(rounded)]


class TableFailed(FrozenDocument, frozen=True, kw_only=True):
    """A table could not be updated and is unchanged. Cleaning continues."""

    event: ClassVar[str] = figure(lambda self: "table_failed")
    time_ms: int
    root: str
    topic: str
    path: str  # path of the table, as the user gave it
    reason: str
    tries: int
    next_try_ms: int | None  # time of the next attempt; null if this run makes no further attempt


class FilesUntouched(FrozenDocument, frozen=True, kw_only=True):
    """A round left unchanged some files that are not part of a log.

    The files are reported again only if they change.
    """

    event: ClassVar[str] = figure(lambda self: "untouched")
    time_ms: int
    folder: str
    untouched: tuple[UntouchedFile, ...]


class DaemonNote(FrozenDocument, frozen=True, kw_only=True):
    """A note on the daemon itself, such as new settings, or a log root that a broker has open."""

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
    | FilesUntouched
    | DaemonNote
)


class Events:
    """Passes events to the function ``notify``, one at a time, in the calling thread.

    A lasting condition is reported only once. ``now_ms`` is the clock for notes.
    """

    def __init__(self, notify: Callable[[Event], None], now_ms: Callable[[], int]) -> None:
        self._emit = notify
        self._now_ms = now_ms
        self._last_texts: dict[str, str] = {}
        self._lock = RLock()

    def emit(self, event: Event) -> None:
        with self._lock:
            self._emit(event)

    def note(self, text: str) -> None:
        self.emit(DaemonNote(time_ms=self._now_ms(), text=text))

    def report_once(self, about: str, text: str | None) -> None:
        """Report ``text``, unless it equals the last report on the same subject, ``about``.

        ``text`` None clears the subject.
        """
        with self._lock:
            if text is None:
                self._last_texts.pop(about, None)
            elif self._last_texts.get(about) != text:
                self._last_texts[about] = text
                self.note(text)
