"""Commit a compacted ledger to a topic that brokers serve.

The commit is one acknowledgement on ``__compaction`` with the horizon and the ledger's id. Seven
facts complicate the commit:

- *A refusal is not answered.* The result is read from the store afterwards:
  ``PulsarCluster.written_down``.
- *Cursors are stored at most once a second.* If an acknowledgement arrives too early, a broker
  answers it, serves the new ledger and deletes the former ledger, but stores nothing: after a crash
  readers hang. So the acknowledgement is sent only after the subscription was held and idle for
  more than a second.
- *A horizon below the mark-delete position is refused*, and that position may have moved without a
  compaction: after a reload it is ``N:-1`` of a newer ledger. If no entry is in between, exactly
  that position becomes the horizon.
- *A horizon beyond the last entry is refused.* So the topic must still have the horizon's entry.
- *A ledger that is acknowledged twice is deleted* while it is served. So each acknowledgement has a
  new ledger. If an acknowledgement has no effect or is lost, the next acknowledgement has another
  copy of the ledger.
- *A reference to a deleted ledger* is repaired in memory by a first acknowledgement, and on disk by
  a second.
- *A failure leaves ledgers without an owner.* A note of each ledger is stored before its first
  entry is written, and removed once the ledger is in use or deleted. The next commit deletes the
  noted ledgers.

Source: docs/formats/pulsar-compaction.md, "The commit", observed with Pulsar 4.2.4.
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
from lastwrite.pulsar.network.cluster import Compaction, CursorHold, PulsarCluster
from lastwrite.pulsar.network.ledgers import Quorums, write_ledger

_MOST_TRIES = 3
_MARGIN_SECONDS = 0.3  # added to the time that brokers wait between two writes of a cursor
_LOOK_SECONDS = 0.02
_WRITTEN_SECONDS = 5.0  # a broker stores an acknowledgement within this time, or not at all


@dataclass(frozen=True, slots=True)
class PublishedLedger:
    """A compacted ledger that was committed to the cluster."""

    ledger: int
    horizon: Position
    tries: int  # number of ledgers written for the commit
    removed: tuple[int, ...]  # deleted ledgers that interrupted commits had left


def publish(
    hold: CursorHold,
    base: Compaction | None,
    horizon: Position,
    records: Callable[[], Iterable[bytes]],
    quorums: Quorums,
    custom: Mapping[str, bytes],
    now_ms: int,
    reach: Callable[[str], None] = lambda step: None,
) -> PublishedLedger:
    """Commit ``records`` for everything up to ``horizon``, and check that the commit is on disk.

    ``base`` is the topic's compaction when the work began. ``records`` must include the messages of
    that compaction. ``records`` is called once for each copy of the ledger that is written.
    ``reach`` is called before each step, for tests that crash there.

    Raises:
        CommitConflict: the topic was compacted, emptied or recreated meanwhile. Nothing was
            changed.
        LogHeld: another compaction of the topic runs.
        RemoteFailed: no answer; or the broker does not store the acknowledgement.
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
            subscription = hold.renew()
            _reject_other(cluster, topic, base, written)
            at = _place(cluster, topic, horizon, subscription.last_message().mark_delete)
            ours = write_ledger(
                store, cluster.bookies, records, quorums, custom, now_ms, announce
            ).id
            time.sleep(max(0.0, hold.since + pause - time.monotonic()))
            if base is not None and base.ledger is not None:
                # Note the former ledger for deletion: it is unused as soon as the broker has read
                # the acknowledgement.
                store.note(topic, base.ledger)
            reach("acknowledge")
            acknowledged.append(ours)
            # An error is ignored here: the metadata store shows later whether the broker has stored
            # the acknowledgement. If the subscription was lost, the broker ignores the
            # acknowledgement.
            with contextlib.suppress(RemoteFailed):
                subscription.acknowledge(at, ours)
            hold.acknowledged()
        except LogError:
            _clear_away(cluster, topic, base, written, acknowledged)
            raise
        reach("look")
        if _is_written(cluster, topic, Compaction(at, ours)):
            reach("clear")
            return PublishedLedger(ours, at, tries, _swept(cluster, topic, ours))
    _clear_away(cluster, topic, base, written, acknowledged)
    words = (
        f"{topic}: Lastwrite sent the acknowledgement of {at} {tries} times, but the broker "
        "has not stored it"
    )
    remedy = (
        "readers get the former compaction until the broker stores the acknowledgement; see the "
        "broker's log for the reason why the subscription __compaction does not move"
    )
    raise RemoteFailed(words, path=store.address, remedy=remedy)


