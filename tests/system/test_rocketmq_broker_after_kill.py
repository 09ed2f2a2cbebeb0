"""Tests of the real broker after a killed publication: it serves old or new queues completely.

The tests kill around the exchange, and with LASTWRITE_LONG=1 at every operation. Our locks and a
real broker's exclude each other, also during its start.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lastwrite.errors import LogHeld
from lastwrite.model.log import TopicPartition
from lastwrite.rocketmq.format.names import file_name
from lastwrite.rocketmq.format.record import decode_message, encode_message
from lastwrite.rocketmq.format.units import BATCH_UNIT, batch_units, valid_count
from lastwrite.rocketmq.network.client import PullCode, RocketmqClient
from lastwrite.rocketmq.network.outgoing import OutgoingMessage
from lastwrite.rocketmq.network.route import MessageQueue
from lastwrite.rocketmq.store import lock, publish
from lastwrite.rocketmq.store.positions import read_positions
from lastwrite.rocketmq.store.publish import Pair, QueueChange
from lastwrite.storage import files
from lastwrite.storage.files import FaultPoints
from tests.support.kafka.crashing import run_until
from tests.support.rocketmq.broker import COMPACTED, SMALL_FILES, Broker, Unavailable, rocketmq_home
from tests.support.rocketmq.trees import INDEX_BYTES, LOG_BYTES, fresh
from tests.support.sample import LONG

pytestmark = [pytest.mark.broker, pytest.mark.slow]

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
COUNTS = {T0: 75, T1: 30, U0: 25}  # 21 messages a file
Served = dict[TopicPartition, list[tuple[int, str, bytes]]]


@dataclass(frozen=True)
class Made:
    """A stopped store, and what a broker serves from it before and after a round."""

    home: Path
    store: Path
    old: Served
    new: Served


# ---------------------------------------------------------------------- a store, and a round


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    try:
        home = rocketmq_home()
    except Unavailable as missing:
        pytest.skip(str(missing))
    store = tmp_path_factory.mktemp("rocketmq") / "store"
    broker = Broker(home, store, SMALL_FILES)
    with broker, RocketmqClient(broker.name_server) as client:
        for topic, queues in (("t", 2), ("u", 1)):
            client.create_topic(topic, queues, COMPACTED)
        for name, count in COUNTS.items():
            for n in range(count):
                # The first four keys are written once, the others repeatedly.
                key = f"k{n if n < 4 else n % 6 + 10}"
                client.send(_queue(client, name), OutgoingMessage(key, b"%d " % n * 8))
        until = time.monotonic() + 120
        while [len(rows) for rows in _served(client).values()] != [*COUNTS.values()]:
            assert time.monotonic() < until, "dispatched"
            time.sleep(0.1)
        old = _served(client)
    new = dict(old)
    for name in (T0, T1):
        closed = len(old[name]) // 21 * 21
        last = {key: offset for offset, key, _ in old[name][:closed]}
        new[name] = [row for row in old[name] if row[0] >= closed or last[row[1]] == row[0]]
        assert 0 < len(new[name]) < len(old[name])
    return Made(home, store, old, new)


def _queue(client: RocketmqClient, name: TopicPartition) -> MessageQueue:
    until = time.monotonic() + 120
    while (
        name.topic not in client._routes
        and client.find_route(name.topic) is None
        and time.monotonic() < until
    ):
        time.sleep(0.1)  # a broker registers at its name server shortly after its start
    return next(
        queue for queue in client.route(name.topic).readable if queue.queue == name.partition
    )


def _served(client: RocketmqClient) -> Served:
    """All messages of every queue, pulled from offset 0 at the offsets that the broker returns."""
    served: Served = {}
    for name in COUNTS:
        rows, offset = served.setdefault(name, []), 0
        while True:
            pulled = client.pull(_queue(client, name), offset)
            at = 0
            while at < len(pulled.records):
                message = decode_message(pulled.records, at, len(pulled.records))
                rows.append((message.queue_offset, message.properties["KEYS"], message.body))
                at += message.size
            if pulled.status is not PullCode.FOUND:
                break
            offset = pulled.next_offset
    return served


def _round(store: Path) -> None:
    """Compact two queues in place. The third queue is not due.

    Each closed file keeps the last message of each of its keys.
    """
    root = str(store)
    with lock.hold(root, COUNTS):
        for name in COUNTS:
            publish.recover(root, name)
        if read_positions(publish.live_tree(root)).of(T0) >= 0:
            return
        errors = publish.publish(root, [_change(root, name) for name in (T0, T1)])
        assert errors == [None, None], errors
        publish.delete_replaced(root, [T0, T1])


def _change(root: str, name: TopicPartition) -> QueueChange:
    logs, indexes = (Path(folder) for folder in publish.queue_folders(root, name))
    *closed, _ = sorted(path.name for path in logs.iterdir() if path.is_file())
    rows = []
    for file in closed:
        data = (indexes / file).read_bytes()
        units = batch_units(data)
        log = (logs / file).read_bytes()
        for unit in units[: valid_count(units)]:
            rows.append(
                (
                    file,
                    unit,
                    decode_message(log, int(unit["physical_offset"]) - int(file), len(log)),
                )
            )
    last = {message.properties["KEYS"]: message.queue_offset for _, _, message in rows}
    pairs, gone = [], []
    for file in closed:
        kept = [
            row
            for row in rows
            if row[0] == file and last[row[2].properties["KEYS"]] == row[2].queue_offset
        ]
        if len(kept) == sum(row[0] == file for row in rows):
            continue
        gone.append(file)
        if kept:
            pairs.append(_write_pair(publish.staging_folder(root, name), file, kept))
    return QueueChange(name=name, removed=gone, pairs=pairs, position=rows[-1][2].queue_offset)


def _write_pair(folder: str, file: str, kept: list) -> Pair:  # type: ignore[type-arg]
    log, index = b"", b""
    for _, unit, message in kept:
        address = int(file) + len(log)
        record = encode_message(replace(message, physical_offset=address))
        tags, time_ms = int(unit["tags_code"]), message.store_time_ms
        index += BATCH_UNIT.pack(
            address, len(record), tags, time_ms, message.queue_offset, 1, -1, 0
        )
        log += record
    paths = [os.path.join(folder, f"{file}.{kind}") for kind in ("log", "index")]
    files.write(paths[0], log.ljust(LOG_BYTES, b"\0"))
    files.write(paths[1], index.ljust(INDEX_BYTES, b"\0"))
    return Pair(file, *paths)


def _operations(made: Made, place: Path) -> list[str]:
    done: list[str] = []

    class Listening(FaultPoints):
        def reach(self, operation: str, path: str) -> None:
            done.append(operation)

    store = fresh(made.store, place / "counted")
    files.faults = Listening(1 << 30)
    try:
        _round(store)
    finally:
        files.faults = FaultPoints()
    shutil.rmtree(store)
    return done


def _points(operations: list[str]) -> list[int]:
    if LONG:
        return [*range(1, len(operations) + 1)]
    swap = max(n for n, operation in enumerate(operations) if operation == "exchange") + 1
    return [swap, swap + 1]


# ---------------------------------------------------------------------- the broker judges


def test_broker_serves_the_old_queues_or_the_new_after_a_kill(made: Made, tmp_path: Path) -> None:
    sides = []
    for point in _points(_operations(made, tmp_path)):
        store = fresh(made.store, tmp_path / f"killed-{point}")
        assert run_until(point, lambda store=store: _round(store)), point  # type: ignore[misc]
        broker = Broker(made.home, store, SMALL_FILES).start()
        try:
            with RocketmqClient(broker.name_server) as client:
                served = _served(client)
                assert served in (made.old, made.new), point
                sides.append(served == made.new)
                more = [
                    client.send(_queue(client, name), OutgoingMessage("k10", b"more")).offset
                    for name in COUNTS
                ]
                assert more == [*COUNTS.values()], "offsets go on"
        finally:
            broker.kill()
        shutil.rmtree(store)
    assert sides == sorted(sides) and not sides[0] and sides[-1]


@pytest.mark.long
@pytest.mark.parametrize("is_after", [pytest.param(False, marks=pytest.mark.long), True])
def test_broker_and_rounds_alternate_after_a_kill(
    made: Made, tmp_path: Path, is_after: bool
) -> None:
    operations = _operations(made, tmp_path)
    swap = operations.index("exchange", operations.index("link")) + 1
    store = fresh(made.store, tmp_path / "store")
    assert run_until(swap + 3 * is_after, lambda: _round(store))
    assert publish.leftovers(str(store))
    with (
        Broker(made.home, store, SMALL_FILES) as broker,
        RocketmqClient(broker.name_server) as client,
    ):
        for name in COUNTS:
            client.send(_queue(client, name), OutgoingMessage("fresh", b"more"))
        expected = {
            name: [*rows, (COUNTS[name], "fresh", b"more")] for name, rows in made.new.items()
        }
    assert not lock.was_killed(str(store))
    _round(store)
    assert not publish.leftovers(str(store))
    with (
        Broker(made.home, store, SMALL_FILES) as broker,
        RocketmqClient(broker.name_server) as client,
    ):
        assert _served(client) == expected


# ---------------------------------------------------------------------- locks


def test_running_broker_is_detected_and_locks_the_store(made: Made, tmp_path: Path) -> None:
    store = fresh(made.store, tmp_path / "store")
    with Broker(made.home, store, SMALL_FILES):
        assert "a broker (process" in str(lock.broker_of(str(store)))
        with pytest.raises(LogHeld, match="the store is locked by"), lock.hold(str(store), [T0]):
            pass
        assert lock.was_killed(str(store)), "or runs"
        lock.reject_unclean(str(store), goes_on=False)  # the marker is that of a running broker
    assert lock.broker_of(str(store)) is None
    lock.reject_unclean(str(store), goes_on=False)


@pytest.mark.long
def test_broker_does_not_start_during_a_round_but_after_it(made: Made, tmp_path: Path) -> None:
    store = fresh(made.store, tmp_path / "store")
    broker = Broker(made.home, store, SMALL_FILES)
    with (
        lock.hold(str(store), [U0]),
        pytest.raises((RuntimeError, TimeoutError), match="Lock failed"),
    ):
        broker.start(seconds=30)
    assert not publish.leftovers(str(store))
    _round(store)
    with (
        Broker(made.home, store, SMALL_FILES) as broker,
        RocketmqClient(broker.name_server) as client,
    ):
        assert _served(client) == made.new


@pytest.mark.skipif(
    not os.path.isdir("/proc/self/fd"), reason="sees by /proc how far a broker's start has come"
)
@pytest.mark.long
def test_starting_broker_keeps_the_store(made: Made, tmp_path: Path) -> None:
    store = fresh(made.store, tmp_path / "store")
    broker = Broker(made.home, store, SMALL_FILES)
    outcome: list[BaseException | None] = []

    def start() -> None:
        try:
            broker.start(60)
            outcome.append(None)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    process = _stopped_while_reading(broker, store)
    try:
        with lock.hold(str(store), COUNTS):
            errors = publish.publish(str(store), [_change(str(store), T0)])
            assert (
                isinstance(errors[0], LogHeld)
                and "it may be a broker that is starting" in errors[0].problem
            )
            publish.recover(str(store), T0)
    finally:
        os.kill(process, signal.SIGCONT)
        thread.join()
    assert outcome == [None], "we let go before it wanted the lock"
    with RocketmqClient(broker.name_server) as client:
        assert _served(client) == made.old
    broker.kill()


def _stopped_while_reading(broker: Broker, store: Path) -> int:
    """The process id of the broker, stopped as soon as it has opened the lock file."""
    wanted = str(store / "lock")
    until = time.monotonic() + 120
    while time.monotonic() < until:
        running = broker._running.get("broker")
        if running is not None and wanted in _open_files(running):
            os.kill(running.pid, signal.SIGSTOP)
            assert lock.broker_of(str(store)) is None, "not yet locked"
            return running.pid
        time.sleep(0.002)
    raise AssertionError("the broker never opened its lock file")


def _open_files(process: subprocess.Popen[bytes]) -> Iterator[str]:
    folder = f"/proc/{process.pid}/fd"
    try:
        for name in os.listdir(folder):
            try:
                yield os.readlink(f"{folder}/{name}")
            except FileNotFoundError:
                continue
    except FileNotFoundError:
        return


def test_files_have_the_brokers_names(made: Made) -> None:
    names = sorted(
        path.name for path in Path(publish.queue_folders(str(made.store), T0)[0]).iterdir()
    )
    assert names == [file_name(n * LOG_BYTES) for n in range(len(names))]
