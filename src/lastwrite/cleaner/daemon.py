"""The loop that every daemon runs: read changed settings, run a cycle, pause."""

from __future__ import annotations

import queue
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from lastwrite.cleaner.events import Events
from lastwrite.cleaner.metrics import CleanerMetrics
from lastwrite.cleaner.rounds import RoundRunner, exit_status
from lastwrite.cleaner.settings import SettingsSource
from lastwrite.config.cleaner import replaced_settings
from lastwrite.reports.compaction import Status

OutcomeT = TypeVar("OutcomeT")


@dataclass(frozen=True, slots=True)
class DaemonServices:
    """The objects that a daemon uses. ``now_ms`` is the clock."""

    settings: SettingsSource
    rounds: RoundRunner
    metrics: CleanerMetrics
    events: Events
    now_ms: Callable[[], int]


class Daemon(ABC, Generic[OutcomeT]):
    """The base class of daemons.

    Rounds run in threads that put their results into ``_outcomes``.
    """

    def __init__(self, means: DaemonServices) -> None:
        self._settings = means.settings
        self._rounds = means.rounds
        self._metrics = means.metrics
        self._events = means.events
        self._now_ms = means.now_ms
        # SimpleQueue, because a signal handler may call ``put`` while ``put`` is running.
        self._outcomes: queue.SimpleQueue[OutcomeT | None] = queue.SimpleQueue()
        self._is_stopping = False
        self._statuses: set[Status] = set()
        self._was_held = False

    def request_stop(self) -> None:
        """Request that ``run`` ends. May be called in a signal handler."""
        self._is_stopping = True
        self._outcomes.put(None)

    def wake(self) -> None:
        """End the current pause. May be called from any thread."""
        self._outcomes.put(None)

    def run(self, once: bool = False) -> int:
        """Run cycles until a stop is requested, or with ``once`` until no work is due.

        Returns:
            The exit status 0. With ``once`` also 1 (failure), 3 (damage) or 4 (locked by another
            process).

        Raises:
            LogError: the daemon cannot continue, because Spark has died or does not start.
        """
        try:
            while not self._is_stopping:
                said = self._settings.refresh()
                if said is not None:
                    self._events.note(said)
                self._events.report_once(
                    "no effect", replaced_settings(self._settings.current.names)
                )
                self._rounds.set_rates(self._settings.current.cleaner.rates)
                is_done = self._cycle(once)
                if once and is_done:
                    break
                self._rest(self._settings.current.cleaner.backoff_ms / 1000)
        finally:
            self._end()
        if not once or self._is_stopping:
            return 0
        return exit_status(self._statuses, self._was_held)

    def _is_enabled(self) -> bool:
        """Whether ``log.cleaner.enable`` allows rounds."""
        enable = self._settings.current.cleaner.enable
        self._events.report_once(
            "enable", None if enable else "log.cleaner.enable is false, so nothing is compacted"
        )
        return enable

    @abstractmethod
    def _cycle(self, once: bool) -> bool:
        """Check the logs and start the rounds that are due. Returns whether no work is running."""

    @abstractmethod
    def _rest(self, seconds: float) -> None:
        """Wait until a round ends, a stop is requested, or ``seconds`` have passed."""

    def _end(self) -> None:
        """Stop running work and end the Spark session."""
        self._rounds.close()
