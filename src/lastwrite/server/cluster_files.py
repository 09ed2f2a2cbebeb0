"""The metadata log and transaction logs of a stopped cluster, reloaded when they change."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from lastwrite.errors import LogError
from lastwrite.kafka.cluster import metadata_log
from lastwrite.kafka.cluster.cluster_state import ClusterState, read_cluster_state
from lastwrite.kafka.cluster.roots import MetadataLookup
from lastwrite.kafka.store.transaction_log import transactions_in


class ClusterFiles:
    """The metadata log and the transaction logs of log roots. Archives have neither."""

    def __init__(self, roots: Sequence[str] = (), metadata: str | None = None) -> None:
        self._roots = tuple(roots)
        self._clusters = MetadataLookup(roots, metadata)
        self._lock = threading.Lock()
        self._read: tuple[object, ClusterState] | None = None

    def state(self) -> ClusterState:
        """The cluster's state from the metadata log. Empty if there is no metadata log.

        Raises:
            LogError: the metadata log cannot be read.
        """
        folder = next(filter(None, map(self._metadata_of, self._roots)), None)
        if folder is None:
            return ClusterState()
        with self._lock:
            files = folder, metadata_log.state(folder)
            if self._read is None or self._read[0] != files:
                self._read = files, read_cluster_state(folder)
            return self._read[1]

    def features(self) -> ClusterState:
        """The cluster's state as it was last read, for its features.

        The state is not read again, because every connection requests the features. Without a
        readable metadata log the state has no features.
        """
        if self._read is None:
            try:
                return self.state()
            except (LogError, OSError):
                self._read = None, ClusterState()
        return self._read[1]

    def node(self) -> str | None:
        """The id of the broker that wrote the log roots. None if unknown or not unique."""
        nodes = {self._clusters.metadata_for(root).node for root in self._roots}
        return nodes.pop() if len(nodes) == 1 else None

    def transactions(self) -> Mapping[str, Mapping[str, Any]]:
        """The state of each transactional id, in the fields of ``TransactionLogValue``.

        Raises:
            LogError: a transaction log cannot be read.
        """
        found: dict[str, Mapping[str, Any]] = {}
        for root in self._roots:
            found |= transactions_in(root)
        return found

    def _metadata_of(self, root: str) -> str | None:
        return self._clusters.metadata_for(root).folder