def sweep(hold: CursorHold) -> tuple[int, ...]:
    """Delete the ledgers for which notes are stored. A ledger that may be in use stays.

    Returns the deleted ledgers.

    Raises:
        RemoteFailed: no answer.
    """
    cluster, topic = hold.cluster, hold.topic
    if not cluster.store.noted(topic):
        return ()
    told, written = cluster.fetch_topic_state(topic), cluster.written_down(topic)
    if told is None or written is None or not told.ledger == told.served == written.ledger:
        return ()  # the ledger in use is unknown; the next commit deletes the unused ledgers
    return () if hold.renew().is_lost else _swept(cluster, topic, written.ledger)


def _swept(cluster: PulsarCluster, topic: TopicName, used: int | None) -> tuple[int, ...]:
    """Delete the topic's noted ledgers, except ``used``, and all its notes.

    Returns the deleted ledgers.
    """
    removed = []
    for ledger in cluster.store.noted(topic):
        if ledger != used:
            found = cluster.store.ledger(ledger)
            if found is not None and found.metadata.compacted_topic == topic.full:
                cluster.store.delete_ledger(ledger)
                removed.append(ledger)
        cluster.store.delete_note(topic, ledger)
    return tuple(removed)


def _clear_away(
    cluster: PulsarCluster,
    topic: TopicName,
    base: Compaction | None,
    written: list[int],
    acknowledged: list[int],
) -> None:
    """Delete the ledgers of a failed commit, unless brokers may serve them.

    If that is unknown, the ledgers and their notes stay.
    """
    with contextlib.suppress(LogError):
        told, durable = cluster.fetch_topic_state(topic), cluster.written_down(topic)
        used = {base and base.ledger, durable and durable.ledger}
        # If the broker does not answer, any ledger in ``acknowledged`` may be the one that it
        # serves.
        used |= set(acknowledged) if told is None else {told.ledger, told.served}
        for ledger in written:
            if ledger not in used:
                cluster.store.delete_ledger(ledger)
                cluster.store.delete_note(topic, ledger)
        if base is not None and base.ledger is not None and not used & set(written):
            cluster.store.delete_note(topic, base.ledger)


def _reject_other(
    cluster: PulsarCluster, topic: TopicName, base: Compaction | None, written: list[int]
) -> None:
    """Check that no other compaction of the topic has finished since this one began."""
    found = cluster.compaction_of(topic)
    ledger, expected = found and found.ledger, base and base.ledger
    if ledger != expected and ledger not in written:
        former = "no compacted ledger" if expected is None else f"compacted ledger {expected}"
        raise CommitConflict(
            f"another program compacted {topic} into ledger {ledger} during the command, "
            f"which began with {former}",
            path=cluster.store.address,
            remedy="nothing was changed; run the command again",
        )


def _place(
    cluster: PulsarCluster, topic: TopicName, horizon: Position, mark_delete: Position | None
) -> Position:
    """The position to acknowledge.

    It is the horizon, or the subscription's position if no entry is between the two.
    """
    found = cluster.store.managed_ledger(topic)
    info = ManagedLedgerInfo() if found is None else found[1]
    if mark_delete is not None and mark_delete > horizon:
        if mark_delete.entry == -1 and not _has_entries_between(
            cluster, info, horizon, mark_delete
        ):
            return mark_delete
        raise CommitConflict(
            f"{topic}: the subscription __compaction is at {mark_delete}, beyond the "
            f"compaction horizon {horizon} of this command",
            path=cluster.store.address,
            remedy="nothing was changed; run the command again; if the error remains, check "
            "whether a backlog quota moves the subscription",
        )
    is_listed = any(ledger.ledger == horizon.ledger for ledger in info.ledgers)
    if not is_listed or _last_of(cluster, info, horizon) < horizon.entry:
        raise CommitConflict(
            f"{topic} no longer has entry {horizon}, the compaction horizon of this command",
            path=cluster.store.address,
            remedy="nothing was changed; run the command again",
        )
    return horizon


def _has_entries_between(
    cluster: PulsarCluster, info: ManagedLedgerInfo, low: Position, high: Position
) -> bool:
    """Whether there is an entry after ``low`` and before the first entry of ``high.ledger``."""
    for each in info.ledgers:
        if low.ledger <= each.ledger < high.ledger:
            last = _last_of(cluster, info, Position(each.ledger, 0))
            if last >= 0 and Position(each.ledger, last) > low:
                return True
    return False


def _last_of(cluster: PulsarCluster, info: ManagedLedgerInfo, at: Position) -> int:
    """The last entry of a ledger of the topic, or -1.

    The metadata of a closed ledger state its last entry; the bookies return that of an open ledger.
    If the metadata are deleted, the topic's list states the last entry. For an offloaded ledger,
    the result is then at least the entry of ``at``.
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


def _is_written(cluster: PulsarCluster, topic: TopicName, expected: Compaction) -> bool:
    """Wait for the acknowledgement on disk. Returns whether it was stored in time."""
    deadline = time.monotonic() + _WRITTEN_SECONDS
    while True:
        with contextlib.suppress(LogError):
            if cluster.written_down(topic) == expected:
                return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)
