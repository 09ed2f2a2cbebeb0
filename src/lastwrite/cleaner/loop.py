"""The loop of the cleaner: read the partitions' states, run due rounds in threads, pause.

    look ──► pick ──► hold ──► wave in a thread ──► outcome
     ▲                                                │
     └──────────── a wave ended, or the backoff ◄─────┘

A *wave* is a group of partitions that one thread compacts together. All decisions are made in the
thread that calls ``run``; other threads only run waves. The list of partitions in progress
therefore needs no lock, unlike in Kafka's cleaner. A lock on each partition excludes other
processes.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from lastwrite.archive.layout import partitions_at
from lastwrite.cleaner.daemon import Daemon, DaemonServices
from lastwrite.cleaner.events import FilesUntouched, PartitionQuarantined, RoundEnded
from lastwrite.cleaner.pick import Candidate, in_order, in_waves
from lastwrite.cleaner.rounds import CANCEL_S, DONE, GIVE_UP_S, spark_has_died
from lastwrite.cleaner.tables import KeptTables, TableRun
from lastwrite.cleaner.watch import Watch
from lastwrite.commands.sweep import sweep_partitions
from lastwrite.engine.system import System
from lastwrite.errors import CorruptLog, LogError, LogHeld, RemoteFailed
from lastwrite.model.log import ProblemKind
from lastwrite.reports.compaction import CompactionReport, PartitionReport, Quarantined, Status
from lastwrite.storage.quarantine import read_quarantine, record_failures, release

_FAILED = (Status.DAMAGED, Status.FAILED)
_SWEEP_EVERY_S = 86_400.0  # a day in seconds: sweeping an archive costs two requests per partition
_SWEPT_AT_ONCE = 256  # number of partitions that are swept between two checks for a stop
_MOST_TOPICS = 10  # topics that a note lists


@dataclass(frozen=True, slots=True)
class _WaveOutcome:
    """The outcome of compacting several partitions together: a report, or an error."""

    thread: int
    wave: tuple[Candidate, ...]
    report: CompactionReport | None
    error: Exception | None


class Cleaner(Daemon[_WaveOutcome | TableRun]):
    """A daemon that compacts the partitions of log roots.

    Args:
        threads: number of simultaneous waves. None means the setting ``log.cleaner.threads``.
        archives: the roots that are archives.
        tables: the tables of topics to maintain.
    """

    def __init__(
        self,
        system: System,
        roots: Sequence[str],
        means: DaemonServices,
        threads: int | None,
        archives: Sequence[str] = (),
        tables: KeptTables | None = None,
    ) -> None:
        super().__init__(means)
        self._tables = tables or KeptTables()
        self._system = system
        self._roots = list(roots)
        self._threads = threads
        self._watch = Watch(system)
        self._running: dict[int, tuple[threading.Thread, tuple[Candidate, ...]]] = {}
        self._alone: set[str] = set()
        self._untouched: dict[str, frozenset[str]] = {}  # reported paths by folder
        self._ended: dict[str, tuple[object, float]] = {}
        self._not_before: dict[str, float] = {}
        self._retention_at_ms = 0
        self._archives = list(archives)
        self._swept_s: float | None = None
        self._is_once = False

    def _cycle(self, once: bool) -> bool:
        is_time = self._swept_s is None or time.monotonic() - self._swept_s > _SWEEP_EVERY_S
        if self._archives and is_time and self._settings.current.cleaner.enable:
            if self._running:
                return False  # sweep after the running waves have ended
            for root in self._archives:
                self._sweep(root)
            self._swept_s = time.monotonic()
        self._is_once = once
        self._start_waves(once)
        return not self._running and self._tables.is_idle

    def _sweep(self, root: str) -> None:
        """Delete objects of interrupted rounds, and replaced objects, from an archive."""
        objects, size_bytes, reason = 0, 0, None
        try:
            folders = partitions_at(root)
        except LogError as error:
            folders, reason = [], str(error)
        for first in range(0, len(folders), _SWEPT_AT_ONCE):
            if self._is_stopping:
                return
            for swept in sweep_partitions(folders[first : first + _SWEPT_AT_ONCE]):
                objects, size_bytes = objects + swept.objects, size_bytes + swept.bytes
                reason = reason or swept.reason or None
        self._metrics.swept(objects, size_bytes)
        if objects:
            self._events.note(
                f"{root}: the sweep deleted {objects:,} objects of {size_bytes:,} bytes"
            )
        self._events.report_once(f"{root} swept", reason and f"the sweep failed: {reason}")

    # ------------------------------------------------------------------ look and pick

    def _start_waves(self, once: bool) -> None:
        """Start compactions in the free threads, as long as partitions need work.

        A thread compacts several partitions together, as one *wave*.
        """
        settings = self._settings.current
        free = (self._threads or settings.cleaner.threads) - len(self._running)
        if not self._is_enabled() or (free <= 0 and not self._tables.has_tables):
            return
        now_ms = self._now_ms()
        with_retention = now_ms >= self._retention_at_ms
        busy = {candidate.folder for _, wave in self._running.values() for candidate in wave}
        candidates: list[Candidate] = []
        staged: dict[str, Quarantined] = {}
        for root in self._roots:
            found, entries = self._scan_root(root, now_ms, busy)
            candidates += found
            staged.update(entries)
        self._metrics.record_look(candidates, staged, busy, now_ms)
        topics = {
            (each.root, each.name.topic) for _, wave in self._running.values() for each in wave
        }
        self._tables.check_tables(candidates, self._watch.state_of, topics, now_ms)
        self._tables.start(topics, self._outcomes.put)
        if free <= 0:
            return
        order = in_order(candidates, busy, staged, now_ms, with_retention)
        order = [
            candidate
            for candidate in order
            if self._is_new(candidate, once) and not self._tables.must_precede(candidate)
        ]
        if with_retention:
            self._retention_at_ms = now_ms + settings.cleaner.retention_check_interval_ms
        for wave in in_waves(order, free, self._alone):
            if free <= 0:
                break
            free -= self._start(wave, now_ms)
        self._metrics.record_requests(self._rounds.sent_requests())

    def _scan_root(
        self, root: str, now_ms: int, busy: set[str]
    ) -> tuple[list[Candidate], dict[str, Quarantined]]:
        """The partitions of a root, and the quarantined partitions by folder.

        Both are empty if a broker has the root open, or if the root cannot be read.
        """
        try:
            broker = self._system.broker_of(root)
            self._events.report_once(
                root,
                None if broker is None else f"{broker}; nothing is compacted there until then",
            )
            if broker is not None:
                self._was_held = True
                return [], {}
            names = self._settings.current.names
            self._system.reject_unclean(root, names)
            found = self._watch.scan(root, names, now_ms, busy)
        except LogError as error:
            self._note_unanswered(error)
            self._events.report_once(root, str(error))
            return [], {}
        self._events.report_once(f"{root} alone", _unmanaged_note(root, found))
        staged: dict[str, Quarantined] = {}
        by_home = sorted(found, key=lambda candidate: candidate.home)
        for home, inside in groupby(by_home, key=lambda candidate: candidate.home):
            try:
                entries = read_quarantine(home, self._system.notes)
            except LogError as error:
                self._note_unanswered(error)
                self._events.report_once(f"{home} aside", str(error))
                continue
            staged |= {each.folder: entries[each.name] for each in inside if each.name in entries}
        return found, staged

    def _note_unanswered(self, error: LogError) -> None:
        """Record that a store is unavailable. This affects only the exit status with ``once``."""
        if isinstance(error, RemoteFailed):
            self._statuses.add(Status.FAILED)

    def _is_new(self, candidate: Candidate, once: bool) -> bool:
        """Whether the partition has changed since its last round, or enough time has passed.

        Without this check, a successful round that leaves the partition due would be repeated
        forever.
        """
        if time.monotonic() < self._not_before.get(candidate.folder, 0.0):
            return False
        last = self._ended.get(candidate.folder)
        if last is None or last[0] != self._watch.state_of(candidate.root, candidate.folder):
            return True
        return not once and time.monotonic() - last[1] > max(
            60.0, self._settings.current.cleaner.backoff_ms / 1000
        )

    # ------------------------------------------------------------------ waves

    def _start(self, wave: list[Candidate], now_ms: int) -> bool:
        """Lock the free partitions of a wave, and compact them together in a thread.

        Returns False if other processes have locked all partitions.
        """
        held = contextlib.ExitStack()
        mine: list[Candidate] = []
        for home in dict.fromkeys(candidate.home for candidate in wave):
            inside = [candidate for candidate in wave if candidate.home == home]
            try:
                got = held.enter_context(
                    self._system.try_lock(home, [candidate.name for candidate in inside])
                )
            except LogError as error:
                self._note_unanswered(error)
                self._events.report_once(home, str(error))
                continue
            mine += [candidate for candidate in inside if candidate.name in got]
        self._was_held = self._was_held or len(mine) < len(wave)
        if not mine:
            held.close()
            return False
        if any(candidate.is_due for candidate in mine):
            with contextlib.ExitStack() as failing:
                failing.callback(held.close)
                self._rounds.start([candidate.folder for candidate in mine])
                failing.pop_all()
        number = next(n for n in range(1, len(self._running) + 2) if n not in self._running)
        names = self._settings.current.names
        thread = threading.Thread(
            target=self._work,
            args=(number, tuple(mine), held, names, now_ms),
            name=f"cleaner-{number}",
            daemon=True,
        )
        self._running[number] = (thread, tuple(mine))
        for candidate in mine:
            self._tables.start_round((candidate.root, candidate.name.topic))
        self._metrics.picked(now_ms, len(self._running))
        thread.start()
        return True

    def _work(
        self,
        number: int,
        wave: tuple[Candidate, ...],
        stack: contextlib.ExitStack,
        names: dict[str, object],
        now_ms: int,
    ) -> None:
        """Compact the partitions of a wave, which one thread compacts together."""
        report: CompactionReport | None = None
        failure: Exception | None = None
        with stack:
            try:
                report = self._rounds.run([candidate.folder for candidate in wave], names, now_ms)
            except Exception as error:
                failure = error
                for candidate in wave:  # delete unfinished files of tasks
                    with contextlib.suppress(LogError, OSError):
                        self._system.recover(candidate.folder)
        self._outcomes.put(_WaveOutcome(number, wave, report, failure))

    def _rest(self, seconds: float) -> None:
        with contextlib.suppress(queue.Empty):
            outcome = self._outcomes.get(timeout=seconds)
            if isinstance(outcome, TableRun):
                self._note_turn(outcome)
            elif outcome is not None:
                self._note_outcome(outcome)

    def _note_turn(self, turn: TableRun) -> None:
        error = self._tables.ended(turn, self._now_ms(), self._is_once)
        if isinstance(error, LogHeld):
            self._was_held = True
        elif isinstance(error, LogError) and error.exit_status == CorruptLog.exit_status:
            self._statuses.add(Status.DAMAGED)
        elif error is not None:
            self._statuses.add(Status.FAILED)

    def _end(self) -> None:
        self._tables.stop()
        if self._running:
            given_up = sorted(
                str(candidate.name) for _, wave in self._running.values() for candidate in wave
            )
            self._rounds.stop()
            self._gather(CANCEL_S)
            if self._running:
                self._rounds.cancel()
                self._gather(GIVE_UP_S)
            more = f" and {len(given_up) - 3} more" if len(given_up) > 3 else ""
            self._events.note(
                f"the daemon stopped during the compaction of {', '.join(given_up[:3])}{more}"
            )
        # Wait for a running table update. An update that does not commit in time has no effect.
        self._gather(CANCEL_S)
        super()._end()

    def _gather(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (self._running or self._tables.is_running) and (
            left := deadline - time.monotonic()
        ) > 0:
            self._rest(left)

    # ------------------------------------------------------------------ outcomes

    def _note_outcome(self, outcome: _WaveOutcome) -> None:
        del self._running[outcome.thread]
        now_ms = self._now_ms()
        failed: dict[Candidate, str] = {}
        if outcome.report is None:
            self._note_failure(outcome, failed)
        else:
            self._metrics.wave_ended(outcome.report, len(self._running))
            for candidate, report in zip(outcome.wave, outcome.report.partitions, strict=True):
                self._note_report(outcome, candidate, report, failed, now_ms)
            self._account(
                [
                    candidate.folder
                    for candidate, report in zip(
                        outcome.wave, outcome.report.partitions, strict=True
                    )
                    if report.status is Status.CLEANED or report.segments_deleted
                ],
                now_ms,
            )
        for candidate, reason in failed.items():
            self._set_aside(candidate, reason, now_ms)

    def _account(self, folders: Sequence[str], now_ms: int) -> None:
        """Report the files in log folders that are not part of a log and were left unchanged.

        A folder is reported again only if it has new files.
        """
        try:
            found = self._system.untouched(folders, None)
        except LogError as error:
            self._events.report_once(
                "files", f"the other files of the log folders could not be listed: {error}"
            )
            return
        for folder, inside in groupby(found, lambda each: os.path.dirname(each.path)):
            files = tuple(inside)
            paths = frozenset(each.path for each in files)
            if paths - self._untouched.get(folder, frozenset()):
                self._events.emit(FilesUntouched(time_ms=now_ms, folder=folder, untouched=files))
            self._untouched[folder] = paths

    def _note_report(
        self,
        outcome: _WaveOutcome,
        candidate: Candidate,
        report: PartitionReport,
        failed: dict[Candidate, str],
        now_ms: int,
    ) -> None:
        assert outcome.report is not None
        for problem in report.problems:
            if problem.kind is ProblemKind.GAP:
                self._events.report_once(str(problem), str(problem))
        wrong = [problem for problem in report.problems if not problem.is_note]
        is_wrong = bool(report.status in _FAILED or wrong or candidate.problem)
        # Quarantine the partition: each further round would read its records, only to skip it
        # again.
        if report.is_keyless:
            failed[candidate] = report.reason or ""
            return
        if report.status in DONE or not is_wrong:
            state = self._watch.state_of(candidate.root, candidate.folder)
            self._ended[candidate.folder] = (state, time.monotonic())
        if report.status in DONE:
            self._alone.discard(candidate.folder)
            if candidate.is_due or report.segments_deleted:
                self._metrics.round_ended(candidate, report)
                self._events.emit(
                    RoundEnded(
                        time_ms=now_ms,
                        thread=outcome.thread,
                        root=candidate.root,
                        report=report,
                        wave_partitions=len(outcome.wave),
                        seconds=outcome.report.seconds,
                        stage_seconds=outcome.report.stage_seconds,
                    )
                )
            self._not_before.pop(candidate.folder, None)
            with contextlib.suppress(LogError):
                release(candidate.home, [candidate.name], self._system.notes)
            return
        if is_wrong and not self._is_stopping:
            if report.may_pass:
                self._wait(candidate, report.reason or "")
                return
            if self._was_changed(candidate):
                return
            self._statuses.add(report.status)
            failed[candidate] = report.reason or candidate.problem or "no reason is known"

    def _note_failure(self, outcome: _WaveOutcome, failed: dict[Candidate, str]) -> None:
        """Handle an error that ended the compaction of a wave of partitions without a report."""
        error = outcome.error
        if self._is_stopping:
            return
        if not self._rounds.is_alive:
            raise spark_has_died(error) from error
        if isinstance(error, RemoteFailed):
            for candidate in outcome.wave:
                self._wait(candidate, str(error))
            return
        if len(outcome.wave) > 1:
            self._events.note(
                f"the compaction of {len(outcome.wave)} partitions failed, so each of them is "
                f"tried alone: {error}"
            )
            for candidate in outcome.wave:
                self._alone.add(candidate.folder)
            return
        if self._was_changed(outcome.wave[0]):
            return
        self._statuses.add(Status.FAILED)
        failed[outcome.wave[0]] = str(error)

    def _was_changed(self, candidate: Candidate) -> bool:
        """Whether the round may have failed because a process without a lock writes to the log.

        If so, the partition is skipped for a while.
        """
        try:
            if not self._watch.has_changed(candidate.root, candidate.folder):
                return False
        except RemoteFailed as error:
            self._wait(candidate, str(error))
            return True
        self._events.note(
            f"{candidate.root}: {candidate.name} was changed by another program during its "
            "compaction; it is tried again later"
        )
        self._pause(candidate)
        return True

    def _wait(self, candidate: Candidate, reason: str) -> None:
        """Handle a round that failed because a store is unavailable, without a quarantine."""
        self._statuses.add(Status.FAILED)
        self._metrics.failed()
        self._events.note(f"{candidate.name}: the compaction is tried again later: {reason}")
        self._pause(candidate)

    def _pause(self, candidate: Candidate) -> None:
        self._not_before[candidate.folder] = (
            time.monotonic() + self._settings.current.cleaner.backoff_ms / 1000
        )

    def _set_aside(self, candidate: Candidate, reason: str, now_ms: int) -> None:
        notes = self._system.notes
        try:
            record_failures(candidate.home, {candidate.name: reason}, now_ms, notes)
            entries = read_quarantine(candidate.home, notes)
        except LogError as error:
            self._events.note(f"cannot record which partitions are uncleanable: {error}")
            return
        self._metrics.failed()
        if candidate.name in entries:
            entry = entries[candidate.name]
            self._events.emit(
                PartitionQuarantined(
                    time_ms=now_ms, root=candidate.root, name=candidate.name, entry=entry
                )
            )


def _unmanaged_note(root: str, found: Sequence[Candidate]) -> str | None:
    """A note on the skipped topics, with the reason of the first one.

    None without skipped topics.
    """
    reasons = {
        candidate.name.topic: candidate.unmanaged_reason
        for candidate in found
        if candidate.unmanaged_reason is not None
    }
    if not reasons:
        return None
    topics = sorted(reasons)
    more = f" and {len(topics) - _MOST_TOPICS:,} more" if len(topics) > _MOST_TOPICS else ""
    return f"{root}: skipped {', '.join(topics[:_MOST_TOPICS])}{more}: {reasons[topics[0]]}"
