"""Prometheus metrics of ``serve``. ``docs/guide/serve.md`` compares them with a broker's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Info
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

import lastwrite
from lastwrite.errors import LogError
from lastwrite.server.catalog import Catalog
from lastwrite.server.groups import Groups
from lastwrite.server.offsets import Offsets


class ServerMetrics:
    """The metrics of a server, as a Prometheus registry (``registry``). Thread-safe.

    ``notify`` reports the server's messages to the operator.
    """

    def __init__(self, notify: Callable[[str], None]) -> None:
        self.notify = notify
        self.registry = CollectorRegistry()

        def counter(name: str, says: str, *labels: str) -> Counter:
            return Counter(f"lastwrite_server_{name}", says, labels, registry=self.registry)

        info = Info("lastwrite_server", "What runs here.", registry=self.registry)
        info.info({"version": lastwrite.__version__})
        self._requests = counter("requests", "Requests that were answered, by name.", "request")
        self._sent = counter("sent_bytes", "Bytes of answers, by the request's name.", "request")
        self._records = counter("bytes_out", "Bytes of record batches sent, by topic.", "topic")
        self._hangups = counter("hangups", "Connections that the server closed, by reason.", "why")
        for why in ("full", "refused", "protocol", "failed"):
            self._hangups.labels(why)
        self._connections = Gauge(
            "lastwrite_server_connections", "Open connections.", registry=self.registry
        )

    def answered(self, request: str, size: int) -> None:
        """Count one response, and its ``size`` bytes."""
        self._requests.labels(request).inc()
        self._sent.labels(request).inc(size)

    def fetched(self, topic: str, size: int) -> None:
        """Count ``size`` bytes of record batches that were sent."""
        self._records.labels(topic).inc(size)

    def disconnected(self, why: str) -> None:
        self._hangups.labels(why).inc()

    def watch(
        self, connections: Callable[[], int], groups: Groups, offsets: Offsets, catalog: Catalog
    ) -> None:
        """Add the gauges for connections and groups, whose values are computed at each scrape."""
        self._connections.set_function(connections)
        self.registry.register(_Groups(groups, offsets, catalog))


class _Groups(Collector):
    """Collects two metrics: the number of groups with members, and the lag of each group."""

    def __init__(self, groups: Groups, offsets: Offsets, catalog: Catalog) -> None:
        self._groups, self._offsets, self._catalog = groups, offsets, catalog

    def collect(self) -> Iterable[Metric]:
        active = GaugeMetricFamily("lastwrite_server_groups", "Groups that have members.")
        active.add_metric((), len(self._groups.names()))
        yield active
        lag = GaugeMetricFamily(
            "lastwrite_server_group_lag",
            "Offsets between a group's committed offset and the end, for partitions that were "
            "read since the server started.",
            labels=("group", "topic", "partition"),
        )
        for group, topic, partition, behind in self._lags():
            lag.add_metric((group, topic, str(partition)), behind)
        yield lag

    def _lags(self) -> Iterator[tuple[str, str, int, int]]:
        for group in sorted(self._offsets.groups()):
            for place, commit in self._offsets.of_group(group):
                found = self._catalog.topic(place.topic)
                part = self._catalog.partition(found, place.partition)
                if part is None or not part.is_read:
                    continue
                try:
                    end = part.log().end(False)
                # The partition then has no lag metric. A client that reads it gets this error.
                except LogError:
                    continue
                yield group, place.topic, place.partition, max(end - commit.offset, 0)
