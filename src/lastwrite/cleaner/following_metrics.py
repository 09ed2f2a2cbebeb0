"""Metrics of an archive that follows a live cluster, on the metrics page of the cleaner."""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge

from lastwrite.reports.fetching import HoldReason
from lastwrite.reports.following import FollowedLog

_OF_PARTITION = ("topic", "partition")


class FollowingMetrics:
    """The metrics of a follower, in ``registry``. Methods may be called from several threads."""

    def __init__(self, registry: CollectorRegistry, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms

        def gauge(name: str, says: str, labels: Sequence[str] = ()) -> Gauge:
            return Gauge(f"lastwrite_follower_{name}", says, labels, registry=registry)

        def counter(name: str, says: str, labels: Sequence[str] = ()) -> Counter:
            return Counter(f"lastwrite_follower_{name}", says, labels, registry=registry)

        self._records = gauge(
            "lag_records",
            "Offsets between the archive's end and the live log's end, at the last fetch.",
            _OF_PARTITION,
        )
        self._seconds = gauge(
            "lag_seconds",
            "Seconds since the archive had all records of the live log; NaN means never.",
            _OF_PARTITION,
        )
        self._held = gauge(
            "held_partitions",
            "Partitions of which the last turn fetched nothing, by reason.",
            ["why"],
        )
        self._reasons = gauge(
            "held",
            "1 for each partition of which the last turn fetched nothing.",
            (*_OF_PARTITION, "why"),
        )
        self._bytes = counter("brought_bytes", "Bytes of fetched records.", _OF_PARTITION)
        self._turns = counter("turns", "Turns by result.", ["status"])
        self._last: set[tuple[Gauge, tuple[str, ...]]] = set()
        for status in ("done", "failed"):
            self._turns.labels(status)
        for why in HoldReason:
            self._held.labels(str(why)).set(0)

    def record_turn(self, logs: Sequence[FollowedLog]) -> None:
        """Record the result of one fetch of all topics.

        Metrics of partitions that no longer exist are removed.
        """
        self._turns.labels("done").inc()
        tally: Tally[HoldReason] = Tally()
        now: set[tuple[Gauge, tuple[str, ...]]] = set()
        for each in logs:
            log = each.log
            labels = log.topic, str(log.partition)
            if each.lag_records is not None:
                self._records.labels(*labels).set(each.lag_records)
                now.add((self._records, labels))
            self._seconds.labels(*labels).set_function(self._since(each.level_ms))
            now.add((self._seconds, labels))
            if log.size_bytes:
                self._bytes.labels(*labels).inc(log.size_bytes)
            if log.held is not None:
                tally[log.held] += 1
                self._reasons.labels(*labels, str(log.held)).set(1)
                now.add((self._reasons, (*labels, str(log.held))))
        for family, gone in self._last - now:
            family.remove(*gone)
        self._last = now
        for why in HoldReason:
            self._held.labels(str(why)).set(tally[why])

    def _since(self, level_ms: int | None) -> Callable[[], float]:
        if level_ms is None:
            return lambda: math.nan
        return lambda: max(self._now_ms() - level_ms, 0) / 1000

    def failed(self) -> None:
        """Count a fetch without an answer from the cluster."""
        self._turns.labels("failed").inc()
