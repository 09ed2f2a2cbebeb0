"""Copy topics of a live cluster directly into an archive.

::

    the cluster's ledgers      ──►  those the archive lacks  ──►  ledger by ledger  ──►  one commit
    broker, metadata store          its manifest                  bookies to objects     per topic

Each ledger is first copied to a scratch folder, which has one ledger at a time. If the work ends
before the commit, the archive is unchanged, and the next sweep deletes the copied objects. A topic
that has lost entries is not copied at all. If whole ledgers after the archive's end are gone, the
copy continues only if the user accepts the gap, which is recorded in the archive.

Source: as ``topic_fetcher``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from msgspec import structs

from lastwrite.archive.partition_store import WriteTransaction
from lastwrite.errors import InvalidConfig, LogError, LogHeld, RemoteFailed
from lastwrite.model.progress import Progress
from lastwrite.pulsar.fetched import FetchedLedger, FetchedTopic, FetchMethod
from lastwrite.pulsar.format.managed_ledger import LedgerInfo
from lastwrite.pulsar.format.names import TopicName
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.jobs.topic_fetcher import State, TopicFetcher
from lastwrite.pulsar.network.cluster import PulsarCluster, temporary_subscription
from lastwrite.pulsar.network.patience import retry_disconnects
from lastwrite.pulsar.store.archived import ArchivedTopic, StoredCompacted, StoredLedger
from lastwrite.pulsar.store.archiving import Incoming, LedgerCopy, reject_gaps
from lastwrite.pulsar.store.mirror import Mirror, mirroring
from lastwrite.pulsar.store.topic import TopicFolder, is_beyond, list_topic
from lastwrite.storage.scratch import make_folder, remove_folder

_MIXED = (
    "nothing was fetched; run lastwrite fetch BUCKET-COPY persistent://TENANT/NAMESPACE/TOPIC "
    "--to FOLDER to collect both in topic folders, then run lastwrite fetch FOLDER --to "
    "ARCHIVE"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFetchResult:
    """The result of one fetch of a topic."""

    topic: FetchedTopic | None = None  # report on the topic; None if it had nothing new
    # the copied ledgers, and the parts of a compacted ledger
    ledgers: tuple[StoredLedger, ...] = ()
    first: Position | None = None  # position of the first copied raw entry
    end: Position | None = None  # position after the last copied raw entry
    is_new: bool = False
    asked_ms: int = 0  # time at which the cluster's state was read

    @property
    def size_bytes(self) -> int:
        """The bytes of the objects that were written."""
        return sum(each.bytes for ledger in self.ledgers for each in ledger.objects())


@dataclass(slots=True, kw_only=True)
class IntoArchive:
    """Copies topics of one cluster into the archive at ``to``.

    With ``waits``, a fetch first waits until another writer's earlier compaction in the archive has
    finished. ``throttle`` is called with the received bytes, and may raise to end the work.
    """

    cluster: PulsarCluster
    to: str
    progress: Progress
    throttle: Callable[[int], None]
    waits: bool = False
    goes_on: bool = False  # continues even if the compacted ledger is lost
    accepts_gap: bool = False  # continues even if ledgers after the archive's end were deleted
    # the state of each topic at the last fetch that found nothing new
    states: dict[TopicName, State] = field(default_factory=dict)
    ended: dict[LedgerInfo, LedgerInfo] = field(default_factory=dict)  # see ``TopicFetcher``

    def fetch(self, name: TopicName) -> TopicFetchResult:
        """Copy the new ledgers and entries of a topic.

        Raises:
            NotALog: the topic does not exist, or has no ledgers.
            NotContinued: the topic's ledgers do not follow the archive's ledgers.
            CorruptLog: entries are lost, or the archive's manifest is damaged.
            CommitConflict: another writer has changed the topic in the archive meanwhile.
            LogHeld: another writer is compacting the topic in the archive.
            LogError: a ledger is only in an object store.
            RemoteFailed: no answer.
        """
        bringer = TopicFetcher(
            cluster=self.cluster,
            topic=name,
            progress=self.progress,
            throttle=self.throttle,
            goes_on=self.goes_on,
            ended=self.ended,
            keeps_part=True,
        )

        def look() -> tuple[int, State]:
            with temporary_subscription(self.cluster, name) as looking:
                return time.time_ns() // 1_000_000, bringer.state(looking)

        access = self.cluster.access
        words = f"no answer about {name}"
        asked_ms, state = retry_disconnects(look, access.patience_s, words, access.check)
        if self.states.get(name) == state:
            return TopicFetchResult(asked_ms=asked_ms)
        self.states.pop(name, None)
        found = replace(self._fetch_result(bringer, state), asked_ms=asked_ms)
        self.states[name] = state
        return found

    def _fetch_result(self, bringer: TopicFetcher, state: State) -> TopicFetchResult:
        into = Incoming(state.topic, self.to)
        listed = [each.ledger for each in state.info.ledgers]
        sizes = {
            each.ledger: (each.entries or 0, each.size_bytes if each.is_closed else None)
            for each in state.info.ledgers
        }
        stored = into.before
        into.reject_other_topic(
            listed, sizes, state.topic.full, has_list=True, accepts_gap=self.accepts_gap
        )
        new = [each for each in state.filled.ledgers if into.lacks(each.ledger, each.entries or 0)]
        is_further = into.is_behind(state.horizon)
        after = structs.replace(
            into.before,
            metadata=state.filled.encode(),
            metadata_is_json=False,
            known=state.facts.encode(),
        )
        if not new and not is_further and after == stored and into.current is not None:
            return TopicFetchResult(topic=_fetched_topic(into, after, state, ()))
        begun = self._begin(into)
        with into.store.abort_on_error(begun):
            copy = LedgerCopy(into.store, begun, lambda written: None)
            compacted = self._compacted(bringer, state, copy) if is_further else None
            raw: list[StoredLedger] = []
            here = {each.ledger: each.path(into.folder) for each in into.before.ledgers}
            broken: RemoteFailed | None = None
            for each in new:
                try:
                    made = self._raw(bringer, state, each, copy, here.get(each.ledger))
                except RemoteFailed as error:
                    broken = error
                    break
                into.store.renew(begun)
                raw += [] if made is None else [made]
                broken = bringer.broken
                if broken is not None:
                    break
            if broken is not None:
                after = _part(after, state, raw, broken)
        if compacted is not None:  # the cluster's compacted ledger includes the entries of all gaps
            after = structs.replace(after, compacted_gaps=())
        after = into.commit(begun, after, raw, compacted)
        if broken is not None:
            raise RemoteFailed(
                f"{broken.problem}. The archive has the entries up to {raw[-1].ledger}:"
                f"{raw[-1].entries - 1}",
                path=broken.path,
                remedy=broken.remedy,
            ) from broken
        came = (*raw, *(() if compacted is None else compacted.parts))
        before = {each.ledger: each.entries for each in into.before.ledgers}
        return TopicFetchResult(
            topic=_fetched_topic(into, after, state, came),
            ledgers=came,
            first=Position(raw[0].ledger, before.get(raw[0].ledger, 0)) if raw else None,
            end=Position(raw[-1].ledger, raw[-1].entries) if raw else None,
            is_new=into.current is None,
        )

    def _begin(self, into: Incoming) -> WriteTransaction:
        transaction = into.store.begin(into.current)
        rival = (
            into.store.newer_writer(transaction)
            if self.waits and into.current is not None
            else None
        )
        if rival is not None:
            into.store.yield_to_other(transaction)
            raise LogHeld(
                f"{rival} has begun a round in the archive",
                path=into.folder,
                remedy="nothing was changed; run the command again after that round: the next "
                "fetch copies the new entries",
            )
        return transaction

    def _raw(
        self,
        bringer: TopicFetcher,
        state: State,
        each: LedgerInfo,
        copy: LedgerCopy,
        here: str | None,
    ) -> StoredLedger | None:
        """Copy a raw ledger, or the entries that were read before its bookies stopped answering.

        Returns None if all entries are lost and the compacted ledger replaces them. ``here`` is the
        archive's object of the ledger, if there is one.
        """

        def copy_ledger(mirror: Mirror) -> None:
            mirror.write_metadata(replace(state.info, ledgers=(each,)).encode())
            try:
                bringer.fetch_raw(mirror, each, None, here)
            except InvalidConfig as error:
                raise LogError(error.problem, path=state.topic.full, remedy=_MIXED) from error
            if bringer.broken is not None:
                part = replace(state.info, ledgers=(bringer.part(each),))
                mirror.write_metadata(part.encode())

        with _staged(state, copy_ledger) as topic:
            return copy.one(topic.ledgers[0]) if topic.ledgers else None

    def _compacted(self, bringer: TopicFetcher, state: State, copy: LedgerCopy) -> StoredCompacted:
        def copy_compacted(mirror: Mirror) -> None:
            assert state.compacted is not None and state.horizon is not None
            bringer.fetch_compacted(mirror, state.compacted, state.horizon)

        with _staged(state, copy_compacted) as topic:
            assert topic.manifest is not None and topic.compacted is not None
            return StoredCompacted.of(topic.manifest, tuple(map(copy.one, topic.compacted)))


def _part(
    after: ArchivedTopic, state: State, raw: list[StoredLedger], broken: RemoteFailed
) -> ArchivedTopic:
    """The topic after a fetch that the error ``broken`` interrupted.

    The topic's ledger list ends with the last ledger of ``raw`` and its last copied entry.

    Raises:
        RemoteFailed: ``broken`` itself, if no entry was read or the compaction horizon is later.
    """
    horizon = state.horizon
    if not raw or (horizon is not None and raw[-1].ledger <= horizon.ledger):
        raise broken
    last = raw[-1].ledger
    ledgers = tuple(
        replace(each, entries=raw[-1].entries) if each.ledger == last else each
        for each in state.filled.ledgers
        if each.ledger <= last
    )
    return structs.replace(after, metadata=replace(state.filled, ledgers=ledgers).encode())


@contextlib.contextmanager
def _staged(state: State, bring: Callable[[Mirror], None]) -> Iterator[TopicFolder]:
    """The content of a temporary topic folder that the function ``bring`` filled.

    The folder is removed at the end of the context.

    Raises:
        CorruptLog: entries are lost that the compacted ledger does not replace.
    """
    name = state.topic
    scratch = make_folder()
    try:
        with mirroring(str(scratch), name) as mirror:
            bring(mirror)
        topic = list_topic(mirror.folder)
        if not topic.missing or any(is_beyond(state.horizon, *each) for each in topic.missing):
            here = (structs.replace(each, path=name.full) for each in topic.problems)
            reject_gaps(replace(topic, problems=tuple(here)))
        yield topic
    finally:
        remove_folder(scratch)


def _fetched_topic(
    into: Incoming, after: ArchivedTopic, state: State, came: tuple[StoredLedger, ...]
) -> FetchedTopic:
    still_open = {each.ledger for each in state.info.ledgers if not each.is_closed}
    ledgers = tuple(
        FetchedLedger(
            ledger=stored.ledger,
            how=FetchMethod.WRITTEN if stored in came else FetchMethod.PRESENT,
            entries=stored.stored,
            size_bytes=stored.bytes,
            path=stored.path(into.folder),
            source=state.topic.full if stored in came else "",
            is_open=stored.ledger in still_open,
            is_compacted=stored in after.parts,
        )
        for stored in (*after.ledgers, *after.parts)
    )
    return FetchedTopic(
        topic=state.topic.full,
        folder=into.folder,
        horizon=None if after.compacted is None else after.compacted.horizon,
        ledgers=ledgers,
        problems=into.gap_note(after),
    )
