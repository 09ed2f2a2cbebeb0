"""Copy a topic of a live cluster to disk: metadata from the brokers, ledgers from the bookies.

No ledger is fenced, closed or changed. The broker is asked for the last entry of the open ledger,
because the last confirmed entry that bookies report is at least one entry older. The end of a
closed ledger is in its own metadata. The topic's ledger list also has a number of entries, but
brokers never use it for reads. It can be too low: after a failed write, a broker may store a number
without the last entry.

Source: Pulsar 4.2.4 ``ManagedLedgerImpl`` (``internalReadFromLedger``), ``CompactedTopicImpl``;
docs/formats/pulsar.md, "Managed ledger"; docs/formats/pulsar-compaction.md, "The commit".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

from lastwrite.errors import CommitConflict, CorruptLog, InvalidConfig, NotALog, RemoteFailed
from lastwrite.model.progress import Progress
from lastwrite.pulsar.format.managed_ledger import LedgerInfo, ManagedLedgerInfo
from lastwrite.pulsar.format.names import TopicName
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.network.bookies import LiveLedger
from lastwrite.pulsar.network.broker import Subscription
from lastwrite.pulsar.network.cluster import Compaction, PulsarCluster
from lastwrite.pulsar.store.known import TopicFacts
from lastwrite.pulsar.store.mirror import Mirror
from lastwrite.pulsar.store.objects import read_entries, read_index


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of a topic in its cluster.

    ``info`` has the raw ledgers, with the current number of entries of the open ledger. ``base``
    states how far the topic is compacted, and into which ledger.
    """

    topic: TopicName
    info: ManagedLedgerInfo
    base: Compaction | None
    # the compacted ledger; None without a compaction, or if it is lost
    compacted: LiveLedger | None

    @property
    def horizon(self) -> Position | None:
        """The position up to which readers use the compacted ledger. None without such a ledger."""
        return None if self.compacted is None or self.base is None else self.base.horizon

    @property
    def facts(self) -> TopicFacts:
        """The content of the topic's file ``fetched.json``; see ``store.known``."""
        told = None
        if self.compacted is not None and self.horizon is not None:
            told = self.compacted.id, self.horizon
        return TopicFacts(topic=self.topic.full, compacted=told)

    @property
    def filled(self) -> ManagedLedgerInfo:
        """Raw ledgers with at least one entry.

        An empty ledger, such as the open ledger of a reloaded topic, is not missing data.
        """
        return replace(self.info, ledgers=tuple(each for each in self.info.ledgers if each.entries))


