"""``spark.readStream.format("lastwrite")``: the source of a stream.

A process of the driver chooses the end of each micro-batch and plans it. Other processes read the
records.

A micro-batch is defined by its offsets. Spark stores them before the micro-batch runs, so a restart
reads the same range again. Records that compaction has removed in between are then missing, as with
Spark's Kafka source.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from lastwrite.archive.gaps import warn_of
from lastwrite.commands.rows import planned_rows
from lastwrite.errors import CommitConflict, InvalidConfig, LogHeld
from lastwrite.model.log import PartitionLog, TopicPartition
from lastwrite.rows.decoded import DecodedRows
from lastwrite.rows.system import RowSystem
from lastwrite.source.offsets import (
    UNDECIDED,
    Identities,
    Offsets,
    decode_identities,
    decode_offsets,
    encode_offsets,
    limited,
    missing_rows,
)
from lastwrite.source.options import LATEST, SourceOptions
from lastwrite.source.piece import SourcePartition
from lastwrite.source.ranges import end_of, listed, start_of, system_at, units_of
from lastwrite.source.short_errors import rows_with_short_errors, with_short_errors

if TYPE_CHECKING:
    import pyarrow as pa

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # PySpark before 4.2 passes no read limits to a source
    HAS_LIMITS = False
    SupportsTriggerAvailableNow = object  # type: ignore[assignment, misc]
else:
    HAS_LIMITS = True

_PATIENCE_S = 120.0  # seconds to wait for a broker that starts or replaces segments
_Logs = Mapping[TopicPartition, PartitionLog]


class _SparkStream(DataSourceStreamReader):
    """Base class of the stream readers: the parts that all releases of PySpark share."""

    def __init__(self, options: SourceOptions, rows: DecodedRows) -> None:
        self._options = options
        self._rows = rows
        self._logs: _Logs | None = None  # the logs for the next micro-batch
        self._ends: Offsets | None = None  # the ends of ``_logs``
        # time since which the logs could not be listed; None if the last listing succeeded
        self._held_since_s: float | None = None
        self._batch_s = float("-inf")  # the time at which the last micro-batch was admitted
        # for a Trigger.AvailableNow query: the logs' ends at the start of the query
        self._target: Offsets | None = None
        self._warned: set[str] = set()

    @with_short_errors
    def initialOffset(self) -> dict[str, Any]:
        options = self._options
        if LATEST in (options.start.everywhere, *options.start.each.values()):
            return UNDECIDED
        logs = self._listed()
        begins = self._begins(logs)
        return encode_offsets(begins, self._identities_of(logs, begins))

    @with_short_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == UNDECIDED:
            return []
        first, until = decode_offsets(start), decode_offsets(end)
        logs, self._logs = self._logs, None
        if logs is None:
            logs = self._listed()
        known, planned = decode_identities(start), decode_identities(end)
        spans = []
        for name in sorted(first.keys() | until.keys()):
            log, begin = logs.get(name), first.get(name)
            if log is not None and (other := self._difference(log, until, planned)) is not None:
                self._lose_topic(log, other)
                continue  # the next micro-batch reads the new topic from its start
            if log is not None and (other := self._difference(log, first, known)) is not None:
                self._lose_topic(log, other)
                begin = log.log_start
            span = self._span(log, name, begin, until.get(name))
            if span is not None:
                spans.append((logs[name], *span))
        columns = self._rows.raw_columns
        return [SourcePartition(unit) for unit in units_of(spans, columns, self._options)]

    @rows_with_short_errors
    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, SourcePartition):
            yield from self._rows.of(planned_rows(partition.unit))

    # ------------------------------------------------------------------ the end of a micro-batch

    def _listed(self) -> _Logs:
        logs = listed(self._options)
        warn_of(logs, self._warned)
        return {log.name: log for log in logs}

    def _ends_of(self, logs: _Logs) -> Offsets:
        return {name: end_of(log, self._options) for name, log in logs.items()}

    def _identities_of(self, logs: _Logs, offsets: Offsets) -> Identities:
        """The identities of logs at these offsets. Logs without an identity are left out."""
        found = {
            name: self._system.identity(logs[name], at)
            for name, at in offsets.items()
            if name in logs
        }
        return {name: identity for name, identity in found.items() if identity is not None}

    def _difference(
        self, log: PartitionLog, offsets: Offsets, identities: Identities
    ) -> str | None:
        """How the log differs from the log that was read up to the offset in ``offsets``.

        Returns None if it may be the same log.
        """
        if log.name not in identities:
            return None
        return self._system.difference(log, offsets[log.name], identities[log.name])

    @property
    def _system(self) -> RowSystem:
        return system_at(self._options.paths)

    def _begins(self, logs: _Logs) -> Offsets:
        """The offset at which the stream begins in each partition, by the options of the query."""
        options, found = self._options, {}
        for name, log in logs.items():
            begin = start_of(log, options)
            if not log.log_start <= begin <= end_of(log, options):
                self._lose(
                    f"{name} must be read from offset {begin}, but the log contains offsets "
                    f"{log.log_start} to {end_of(log, options)}",
                    log,
                )
                begin = min(max(begin, log.log_start), end_of(log, options))
            found[name] = begin
        return found

    def _next(self, start: dict[str, Any], is_limited: bool) -> dict[str, Any]:
        """The end offsets of the next micro-batch, or ``start`` if no micro-batch is due."""
        try:
            logs = self._listed()
        except (LogHeld, CommitConflict):
            now_s = time.monotonic()
            self._held_since_s = self._held_since_s or now_s
            if self._target is not None or now_s - self._held_since_s > _PATIENCE_S:
                raise
            return start
        self._held_since_s, self._logs = None, logs
        ends = self._ends = self._ends_of(logs)
        if start == UNDECIDED:
            begins = self._begins(logs)
            target = self._target or begins
            begins = {name: min(at, target.get(name, at)) for name, at in begins.items()}
            return encode_offsets(begins, self._identities_of(logs, begins))
        if self._target is not None:
            ends = {name: end for name, end in self._target.items() if name in ends}
        first, known = decode_offsets(start), decode_identities(start)
        again = {
            log.name for log in logs.values() if self._difference(log, first, known) is not None
        }
        # A topic that was deleted and created again is read from its start.
        left = {name: at for name, at in first.items() if name not in again}
        if is_limited:
            ends = self._admitted(left, ends, {name: log.log_start for name, log in logs.items()})
        if ends is left or (ends == first and not again):
            return start
        # An end below its start is returned, too: the planning of the micro-batch reports it.
        return encode_offsets(ends, self._identities_of(logs, ends))

    def _admitted(self, start: Offsets, end: Offsets, begins: Offsets) -> Offsets:
        options, now_s = self._options, time.monotonic()
        is_late = now_s - self._batch_s >= options.max_delay_s
        rows = sum(missing_rows(start, end, begins).values())
        if self._target is None and rows < options.min_offsets and not is_late:
            return start
        self._batch_s = now_s
        return limited(start, end, begins, options.max_offsets) if options.max_offsets else end

    def _span(
        self, log: PartitionLog | None, name: TopicPartition, first: int | None, until: int | None
    ) -> tuple[int, int] | None:
        """The offsets of a partition that a micro-batch reads. Returns None if there are none.

        Raises:
            CommitConflict: some of these offsets are gone.
        """
        if log is None or until is None:
            if first != until:
                self._lose(f"partition {name} no longer exists", log)
            return None
        begin = log.log_start if first is None else first
        system = self._system
        if first is None and begin > 0 and not system.rounds_move_start:
            self._lose(f"partition {name} is new, but starts at offset {begin} instead of 0", log)
        if begin == until:
            return None
        end = end_of(log, self._options)
        if system.lost_after(log, begin) or until > end or begin > until:
            self._lose(
                f"{name} must be read from offset {begin} to {until}, but the log contains "
                f"offsets {log.log_start} to {end}",
                log,
            )
        begin, until = max(begin, log.log_start), min(until, end)
        return (begin, until) if begin < until else None

    def _lose_topic(self, log: PartitionLog, difference: str) -> None:
        self._lose(
            f"{log.name} was deleted and created again: {difference}",
            log,
            f"{self._system.before_anew}start the query with a new checkpoint, or set "
            "failOnDataLoss=false to read the new topic from its first record",
        )

    def _lose(
        self,
        text: str,
        log: PartitionLog | None,
        remedy: str = (
            "restore the records, or set failOnDataLoss=false to read the remaining records"
        ),
    ) -> None:
        """Report missing records by an error, or by a warning if ``failOnDataLoss`` is false."""
        path = self._options.paths[0] if log is None else log.folder
        if self._options.fails_on_data_loss:
            raise CommitConflict(text, path=path, remedy=remedy)
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(f"{path}: {text}", stacklevel=2)


class StreamReader(_SparkStream, SupportsTriggerAvailableNow):
    """The stream reader for PySpark 4.2 and newer."""

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.max_offsets:
            return ReadMaxRows(options.max_offsets)
        return ReadMinRows(options.min_offsets) if options.min_offsets else ReadAllAvailable()

    @with_short_errors
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self._next(start, not isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._ends is None else encode_offsets(self._ends)

    @with_short_errors
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._ends_of(self._listed())


class OldStreamReader(_SparkStream):
    """The stream reader for PySpark 4.0 and 4.1, which do not pass a micro-batch's start."""

    def __init__(self, options: SourceOptions, rows: DecodedRows) -> None:
        super().__init__(options, rows)
        if options.max_offsets or options.min_offsets:
            raise InvalidConfig(
                "maxOffsetsPerTrigger and minOffsetsPerTrigger need PySpark 4.2 or newer",
                remedy="leave out both options: a micro-batch then reads all available records",
            )
        self._start: dict[str, Any] = {}

    @with_short_errors
    def initialOffset(self) -> dict[str, Any]:
        self._start = super().initialOffset()
        return self._start

    @with_short_errors
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        found = self._next(self._start, False)
        self._start = found
        return found


def stream_reader(options: SourceOptions, rows: DecodedRows) -> DataSourceStreamReader:
    """The stream reader for the installed PySpark."""
    return (StreamReader if HAS_LIMITS else OldStreamReader)(options, rows)
