"""The tables that a cleaner maintains: their topics, options and updates.

    look ──► a topic has grown ──► update of its table ──► rounds on the topic
                                        │
                                        └── failure: reported; rounds run; tried again later

A table is updated before a round on its topic, because a round can drop deletes that the table has
not read. The next update would then have to read the whole log instead of only new records. An
update and a round never run on the same topic at once. A round waits for only one update, so
cleaning continues if a table fails, or if a topic grows faster than its table.

Updates run in a separate thread, one at a time. All other code runs in the cleaner's thread.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lastwrite.cleaner.events import Event, TableFailed, TableUpdated
from lastwrite.cleaner.pauses import EVERY_S, LONGEST_S
from lastwrite.cleaner.pick import Candidate
from lastwrite.cleaner.table_metrics import TableMetrics
from lastwrite.commands.selection import TopicConfig, overrides
from lastwrite.commands.table_to import check_format, table_to
from lastwrite.decoding.options import DecodingConfig, DecodingOptions
from lastwrite.errors import InvalidConfig, LogError
from lastwrite.kafka.rules.topic_settings import overrides_of
from lastwrite.model.progress import NoProgress
from lastwrite.pulsar.format.names import SCHEME
from lastwrite.reports.table_round import TableRound

TOPIC = "{topic}"
_WORDS = {"as": "format"}  # command-line options with another name in Python
_DECODING = tuple(DecodingOptions.__annotations__)
_OPTIONS = ("to", "format", "catalog", "buckets", "headers", "vectors", "memory", *_DECODING)
_Key = tuple[str, str]  # root and topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The tables that ``clean`` maintains.

    Attributes:
        to: the path or address of tables, as for ``table_to``. ``{topic}`` is replaced by the name
            of the topic, here and in all other options. None means that only topics with ``to``
            in ``config`` have a table.
        config: options of ``table_to`` for a topic or a pattern of topics. Pulsar topics are
            named without ``persistent://``.
    """

    to: str | None = None
    config: TopicConfig = field(default=())

    def of(self, topic: str) -> dict[str, Any] | None:
        """The options of a topic's table. None if the topic has no table.

        Raises:
            InvalidConfig: an option is unknown, or its value is invalid.
        """
        name = topic.removeprefix(SCHEME)
        said = overrides_of(name, overrides(self.config))
        found: dict[str, object] = {} if self.to is None else {"to": self.to}
        found |= dict(_option(option, value) for option, value in said.items())
        to = found.get("to")
        is_own = name.rpartition("/")[2].startswith("__") and not any(
            each.pattern == name for each in overrides(self.config)
        )
        if not isinstance(to, str) or is_own:
            return None
        # allowed characters of a path, or of a name in a catalog
        odd = r"[^\w./-]" if "/" in to else r"[^\w-]"
        plain = re.sub(odd, "_", name)
        return {
            option: value.replace(TOPIC, plain) if isinstance(value, str) else value
            for option, value in found.items()
        }

    def check(self) -> None:
        """Check the options before any table is created.

        Raises:
            InvalidConfig, EnvironmentUnfit: with these options, no table can be created.
        """
        if self.to is None and not overrides(self.config):
            raise InvalidConfig(
                "the tables have no destination", remedy="give to, or config for a topic"
            )
        for pattern in ("any", *(each.pattern for each in overrides(self.config))):
            options = self.of(pattern)
            if options is None:
                continue
            DecodingConfig.of({name: options[name] for name in _DECODING if name in options})
            check_format(options["to"], options.get("format", "iceberg"), options.get("catalog"))


def _option(name: str, value: object) -> tuple[str, object]:
    plain = name.replace("-", "_")
    plain = _WORDS.get(plain, plain)
    if plain not in _OPTIONS:
        words = ", ".join(_OPTIONS)
        raise InvalidConfig(f"{name} is not an option of a table", remedy=f"use one of: {words}")
    try:
        if plain == "buckets":
            return plain, int(str(value))
        if plain in ("headers", "vectors"):
            return plain, {"true": True, "false": False}[str(value).lower()]
    except (ValueError, KeyError):
        raise InvalidConfig(
            f"{name} is {value!r}, which is not valid",
            remedy="give a number for buckets, and true or false for headers and vectors",
        ) from None
    return plain, str(value)


@dataclass(eq=False, slots=True)
class _Table:
    """The table of one topic, with the state of its updates.

    ``version`` is the state of the topic's partitions when the daemon last read them. ``level`` is
    their state when the last successful update began. ``was_first`` means that an update has ended
    since the last round on the topic began.
    """

    key: _Key
    options: Mapping[str, Any]
    version: object = None
    level: object = None
    was_first: bool = False
    tries: int = 0
    not_before_s: float = 0.0
    round_s: float = 0.0
    behind_since_ms: int | None = None

    @property
    def is_behind(self) -> bool:
        return self.version != self.level

    def is_due(self) -> bool:
        return self.is_behind and time.monotonic() >= self.not_before_s


@dataclass(frozen=True, slots=True)
class TableRun:
    """The result of a table update: a report or an error."""

    table: _Table
    version: object
    report: TableRound | None
    error: Exception | None
    seconds: float


class _Stops(NoProgress):
    """Ends an update when ``is_over`` is set."""

    def __init__(self) -> None:
        self.is_over = False

    def stage(self, name: str, total_bytes: int) -> None:
        self.advance(0)

    def advance(self, done_bytes: int) -> None:
        if self.is_over:
            raise LogError(
                "the update of the table was stopped", remedy="the table was left unchanged"
            )


