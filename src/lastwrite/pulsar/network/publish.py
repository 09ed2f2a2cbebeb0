"""Handing a compacted ledger over to a topic that brokers serve.

The commit is one acknowledgement on ``__compaction``: horizon and ledger's id. Seven things about
it are not as one would wish, and each has its place here:

- *No answer says no.* What the store has afterwards tells: ``Cluster.written_down``.
- *At most once a second is anything written down.* An acknowledgement that comes too early is
  answered, it is served from, the former ledger is deleted, and nothing of it is on disk: after a
  crash readers hang. So it comes when the subscription was ours, and quiet, for longer than that.
- *A horizon below the mark-delete is refused*, and that may have moved without a compaction: after
  a reload it stands at ``N:-1`` of a newer ledger. Where no entry lies between, exactly that is the
  horizon.
- *A horizon beyond the last entry is refused.* So the topic must still have the horizon's entry.
- *The same ledger acknowledged twice is deleted* while it is served. So each acknowledgement has a
  ledger of its own; one that had no effect, or was lost on its way, is followed by another with a
  fresh copy.
- *A pointer to a ledger that is gone* is mended in memory by a first acknowledgement, on disk by a
  second.
- *Whatever fails leaves ledgers that belong to nobody.* A note of each is in the store before
  anything is written into it, and taken back when it is in use or deleted. Who commits next deletes
  what notes are left of.

Source: docs/formats/pulsar-compaction.md, "The commit", seen by running Pulsar 4.2.4.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from lastwrite.errors import CommitConflict, LogError, RemoteFailed
from lastwrite.pulsar.format.managed_ledger import ManagedLedgerInfo
from lastwrite.pulsar.format.names import TopicName
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.network.cluster import Cluster, Compaction, CursorHold
from lastwrite.pulsar.network.ledgers import Quorums, write_ledger

_MOST_TRIES = 3
_MARGIN_SECONDS = 0.3  # more than the brokers' pause between two writes of a subscription
_LOOK_SECONDS = 0.02
_WRITTEN_SECONDS = 5.0  # within these an acknowledgement is on disk, or it never will be


@dataclass(frozen=True, slots=True)
class Published:
    """What is served from now on."""

    ledger: int
    horizon: Position
    tries: int  # ledgers that were written for it
    removed: tuple[int, ...]  # ledgers that belonged to nobody


def publish(
    hold: CursorHold,
    base: Compaction | None,
    horizon: Position,
    records: Callable[[], Iterable[bytes]],
    quorums: Quorums,
    custom: Mapping[str, bytes],
    now_ms: int,
    reach: Callable[[str], None] = lambda step: None,
) -> Published:
    """Have the topic's broker serve ``records`` for all up to ``horizon``, and see to it that this
    is on disk.

    ``base``: how far the topic was compacted when the work began; the records contain all that it
    had. ``records`` is called once for every copy. ``reach`` hears of each step before it is done,
    for tests that crash there.

    Raises:
        CommitConflict: the topic was compacted, emptied or made anew meanwhile; nothing has
            changed.
        LogHeld: somebody else compacts it now.
        RemoteFailed: no answer; or the broker does not write down what it is told, and ``path``
            says which.
    """
    cluster, topic, store = hold.cluster, hold.topic, hold.cluster.store
    pause = 1 / max(cluster.access.mark_deletes_a_second, 1e-3) + _MARGIN_SECONDS
    written: list[int] = []
    acknowledged: list[int] = []

    def announce(ledger: int) -> None:
        store.note(topic, ledger)
        written.append(ledger)
        reach("write")

    at = horizon
    for tries in range(1, _MOST_TRIES + 1):
        try:
            subscription = hold.again()
            _refuse_other(cluster, topic, base, written)
            at = _place(cluster, topic, horizon, subscription.last_message().mark_delete)
            ours = write_ledger(
                store, cluster.bookies, records, quorums, custom, now_ms, announce
            ).id
            time.sleep(max(0.0, hold.since + pause - time.monotonic()))
            if base is not None and base.ledger is not None:
                # It belongs to nobody as soon as the broker has read the acknowledgement.
                store.note(topic, base.ledger)
            reach("acknowledge")
            acknowledged.append(ours)
            # A subscription that was lost before: the broker does not listen to it.
            with contextlib.suppress(RemoteFailed):
                subscription.acknowledge(at, ours)
            hold.acknowledged()
        except LogError:
            _clear_away(cluster, topic, base, written, acknowledged)
            raise
        reach("look")
        if _is_written(cluster, topic, Compaction(at, ours)):
            reach("clear")
            return Published(ours, at, tries, _swept(cluster, topic, ours))
    _clear_away(cluster, topic, base, written, acknowledged)
    words = f"{topic}: the broker got the acknowledgement up to {at} {tries} times, and has not stored it"
    remedy = "see the broker's log for why its subscription __compaction does not move"
    raise RemoteFailed(words, path=store.address, remedy=remedy)


def sweep(hold: CursorHold) -> tuple[int, ...]:
    """Delete the ledgers of which notes are left, unless one may be in use; which they were.

    Raises:
        RemoteFailed: no answer.
    """
    cluster, topic = hold.cluster, hold.topic
    if not cluster.store.noted(topic):
        return ()
    told, written = cluster.told(topic), cluster.written_down(topic)
    if told is None or written is None or not told.ledger == told.served == written.ledger:
        return ()  # nobody can say what is in use: the next commit tells
    return () if hold.again().is_lost else _swept(cluster, topic, written.ledger)


def _swept(cluster: Cluster, topic: TopicName, used: int | None) -> tuple[int, ...]:
    """Delete all of which there are notes but what is used."""
    removed = []
    for ledger in cluster.store.noted(topic):
        if ledger != used:
            found = cluster.store.ledger(ledger)
            if found is not None and found.metadata.compacted_topic == topic.full:
                cluster.store.delete_ledger(ledger)
                removed.append(ledger)
        cluster.store.forget(topic, ledger)
    return tuple(removed)


def _clear_away(
    cluster: Cluster,
    topic: TopicName,
    base: Compaction | None,
    written: list[int],
    acknowledged: list[int],
) -> None:
    """Delete what we have written and nobody serves; where that cannot be told, the notes stay."""
    with contextlib.suppress(LogError):
        told, durable = cluster.told(topic), cluster.written_down(topic)
        used = {base and base.ledger, durable and durable.ledger}
        # Where nobody tells, each one that the broker has heard of may be what readers get.
        used |= set(acknowledged) if told is None else {told.ledger, told.served}
        for ledger in written:
            if ledger not in used:
                cluster.store.delete_ledger(ledger)
                cluster.store.forget(topic, ledger)
        if base is not None and base.ledger is not None and not used & set(written):
            cluster.store.forget(topic, base.ledger)


def _refuse_other(
    cluster: Cluster, topic: TopicName, base: Compaction | None, written: list[int]
) -> None:
    """Say no where somebody else has compacted the topic since we looked."""
    found = cluster.compaction_of(topic)
    ledger, expected = found and found.ledger, base and base.ledger
    if ledger != expected and ledger not in written:
        raise CommitConflict(
            f"{topic} was compacted into ledger {ledger} meanwhile; this began with {expected}",
            path=cluster.store.address,
            remedy="nothing was changed; start again",
        )


def _place(
    cluster: Cluster, topic: TopicName, horizon: Position, mark_delete: Position | None
) -> Position:
    """The horizon, or the subscription's position if no entry lies between the two."""
    found = cluster.store.managed_ledger(topic)
    info = ManagedLedgerInfo() if found is None else found[1]
    if mark_delete is not None and mark_delete > horizon:
        if mark_delete.entry == -1 and not _has_entries_between(
            cluster, info, horizon, mark_delete
        ):
            return mark_delete
        raise CommitConflict(
            f"{topic}: the subscription __compaction stands at {mark_delete}, beyond the horizon {horizon}",
            path=cluster.store.address,
            remedy="nothing was changed; start again; if it happens again, see whether a backlog quota moves it",
        )
    is_listed = any(ledger.ledger == horizon.ledger for ledger in info.ledgers)
    if not is_listed or _last_of(cluster, info, horizon) < horizon.entry:
        raise CommitConflict(
            f"{topic} has no entry {horizon} any more",
            path=cluster.store.address,
            remedy="nothing was changed; start again",
        )
    return horizon


