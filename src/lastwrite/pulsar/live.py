"""``lastwrite compact persistent://tenant/namespace/topic``: compact a topic that brokers serve.

It compacts a topic folder, with steps before and after::

    hold      subscribe to __compaction exclusively, which blocks other compactors
    bring     copy the entries beyond the horizon and the compacted ledger from bookies to a folder
    compact   compact the folder, like any topic folder
    publish   write the new compacted ledger to bookies, and its horizon to the broker

The topic folder is in a scratch folder, or in an archive that is kept, so that the next compaction
copies only new entries. No ledger of the topic is fenced, closed or changed, and producers and
consumers are not affected.

Source: Pulsar 4.2.4 ``CompactorTool``; docs/formats/pulsar.md, "Compacted ledger";
docs/formats/pulsar-compaction.md, "The commit" and "Retention and thresholds".
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from msgspec import structs

from lastwrite.config.cleaner import CleanerConfig
from lastwrite.engine.context import Options
from lastwrite.errors import InvalidConfig, LogError, NotALog, RemoteFailed
from lastwrite.model.attempts import Attempts
from lastwrite.model.log import ProblemKind
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.model.work import Throttle
from lastwrite.pulsar.fetched import FetchedTopic, FetchReport
from lastwrite.pulsar.format.managed_ledger import ManagedLedgerInfo
from lastwrite.pulsar.format.names import TopicName
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.jobs.fetch import IntoArchive
from lastwrite.pulsar.jobs.topic_fetcher import TopicFetcher, ledgers_of, with_end
from lastwrite.pulsar.network.broker import Subscription
from lastwrite.pulsar.network.cluster import (
    ClusterAccess,
    Compaction,
    CursorHold,
    PulsarCluster,
    temporary_subscription,
)
from lastwrite.pulsar.network.identity import PulsarCredentials
from lastwrite.pulsar.network.ledgers import Quorums
from lastwrite.pulsar.network.publish import publish, sweep
from lastwrite.pulsar.rules.live_settings import LiveConfig, rules_of
from lastwrite.pulsar.rules.settings import PulsarConfig, states_retention
from lastwrite.pulsar.store.archived import address_in, holds_archived
from lastwrite.pulsar.store.archiving import refusal
from lastwrite.pulsar.store.exported_metadata import ExportedMetadata
from lastwrite.pulsar.store.manifest import CompactionManifest
from lastwrite.pulsar.store.mirror import Mirror, mirroring
from lastwrite.pulsar.store.objects import checked_index, read_entries
from lastwrite.reports.compaction import CompactionReport, PartitionReport, Status
from lastwrite.storage.files import faults
from lastwrite.storage.objects.address import is_address
from lastwrite.storage.objects.promises import reject_if_broken
from lastwrite.storage.scratch import make_folder, remove_folder
from lastwrite.storage.throttle import make_throttle, spender

_BRING = (
    "nothing was changed; no bookie has the entry. Run lastwrite fetch "
    "persistent://TENANT/NAMESPACE/TOPIC --to ARCHIVE, which copies the rest. Add folders of "
    "bookies, journals or buckets that have the entry; then compact with --archive ARCHIVE"
)

Run = Callable[[str, str, Options], CompactionReport]


def compact_live(
    url: str,
    partition: int | None,
    options: Options,
    archive: str | None,
    run: Run,
    progress: Progress | None,
) -> CompactionReport:
    """Compact a topic.

    All its partitions are compacted if neither the name nor ``partition`` selects one.

    Args:
        options: options of the compaction. Their settings include the cluster's addresses. A dry
            run publishes nothing and blocks no other compactor. With ``to``, the result is written
            to that archive and not published.
        archive: folder that keeps the copied ledgers. None means a folder that is deleted at the
            end.
        run: function that compacts the topic in an archive, given the archive's path and the
            topic's name.

    Raises:
        InvalidConfig: the cluster's addresses are missing, or only an object store has a ledger.
        NotALog: the topic does not exist.
        LogHeld: another compaction of the topic runs.
        RemoteFailed: no answer.
        CorruptLog: entries from bookies are damaged, or the compacted ledger is lost.
    """
    progress = progress or NoProgress()
    PulsarConfig.from_names(rules_of(options.config))
    config = LiveConfig.from_names(options.config)
    publishes = not options.dry_run and options.to is None
    if archive is not None and (is_address(archive) or holds_archived(archive)):
        raise InvalidConfig(
            "a round on a live topic needs an archive of topic folders; this archive has manifests",
            path=archive,
            remedy="give a separate folder as --archive",
        )
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(PulsarCluster(access_of(config)))
        names = topics_of(cluster, url, partition)
        if publishes:
            cluster.store.reject_read_only(f"compacting {url}")
        held = names if publishes else []
        holds = {name: stack.enter_context(CursorHold(cluster, name)) for name in held}
        is_scratch = archive is None
        if archive is None:
            scratch = make_folder()
            stack.callback(remove_folder, scratch)
            archive = str(scratch)
        live = [
            _Live(cluster, config, name, archive, options, progress, holds.get(name))
            for name in names
        ]
        for each in live:
            each.fetch()
        whole = names[0].base if len(names) > 1 or partition is None else names[0].full
        rules = _with_retention(cluster, names[0], rules_of(options.config))
        report = run(archive, whole, replace(options, config=rules))
        if is_scratch:
            for found in report.partitions:
                _report_damage(found, archive)
        if publishes:
            for each in live:
                each.publish(report)
        return report


def _with_retention(
    cluster: PulsarCluster, topic: TopicName, rules: dict[str, object]
) -> dict[str, object]:
    """Add the retention in the cluster's policies, unless the settings have a retention."""
    if states_retention(rules) or (found := cluster.retention_of(topic)) is None:
        return rules
    said = {"retentionTimeInMinutes": found.minutes, "retentionSizeInMB": found.megabytes}
    return {**rules, **said}


