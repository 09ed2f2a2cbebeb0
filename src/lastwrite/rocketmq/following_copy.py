"""Keep an archive up to date with a growing copy of a commit log, such as one updated by rsync.

Each poll dispatches new records and then fetches them from the compaction logs. A copy made while a
broker runs may end inside a record, or contain a file although the file before it is incomplete. A
dispatch then ends at the address where bytes are missing, and the next poll continues there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from threading import Event

from lastwrite.archive.following import FollowRequest
from lastwrite.config.system import SettingSources
from lastwrite.errors import InvalidConfig, LogError, NotALog
from lastwrite.reports.fetching import FetchedLog
from lastwrite.reports.following import FollowedLog
from lastwrite.rocketmq.jobs.dispatch import dispatch
from lastwrite.rocketmq.jobs.fetch import fetch_queues
from lastwrite.rocketmq.rules.dispatch_settings import DispatchConfig
from lastwrite.rocketmq.rules.live_settings import SCHEME, rules_of
from lastwrite.rocketmq.rules.settings import RocketmqConfig
from lastwrite.rocketmq.system import ROCKETMQ
from lastwrite.spark.inline import INLINE

_OWN = frozenset(DispatchConfig.field_of())


class CopyFollowResult:
    """Polls a copy of a store, ``rocketmq:///PATH``, for an archive.

    Implements ``archive.following.FollowResult``.

    The copy is a store with ``commitlog`` and ``config/topics.json``. ``fetch`` adds consume queues
    and compaction logs to it.
    """

    def __init__(self, request: FollowRequest) -> None:
        if len(request.sources) > 1:
            raise InvalidConfig(
                "several sources were given, but one command follows one copied store",
                remedy="run one command for each copy",
            )
        self._root = request.sources[0].removeprefix(SCHEME)
        self._request = request
        self._stopped = Event()
        self._last_note: str | None = None
        self._split(request.config())

    def fetch(self) -> Sequence[FollowedLog]:
        asked_ms = time.time_ns() // 1_000_000
        wanted = self._request
        rules, sizes = self._split(wanted.config())
        is_unclean = RocketmqConfig.from_names(rules).unclean
        report = dispatch(self._root, config=sizes, unclean=is_unclean, spark=INLINE)
        self._note(str(report.problems[0]) if report.is_damaged else None)
        try:
            system = ROCKETMQ.with_sources(SettingSources())
            folders = system.find(self._root, wanted.topic, wanted.partition)
        except NotALog as error:
            if wanted.is_once:
                raise
            self._note(f"waiting for a compaction log: {error}")
            return []
        if self._stopped.is_set():
            raise LogError("the fetch was stopped", remedy="run the command again to continue")
        found = fetch_queues(folders, wanted.to, rules, True, None, wanted.progress)
        return [self._followed(each, asked_ms) for each in found.partitions]

    def _split(self, names: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
        """Split settings into the settings of compaction and the settings of dispatch.

        Raises:
            InvalidConfig: a setting is invalid.
        """
        rules = {name: value for name, value in rules_of(names).items() if name != "index.tags"}
        RocketmqConfig.from_names(rules)
        own = {name: value for name, value in names.items() if name in _OWN}
        DispatchConfig.from_names(own)
        return rules, own

    def _note(self, text: str | None) -> None:
        if text is not None and text != self._last_note:
            self._request.progress.note(text)
        self._last_note = text

    def _followed(self, log: FetchedLog, asked_ms: int) -> FollowedLog:
        if log.reason is not None:
            return FollowedLog(log=log)
        return FollowedLog(log=log, lag_records=0, level_ms=asked_ms)

    def stop(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        pass
