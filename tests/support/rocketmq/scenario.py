"""A compacted topic as a test produces it, and the messages that must remain.

The model applies one rule: below a boundary the last message of each key remains, and above it
every message. Its only knowledge of files is the first offset of the active one.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lastwrite.rocketmq.format.record import Compression
from lastwrite.rocketmq.format.units import batch_units, valid_count
from lastwrite.rocketmq.network.client import RocketmqClient
from lastwrite.rocketmq.network.outgoing import OutgoingMessage
from lastwrite.rocketmq.network.route import queue_of
from tests.support.rocketmq.stock import Consumed, Seen, StockClient

_CODECS = (Compression.NONE, Compression.NONE, Compression.ZLIB, Compression.LZ4, Compression.ZSTD)


@dataclass
class Topic:
    """The messages of a topic by queue, as produced and after compaction."""

    name: str
    queues: int
    messages: dict[int, list[Seen]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.messages = {queue: [] for queue in range(self.queues)}

    def produce(
        self,
        client: RocketmqClient,
        count: int,
        rng: random.Random,
        keys: int = 20,
        prefix: str = "key",
    ) -> None:
        """Send ``count`` random messages with Lastwrite's client.

        They have deletes, compressed bodies, tags and batches.
        """
        route = client.route(self.name)
        sent = 0
        while sent < count:
            first = self._message(rng, keys, prefix)
            queue = queue_of(str(first.key), route.writable)
            if rng.random() < 0.15:
                others = [self._message(rng, keys, prefix) for _ in range(4)]
                members = [
                    first,
                    *(one for one in others if queue_of(str(one.key), route.writable) == queue),
                ]
                stored = client.send_batch(queue, members)
            else:
                members, stored = [first], [client.send(queue, first)]
            for message, place in zip(members, stored, strict=True):
                self._note(queue.queue, place.offset, message)
            sent += len(members)

    def produce_stock(
        self, stock: StockClient, count: int, rng: random.Random, keys: int = 20
    ) -> None:
        """Send with the stock producer, which cannot send deletes."""
        for _ in range(count):
            key, body = f"key-{rng.randrange(keys)}", rng.randbytes(rng.randrange(1, 60))
            queue, offset = stock.send(self.name, key, body, "stock")
            self._note(queue, offset, OutgoingMessage(key, body, "stock"))

    def compact(self, queue: int, end: int, drops_deletes: bool = True) -> None:
        """Keep each key's last message below ``end``, unless it is a delete to be dropped."""
        last = {seen.key: seen.offset for seen in self.messages[queue] if seen.offset < end}
        self.messages[queue] = [
            seen
            for seen in self.messages[queue]
            if seen.offset >= end
            or (last[seen.key] == seen.offset and (seen.body or not drops_deletes))
        ]

    def check(self, stock: StockClient) -> None:
        """Check that a real consumer gets exactly these messages, from any offset."""
        for queue, expected in self.messages.items():
            found = stock.pull(self.name, queue)
            assert found.messages == expected, _difference(self.name, queue, found, expected)
            assert found.status == "NO_NEW_MSG"
            for place in (len(expected) // 3, len(expected) // 2, len(expected) - 1):
                # A pull at a removed offset starts at the next message.
                before = expected[place - 1].offset if place else -1
                for offset in {before + 1, expected[place].offset}:
                    assert stock.pull(self.name, queue, offset).messages == expected[place:]

    def _note(self, queue: int, offset: int, message: OutgoingMessage) -> None:
        self.messages[queue].append(Seen(offset, message.key, message.tag, message.body or b""))

    @staticmethod
    def _message(rng: random.Random, keys: int, prefix: str) -> OutgoingMessage:
        key = f"{prefix}-{rng.randrange(keys)}"
        if rng.random() < 0.12:
            return OutgoingMessage(key, None)
        body = bytes(rng.choices(b"abc", k=rng.randrange(1, 150)))
        tag = rng.choice([None, "A", "B"])
        return OutgoingMessage(
            key, body, tag, {"p": str(rng.random())}, rng.choice(_CODECS), compress_from=40
        )


def _difference(topic: str, queue: int, found: Consumed, expected: Sequence[Seen]) -> str:
    missing = [seen.offset for seen in expected if seen not in found.messages]
    extra = [seen.offset for seen in found.messages if seen not in expected]
    return f"{topic}-{queue}: missing {missing}, not expected {extra}; last answer {found[1:]}"


def active_from(store: Path, topic: str, queue: int) -> int:
    """The first offset of the queue's active file, from its index.

    If the active file is empty, the end offset of the files before it.
    """
    indexes = sorted((store / "compaction" / "compactionCq" / topic / str(queue)).iterdir())
    end = 0
    for path in indexes:
        units = batch_units(path.read_bytes())
        count = valid_count(units)
        if path == indexes[-1]:
            return int(units["base"][0]) if count else end
        end = int(units["base"][count - 1]) + 1
    return end


def wait_until_dispatched(topic: Topic, client: RocketmqClient, seconds: float = 120) -> None:
    """Wait until the broker serves all produced messages."""
    deadline = time.monotonic() + seconds
    for queue in client.route(topic.name).readable:
        produced = topic.messages[queue.queue]
        while produced and client.pull(queue, 0).max_offset <= produced[-1].offset:
            assert time.monotonic() < deadline, f"{queue} is not dispatched"
            time.sleep(0.05)


def offsets(messages: Iterable[Seen]) -> list[int]:
    return [seen.offset for seen in messages]
