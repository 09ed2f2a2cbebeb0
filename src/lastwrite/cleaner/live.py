"""The daemon for topics of a live Pulsar cluster: compacts topics with a large backlog.

    request ──► over compactionThreshold? ──► round in a thread ──► outcome, next topic
     ▲                                                                 │
     └────────────── brokerServiceCompactionMonitorInterval… ◄─────────┘

It works like a broker's compaction timer. The threshold is the setting that the user gave.
Otherwise it is requested from the cluster: the policy of the topic or its namespace, or the
brokers' setting. Each partition of a topic is compared separately. One round runs at a time. A
topic that another process compacts is skipped. A partition whose round fails is skipped for a
while, longer each time. Unlike for folders, failures are stored only in memory.

A stop ends a round immediately. An unpublished result has no effect; the next round on the topic
deletes the ledger that was written for it.

Source: docs/formats/pulsar-compaction.md, "Retention and thresholds".
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lastwrite.cleaner.daemon import Daemon, DaemonServices
from lastwrite.cleaner.events import PartitionQuarantined, RoundEnded
from lastwrite.cleaner.pick import Candidate
from lastwrite.cleaner.rounds import CANCEL_S, DONE, GIVE_UP_S, spark_has_died
from lastwrite.engine.context import Options
from lastwrite.errors import EnvironmentUnfit, LogError, LogHeld
from lastwrite.pulsar.format.names import TopicName
from lastwrite.pulsar.live import compact_live, waiting
from lastwrite.pulsar.rules.live_settings import rules_of
from lastwrite.pulsar.rules.settings import THRESHOLDS, PulsarConfig
from lastwrite.pulsar.store.topic import partition_of
from lastwrite.pulsar.system import PULSAR, waits
from lastwrite.reports.compaction import CompactionReport, PartitionReport, Quarantined, Status
from lastwrite.storage.quarantine import pause_ms


@dataclass(frozen=True, slots=True)
class _RoundOutcome:
    """The outcome of a round: a report, or an error."""

    candidate: Candidate
    report: CompactionReport | None
    error: Exception | None


class LiveCleaner(Daemon[_RoundOutcome]):
    """A daemon that compacts topics of a live cluster. ``archive`` is as for ``compact``."""

    def __init__(self, topics: Sequence[str], means: DaemonServices, archive: str | None) -> None:
        super().__init__(means)
        self._topics = list(topics)
        self._archive = archive
        self._staged: dict[str, Quarantined] = {}

    def _cycle(self, once: bool) -> bool:
        for candidate in self._find_due() if self._is_enabled() else ():
            if self._is_stopping:
                break
            self._round(candidate)
        return True

    # ------------------------------------------------------------------ look

    def _find_due(self) -> list[Candidate]:
        """The topics that are due, the topic with the most uncompacted bytes first."""
        names, now_ms = self._settings.current.configured, self._now_ms()
        found: list[Candidate] = []
        for url in self._topics:
            if self._is_stopping:
                return []
            try:
                found_there = waiting(url, names)
            except LogError as error:
                self._events.report_once(url, str(error))
                if not isinstance(error, LogHeld):
                    self._statuses.add(Status.FAILED)
                continue
            if THRESHOLDS & names.keys() or all(
                each.threshold_bytes is not None for each in found_there.values()
            ):
                self._events.report_once(url, None)
            for topic, (size, told) in found_there.items():
                threshold = _threshold(names, told)
                if threshold is None:
                    self._events.report_once(
                        url,
                        f"{url}: no compactionThreshold is set — {PULSAR.policy_remedy}",
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
        self._metrics.record_look(found, self._staged, (), now_ms)
        due = [
            each
            for each in found
            if each.is_due
            and (each.folder not in self._staged or now_ms >= self._staged[each.folder].next_try_ms)
        ]
        return sorted(due, key=lambda each: -each.cleanable_bytes)

    def _rest(self, seconds: float) -> None:
        with contextlib.suppress(queue.Empty):
            while not self._is_stopping:
                self._outcomes.get(timeout=seconds)

    # ------------------------------------------------------------------ a round

    def _round(self, candidate: Candidate) -> None:
        """Run one round in another thread, so that the calling thread can receive a stop."""
        self._rounds.start()
        names = self._settings.current.configured
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
                self._events.note(f"the daemon stopped during the compaction of {candidate.name}")
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
        self._outcomes.put(_RoundOutcome(candidate, report, failure))

    def _run(self, archive: str, topic: str, options: Options) -> CompactionReport:
        """Compact the fetched ledgers of a topic."""
        folders = PULSAR.find(archive, topic, None)
        with contextlib.ExitStack() as stack:
            for folder in folders:
                stack.enter_context(PULSAR.hold(PULSAR.root_of(folder), [PULSAR.name_of(folder)]))
            self._rounds.start(folders)
            return self._rounds.run(folders, rules_of(options.config), options.now_ms)

    def _note_outcome(self, outcome: _RoundOutcome, seconds: float) -> None:
        candidate = outcome.candidate
        if outcome.report is None:
            error = outcome.error
            if isinstance(error, LogHeld):
                self._was_held = True
                self._events.report_once(candidate.folder, str(error))
                return
            if not self._rounds.is_alive:
                raise spark_has_died(error) from error
            if isinstance(error, EnvironmentUnfit):  # affects all topics
                raise error
            is_damage = isinstance(error, LogError) and error.exit_status == 3
            self._fail(candidate, Status.DAMAGED if is_damage else Status.FAILED, str(error))
            return
        self._events.report_once(candidate.folder, None)
        self._metrics.wave_ended(outcome.report, 0)
        for report in outcome.report.partitions:
            self._note_report(candidate, report, outcome.report, seconds)

    def _note_report(
        self, candidate: Candidate, report: PartitionReport, whole: CompactionReport, seconds: float
    ) -> None:
        if report.status in DONE:
            self._staged.pop(candidate.folder, None)
            self._metrics.round_ended(candidate, report)
            self._events.emit(
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
            self._fail(candidate, report.status, report.reason or "no reason is known")

    def _fail(self, candidate: Candidate, status: Status, reason: str) -> None:
        now_ms = self._now_ms()
        before = self._staged.get(candidate.folder)
        tries = 1 if before is None else before.tries + 1
        entry = Quarantined(
            reason=reason,
            since_ms=now_ms if before is None else before.since_ms,
            tries=tries,
            next_try_ms=now_ms + pause_ms(tries),
        )
        self._staged[candidate.folder] = entry
        self._statuses.add(status)
        self._metrics.failed()
        self._events.emit(
            PartitionQuarantined(
                time_ms=now_ms, root=candidate.root, name=candidate.name, entry=entry
            )
        )


def _threshold(names: Mapping[str, object], told: int | None) -> int | None:
    """The compaction threshold from the user's settings, otherwise from the cluster's policies."""
    if THRESHOLDS & names.keys():
        return PulsarConfig.from_names(rules_of(names)).compaction_threshold_bytes
    return told


def topics_in(roots: Sequence[str]) -> list[str]:
    """The topics with these names, without duplicates.

    Raises:
        InvalidConfig: a name is not a topic.
    """
    return list(dict.fromkeys(TopicName.parse(root).full for root in roots))