def _has_entries_between(
    cluster: Cluster, info: ManagedLedgerInfo, low: Position, high: Position
) -> bool:
    """Whether an entry lies behind ``low`` and before the first of ledger ``high``."""
    for each in info.ledgers:
        if low.ledger <= each.ledger < high.ledger:
            last = _last_of(cluster, info, Position(each.ledger, 0))
            if last >= 0 and Position(each.ledger, last) > low:
                return True
    return False


def _last_of(cluster: Cluster, info: ManagedLedgerInfo, at: Position) -> int:
    """The last entry of a ledger of the topic; -1: it has none.

    The ledger's own metadata say it. An offloaded ledger whose metadata are deleted has ``at`` and
    what the topic's list counts, which may be less.
    """
    ledger = cluster.store.ledger(at.ledger)
    if ledger is None:
        listed = next((each for each in info.ledgers if each.ledger == at.ledger), None)
        if listed is None:
            return -1
        least = -1 if listed.offloaded_as is None else at.entry
        return max(least, (listed.entries or 0) - 1)
    closed = ledger.metadata.last_entry if ledger.metadata.is_closed else None
    return cluster.bookies.last_entry(ledger).entry if closed is None else closed


def _is_written(cluster: Cluster, topic: TopicName, expected: Compaction) -> bool:
    """Whether the acknowledgement gets onto disk."""
    deadline = time.monotonic() + _WRITTEN_SECONDS
    while True:
        with contextlib.suppress(LogError):
            if cluster.written_down(topic) == expected:
                return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)
