"""Keep an archive up to date with topics of a live Pulsar cluster by polling.

A poll that finds nothing new sends no request to the archive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial

from msgspec import structs

from lastwrite.archive.following import FollowRequest
from lastwrite.archive.ingest import hold_reason_of
from lastwrite.engine.context import Options
from lastwrite.errors import CorruptLog, InvalidConfig, LogError, NotALog, RemoteFailed
from lastwrite.model.attempts import Attempts
from lastwrite.model.log import ProblemKind
from lastwrite.pulsar.format.managed_ledger import LedgerInfo
from lastwrite.pulsar.format.names import SCHEME, TopicName
from lastwrite.pulsar.jobs.fetch import IntoArchive, TopicFetchResult
from lastwrite.pulsar.jobs.topic_fetcher import State
from lastwrite.pulsar.live import access_of, reading_within, topics_of
from lastwrite.pulsar.network.cluster import PulsarCluster
from lastwrite.pulsar.rules.live_settings import LiveConfig
from lastwrite.pulsar.store.archived import address_in
from lastwrite.reports.fetching import FetchedLog, HoldReason
from lastwrite.reports.following import FollowedLog
from lastwrite.storage.objects.promises import reject_if_broken

_SYSTEM_TOPIC = "__"  # prefix of the names of internal topics, which are not followed


class PulsarFollowResult:
    """Polls topics of a live cluster for an archive. See ``archive.following.FollowResult``.

    A source is a topic or a namespace. A topic includes all its partitions. A namespace is
    ``persistent://TENANT/NAMESPACE``, and a pattern of topic names may follow it. Each poll opens
    new connections with the current settings.
    """

    def __init__(self, request: FollowRequest) -> None:
        self._request = request
        self._patterns = [each for url in request.sources for each in patterns_of(url, request)]
        LiveConfig.from_names(request.config())
        self._is_asked = False
        self._is_stopped = False
        self._states: dict[TopicName, State] = {}
        self._ended: dict[LedgerInfo, LedgerInfo] = {}
        self._level_ms: dict[TopicName, int] = {}

    def fetch(self) -> Sequence[FollowedLog]:
        wanted = self._request
        if not self._is_asked:
            reject_if_broken(wanted.to)
            self._is_asked = True
        config = wanted.config()
        live = LiveConfig.from_names(config)
        within = reading_within(Options(config=config, now_ms=0), wanted.limits.reading)

        def spend(size_bytes: int) -> None:
            self._check_not_stopped()
            within(size_bytes)

        access = replace(access_of(live), check=self._check_not_stopped)
        with PulsarCluster(access) as cluster:
            into = IntoArchive(
                cluster=cluster,
                to=wanted.to,
                progress=wanted.progress,
                throttle=spend,
                waits=not wanted.is_once,
                goes_on=live.goes_on,
                accepts_gap=wanted.accepts_gap,
                states=self._states,
                ended=self._ended,
            )
            found = []
            for name in self._names(cluster):
                self._check_not_stopped()
                found.append(self._fetch(into, name))
        self._check_not_stopped()
        return found

    def _names(self, cluster: PulsarCluster) -> list[TopicName]:
        """The cluster's current topics that match the request."""
        names: set[TopicName] = set()
        for pattern in self._patterns:
            found = list(self._matching(cluster, pattern))
            if not found and self._request.is_once:
                raise NotALog(
                    f"no topic of the cluster matches {pattern}",
                    path=cluster.store.address,
                    remedy="check the name and the namespace",
                )
            if not found:
                words = f"waiting for {pattern}: no topic of the cluster matches yet"
                self._request.progress.note(words)
            names.update(found)
        return sorted(names)

    def _matching(self, cluster: PulsarCluster, pattern: TopicName) -> Iterator[TopicName]:
        partition = self._request.partition
        if not _is_pattern(pattern.local):
            for name in topics_of(cluster, pattern.full, partition):
                if cluster.store.managed_ledger(name) is not None:
                    yield name
            return
        for name in cluster.store.topics(pattern.tenant, pattern.namespace):
            if (
                fnmatchcase(name.local, pattern.local)
                and not name.local.startswith(_SYSTEM_TOPIC)
                and partition in (None, name.partition)
            ):
                yield name

    def _fetch(self, into: IntoArchive, name: TopicName) -> FollowedLog:
        before = self._level_ms.get(name)
        bare = FetchedLog(
            topic=name.base,
            partition=name.partition,
            source=name.full,
            folder=address_in(into.to, name),
        )
        attempts = Attempts()
        try:
            found = attempts.run(partial(into.fetch, name))
        except (LogError, OSError) as error:
            if isinstance(error, RemoteFailed) or self._is_stopped:
                raise
            log = structs.replace(_held_log(bare, error), attempts=attempts.count)
            return FollowedLog(log=log, level_ms=before)
        self._level_ms[name] = found.asked_ms
        log = structs.replace(_fetched_log(bare, found), attempts=attempts.count)
        return FollowedLog(log=log, lag_records=0, level_ms=found.asked_ms)

    def _check_not_stopped(self) -> None:
        if self._is_stopped:
            raise LogError("the command was stopped", remedy="run the command again to continue")

    def stop(self) -> None:
        self._is_stopped = True

    def close(self) -> None:
        """Does nothing: each poll closes its connections."""


def patterns_of(url: str, request: FollowRequest) -> Iterator[TopicName]:
    """The topics that a source's URL and the request's topic names select together.

    Local names may be patterns.

    Raises:
        InvalidConfig: the URL is neither a topic's nor a namespace's.
    """
    rest = url.removeprefix(SCHEME).strip("/")
    topics = [request.topic] if isinstance(request.topic, str) else list(request.topic or ())
    tenant, _, namespace = rest.partition("/")
    if "/" not in namespace and tenant and namespace and not _is_pattern(rest):
        for text in topics or ["*"]:
            yield TopicName(tenant, namespace, text.removeprefix(f"{url.rstrip('/')}/"))
        return
    if topics:
        raise InvalidConfig(
            f"both {url} and --topic contain a topic",
            remedy=f"give {SCHEME}TENANT/NAMESPACE without a topic, or leave out --topic",
        )
    namespace, _, local = namespace.partition("/")
    if _is_pattern(local) and "/" not in local and not _is_pattern(f"{tenant}{namespace}"):
        yield TopicName(tenant, namespace, local)
    else:
        yield TopicName.parse(url)


def _is_pattern(text: str) -> bool:
    return any(letter in text for letter in "*?[")


def _fetched_log(bare: FetchedLog, found: TopicFetchResult) -> FetchedLog:
    return FetchedLog(
        topic=bare.topic,
        partition=bare.partition,
        source=bare.source,
        folder=bare.folder,
        first_offset=None if found.first is None else found.first.offset,
        end_offset=None if found.end is None else found.end.offset,
        segments=len(found.ledgers),
        size_bytes=found.size_bytes,
        is_new=found.is_new,
        gap=_gap_of(found),
    )


def _gap_of(found: TopicFetchResult) -> str | None:
    problems = () if found.topic is None else found.topic.problems
    return next((each.message for each in problems if each.kind is ProblemKind.GAP), None)


def _held_log(bare: FetchedLog, error: LogError | OSError) -> FetchedLog:
    held = HoldReason.WAITING if isinstance(error, NotALog) else hold_reason_of(error)
    return FetchedLog(
        topic=bare.topic,
        partition=bare.partition,
        source=bare.source,
        folder=bare.folder,
        reason=str(error),
        is_damaged=isinstance(error, CorruptLog),
        held=held,
    )
