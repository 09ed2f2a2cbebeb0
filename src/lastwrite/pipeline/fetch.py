"""``fetch``: topics into an archive, from folders or from a live cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from lastwrite.compaction.pulsar_live_settings import SCHEME
from lastwrite.errors import InvalidConfig
from lastwrite.logstore.pulsar import fetching
from lastwrite.model.fetched import FetchReport
from lastwrite.model.progress import Progress


def fetch(
    sources: Sequence[str],
    to: str,
    topic: str | None = None,
    metadata: str | None = None,
    cursor: str | None = None,
    copies: bool = False,
    recover: bool = False,
    config: Mapping[str, object] | None = None,
    progress: Progress | None = None,
) -> FetchReport:
    """Bring topics from ``sources`` into the archive ``to``; see ``logstore.pulsar.fetching.fetch``.

    A source may also be one topic of a live cluster, ``persistent://tenant/namespace/name``; ``config`` then says where
    that is (``metadataStoreUrl``), and nothing else can be said.

    Raises: as ``fetching.fetch``; of a live cluster as ``pipeline.pulsar_live.fetch_live``.
    """
    live = [source for source in sources if str(source).startswith(SCHEME)]
    if not live:
        return fetching.fetch(sources, to, topic, metadata, cursor, copies, recover)
    if len(sources) > 1 or topic is not None or metadata is not None or cursor is not None or copies or recover:
        raise InvalidConfig(
            f"{live[0]} and something else to fetch from", remedy="name the live topic alone, and --config"
        )
    from lastwrite.pipeline.pulsar_live import fetch_live  # its network is for nobody else

    return fetch_live(live[0], to, config or {}, time.time_ns() // 1_000_000, progress=progress)
