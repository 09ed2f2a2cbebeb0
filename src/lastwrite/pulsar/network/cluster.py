"""A live cluster, and how far a topic of it is compacted.

That is said in three places, which need not agree. The store has a node of the subscription
``__compaction``. While a broker serves the topic, the node only names a ledger, whose last entry
counts. And the broker's memory is ahead of both: it writes a subscription down at most once a
second, by default, and does not say when it has left that out.

Source: Pulsar 4.2.4 ``ManagedCursorImpl``, ``CompactorSubscription``;
docs/formats/pulsar-compaction.md, "The commit"; docs/formats/pulsar.md, "Managed ledger".
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from lastwrite.errors import CorruptLog, RemoteFailed
from lastwrite.pulsar.format.managed_ledger import CursorInfo, PositionInfo
from lastwrite.pulsar.format.names import COMPACTION_CURSOR, TopicName
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.network.admin import (
    Retention,
    TopicInMemory,
    compaction_threshold,
    parse_admin_urls,
    retention,
    topic_in_memory,
)
from lastwrite.pulsar.network.bookies import Bookies
from lastwrite.pulsar.network.broker import (
    Broker,
    Subscription,
    find_owner,
    parse_broker_url,
    parse_broker_urls,
)
from lastwrite.pulsar.network.identity import ANONYMOUS, Identity
from lastwrite.pulsar.network.link import TIMEOUT_SECONDS
from lastwrite.pulsar.network.metadata import MetadataStore
from lastwrite.pulsar.network.tls import tls_context
from lastwrite.pulsar.rules.live_settings import TlsFiles

_MOST_TRIES = 5  # to read a cursor's ledger that is replaced while we look
_RETRY_SECONDS = 0.1

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where a cluster is, and who we are.

    ``brokers``: ``pulsar://HOST:PORT`` of some; empty: those that the metadata store knows.
    ``admin``: ``http://HOST:PORT`` of some, to be asked before those. ``bookies_tls``: None, they
    are spoken to in the clear. ``store_auth``: as of ``LiveConfig``.
    ``mark_deletes_a_second``: the brokers' ``managedLedgerDefaultMarkDeleteRateLimit``.
    """

    metadata_store: str
    ledgers: str = "/ledgers"
    brokers: str = ""
    admin: str = ""
    identity: Identity = ANONYMOUS
    bookies_tls: TlsFiles | None = None
    store_auth: str = field(default="", repr=False)
    timeout: float = TIMEOUT_SECONDS
    mark_deletes_a_second: float = 1.0


@dataclass(frozen=True, slots=True)
class Compaction:
    """How far a topic is compacted: all up to the horizon, into the ledger; None: never."""

    horizon: Position
    ledger: int | None


