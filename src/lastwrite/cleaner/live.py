"""The daemon over topics that brokers serve: it asks the cluster how much there is to compact, and compacts.

    ask ──► over compactionThreshold? ──► round in a thread ──► outcome, next topic
     ▲                                                             │
     └────────────── brokerServiceCompactionMonitorInterval… ◄─────┘

As a broker's own timer does: by the setting where it is given, else by the topic's policy, its namespace's or the
brokers' setting, which the cluster tells. Each partition of a topic is compared by itself, one round runs at a time,
and a topic that somebody else compacts just now is passed by. A partition whose round fails is left alone for a while,
longer each time; unlike that of a folder this is remembered by the daemon alone.

A stop ends a round where it is. What was not published then never was; a ledger that was written for it is removed by
the next round on the topic.

Source: spec/pulsar.md section 18.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lastwrite.cleaner.events import Event, RoundEnded, SetAside
from lastwrite.cleaner.metrics import Metrics
from lastwrite.cleaner.pick import Candidate
from lastwrite.cleaner.rounds import CANCEL_S, DONE, GIVE_UP_S, Rounds, exit_status
from lastwrite.cleaner.settings import SettingsSource
from lastwrite.cleaner.voice import Voice
from lastwrite.compaction.pulsar_live_settings import rules_of
from lastwrite.compaction.pulsar_settings import THRESHOLDS, PulsarConfig
from lastwrite.errors import LogError, LogHeld
from lastwrite.formats.pulsar.names import TopicName
from lastwrite.logstore.pulsar.topic import partition_of
from lastwrite.logstore.uncleanable import pause_ms
from lastwrite.model.report import CompactionReport, PartitionReport, Status
from lastwrite.model.uncleanable import Uncleanable
from lastwrite.pipeline.engine import Options
from lastwrite.pipeline.pulsar import PULSAR, waits
from lastwrite.pipeline.pulsar_live import compact_live, waiting


@dataclass(frozen=True, slots=True)
class _Outcome:
    """How a round came out: with a report, or not at all."""

    candidate: Candidate
    report: CompactionReport | None
    error: Exception | None


class LiveCleaner:
    """Keeps topics of a cluster compacted; see ``run``. ``archive``: as of ``compact``; the rest as of ``Cleaner``."""

    def __init__(
        self,
        topics: Sequence[str],
        settings: SettingsSource,
        rounds: Rounds,
        metrics: Metrics,
        tell: Callable[[Event], None],
        now_ms: Callable[[], int],
        archive: str | None,
    ) -> None:
        self._topics = list(topics)
        self._settings = settings
        self._rounds = rounds
        self._metrics = metrics
        self._voice = Voice(tell, now_ms)
        self._now_ms = now_ms
        self._archive = archive
        # Its put may interrupt itself: a signal's handler may use it.
        self._outcomes: queue.SimpleQueue[_Outcome | None] = queue.SimpleQueue()
        self._is_stopping = False
        self._aside: dict[str, Uncleanable] = {}
        self._statuses: set[Status] = set()
        self._was_held = False

    def ask_to_stop(self) -> None:
        """Make ``run`` come to its end soon. May be called in a signal's handler."""
        self._is_stopping = True
        self._outcomes.put(None)

    def run(self, once: bool = False) -> int:
        """Compact until asked to stop, or with ``once`` until each topic was looked at.

        Returns:
            The exit status: 0; with ``once`` 1, 3 or 4 where topics failed, are damaged or are compacted elsewhere.

        Raises:
            LogError: the work cannot go on at all: Spark has died or does not start.
        """
        try:
            while not self._is_stopping:
                said = self._settings.refresh()
                if said is not None:
                    self._voice.note(said)
                self._rounds.set_rates(self._settings.current.cleaner.rates)
                for candidate in self._look():
                    if self._is_stopping:
                        break
                    self._round(candidate)
                if once:
                    break
                self._rest(self._settings.current.cleaner.backoff_ms / 1000)
        finally:
            self._rounds.close()
        if not once or self._is_stopping:
            return 0
        return exit_status(self._statuses, self._was_held)

    # ------------------------------------------------------------------ look

    def _look(self) -> list[Candidate]:
        """The topics that are due, the one with the most to compact first."""
        names, now_ms = self._settings.current.names, self._now_ms()
        found: list[Candidate] = []
        for url in self._topics:
            if self._is_stopping:
                return []
            try:
                found_there = waiting(url, names)
            except LogError as error:
                self._voice.say_once(url, str(error))
                if not isinstance(error, LogHeld):
                    self._statuses.add(Status.FAILED)
                continue
            if THRESHOLDS & names.keys() or all(
                each.threshold_bytes is not None for each in found_there.values()
            ):
                self._voice.say_once(url, None)
            for topic, (size, told) in found_there.items():
                threshold = _threshold(names, told)
                if threshold is None:
                    self._voice.say_once(
                        url,
                        f"{url}: nobody says from when on to compact it — {PULSAR.policy_remedy}",
                    )
                found.append(
                    Candidate(
                        root=url,
                        folder=topic.full,
                        name=partition_of(topic),
                        compacts=threshold is not None,
                        cleanable_bytes=size,
                        is_due=waits(size, threshold or 0) is None,
                    )
                )
        self._metrics.looked(found, self._aside, (), now_ms)
        due = [
            each
            for each in found
            if each.is_due
            and (each.folder not in self._aside or now_ms >= self._aside[each.folder].next_try_ms)
        ]
        return sorted(due, key=lambda each: -each.cleanable_bytes)

    def _rest(self, seconds: float) -> None:
        with contextlib.suppress(queue.Empty):
            while not self._is_stopping:
                self._outcomes.get(timeout=seconds)

    # ------------------------------------------------------------------ a round

    def _round(self, candidate: Candidate) -> None:
        """One round in a thread, so that a stop is heard."""
        self._rounds.start()
        names = self._settings.current.names
        begin = time.perf_counter()
        self._metrics.picked(self._now_ms(), 1)
        thread = threading.Thread(
            target=self._work, args=(candidate, names), name="cleaner-1", daemon=True
        )
        thread.start()
        outcome = self._outcomes.get()
        if outcome is None:
            self._rounds.stop()
            with contextlib.suppress(queue.Empty):
                outcome = self._outcomes.get(timeout=CANCEL_S)
            if outcome is None:
                self._rounds.cancel()
                with contextlib.suppress(queue.Empty):
                    outcome = self._outcomes.get(timeout=GIVE_UP_S)
            if (
                outcome is None
                or outcome.report is None
                or outcome.report.partitions[0].status not in DONE
            ):
                self._voice.note(f"stopped in the middle of a round of {candidate.name}")
                return
        self._note_outcome(outcome, time.perf_counter() - begin)

    def _work(self, candidate: Candidate, names: Mapping[str, object]) -> None:
        report: CompactionReport | None = None
        failure: Exception | None = None
        try:
            options = Options(config=names, now_ms=self._now_ms())
            report = compact_live(candidate.folder, None, options, self._archive, self._run, None)
        except Exception as error:
            failure = error
        self._outcomes.put(_Outcome(candidate, report, failure))

    def _run(self, archive: str, topic: str, options: Options) -> CompactionReport:
        """The round itself, on what was brought."""
        folders = PULSAR.find(archive, topic, None)
        with contextlib.ExitStack() as stack:
            for folder in folders:
                stack.enter_context(PULSAR.hold(PULSAR.root_of(folder), [PULSAR.name_of(folder)]))
            return self._rounds.run(folders, rules_of(options.config), options.now_ms)

    def _note_outcome(self, outcome: _Outcome, seconds: float) -> None:
        candidate = outcome.candidate
        if outcome.report is None:
            error = outcome.error
            if isinstance(error, LogHeld):
                self._was_held = True
                self._voice.say_once(candidate.folder, str(error))
                return
            if not self._rounds.is_alive:
                raise LogError(
                    f"Spark has died: {error}",
                    remedy="start again; if it dies again, with more --memory",
                ) from error
            is_damage = isinstance(error, LogError) and error.exit_status == 3
            self._fail(candidate, Status.DAMAGED if is_damage else Status.FAILED, str(error))
            return
        self._voice.say_once(candidate.folder, None)
        self._metrics.wave_ended(outcome.report, 0)
        for report in outcome.report.partitions:
            self._note_report(candidate, report, outcome.report, seconds)

    def _note_report(
        self, candidate: Candidate, report: PartitionReport, whole: CompactionReport, seconds: float
    ) -> None:
        if report.status in DONE:
            self._aside.pop(candidate.folder, None)
            self._metrics.round_ended(candidate, report)
            self._voice.tell(
                RoundEnded(
                    time_ms=self._now_ms(),
                    thread=1,
                    root=candidate.root,
                    report=report,
                    wave_partitions=1,
                    seconds=seconds,
                    stage_seconds=whole.stage_seconds,
                )
            )
        elif report.status is not Status.SKIPPED:
            self._fail(candidate, report.status, report.reason or "no reason given")

    def _fail(self, candidate: Candidate, status: Status, reason: str) -> None:
        now_ms = self._now_ms()
        before = self._aside.get(candidate.folder)
        tries = 1 if before is None else before.tries + 1
        entry = Uncleanable(
            reason=reason,
            since_ms=now_ms if before is None else before.since_ms,
            tries=tries,
            next_try_ms=now_ms + pause_ms(tries),
        )
        self._aside[candidate.folder] = entry
        self._statuses.add(status)
        self._metrics.failed()
        self._voice.tell(
            SetAside(time_ms=now_ms, root=candidate.root, name=candidate.name, entry=entry)
        )


def _threshold(names: Mapping[str, object], told: int | None) -> int | None:
    """What our settings say, else what the cluster's policies do."""
    if THRESHOLDS & names.keys():
        return PulsarConfig.from_names(rules_of(names)).compaction_threshold_bytes
    return told


def topics_in(roots: Sequence[str]) -> list[str]:
    """The topics that are named, each once.

    Raises:
        InvalidConfig: one is no topic.
    """
    return list(dict.fromkeys(TopicName.parse(root).full for root in roots))
