"""``fetch``: Pulsar topics into an archive, from folders and from live clusters.

What folders give is taken first, so a live cluster is asked for the rest alone: offloaded ledgers
from a copy of the bucket, the others and the open one from the bookies that serve them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from msgspec import structs

from lastwrite.errors import InvalidConfig, NotALog
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.pulsar.fetched import FetchedTopic, FetchReport
from lastwrite.pulsar.format.names import TopicName
from lastwrite.pulsar.rules.live_settings import SCHEME
from lastwrite.pulsar.store import fetching
from lastwrite.storage.exports import naming_what_stays, refuse_inside


def fetch(
    sources: Sequence[str],
    to: str,
    *,
    topic: str | None = None,
    metadata: str | None = None,
    cursor: str | None = None,
    copies: bool = False,
    recover: bool = False,
    config: Mapping[str, object] | None = None,
    progress: Progress | None = None,
) -> FetchReport:
    """Bring topics into the archive ``to``; it may be fetched into again, which adds what is new.

    Args:
        sources: folders of a bucket's objects, of MapFiles, of bookies (entry logs, journals);
            ``persistent://…`` is a topic of a live cluster, with all its partitions if it names
            none.
        to: the archive's folder, which is made where there is none.
        topic: of folders, that one alone, with all its partitions if it names none.
        metadata, cursor: of folders, what was exported of the topic's ledgers and of its
            compaction, see ``pulsar.store.exported_metadata``; ``metadata`` may be a folder of many
            topics'.
        copies: copy a bucket's objects, instead of linking them.
        recover: of an open ledger in bookies' files, also entries that no writer had confirmed.
        config: where the cluster is, under the names of a ``broker.conf``.
        progress: is told of stages, bytes done and notes; None: nobody is.

    Raises:
        NotALog: a source holds nothing of Pulsar's, the cluster has no such topic.
        InvalidConfig: it is not said which ledgers are wanted, or where the cluster is.
        LogHeld: another run works on a topic's folder.
        RemoteFailed: the cluster does not answer.
        LogError: a file cannot be read or written. What is damaged or missing is in the report
            instead.
    """
    urls = [source for source in sources if source.startswith(SCHEME)]
    folders = [source for source in sources if source not in urls]
    refuse_inside(to, folders)
    if urls and (topic is not None or metadata is not None or cursor is not None):
        raise InvalidConfig(
            "a live cluster knows its topics",
            remedy="leave out topic, metadata and cursor",
        )
    progress = progress or NoProgress()
    with naming_what_stays(to, progress, "what was asked for"):
        if not urls:
            return fetching.fetch(folders, to, topic, metadata, cursor, copies, recover)
        return _with_live(urls, folders, os.path.abspath(to), copies, config or {}, progress)


def _with_live(
    urls: Sequence[str],
    folders: Sequence[str],
    archive: str,
    copies: bool,
    config: Mapping[str, object],
    progress: Progress,
) -> FetchReport:
    """Bring topics of live clusters: first what the folders have of them."""
    from lastwrite.pulsar.live import bring_live  # its network is for nobody else

    topics: list[FetchedTopic] = []
    for url in urls:
        known = {
            ledger.path: ledger
            for each in _from_folders(folders, archive, url, copies)
            for ledger in each.ledgers
        }
        before = fetching.objects_of(archive, TopicName.parse(url))
        for name in bring_live(url, config, archive, progress):
            found = fetching.describe(archive, name, url, before)
            topics.append(
                structs.replace(
                    found, ledgers=tuple(known.get(each.path, each) for each in found.ledgers)
                )
            )
    return FetchReport(archive=archive, topics=tuple(topics))


def _from_folders(
    folders: Sequence[str], archive: str, url: str, copies: bool
) -> tuple[FetchedTopic, ...]:
    """What folders have of a topic, if anything."""
    try:
        return fetching.fetch(folders, archive, url, copies=copies).topics if folders else ()
    except NotALog:
        return ()
