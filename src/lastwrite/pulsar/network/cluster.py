"""A live cluster, and the state of a topic's compaction in it.

This state, the horizon and the compacted ledger, is stored in three ways, which may differ. The
metadata store has a node of the subscription ``__compaction``. While a broker serves the topic, the
node only names a ledger, whose last entry is valid. The broker's memory is ahead of both: by
default a broker stores a cursor at most once a second, and does not report a skipped write.

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
    RetentionPolicy,
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
from lastwrite.pulsar.network.identity import ANONYMOUS, PulsarCredentials
from lastwrite.pulsar.network.link import TIMEOUT_SECONDS
from lastwrite.pulsar.network.metadata import MetadataStore
from lastwrite.pulsar.network.patience import go_on
from lastwrite.pulsar.network.tls import tls_context
from lastwrite.pulsar.rules.live_settings import TlsFiles

# number of attempts to read a cursor's ledger, which a broker may replace at any time
_MOST_TRIES = 5
_RETRY_SECONDS = 0.1

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAccess:
    """The addresses of a cluster, and the identity of the client.

    ``brokers`` is ``pulsar://HOST:PORT`` of some brokers; empty means the brokers in the metadata
    store. ``admin`` is ``http://HOST:PORT`` of some brokers, which are asked before other brokers.
    ``bookies_tls`` None means no TLS with bookies. ``store_auth`` is as in ``LiveConfig``.
    ``mark_deletes_a_second`` is the brokers' ``managedLedgerDefaultMarkDeleteRateLimit``.
    """

    metadata_store: str
    ledgers: str = "/ledgers"
    brokers: str = ""
    admin: str = ""
    identity: PulsarCredentials = ANONYMOUS
    bookies_tls: TlsFiles | None = None
    store_auth: str = field(default="", repr=False)
    timeout: float = TIMEOUT_SECONDS
    mark_deletes_a_second: float = 1.0
    patience_s: float = 60.0  # seconds for which a request is repeated if its connection breaks
    # called before each such request; raises an error to end the work
    check: Callable[[], None] = go_on


@dataclass(frozen=True, slots=True)
class Compaction:
    """A topic's compaction: everything up to the horizon is compacted into the ledger.

    ``ledger`` is None if the topic was never compacted.
    """

    horizon: Position
    ledger: int | None


class PulsarCluster:
    """Connections to the cluster at ``access``. A connection starts with its first request.

    ``close`` ends all of them.
    """

    def __init__(self, access: ClusterAccess) -> None:
        self.access = access
        self.store = MetadataStore(
            access.metadata_store,
            access.ledgers,
            access.timeout,
            access.store_auth,
            access.identity.files,
        )
        bookies_tls = None if access.bookies_tls is None else tls_context(access.bookies_tls)
        self.bookies = Bookies(
            self.store.address_of, access.timeout, bookies_tls, access.patience_s, access.check
        )
        self._silent: set[str] = set()  # addresses of brokers that do not answer

    def close(self) -> None:
        self.bookies.close()
        self.store.close()

    def __enter__(self) -> PulsarCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def owner_of(self, topic: TopicName) -> Broker:
        """A connection to the broker that serves the topic. The broker loads the topic if needed.

        Raises:
            RemoteFailed: no broker answers.
            NotALog: the topic does not exist.
        """
        identity = self.access.identity
        named = list(parse_broker_urls(self.access.brokers)) or [
            parse_broker_url(broker.binary)
            for broker in self.store.brokers(identity.requires_tls)
            if broker.binary is not None
        ]
        return find_owner(named, topic.full, identity, self.access.timeout)

    def written_down(self, topic: TopicName) -> Compaction | None:
        """The topic's compaction on disk, as a broker would find it after a crash.

        Returns None if the topic has no subscription ``__compaction``.

        Raises:
            RemoteFailed: no answer.
            CorruptLog: the stored state cannot be read.
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
                    f"the subscription {COMPACTION_CURSOR} of {topic} is stored in ledger "
                    f"{cursor.cursors_ledger}, but this ledger "
                    f"{'has no entry' if ledger is not None else 'no longer exists'}",
                    path=self.store.address,
                    remedy="run pulsar-admin topics unload TOPIC, so that its broker stores the "
                    "subscription again, then run the command again",
                )
            # try again: the broker may have replaced the cursor's ledger during the read
            except CorruptLog as error:
                problem = error
            time.sleep(_RETRY_SECONDS)
        assert problem is not None
        raise problem

    def in_memory(self, topic: TopicName) -> Compaction | None:
        """The topic's compaction in its broker's memory. None if no broker answers.

        After an acknowledgement, the position changes at once and the ledger a moment later.
        """
        found = self.fetch_topic_state(topic)
        if found is None or found.mark_delete is None:
            return None
        return Compaction(found.mark_delete, found.ledger)

    def fetch_topic_state(self, topic: TopicName) -> TopicInMemory | None:
        """The topic's state in its broker's memory. None if no broker answers."""
        return self._first_answer(
            lambda admin: topic_in_memory(admin, topic, self.access.identity, self.access.timeout)
        )

    def _first_answer(self, ask: Callable[[str], T]) -> T | None:
        """Call ``ask`` with the address of one broker after another, until one answers.

        Returns that answer. None if no broker answers.
        """
        for admin in self._admins():
            if admin in self._silent:
                continue
            try:
                return ask(admin)
            except RemoteFailed as error:
                # Later requests skip this broker, because it did not answer in time.
                if isinstance(error.__cause__, TimeoutError):
                    self._silent.add(admin)
        return None

    def _admins(self) -> Iterator[str]:
        yield from parse_admin_urls(self.access.admin)
        for broker in self.store.brokers(self.access.identity.requires_tls):
            if broker.admin is not None:
                yield broker.admin

    def threshold_of(self, topic: TopicName) -> int | None:
        """The backlog in bytes from which brokers compact the topic. None if no broker answers."""
        return self._first_answer(
            lambda admin: compaction_threshold(
                admin, topic, self.access.identity, self.access.timeout
            )
        )

    def retention_of(self, topic: TopicName) -> RetentionPolicy | None:
        """The retention of the topic's raw ledgers. None if no broker answers."""
        return self._first_answer(
            lambda admin: retention(admin, topic, self.access.identity, self.access.timeout)
        )

    def compaction_of(self, topic: TopicName) -> Compaction | None:
        """The topic's compaction in its broker's memory or, if that is unknown, on disk."""
        return self.in_memory(topic) or self.written_down(topic)