class KeptTables:
    """Maintains the tables of a cleaner.

    Args:
        tables: the tables to maintain. None means that no topic has a table.
        config: returns the current settings. Only ``storage.*`` are used.
        metrics: None if there are no tables.
        notify: receives the events of updates.
    """

    def __init__(
        self,
        tables: Tables | None = None,
        config: Callable[[], Mapping[str, object]] = dict,
        metrics: TableMetrics | None = None,
        notify: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self._requests, self._config, self._metrics, self._notify = tables, config, metrics, notify
        self._tables: dict[_Key, _Table] = {}
        self._running: _Table | None = None
        self._stops = _Stops()

    @property
    def has_tables(self) -> bool:
        return self._requests is not None

    @property
    def is_running(self) -> bool:
        return self._running is not None

    @property
    def is_idle(self) -> bool:
        """Whether no update is running or due."""
        return not self.is_running and not any(each.is_due() for each in self._tables.values())

    # ------------------------------------------------------------------ looks

    def check_tables(
        self,
        found: Sequence[Candidate],
        state_of: Callable[[str, str], object],
        busy: Collection[_Key],
        now_ms: int,
    ) -> None:
        """Record the state of the partitions ``found``, to detect topics that have grown.

        Topics in ``busy`` were not read.
        """
        if self._requests is None:
            return
        by_topic: dict[_Key, list[Candidate]] = {}
        for each in found:
            by_topic.setdefault((each.root, each.name.topic), []).append(each)
        for key, some in by_topic.items():
            is_compacted = any(each.compacts for each in some)
            if key in busy or not is_compacted or any(each.unmanaged_reason for each in some):
                continue
            if key not in self._tables:
                options = self._requests.of(key[1])
                if options is None:
                    continue
                self._tables[key] = _Table(key, options)
            table = self._tables[key]
            table.version = sorted(
                ((each.folder, state_of(each.root, each.folder)) for each in some),
                key=lambda pair: pair[0],
            )
            if not table.is_behind:
                table.behind_since_ms = None
            elif table.behind_since_ms is None:
                table.behind_since_ms = now_ms
        if self._metrics is not None:
            since = [each.behind_since_ms for each in self._tables.values()]
            self._metrics.record_check(
                len(since),
                sum(each.tries > 0 for each in self._tables.values()),
                max((now_ms - each for each in since if each is not None), default=0),
            )

    def must_precede(self, candidate: Candidate) -> bool:
        """Whether a round on this partition must wait for the update of its topic's table."""
        table = self._tables.get((candidate.root, candidate.name.topic))
        if table is None:
            return False
        return table is self._running or (not table.was_first and table.is_due())

    def start_round(self, key: _Key) -> None:
        if key in self._tables:
            self._tables[key].was_first = False

    # ------------------------------------------------------------------ turns

    def start(self, busy: Collection[_Key], ended: Callable[[TableRun], None]) -> None:
        """Start the update of the table that has waited longest, unless an update is running.

        Tables of ``busy`` topics wait. ``ended`` is called in the thread of the update.
        """
        due = [each for each in self._tables.values() if each.is_due() and each.key not in busy]
        if self.is_running or not due:
            return
        table = self._running = min(due, key=lambda each: each.round_s)
        began_with = table.version
        thread = threading.Thread(
            target=lambda: ended(self._run_round(table, began_with)), name="table", daemon=True
        )
        thread.start()

    def _run_round(self, table: _Table, began_with: object) -> TableRun:
        report: TableRound | None = None
        failure: Exception | None = None
        begin = time.monotonic()
        try:
            self._reject_shared(table)
            root, topic = table.key
            report = table_to(
                root, topic, config=self._config(), progress=self._stops, **table.options
            )
        except Exception as error:
            failure = error
        return TableRun(table, began_with, report, failure, time.monotonic() - begin)

    def _reject_shared(self, table: _Table) -> None:
        """Reject two tables with the same path.

        Raises:
            InvalidConfig: another topic's table has the same path.
        """
        to = table.options["to"]
        for each in list(self._tables.values()):
            if each is not table and each.options["to"] == to:
                raise InvalidConfig(
                    f"the tables of {table.key[1]} and {each.key[1]} have the same destination",
                    path=to,
                    remedy=f"put {TOPIC} into the destination, or give each topic a destination of "
                    "its own",
                )

    def ended(self, turn: TableRun, now_ms: int, is_once: bool) -> Exception | None:
        """Record the result of an update.

        Returns the error if it counts as a failure, else None.
        """
        table, error = turn.table, turn.error
        self._running = None
        table.was_first, table.round_s = True, time.monotonic()
        if turn.report is not None:
            table.level, table.tries, table.not_before_s = turn.version, 0, 0.0
            if not table.is_behind:
                table.behind_since_ms = None
            self._count(turn.report.how, turn.report.bytes_written)
            if turn.report.how != "unchanged":
                self._notify(
                    TableUpdated(
                        time_ms=now_ms, root=table.key[0], report=turn.report, seconds=turn.seconds
                    )
                )
            return None
        if self._stops.is_over or error is None:
            return None
        pause_s = min(EVERY_S * 2**table.tries, LONGEST_S)
        table.tries += 1
        table.not_before_s = float("inf") if is_once else time.monotonic() + pause_s
        self._count("failed", 0)
        self._notify(
            TableFailed(
                time_ms=now_ms,
                root=table.key[0],
                topic=table.key[1],
                path=table.options["to"],
                reason=str(error) or type(error).__name__,
                tries=table.tries,
                next_try_ms=None if is_once else now_ms + round(1000 * pause_s),
            )
        )
        return error

    def _count(self, how: str, size_bytes: int) -> None:
        if self._metrics is not None:
            self._metrics.record_round(how, size_bytes)

    def stop(self) -> None:
        """End the running update. The table is then either unchanged or completely updated."""
        self._stops.is_over = True
