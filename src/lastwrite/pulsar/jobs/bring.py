"""A topic of a live cluster on its way to a disk: what its brokers say of it, and its ledgers from
their bookies.

No ledger is fenced, closed or changed. The broker reports the end of the open ledger, because
readers of the bookies learn it an entry or more later. A closed ledger ends where its own metadata
end it. The topic's ledger list also has a count, but brokers never read by it, and it can be too
low: a write that failed makes a broker close the list's count while the ledger keeps the entry.

Source: Pulsar 4.2.4 ``ManagedLedgerImpl`` (``internalReadFromLedger``), ``CompactedTopicImpl``;
docs/formats/pulsar.md, "Managed ledger"; docs/formats/pulsar-compaction.md, "The commit".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from lastwrite.errors import CorruptLog, InvalidConfig, NotALog
from lastwrite.model.progress import Progress
from lastwrite.pulsar.format.managed_ledger import LedgerInfo, ManagedLedgerInfo
from lastwrite.pulsar.format.names import TopicName
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.network.bookies import LiveLedger
from lastwrite.pulsar.network.broker import Subscription
from lastwrite.pulsar.network.cluster import Cluster, Compaction
from lastwrite.pulsar.store.known import KnownTopic
from lastwrite.pulsar.store.mirror import Mirror


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a cluster says of a topic: its raw ledgers, of the open one too how many entries it has
    by now; how far it is compacted, and into which ledger.
    """

    topic: TopicName
    info: ManagedLedgerInfo
    base: Compaction | None
    compacted: LiveLedger | None  # None: there is none, or it is lost

    @property
    def horizon(self) -> Position | None:
        """Up to where the compacted ledger counts; None: there is none."""
        return None if self.compacted is None or self.base is None else self.base.horizon

    @property
    def known(self) -> KnownTopic:
        """What has to be said of it beside its ledgers."""
        told = None
        if self.compacted is not None and self.horizon is not None:
            told = self.compacted.id, self.horizon
        return KnownTopic(topic=self.topic.full, compacted=told)

    @property
    def filled(self) -> ManagedLedgerInfo:
        """The raw ledgers that have an entry: one without, as the open one after a reload, cannot
        be missed."""
        return replace(self.info, ledgers=tuple(each for each in self.info.ledgers if each.entries))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bringer:
    """Brings a topic's ledgers into a mirror of it. ``goes_on``: also where the compacted ledger is
    lost. ``is_whole``: past entries that no bookie has, of the compacted ledger, too. ``spend`` is
    asked for bytes that are read. ``ended``: closed ledgers as the list has them, and as
    ``with_end`` found them; a caller that looks again and again keeps it.
    """

    cluster: Cluster
    topic: TopicName
    progress: Progress
    spend: Callable[[int], None]
    goes_on: bool = False
    is_whole: bool = False
    ended: dict[LedgerInfo, LedgerInfo] = field(default_factory=dict)

    def state(self, asked: Subscription) -> State:
        """The topic as the cluster has it; ``asked`` is a subscription to it.

        Raises:
            NotALog: it has no ledgers.
            CorruptLog: the compacted ledger is lost.
            RemoteFailed: no answer.
        """
        base = self.cluster.compaction_of(self.topic)
        compacted = self._compacted(base)
        ends = _Ends(self.cluster, self.topic, asked)
        listed = ledgers_of(self.cluster, self.topic)
        info = replace(listed, ledgers=tuple(self._with_end(each, ends) for each in listed.ledgers))
        return State(topic=self.topic, info=info, base=base, compacted=compacted)

    def _with_end(self, info: LedgerInfo, ends: _Ends) -> LedgerInfo:
        """The ledger with as many entries as it has by now."""
        if info.is_closed:
            if info not in self.ended:
                self.ended[info] = with_end(info, self.cluster)
            return self.ended[info]
        ledger = self.cluster.store.ledger(info.ledger)
        if ledger is None:
            return info
        closed = ledger.metadata.last_entry if ledger.metadata.is_closed else None
        return replace(info, entries=(ends.of(ledger) if closed is None else closed) + 1)

    def _compacted(self, base: Compaction | None) -> LiveLedger | None:
        """The compacted ledger that brokers serve from; None: there is none."""
        if base is None or base.ledger is None:
            return None
        found = self.cluster.store.ledger(base.ledger)
        if found is None and not self.goes_on:
            raise CorruptLog(
                f"{self.topic} is compacted into ledger {base.ledger}, which is gone: its readers get "
                "nothing",
                path=self.cluster.store.address,
                remedy="if a broker was stopped just now, try again in a minute; else let bookkeeper's shell look for "
                "the ledger. --unclean compacts what raw ledgers still have: values that are in none of them any "
                "more are given up for good",
            )
        return found

    def bring_raw(self, mirror: Mirror, info: LedgerInfo, horizon: Position | None) -> None:
        entries = info.entries or 0
        if not entries or (horizon is not None and Position(info.ledger, entries - 1) <= horizon):
            return
        if mirror.find(info.ledger, entries, info.offloaded_as) is not None:
            return
        ledger = self.cluster.store.ledger(info.ledger)
        if ledger is None and mirror.find(info.ledger, entries, info.offloaded_as, or_more=True):
            return  # the list counts fewer entries than the offloaded ledger has
        if ledger is None or (info.offload is not None and info.offload.bookkeeper_deleted):
            raise InvalidConfig(
                f"ledger {info.ledger} of {self.topic} is offloaded, and only the object store has "
                "it",
                path=mirror.folder,
                remedy="fetch the bucket's objects into an archive with lastwrite fetch, then give "
                "it as --archive",
            )
        self._write(mirror, ledger, entries, f"ledger {info.ledger} of {self.topic}", info)

    def bring_compacted(self, mirror: Mirror, compacted: LiveLedger, horizon: Position) -> None:
        last = compacted.metadata.last_entry
        if not compacted.metadata.is_closed or last is None:
            raise CorruptLog(
                f"the compacted ledger {compacted.id} of {self.topic} is not closed",
                path=self.cluster.store.address,
                remedy="let the broker compact the topic once",
            )
        if mirror.find(compacted.id, last + 1) is None:
            what = f"compacted ledger {compacted.id} of {self.topic}"
            self._write(mirror, compacted, last + 1, what)
        if mirror.find(compacted.id, last + 1) is not None:
            mirror.is_compacted(compacted.id, horizon)

    def _write(
        self,
        mirror: Mirror,
        ledger: LiveLedger,
        entries: int,
        what: str,
        info: LedgerInfo | None = None,
    ) -> None:
        self.progress.note(f"bringing {what}: {entries} entries")
        spend = self.spend

        def spent(found: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
            for entry, data in found:
                spend(len(data))
                yield entry, data

        bookies, last = self.cluster.bookies, entries - 1
        uid = None if info is None else info.offloaded_as
        try:
            mirror.bring(ledger.id, ledger.metadata, spent(bookies.read(ledger, 0, last)), uid)
        except CorruptLog as error:
            # The listing finds the gap, and judges: a round stops at one beyond the horizon. Of the
            # compacted ledger nothing may lack in a round; a fetch brings the rest, and no manifest
            # names it.
            if info is None and not self.is_whole:
                raise
            self.progress.note(f"{error}; fetching the undamaged part of {what}")
            whole = spent(bookies.read_whole(ledger, 0, last))
            mirror.merge(ledger.id, ledger.metadata, [whole], entries, lambda error: None)


class _Ends:
    """Where a topic's open ledger ends: as far as any reader knows, or as its broker says."""

    def __init__(self, cluster: Cluster, topic: TopicName, asked: Subscription) -> None:
        told = cluster.told(topic)
        self._cluster = cluster
        # Not both: a broker never answers the second question where it cannot read the last entry.
        self._known = asked.last_message().position if told is None else told.last_confirmed

    def of(self, ledger: LiveLedger) -> int:
        """The last entry that is safe; -1: none. What the broker has confirmed counts where bookies
        lost it, too.
        """
        known = [self._known.entry] if self._known.ledger == ledger.id else []
        try:
            known.append(self._cluster.bookies.last_entry(ledger).confirmed)
        except CorruptLog:
            if not known:
                raise
        return max(known)


def ledgers_of(cluster: Cluster, topic: TopicName) -> ManagedLedgerInfo:
    found = cluster.store.managed_ledger(topic)
    if found is None:
        raise NotALog(
            f"{topic} has no ledgers",
            path=cluster.store.address,
            remedy="give a topic that was written to",
        )
    return found[1]


def with_end(info: LedgerInfo, cluster: Cluster) -> LedgerInfo:
    """A closed ledger of the list, with the entries that brokers read from it.

    A ledger that the list has closed and its own metadata have not is recovered by the first
    broker that reads it. Recovery keeps the last entry that a bookie has, so that counts here.
    A list that counts more entries than there are stays as it is: the rest is missing.
    """
    ledger = cluster.store.ledger(info.ledger)
    if ledger is None:  # offloaded, and its entries are in the object store alone
        return info
    own = ledger.metadata
    if own.is_closed and own.last_entry is not None:
        entries, size_bytes = own.last_entry + 1, own.length
    else:
        end = cluster.bookies.last_entry(ledger)
        entries, size_bytes = end.entry + 1, end.ledger_bytes
    if entries <= (info.entries or 0):
        return info
    return replace(info, entries=entries, size_bytes=size_bytes)