def _report_damage(report: PartitionReport, scratch: str) -> None:
    """Report damage in the scratch folder under the topic's name, because the folder is deleted."""
    here = [
        each
        for each in report.problems
        if each.kind is ProblemKind.DAMAGED and each.path.startswith(scratch)
    ]
    if report.status is not Status.DAMAGED or not here:
        return
    name = TopicName.parse(report.topic).with_partition(report.partition).full
    report.problems = [
        structs.replace(each, path=name, position=None, remedy=_BRING) if each in here else each
        for each in report.problems
    ]
    report.reason = str(next(each for each in report.problems if each.kind is ProblemKind.DAMAGED))


def fetch_into_archive(
    url: str, config: Mapping[str, object], archive: str, progress: Progress | None = None
) -> list[TopicName]:
    """Copy a topic into an archive, including raw ledgers that a compaction does not need.

    All its partitions are copied if the name selects none. Nothing changes in the cluster. Errors
    as ``compact_live``.
    """
    live = LiveConfig.from_names(config)
    options = Options(config=config, now_ms=0, dry_run=True)
    with PulsarCluster(access_of(live)) as cluster:
        names = topics_of(cluster, url, None)
        for name in names:
            _Live(
                cluster, live, name, archive, options, progress or NoProgress(), None, is_whole=True
            ).fetch()
    return names


def lists_of(url: str, config: Mapping[str, object]) -> dict[TopicName, ExportedMetadata]:
    """The cluster's ledger lists of a topic's partitions, or of an unpartitioned topic.

    Errors as ``compact_live``.
    """
    with PulsarCluster(access_of(LiveConfig.from_names(config))) as cluster:
        lists = {name: ledgers_of(cluster, name) for name in topics_of(cluster, url, None)}
    return {
        name: ExportedMetadata(info=info, content=info.encode()) for name, info in lists.items()
    }


def fetch_live(
    urls: Sequence[str],
    config: Mapping[str, object],
    to: str,
    reading: Sequence[Throttle] = (),
    progress: Progress | None = None,
    accepts_gap: bool = False,
) -> FetchReport:
    """Copy topics, with all their partitions, directly into the archive ``to``.

    The report has the reason for each topic that was not copied; the others are copied. Nothing
    changes in the cluster.

    Raises:
        InvalidConfig: the cluster's addresses are missing, or the object store lacks a guarantee
            that archives need.
        NotALog: the topic does not exist.
        RemoteFailed: no answer.
    """
    live = LiveConfig.from_names(config)
    reject_if_broken(to)
    topics = []
    options = Options(config=config, now_ms=0, dry_run=True)
    with PulsarCluster(access_of(live)) as cluster:
        into = IntoArchive(
            cluster=cluster,
            to=to,
            progress=progress or NoProgress(),
            throttle=reading_within(options, reading),
            goes_on=live.goes_on,
            accepts_gap=accepts_gap,
        )
        for name in (name for url in urls for name in topics_of(cluster, url, None)):
            topics.append(_tried(into, name))
    return FetchReport(archive=to, topics=tuple(topics))


