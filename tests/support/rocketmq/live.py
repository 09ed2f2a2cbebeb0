"""A live cluster to fetch from: its load, and the content of an archive afterwards."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from lastwrite.archive.layout import partition_address
from lastwrite.rocketmq.format.record import (
    PHYSICAL_OFFSET_AT,
    RocketmqMessage,
    body_of,
    decode_message,
)
from lastwrite.rocketmq.network.client import RocketmqClient, SendResult
from lastwrite.rocketmq.network.outgoing import OutgoingMessage
from lastwrite.rocketmq.network.route import queue_of
from lastwrite.rocketmq.store.archived import SYSTEM, read_contents
from tests.support.rocketmq.broker import Broker

# Closed files are compacted every 1.5 to 2 seconds.
COMPACTING = {"compactionScheduleInternal": "500"}


class Load:
    """Writes messages to a topic, one fifth deletes. ``table`` has the last write of each key."""

    def __init__(self, topic: str, seed: int = 0, keys: int = 20) -> None:
        self.topic = topic
        self.table: dict[str, bytes] = {}
        self.count = 0
        self._random = random.Random(seed)
        self._keys = keys

    def message(self) -> OutgoingMessage:
        key = f"k{self._random.randrange(self._keys)}"
        if self._random.random() < 0.2:
            return OutgoingMessage(key, None)
        return OutgoingMessage(key, self._random.randbytes(self._random.randrange(5, 80)))

    def send(self, client: RocketmqClient, count: int) -> list[SendResult]:
        """Send ``count`` messages. Each is in ``table`` once the broker has acknowledged it."""
        sent = []
        for _ in range(count):
            message = self.message()
            assert message.key is not None
            queue = queue_of(message.key, client.route(self.topic).writable)
            sent.append(client.send(queue, message))
            self.count += 1
            if message.body is None:
                self.table.pop(message.key, None)
            else:
                self.table[message.key] = message.body
        return sent


def messages_in(archive: Path, topic: str, queue: int) -> list[tuple[RocketmqMessage, bytes]]:
    """The messages of an archived queue, each with its record, in which the address is zeroed."""
    folder = partition_address(str(archive), SYSTEM, topic, queue)
    found = []
    for stored in read_contents(folder).files:
        data = Path(folder, stored.key).read_bytes()
        at = 0
        while at < len(data):
            message = decode_message(data, at, len(data))
            assert message.body_crc_holds
            assert message.physical_offset == stored.address + at
            record = bytearray(data[at : at + message.size])
            record[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + 8] = bytes(8)
            found.append((message, bytes(record)))
            at += message.size
    return found


def table_in(archive: Path, topic: str, queues: Sequence[int]) -> dict[str, bytes]:
    """The last writes in an archive, read message by message. Checks that offsets are ascending."""
    table: dict[str, bytes] = {}
    for queue in queues:
        last = -1
        for message, _ in messages_in(archive, topic, queue):
            assert message.queue_offset > last
            last = message.queue_offset
            if message.keys is None:
                continue
            body = body_of(message, 1 << 20)
            if body:
                table[message.keys] = body
            else:
                table.pop(message.keys, None)
    return table


def start_again(broker: Broker) -> None:
    """Start the broker on its former ports.

    Waits if another process uses one of them for a moment.
    """
    for tries_left in (4, 3, 2, 1, 0):
        try:
            broker.start()
            return
        except RuntimeError as error:
            if "in use" not in str(error) or not tries_left:
                raise
            time.sleep(5)


def wait_until(holds: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def copy_growing(store: Path, copy: Path) -> None:
    """Copy a store while the broker appends, as ``rsync --checksum`` would.

    Copies the topics and the changed commit log files. Contents are compared, because writes to
    mapped files do not change the modification time.
    """
    for name in ("config", "commitlog"):
        (copy / name).mkdir(parents=True, exist_ok=True)
    shutil.copy(store / "config" / "topics.json", copy / "config" / "topics.json")
    for file in sorted((store / "commitlog").iterdir()):
        target, data = copy / "commitlog" / file.name, file.read_bytes()
        if not target.exists() or target.read_bytes() != data:
            part = copy / f"{file.name}.part"
            part.write_bytes(data)
            part.rename(target)
