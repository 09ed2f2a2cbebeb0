"""Metrics of the tables that a cleaner maintains."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class TableMetrics:
    """The metrics of tables, in ``registry``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, says: str) -> Gauge:
            return Gauge(f"lastwrite_table_{name}", says, registry=registry)

        self._tables = gauge("tables", "Tables that the daemon keeps.")
        self._failing = gauge("failing", "Tables whose last turn failed.")
        self._delay = gauge(
            "delay_seconds", "Seconds for which the most delayed table has been behind its topic."
        )
        self._rounds = Counter(
            "lastwrite_table_turns", "Turns by result.", ["status"], registry=registry
        )
        self._written = Counter(
            "lastwrite_table_written_bytes", "Bytes of written rows.", registry=registry
        )
        for status in ("made", "updated", "compared", "unchanged", "failed"):
            self._rounds.labels(status)

    def record_check(self, tables: int, failing: int, delay_ms: int) -> None:
        self._tables.set(tables)
        self._failing.set(failing)
        self._delay.set(delay_ms / 1000)

    def record_round(self, status: str, written_bytes: int) -> None:
        self._rounds.labels(status).inc()
        self._written.inc(written_bytes)