def _tried(into: IntoArchive, name: TopicName) -> FetchedTopic:
    """Copy one topic. The copy is repeated, see ``Attempts``, if the archive changed meanwhile."""
    attempts = Attempts()
    try:
        topic = attempts.run(partial(into.fetch, name)).topic
        assert topic is not None
    except (NotALog, RemoteFailed, InvalidConfig):
        raise
    except LogError as error:
        folder = address_in(into.to, name)
        wrong = (refusal(error, name.full),)
        topic = FetchedTopic(topic=name.full, folder=folder, ledgers=(), problems=wrong)
    return structs.replace(topic, attempts=attempts.count)


def backlog_bytes(topic: str, config: Mapping[str, object]) -> int:
    """The approximate size of a topic's uncompacted entries, over all its partitions.

    Only metadata are read. A broker compares this size with its ``compactionThreshold``. Errors as
    ``compact_live``.
    """
    return sum(found.size_bytes for found in waiting(topic, config).values())


class LiveBacklog(NamedTuple):
    """The bytes of a topic that are not compacted, and the size at which its brokers compact it.

    ``threshold_bytes`` is set by the topic's policy, its namespace's policy or the brokers'
    setting. It is None if no broker answers.
    """

    size_bytes: int
    threshold_bytes: int | None


def waiting(topic: str, config: Mapping[str, object]) -> dict[TopicName, LiveBacklog]:
    """The backlog of each partition, or of a topic without partitions. See ``LiveBacklog``."""
    live = LiveConfig.from_names(config)
    with PulsarCluster(access_of(live)) as cluster:
        names = topics_of(cluster, topic, None)
        threshold = cluster.threshold_of(names[0])
        return {name: LiveBacklog(_backlog_of(cluster, name), threshold) for name in names}


def topics_of(cluster: PulsarCluster, url: str, partition: int | None) -> list[TopicName]:
    """The topics that a name selects: the topic's partitions, or the topic itself if it has none.

    Raises:
        InvalidConfig: there is no such partition.
    """
    topic = TopicName.parse(url)
    if topic.is_partition:
        if partition not in (None, topic.partition):
            raise InvalidConfig(
                f"{topic} is partition {topic.partition}, not {partition}", path=url
            )
        return [topic]
    count = cluster.store.partitions(topic)
    if partition is not None:
        if partition >= count:
            raise InvalidConfig(
                f"{topic} has {count} partitions",
                path=url,
                remedy=f"give a partition from 0 to {count - 1}",
            )
        return [topic.with_partition(partition)]
    return [topic.with_partition(n) for n in range(count)] or [topic]


def access_of(config: LiveConfig) -> ClusterAccess:
    return ClusterAccess(
        metadata_store=config.metadata_store,
        ledgers=config.ledgers,
        brokers=config.brokers,
        admin=config.admin,
        identity=PulsarCredentials(config.login, config.tls, config.uses_tls),
        bookies_tls=config.bookies_tls,
        store_auth=config.store_auth,
        mark_deletes_a_second=config.mark_deletes_a_second,
        patience_s=config.api_timeout_ms / 1000,
    )


