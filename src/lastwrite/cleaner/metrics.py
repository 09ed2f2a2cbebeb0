"""Prometheus metrics with the meaning of Kafka's metrics: see the table in docs/guide/daemon.md."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Collection, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Info

import lastwrite
from lastwrite.cleaner.pick import Candidate
from lastwrite.engine.rules.verdict import Verdict
from lastwrite.reports.compaction import STAGES, CompactionReport, PartitionReport, Quarantined
from lastwrite.storage.objects.store import Requests

STATUSES = ("due", "clean", "expired", "not_compacted", "uncleanable", "in_progress")


class CleanerMetrics:
    """The metrics of a cleaner, in ``registry``. Methods may be called from several threads."""

    # This function is long because it declares all metrics.
    def __init__(self, roots: Sequence[str], now_ms: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self._now_ms = now_ms
        self._last_pick_ms: int | None = None
        self._last_requests = Requests()
        self._uncleanable_bytes: dict[str, int] = {}

        def gauge(name: str, says: str, labels: Sequence[str] = ()) -> Gauge:
            return Gauge(f"lastwrite_cleaner_{name}", says, labels, registry=self.registry)

        def counter(name: str, says: str, labels: Sequence[str] = ()) -> Counter:
            return Counter(f"lastwrite_cleaner_{name}", says, labels, registry=self.registry)

        info = Info(
            "lastwrite_cleaner", "The running version of Lastwrite.", registry=self.registry
        )
        info.info({"version": lastwrite.__version__})
        self._recopy = gauge(
            "recopy_percent", "100 x bytes written / bytes read, in the last wave of rounds."
        )
        self._clean_time = gauge("max_clean_time_seconds", "Duration of the last wave of rounds.")
        self._delay = gauge(
            "max_compaction_delay_seconds",
            "Seconds by which the most overdue partition has exceeded max.compaction.lag.ms, "
            "at the last pick.",
        )
        self._dirty = gauge(
            "max_dirty_percent",
            "100 x the dirty ratio of the dirtiest partition, at the last pick.",
        )
        self._since = gauge(
            "time_since_last_run_seconds",
            "Seconds since partitions were last picked; NaN means never.",
        )
        self._since.set_function(self._seconds_since_last_pick)
        self._running = gauge("running_waves", "Waves of rounds in progress.")
        self._partitions = gauge(
            "partitions", "Partitions by status, at the last check.", ["log_directory", "status"]
        )
        self._uncleanable = gauge(
            "uncleanable_partitions",
            "Partitions that are set aside because a round failed.",
            ["log_directory"],
        )
        self._uncleanable_size = gauge(
            "uncleanable_bytes",
            "Cleanable bytes of the partitions that are set aside.",
            ["log_directory"],
        )
        for root in roots:
            self._uncleanable.labels(root).set(0)
            self._uncleanable_size.labels(root).set(0)
        self._read = counter("read_bytes", "Bytes read by scan and rewrite.")
        self._written = counter("written_bytes", "Bytes written into new segments.")
        self._records_read = counter(
            "read_records", "Records in the partitions of finished rounds."
        )
        self._records_written = counter(
            "written_records", "Records that remained in the partitions of finished rounds."
        )
        self._tombstones = counter("dropped_tombstones", "Deletes removed after their horizon.")
        self._keyless = counter("keyless_records", "Records removed because they have no key.")
        self._deleted = counter("retention_bytes", "Bytes of whole segments deleted by retention.")
        self._deleted_segments = counter(
            "retention_segments", "Whole segments deleted by retention."
        )
        self._swept = counter("swept_objects", "Objects that sweeps deleted from archives.")
        self._swept_bytes = counter("swept_bytes", "Bytes of the objects that sweeps deleted.")
        self._requests = counter("store_requests", "Requests to buckets, by kind.", ["kind"])
        self._rounds = counter("rounds", "Rounds of partitions by result.", ["status"])
        for status in ("cleaned", "unchanged", "failed"):
            self._rounds.labels(status)
        self._stages = counter("stage_seconds", "Seconds by stage, over all waves.", ["stage"])
        for stage in STAGES:
            self._stages.labels(stage)

    def _seconds_since_last_pick(self) -> float:
        last = self._last_pick_ms
        return float("nan") if last is None else max(self._now_ms() - last, 0) / 1000

    def record_look(
        self,
        candidates: Sequence[Candidate],
        staged: Mapping[str, Quarantined],
        busy: Collection[str],
        now_ms: int,
    ) -> None:
        """Update the metrics after the partitions of the log roots were read.

        Args:
            staged: the quarantined partitions by folder.
            busy: the folders of partitions in progress.
        """
        tally: Tally[tuple[str, str]] = Tally()
        wasted: Tally[str] = Tally()
        free = [candidate for candidate in candidates if candidate.compacts]
        for candidate in candidates:
            if candidate.folder in staged:
                wasted[candidate.root] += candidate.cleanable_bytes
            tally[candidate.root, _status(candidate, staged)] += 1
        roots = {candidate.root for candidate in candidates}
        for root in roots:
            tally[root, "in_progress"] = sum(folder.startswith(f"{root}/") for folder in busy)
            for status in STATUSES:
                self._partitions.labels(root, status).set(tally[root, status])
            self._uncleanable.labels(root).set(tally[root, "uncleanable"])
            self._uncleanable_size.labels(root).set(wasted[root])
        self._dirty.set(100 * max((candidate.dirty_ratio for candidate in free), default=0.0))
        self._delay.set(max((candidate.overdue_ms for candidate in free), default=0) / 1000)

    def picked(self, now_ms: int, running: int) -> None:
        self._last_pick_ms = now_ms
        self._running.set(running)

    def wave_ended(self, report: CompactionReport, running: int) -> None:
        self._running.set(running)
        self._clean_time.set(report.seconds)
        for stage, seconds in report.stage_seconds.items():
            self._stages.labels(stage).inc(seconds)
        read = sum(partition.bytes_read for partition in report.partitions)
        if read:
            self._recopy.set(
                100 * sum(partition.bytes_written for partition in report.partitions) / read
            )

    def round_ended(self, candidate: Candidate, report: PartitionReport) -> None:
        self._rounds.labels(str(report.status)).inc()
        self._read.inc(report.bytes_read)
        self._written.inc(report.bytes_written)
        self._records_read.inc(report.records_before or 0)
        self._records_written.inc(report.records_after or 0)
        self._tombstones.inc(report.tombstones_dropped)
        self._keyless.inc(report.verdicts.get(Verdict.KEYLESS.label, 0))
        self._deleted.inc(report.bytes_deleted)
        self._deleted_segments.inc(report.segments_deleted)

    def swept(self, objects: int, size_bytes: int) -> None:
        self._swept.inc(objects)
        self._swept_bytes.inc(size_bytes)

    def record_requests(self, requests: Requests) -> None:
        """Record ``requests``, the total number of object-store requests up to now."""
        new, self._last_requests = requests - self._last_requests, requests
        for kind in ("gets", "puts", "lists", "deletes"):
            self._requests.labels(kind).inc(getattr(new, kind))

    def failed(self) -> None:
        self._rounds.labels("failed").inc()


def _status(candidate: Candidate, staged: Mapping[str, Quarantined]) -> str:
    if candidate.folder in staged or candidate.problem is not None:
        return "uncleanable"
    if candidate.is_due:
        return "due"
    if candidate.expired_segments:
        return "expired"
    return "clean" if candidate.compacts else "not_compacted"