class Cluster:
    """The cluster at ``access``; connections begin with the first question, and end together."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.store = MetadataStore(
            access.metadata_store,
            access.ledgers,
            access.timeout,
            access.store_auth,
            access.identity.files,
        )
        bookies_tls = None if access.bookies_tls is None else tls_context(access.bookies_tls)
        self.bookies = Bookies(self.store.address_of, access.timeout, bookies_tls)
        self._silent: set[str] = set()  # brokers' addresses that do not answer

    def close(self) -> None:
        self.bookies.close()
        self.store.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def owner_of(self, topic: TopicName) -> Broker:
        """A conversation with the broker that serves the topic, which loads it at need.

        Raises:
            RemoteFailed: none answers.
            NotALog: there is no such topic.
        """
        identity = self.access.identity
        named = list(parse_broker_urls(self.access.brokers)) or [
            parse_broker_url(broker.binary)
            for broker in self.store.brokers(identity.wants_tls)
            if broker.binary is not None
        ]
        return find_owner(named, topic.full, identity, self.access.timeout)

    def written_down(self, topic: TopicName) -> Compaction | None:
        """How far the topic is compacted, as a broker would find it after a crash; None: it has no
        such subscription.

        Raises:
            RemoteFailed: no answer.
            CorruptLog: what is there cannot be read.
        """
        problem: CorruptLog | None = None
        for _ in range(_MOST_TRIES):
            cursor = self.store.cursor(topic, COMPACTION_CURSOR)
            if cursor is None:
                return None
            if cursor.cursors_ledger < 0:
                return _of_node(topic, cursor)
            try:
                ledger = self.store.ledger(cursor.cursors_ledger)
                if ledger is not None:
                    last = ledger.metadata.last_entry or 0
                    if ledger.metadata.is_closed and last >= 0:
                        ((_, payload),) = self.bookies.read(ledger, last, last)
                    else:
                        payload = self.bookies.last_entry(ledger).payload
                    if payload:
                        said = PositionInfo.decode_node(payload)
                        return Compaction(said.horizon, said.compacted_ledger)
                problem = CorruptLog(
                    f"the subscription {COMPACTION_CURSOR} of {topic} lies in ledger {cursor.cursors_ledger}, and that "
                    f"{'has no entry' if ledger is not None else 'is gone'}",
                    path=self.store.address,
                    remedy="unload the topic, so that its broker writes it again",
                )
            except CorruptLog as error:  # perhaps another ledger has taken its place just now
                problem = error
            time.sleep(_RETRY_SECONDS)
        assert problem is not None
        raise problem

    def in_memory(self, topic: TopicName) -> Compaction | None:
        """How far the topic is compacted as its broker goes by it; None: nobody says.

        The position is true at once, the ledger a moment after an acknowledgement.
        """
        found = self.told(topic)
        if found is None or found.mark_delete is None:
            return None
        return Compaction(found.mark_delete, found.ledger)

    def told(self, topic: TopicName) -> TopicInMemory | None:
        """The topic as its broker goes by it; None: nobody says."""
        return self._asked(
            lambda admin: topic_in_memory(admin, topic, self.access.identity, self.access.timeout)
        )

    def _asked(self, ask: Callable[[str], T]) -> T | None:
        """What the first broker says that answers."""
        for admin in self._admins():
            if admin in self._silent:
                continue
            try:
                return ask(admin)
            except RemoteFailed as error:
                if isinstance(error.__cause__, TimeoutError):  # do not wait for it again
                    self._silent.add(admin)
        return None

    def _admins(self) -> Iterator[str]:
        yield from parse_admin_urls(self.access.admin)
        for broker in self.store.brokers(self.access.identity.wants_tls):
            if broker.admin is not None:
                yield broker.admin

    def threshold_of(self, topic: TopicName) -> int | None:
        """From how many bytes on brokers compact the topic by themselves; None: nobody says."""
        return self._asked(
            lambda admin: compaction_threshold(
                admin, topic, self.access.identity, self.access.timeout
            )
        )

    def retention_of(self, topic: TopicName) -> Retention | None:
        """What retention holds for the topic's raw ledgers; None: nobody says."""
        return self._asked(
            lambda admin: retention(admin, topic, self.access.identity, self.access.timeout)
        )

    def compaction_of(self, topic: TopicName) -> Compaction | None:
        """How far the topic is compacted: as its broker says, else as it is written down."""
        return self.in_memory(topic) or self.written_down(topic)


def _of_node(topic: TopicName, cursor: CursorInfo) -> Compaction:
    if cursor.horizon is None:
        raise CorruptLog(
            f"the subscription {COMPACTION_CURSOR} of {topic} has no position",
            remedy="unsubscribe it, and compact the topic again",
        )
    return Compaction(cursor.horizon, cursor.compacted_ledger)


class CursorHold:
    """The exclusive subscription of a topic's compaction: nobody else compacts the topic while we
    have it.

    A topic may move to another broker meanwhile: ``again`` takes the subscription there. Whoever
    was faster there may have compacted the topic: look how far it is.

    Raises:
        LogHeld: somebody else has it.
        NotALog: there is no such topic.
        RemoteFailed: no answer, or a refusal.
    """

    def __init__(self, cluster: Cluster, topic: TopicName) -> None:
        self.cluster = cluster
        self.topic = topic
        self._broker: Broker | None = None
        self._subscription: Subscription | None = None
        self.since = 0.0  # on the monotonic clock
        self.again()

    def again(self) -> Subscription:
        """The subscription, taken once more where it was lost; errors as of the class."""
        if self._subscription is None or self._subscription.is_lost:
            self.release()
            self._broker = self.cluster.owner_of(self.topic)
            try:
                self._subscription = self._broker.subscribe(self.topic.full)
            except BaseException:
                self.release()
                raise
            self.since = time.monotonic()
        return self._subscription

    def acknowledged(self) -> None:
        """Note that the broker has just been told to write the subscription down."""
        self.since = time.monotonic()

    def release(self) -> None:
        """Give it back."""
        broker, subscription = self._broker, self._subscription
        self._broker = self._subscription = None
        if subscription is not None:
            with contextlib.suppress(RemoteFailed):
                subscription.close()
        if broker is not None:
            broker.close()

    def __enter__(self) -> CursorHold:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@contextlib.contextmanager
def looking_at(cluster: Cluster, topic: TopicName) -> Iterator[Subscription]:
    """A subscription that keeps nobody away and leaves nothing; errors as of ``CursorHold``."""
    with cluster.owner_of(topic) as broker, broker.look(topic.full) as looking:
        yield looking