def _of_node(topic: TopicName, cursor: CursorInfo) -> Compaction:
    if cursor.horizon is None:
        raise CorruptLog(
            f"the subscription {COMPACTION_CURSOR} of {topic} has no position in the metadata "
            "store",
            remedy=f"run pulsar-admin topics unload {topic}, so that its broker stores the "
            "subscription again, then run the command again",
        )
    return Compaction(cursor.horizon, cursor.compacted_ledger)


class CursorHold:
    """The exclusive subscription of a topic's compaction.

    While it is held, no other compaction can run.

    If the topic moves to another broker, ``renew`` subscribes there. Another compaction may have
    run in between, so check how far the topic is compacted.

    Raises:
        LogHeld: another compaction has the subscription.
        NotALog: the topic does not exist.
        RemoteFailed: no answer, or a refusal.
    """

    def __init__(self, cluster: PulsarCluster, topic: TopicName) -> None:
        self.cluster = cluster
        self.topic = topic
        self._broker: Broker | None = None
        self._subscription: Subscription | None = None
        self.since = 0.0  # monotonic time of the subscription or of the last acknowledgement
        self.renew()

    def renew(self) -> Subscription:
        """The subscription, renewed if it was lost. Errors as for ``CursorHold``."""
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
        """Record the time of an acknowledgement.

        The pause before the next acknowledgement begins at this time.
        """
        self.since = time.monotonic()

    def release(self) -> None:
        """End the subscription."""
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
def temporary_subscription(cluster: PulsarCluster, topic: TopicName) -> Iterator[Subscription]:
    """A temporary subscription, which excludes no other subscription.

    Errors as ``CursorHold``.
    """
    with cluster.owner_of(topic) as broker, broker.temporary_subscription(topic.full) as looking:
        yield looking
