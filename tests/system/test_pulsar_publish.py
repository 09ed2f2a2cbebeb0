"""Tests of committing a compacted ledger into a topic of a real broker, also under conflicts.

A few lines of Python write the ledgers, and Pulsar's own Java client reads the result.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Sequence

import pytest

from lastwrite.errors import CommitConflict, LogError, LogHeld, RemoteFailed
from lastwrite.pulsar.format.compacted import encode_record, ledger_custom_metadata
from lastwrite.pulsar.format.entry import decode_entry
from lastwrite.pulsar.format.names import TopicName
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.network import publish as publishing
from lastwrite.pulsar.network.cluster import ClusterAccess, Compaction, CursorHold, PulsarCluster
from lastwrite.pulsar.network.ledgers import Quorums, write_ledger
from lastwrite.pulsar.network.publish import PublishedLedger, publish, sweep
from tests.support.pulsar.broker import Broker
from tests.support.pulsar.driver import Driver

pytestmark = [pytest.mark.broker, pytest.mark.slow]

ONE = Quorums(1, 1, 1)
NOW_MS = 1_700_000_000_000


@pytest.fixture
def cluster(pulsar: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[PulsarCluster]:
    # A broker with one topic needs less than this to write a ledger's metadata.
    monkeypatch.setattr(publishing, "_WRITTEN_SECONDS", 1.5)
    with PulsarCluster(ClusterAccess(metadata_store=pulsar.metadata_store, timeout=10)) as cluster:
        yield cluster


@pytest.fixture
def topic(request: pytest.FixtureRequest, driver: Driver) -> TopicName:
    return TopicName.parse(driver.fresh(request.node.name.replace("[", "-").rstrip("]")))


def send(driver: Driver, topic: TopicName, *values: str) -> None:
    """Send messages: ``k=v`` sets a value, ``k=`` deletes the key."""
    messages = []
    for text in values:
        key, _, value = text.partition("=")
        messages.append({"key": key, "value": base64.b64encode(value.encode()).decode()})
    driver.send(topic.full, [{"messages": messages}])


def read(driver: Driver, topic: TopicName) -> list[str]:
    found = driver.read(topic.full, compacted=True)
    return [f"{m['key']}={base64.b64decode(m['value'] or '').decode()}" for m in found]


def compacted(
    cluster: PulsarCluster, topic: TopicName, *, at_least: Position | None = None
) -> tuple[list[bytes], Position]:
    """The records of a compaction of the whole topic, and its horizon. Batches are not
    supported.
    """
    found = cluster.store.managed_ledger(topic)
    assert found is not None
    last: dict[str, bytes] = {}
    horizon = Position(-1, -1)
    for each in found[1].ledgers:
        ledger = cluster.store.ledger(each.ledger)
        assert ledger is not None
        end = (
            each.entries - 1
            if each.entries is not None and each.is_closed
            else cluster.bookies.last_entry(ledger).entry
        )
        for number, body in cluster.bookies.read(ledger, 0, end):
            entry = decode_entry(body, each.ledger, number)
            horizon = Position(each.ledger, number)
            key = entry.metadata.partition_key or ""
            last.pop(key, None)
            if len(entry.payload):
                last[key] = encode_record(horizon, -1, body)
    return list(last.values()), horizon


def commit(
    cluster: PulsarCluster,
    topic: TopicName,
    hold: CursorHold,
    base: Compaction | None,
    **other: object,
) -> PublishedLedger:
    records, horizon = compacted(cluster, topic)
    custom = ledger_custom_metadata(topic.full, horizon)
    return publish(hold, base, horizon, lambda: records, ONE, custom, NOW_MS, **other)  # type: ignore[arg-type]


def state(cluster: PulsarCluster, topic: TopicName) -> Compaction:
    found = cluster.written_down(topic)
    assert found is not None
    return found


def compacted_ledgers(cluster: PulsarCluster, topic: TopicName) -> list[int]:
    """All compacted ledgers of the topic in the cluster."""
    found = []
    for number in range(500):
        ledger = cluster.store.ledger(number)
        if ledger is not None and ledger.metadata.compacted_topic == topic.full:
            found.append(number)
    return found


def wait_for_ledgers(cluster: PulsarCluster, topic: TopicName, expected: Sequence[int]) -> None:
    """Wait until the broker has deleted the former ledger."""
    deadline = time.monotonic() + 120
    while compacted_ledgers(cluster, topic) != list(expected):
        assert time.monotonic() < deadline, (compacted_ledgers(cluster, topic), expected)
        time.sleep(0.05)


def test_rounds_continue_through_reloads_and_broker_rounds(
    pulsar: Broker, driver: Driver, cluster: PulsarCluster, topic: TopicName
) -> None:
    send(driver, topic, "a=1", "b=1", "a=2", "c=1", "c=")
    with CursorHold(cluster, topic) as hold:
        first = commit(cluster, topic, hold, None)
        assert first.tries == 1
        send(driver, topic, "b=2", "d=1")
        # ``commit`` itself keeps the pause between two commits.
        second = commit(cluster, topic, hold, Compaction(first.horizon, first.ledger))
        assert second.tries == 1
        assert state(cluster, topic) == Compaction(second.horizon, second.ledger)
    assert read(driver, topic) == ["a=2", "b=2", "d=1"]
    wait_for_ledgers(cluster, topic, [second.ledger])
    assert cluster.store.noted(topic) == []
    driver.unload(topic.full)
    assert read(driver, topic) == ["a=2", "b=2", "d=1"]
    send(driver, topic, "a=3")
    assert driver.compact(topic.full)["did"]  # the broker's compaction reads our ledger
    assert read(driver, topic) == ["b=2", "d=1", "a=3"]
    # Shortly after a commit the broker may not have written the new ledger's metadata. Only its
    # memory has it then.
    theirs = cluster.compaction_of(topic)
    assert theirs is not None and theirs.ledger != second.ledger
    send(driver, topic, "b=", "d=2")
    with CursorHold(cluster, topic) as hold:
        last = commit(cluster, topic, hold, theirs)
    assert read(driver, topic) == ["a=3", "d=2"]
    wait_for_ledgers(cluster, topic, [last.ledger])


@pytest.mark.long
def test_crash_right_after_a_commit_loses_nothing(
    pulsar: Broker, driver: Driver, cluster: PulsarCluster, topic: TopicName
) -> None:
    """The broker is killed after two commits in a row. If the pause between them were too short,
    readers would hang.
    """
    send(driver, topic, "a=1", "b=1")
    with CursorHold(cluster, topic) as hold:
        first = commit(cluster, topic, hold, None)
        send(driver, topic, "a=2")
        second = commit(cluster, topic, hold, Compaction(first.horizon, first.ledger))
        pulsar.kill()
    pulsar.start()
    assert read(driver, topic) == ["b=1", "a=2"]
    assert state(cluster, topic).ledger == second.ledger


def test_commit_that_loses_to_another_is_refused(
    driver: Driver, cluster: PulsarCluster, topic: TopicName
) -> None:
    send(driver, topic, "a=1", "b=1")
    hold = CursorHold(cluster, topic)
    with pytest.raises(LogHeld, match="the other compaction of the topic"):
        CursorHold(cluster, topic)
    hold.release()
    assert driver.compact(topic.full)["did"]
    theirs = state(cluster, topic)
    with (
        CursorHold(cluster, topic) as hold,
        pytest.raises(CommitConflict, match=f"into ledger {theirs.ledger} during the command"),
    ):
        commit(cluster, topic, hold, None)
    assert state(cluster, topic) == theirs
    assert compacted_ledgers(cluster, topic) == [theirs.ledger]
    assert cluster.store.noted(topic) == []
    assert read(driver, topic) == ["a=1", "b=1"]


def test_subscription_may_be_at_the_start_of_a_newer_ledger(
    driver: Driver, cluster: PulsarCluster, topic: TopicName
) -> None:
    send(driver, topic, "a=1", "b=1", "a=2")
    with CursorHold(cluster, topic) as hold:
        first = commit(cluster, topic, hold, None)
    driver.unload(topic.full)
    with CursorHold(cluster, topic) as hold:  # loads the topic again
        here = state(cluster, topic)
        again = commit(cluster, topic, hold, here)
        mark_delete = hold.renew().last_message().mark_delete
    assert again.tries == 1
    assert again.horizon == mark_delete
    if again.horizon != first.horizon:
        assert again.horizon.entry == -1 and again.horizon.ledger > first.horizon.ledger
    assert state(cluster, topic) == Compaction(again.horizon, again.ledger)
    assert read(driver, topic) == ["b=1", "a=2"]
    wait_for_ledgers(cluster, topic, [again.ledger])


def test_horizon_outside_the_topic_is_refused(
    driver: Driver, cluster: PulsarCluster, topic: TopicName
) -> None:
    send(driver, topic, "a=1", "b=1")
    records, horizon = compacted(cluster, topic)
    custom = ledger_custom_metadata(topic.full, horizon)
    with CursorHold(cluster, topic) as hold:
        for wrong in (Position(horizon.ledger, 2), Position(horizon.ledger + 100, 0)):
            with pytest.raises(CommitConflict, match="no longer has entry"):
                publish(hold, None, wrong, lambda: records, ONE, custom, NOW_MS)
        done = commit(cluster, topic, hold, None)
        # below the published horizon
        with pytest.raises(CommitConflict, match="beyond the compaction horizon"):
            publish(
                hold,
                Compaction(done.horizon, done.ledger),
                Position(horizon.ledger, 0),
                lambda: records,
                ONE,
                custom,
                NOW_MS,
            )
    assert compacted_ledgers(cluster, topic) == [done.ledger]
    assert cluster.store.noted(topic) == []


def test_ledger_of_a_refused_horizon_is_kept_while_served(
    driver: Driver, cluster: PulsarCluster, topic: TopicName
) -> None:
    """The refusal is not reported: readers get the ledger until the topic is loaded again."""
    send(driver, topic, "a=1", "b=1", "a=2")
    records, horizon = compacted(cluster, topic)
    with CursorHold(cluster, topic) as hold:
        good = commit(cluster, topic, hold, None)
        refused = write_ledger(
            cluster.store,
            cluster.bookies,
            lambda: records,
            ONE,
            ledger_custom_metadata(topic.full, horizon),
            NOW_MS,
        )
        cluster.store.note(topic, refused.id)
        hold.renew().acknowledge(Position(horizon.ledger, 0), refused.id)
        deadline = time.monotonic() + 120
        while (told := cluster.fetch_topic_state(topic)) is None or told.served != refused.id:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert told.ledger == good.ledger
        assert state(cluster, topic) == Compaction(good.horizon, good.ledger)
        assert sweep(hold) == ()
    driver.unload(topic.full)
    assert read(driver, topic) == ["b=1", "a=2"]
    with CursorHold(cluster, topic) as hold:
        assert sweep(hold) == (refused.id,)
    assert compacted_ledgers(cluster, topic) == [good.ledger]


def test_lost_acknowledgement_is_repeated_with_a_new_ledger(
    driver: Driver, cluster: PulsarCluster, topic: TopicName
) -> None:
    send(driver, topic, "a=1", "a=2")
    steps: list[str] = []
    with CursorHold(cluster, topic) as hold:

        def cut_off(step: str) -> None:
            steps.append(step)
            if steps == ["write", "acknowledge"]:
                assert hold._broker is not None
                hold._broker.close()

        done = commit(cluster, topic, hold, None, reach=cut_off)
    assert done.tries == 2
    assert steps == ["write", "acknowledge", "look", "write", "acknowledge", "look", "clear"]
    assert len(done.removed) == 1
    assert read(driver, topic) == ["a=2"]
    assert compacted_ledgers(cluster, topic) == [done.ledger]


def test_pointer_to_a_missing_ledger_is_repaired(
    driver: Driver, cluster: PulsarCluster, topic: TopicName
) -> None:
    send(driver, topic, "a=1", "b=1", "a=2")
    with CursorHold(cluster, topic) as hold:
        first = commit(cluster, topic, hold, None)
    send(driver, topic, "b=2")
    cluster.store.delete_ledger(first.ledger)
    driver.unload(topic.full)
    with CursorHold(cluster, topic) as hold:
        stale = state(cluster, topic)
        assert stale.ledger == first.ledger
        done = commit(cluster, topic, hold, stale)
    assert state(cluster, topic).ledger == done.ledger
    driver.unload(topic.full)
    assert read(driver, topic) == ["a=2", "b=2"]
    wait_for_ledgers(cluster, topic, [done.ledger])
    assert cluster.store.noted(topic) == []


@pytest.mark.parametrize(
    "last",
    [
        "acknowledge",
        *(pytest.param(step, marks=pytest.mark.long) for step in ("write", "look", "clear")),
    ],
)
def test_leftovers_of_a_crash_are_removed(
    driver: Driver, cluster: PulsarCluster, topic: TopicName, last: str
) -> None:
    send(driver, topic, f"a={last}", "b=1")
    before = cluster.written_down(topic)

    class Crash(BaseException):
        pass

    def crash(step: str) -> None:
        if step == last:
            raise Crash

    with CursorHold(cluster, topic) as hold, pytest.raises(Crash):
        # A crash must not run cleanup, so the deletion on an exception is disabled.
        store = cluster.store.delete_ledger
        cluster.store.delete_ledger = lambda number: None  # type: ignore[method-assign]
        try:
            commit(cluster, topic, hold, before, reach=crash)
        finally:
            cluster.store.delete_ledger = store  # type: ignore[method-assign]
    time.sleep(0.5)
    left = cluster.store.noted(topic)
    assert left
    with CursorHold(cluster, topic) as hold:
        sweep(hold)
        here = cluster.written_down(topic)
        if here is not None and here.ledger is not None:
            wait_for_ledgers(cluster, topic, [here.ledger])
        done = commit(cluster, topic, hold, here)
    assert cluster.store.noted(topic) == []
    wait_for_ledgers(cluster, topic, [done.ledger])
    assert read(driver, topic)[-2:] == [f"a={last}", "b=1"]


@pytest.mark.long
@pytest.mark.parametrize("step", ["write", "acknowledge", "look", "clear"])
def test_cluster_crash_leaves_the_old_round_or_the_new(
    pulsar: Broker, driver: Driver, cluster: PulsarCluster, topic: TopicName, step: str
) -> None:
    """Broker, bookie and metadata store are killed and restarted. The next round continues or
    reports why it cannot.
    """
    send(driver, topic, "a=1", "b=1")
    with CursorHold(cluster, topic) as hold:
        first = commit(cluster, topic, hold, None)
    send(driver, topic, "a=2")
    crashed: list[str] = []

    def crash(reached: str) -> None:
        if reached == step and not crashed:
            crashed.append(reached)
            pulsar.kill()
            pulsar.start()

    base = Compaction(first.horizon, first.ledger)
    try:
        with CursorHold(cluster, topic) as hold:
            commit(cluster, topic, hold, base, reach=crash)
    except LogError as error:
        assert error.remedy
    # In both cases the messages after the last compaction are read, too.
    assert read(driver, topic)[-2:] == [
        "b=1",
        "a=2",
    ]
    send(driver, topic, "c=1")
    with CursorHold(cluster, topic) as hold:
        sweep(hold)
        done = commit(cluster, topic, hold, cluster.compaction_of(topic))
    assert read(driver, topic) == ["b=1", "a=2", "c=1"]
    assert cluster.store.noted(topic) == []
    wait_for_ledgers(cluster, topic, [done.ledger])


def test_compacted_ledger_may_be_empty(
    driver: Driver, cluster: PulsarCluster, topic: TopicName
) -> None:
    send(driver, topic, "a=1", "a=")
    with CursorHold(cluster, topic) as hold:
        done = commit(cluster, topic, hold, None)
    ledger = cluster.store.ledger(done.ledger)
    assert ledger is not None and ledger.metadata.last_entry == -1
    send(driver, topic, "b=1")
    assert read(driver, topic) == ["b=1"]


@pytest.mark.long
def test_stopping_broker_is_an_error_and_changes_nothing(
    pulsar: Broker, driver: Driver, topic: TopicName
) -> None:
    send(driver, topic, "a=1")
    with (
        PulsarCluster(ClusterAccess(metadata_store=pulsar.metadata_store, timeout=3)) as cluster,
        CursorHold(cluster, topic) as hold,
    ):
        before = compacted(cluster, topic)
        pulsar.kill()
        with pytest.raises(RemoteFailed):
            publish(hold, None, before[1], lambda: before[0], ONE, {}, NOW_MS)
    pulsar.start()
    assert read(driver, topic) == ["a=1"]