@dataclass(slots=True)
class _Live:
    """The compaction of one live topic.

    ``hold`` blocks other compactors; None means that the topic is not changed.
    """

    cluster: PulsarCluster
    config: LiveConfig
    topic: TopicName
    archive: str
    options: Options
    progress: Progress
    hold: CursorHold | None
    is_whole: bool = False  # whether ledgers that a compaction does not need are copied too
    base: Compaction | None = None  # the topic's compaction at the beginning
    manifest: CompactionManifest | None = None

    # ------------------------------------------------------------------ bring

    def fetch(self) -> None:
        """Bring the topic's folder up to date with the cluster."""
        if self.hold is not None:
            sweep(self.hold)
            self._fetch(self.hold.renew())
        else:
            with temporary_subscription(self.cluster, self.topic) as looking:
                self._fetch(looking)

    def _fetch(self, asked: Subscription) -> None:
        bringer = TopicFetcher(
            cluster=self.cluster,
            topic=self.topic,
            progress=self.progress,
            throttle=reading_within(self.options),
            goes_on=self.config.goes_on,
            is_whole=self.is_whole,
        )
        state = bringer.state(asked)
        self.base, horizon, compacted = state.base, state.horizon, state.compacted
        with mirroring(self.archive, self.topic) as mirror:
            self._reject_foreign(mirror, state.info, horizon)
            # Write ``fetched.json`` before the ledgers are copied. If the copy is interrupted, this
            # file shows that the folder is incomplete.
            mirror.write_facts(state.facts)
            mirror.write_metadata(state.filled.encode())
            for each in state.info.ledgers:
                bringer.fetch_raw(mirror, each, None if self.is_whole else horizon)
            if compacted is None or horizon is None:
                mirror.is_not_compacted()
            else:
                bringer.fetch_compacted(mirror, compacted, horizon)
            manifest = mirror.manifest
            if compacted is None or (manifest is not None and manifest.ledger == compacted.id):
                mirror.clear_compacted(None if compacted is None else compacted.id)
            self.manifest = mirror.manifest

    def _reject_foreign(
        self, mirror: Mirror, info: ManagedLedgerInfo, horizon: Position | None
    ) -> None:
        """Check that the archive is not of an earlier, deleted topic with the same name.

        Otherwise the messages of that topic would reappear.
        """
        known = {each.ledger for each in info.ledgers}
        for ledger in mirror.raw_ledgers:
            if ledger not in known and (horizon is None or ledger > horizon.ledger):
                raise InvalidConfig(
                    f"the folder has ledger {ledger} of {self.topic}, but the topic's ledger "
                    "list does not. Retention deleted the ledger, or the topic was deleted "
                    "and created again",
                    path=mirror.folder,
                    remedy="nothing was changed; give a new folder: as --archive of compact, or "
                    "as --to of fetch",
                )

    # ------------------------------------------------------------------ publish

    def publish(self, report: CompactionReport) -> None:
        """Publish the new compacted ledger to the cluster, and add it to the report."""
        name = self.topic.base, self.topic.partition
        found = next(each for each in report.partitions if (each.topic, each.partition) == name)
        try:
            with mirroring(self.archive, self.topic) as mirror:
                self._publish(mirror, found)
        except LogError as error:
            found.status, found.reason = Status.FAILED, str(error)

    def _publish(self, mirror: Mirror, report: PartitionReport) -> None:
        manifest = mirror.manifest
        if manifest is None or manifest == self.manifest:
            return
        assert self.hold is not None
        what = f"the compacted ledger of {self.topic} with {manifest.entries} entries"
        self.progress.note(f"publishing {what}")
        path = f"{mirror.folder}/{manifest.object}"
        spend = _within(self.options, "written")

        def records() -> Iterator[bytes]:
            for _, data in read_entries(path):
                spend(len(data))
                yield data

        custom = checked_index(path).metadata.custom
        done = publish(
            self.hold,
            self.base,
            manifest.horizon,
            records,
            self._quorums(),
            custom,
            self.options.now_ms,
            partial(faults.reach, path=self.topic.full),
        )
        mirror.is_published(done.ledger, done.horizon)
        report.published = {
            "ledger": done.ledger,
            "horizon": str(done.horizon),
            "removed_ledgers": list(done.removed),
        }

    def _quorums(self) -> Quorums:
        if self.config.quorums is not None:
            return Quorums(*self.config.quorums)
        found = self.cluster.store.managed_ledger(self.topic)
        for each in reversed(() if found is None else found[1].ledgers):
            ledger = self.cluster.store.ledger(each.ledger)
            if ledger is not None:
                own = ledger.metadata
                acks = own.quorum if own.ack_quorum is None else own.ack_quorum
                return Quorums(own.ensemble, own.quorum, acks)
        return Quorums()


def reading_within(options: Options, throttles: Sequence[Throttle] = ()) -> Callable[[int], None]:
    """A function that delays reads to keep the limits in the settings and of ``throttles``."""
    return _within(options, "read", throttles)


def _within(
    options: Options, what: str, throttles: Sequence[Throttle] = ()
) -> Callable[[int], None]:
    """A function that delays reads or writes to keep the limits in the settings.

    ``what`` selects the limit for reads (``read``) or for writes.
    """
    rates = CleanerConfig.from_names(options.config).rates
    limits = (rates.both, rates.reading if what == "read" else rates.writing)
    own = [make_throttle("", n, 1, what) for n in limits if math.isfinite(n)]
    return spender([*own, *throttles])


def _backlog_of(cluster: PulsarCluster, topic: TopicName) -> int:
    info = ledgers_of(cluster, topic)
    base = cluster.compaction_of(topic)
    horizon = Position(-1, -1) if base is None else base.horizon
    total = 0
    for each in info.ledgers:
        if each.ledger < horizon.ledger:
            continue
        if each.is_closed:
            each = with_end(each, cluster)
        entries, size = each.entries or 0, each.size_bytes or 0
        if not each.is_closed and (ledger := cluster.store.ledger(each.ledger)) is not None:
            end = cluster.bookies.last_entry(ledger)
            entries, size = end.entry + 1, end.ledger_bytes
        seen = horizon.entry + 1 if each.ledger == horizon.ledger else 0
        total += size * max(entries - seen, 0) // max(entries, 1)
    return total