@dataclass(slots=True, kw_only=True)
class TopicFetcher:
    """Copies a topic's ledgers from the cluster into a mirror folder.

    Args:
        throttle: called with the number of bytes that were read.
        goes_on: continue even if the compacted ledger is lost.
        is_whole: skip entries that no bookie has, also in the compacted ledger.
        ended: a cache of the results of ``with_end`` for closed ledgers. A caller that polls passes
            the same cache each time.
    """

    cluster: PulsarCluster
    topic: TopicName
    progress: Progress
    throttle: Callable[[int], None]
    goes_on: bool = False
    is_whole: bool = False
    ended: dict[LedgerInfo, LedgerInfo] = field(default_factory=dict)
    keeps_part: bool = False  # if reading a raw ledger fails, its entries read so far are stored
    broken: RemoteFailed | None = field(default=None, init=False)  # why only a part was read
    _entries_read: int = field(default=0, init=False)  # number of entries that were read

    def part(self, info: LedgerInfo) -> LedgerInfo:
        """The ledger info with the number of entries that were read before its bookies failed."""
        return replace(info, entries=self._entries_read)

    def state(self, asked: Subscription) -> State:
        """Read the topic's state from the cluster.

        The end of the open ledger is requested through the subscription ``asked``.

        Raises:
            NotALog: the topic has no ledgers.
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
        """The ledger with its current number of entries."""
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
        """The compacted ledger that brokers read from. None if there is none."""
        if base is None or base.ledger is None:
            return None
        found = self.cluster.store.ledger(base.ledger)
        if found is None and not self.goes_on:
            raise CorruptLog(
                f"{self.topic} is compacted into ledger {base.ledger}, but the cluster no "
                "longer has this ledger, so consumers of the compacted topic receive nothing",
                path=self.cluster.store.address,
                remedy="if a broker was stopped just now, run the command again in a minute; "
                "otherwise run lastwrite fetch on the folders of all bookies, which may "
                "still have the ledger. Only --unclean continues without it: the values "
                "that only this ledger had are then lost",
            )
        return found

    def fetch_raw(
        self,
        mirror: Mirror,
        info: LedgerInfo,
        horizon: Position | None,
        here: str | None = None,
    ) -> None:
        """Copy a raw ledger if it has entries beyond the horizon.

        ``here`` is the path of a data object that has the ledger's first entries. None without such
        an object.
        """
        entries = info.entries or 0
        if not entries or (horizon is not None and Position(info.ledger, entries - 1) <= horizon):
            return
        if mirror.find(info.ledger, entries, info.offloaded_as) is not None:
            return
        ledger = self.cluster.store.ledger(info.ledger)
        if ledger is None and mirror.find(info.ledger, entries, info.offloaded_as, or_more=True):
            return  # the folder has the offloaded ledger, with more entries than the list states
        if ledger is None or (info.offload is not None and info.offload.bookkeeper_deleted):
            raise InvalidConfig(
                f"ledger {info.ledger} of {self.topic} is offloaded, and only the object "
                "store still has it",
                path=mirror.folder,
                remedy="run lastwrite fetch BUCKET-COPY --to ARCHIVE with a copy of the bucket, "
                "then give --archive ARCHIVE",
            )
        self._write(mirror, ledger, entries, f"ledger {info.ledger} of {self.topic}", info, here)

    def fetch_compacted(self, mirror: Mirror, compacted: LiveLedger, horizon: Position) -> None:
        last = compacted.metadata.last_entry
        if not compacted.metadata.is_closed or last is None:
            raise CorruptLog(
                f"the compacted ledger {compacted.id} of {self.topic} is not closed",
                path=self.cluster.store.address,
                remedy="compact the topic once with pulsar-admin topics compact TOPIC, then run "
                "the command again",
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
        here: str | None = None,
    ) -> None:
        self.progress.note(f"fetching {what}: {entries} entries")
        spend = self.throttle

        def spent(
            found: Iterator[tuple[int, bytes]], may_stop: bool = False
        ) -> Iterator[tuple[int, bytes]]:
            try:
                for entry, data in found:
                    spend(len(data))
                    yield entry, data
                    self._entries_read = entry + 1
            except RemoteFailed as error:
                if not (may_stop and self._entries_read):
                    raise
                self.broken = error

        bookies, last = self.cluster.bookies, entries - 1
        may_stop = self.keeps_part and info is not None
        uid = None if info is None else info.offloaded_as
        try:
            self._entries_read = 0 if here is None else self._same(here, ledger)
            known: Iterator[tuple[int, bytes]] = iter(())
            if here is not None and self._entries_read:
                known = read_entries(here, 0, self._entries_read - 1, read_index(here))
            found = chain(known, spent(bookies.read(ledger, self._entries_read, last), may_stop))
            mirror.fetch(ledger.id, ledger.metadata, found, uid)
        except CorruptLog as error:
            # Entries of a raw ledger may be missing: they are listed as a gap, and compaction stops
            # there. A compaction needs the complete compacted ledger. A fetch copies the remaining
            # entries of the compacted ledger, and writes no manifest for it.
            if info is None and not self.is_whole:
                raise
            self.progress.note(f"{error}; fetching the undamaged part of {what}")
            whole = spent(bookies.read_intact(ledger, 0, last))
            mirror.merge(ledger.id, ledger.metadata, [whole], entries, lambda error: None)

    def _same(self, here: str, ledger: LiveLedger) -> int:
        """The number of entries in the object ``here``, if the bookies have the same last entry.

        Returns 0 if their last entry is different, or if the object is damaged or missing.
        """
        try:
            index = read_index(here)
            last = index.metadata.last_entry
            if index.missing or last is None or last < 0:
                return 0
            ((_, known),) = read_entries(here, last, last, index)
        # If the archive's object is damaged or missing, read all entries again.
        except (CorruptLog, CommitConflict):
            return 0
        ((_, found),) = self.cluster.bookies.read(ledger, last, last)
        return last + 1 if known == found else 0


class _Ends:
    """Finds the end of an open ledger.

    It is the later of the broker's last entry and the bookies' last confirmed entry.
    """

    def __init__(self, cluster: PulsarCluster, topic: TopicName, asked: Subscription) -> None:
        told = cluster.fetch_topic_state(topic)
        self._cluster = cluster
        # Send this request only once: a broker that cannot read the last entry never answers it.
        self._known = asked.last_message().position if told is None else told.last_confirmed

    def of(self, ledger: LiveLedger) -> int:
        """The id of the ledger's last confirmed entry. -1 if no entry is confirmed.

        Entries that the broker has confirmed count even if the bookies have lost them.
        """
        known = [self._known.entry] if self._known.ledger == ledger.id else []
        try:
            known.append(self._cluster.bookies.last_entry(ledger).confirmed)
        except CorruptLog:
            if not known:
                raise
        return max(known)


def ledgers_of(cluster: PulsarCluster, topic: TopicName) -> ManagedLedgerInfo:
    found = cluster.store.managed_ledger(topic)
    if found is None:
        raise NotALog(
            f"the topic {topic} has no ledgers",
            path=cluster.store.address,
            remedy="give a topic that has messages",
        )
    return found[1]


def with_end(info: LedgerInfo, cluster: PulsarCluster) -> LedgerInfo:
    """The closed ledger ``info`` with the number of entries that brokers read from it.

    A ledger may be closed in the topic's list, but still open in BookKeeper's metadata. The first
    broker that reads such a ledger recovers it. Recovery keeps the last entry that a bookie has, so
    that entry counts here. If the list states more entries than exist, its number stays: the other
    entries are missing.
    """
    ledger = cluster.store.ledger(info.ledger)
    if ledger is None:  # the ledger is offloaded, and only the object store has its entries
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
