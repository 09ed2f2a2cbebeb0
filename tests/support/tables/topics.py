"""Random topics of the three systems that grow and are compacted, and the values by key."""

from __future__ import annotations

import random
import shutil
from abc import ABC, abstractmethod
from pathlib import Path

import lastwrite
from lastwrite.spark.inline import Inline
from tests.support.kafka.growing import GrowingLog
from tests.support.pulsar.folders import batch, single, write_ledger
from tests.support.pulsar.topics import topic_folder
from tests.support.rocketmq.queues import Sent, write_queue

_CLEAN = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "delete.retention.ms": 0}
_A_FILE = 15  # messages in one file


class Topic(ABC):
    """A topic below ``root``. ``model`` has the last write of every key that was not deleted."""

    name = "t"

    def __init__(self, root: Path, draw: random.Random) -> None:
        self.root, self.draw = root, draw
        self.model: dict[bytes, bytes] = {}
        self.keys = [f"key-{n}" for n in range(draw.choice([3, 12, 60]))]
        root.mkdir()

    def step(self) -> None:
        """Append random messages, and sometimes compact the topic."""
        for _ in range(self.draw.randint(0, 2)):
            some = [self._write() for _ in range(self.draw.randint(1, self.draw.choice([3, 25])))]
            for key, value in some:
                self.model.pop(key.encode(), None)
                if value:
                    self.model[key.encode()] = value.encode()
            self.append(some)
        if self.draw.random() < 0.3:
            self.compact()

    def _write(self) -> tuple[str, str | None]:
        value = None if self.draw.random() < 0.2 else f"{self.draw.getrandbits(40):x}"
        return self.draw.choice(self.keys), value

    @abstractmethod
    def append(self, writes: list[tuple[str, str | None]]) -> None: ...

    @abstractmethod
    def compact(self) -> None: ...


class KafkaTopic(Topic):
    """Partitions in a log directory. All records of a key are in the same partition."""

    def __init__(self, root: Path, draw: random.Random) -> None:
        super().__init__(root, draw)
        self.logs = [GrowingLog(root, n) for n in range(draw.randint(1, 3))]
        self.now_ms = 1_700_000_000_000

    def append(self, writes: list[tuple[str, str | None]]) -> None:
        for n, log in enumerate(self.logs):
            own = [each for each in writes if _number(each[0]) % len(self.logs) == n]
            self.now_ms += 1
            log.append([(k.encode(), v and v.encode(), self.now_ms) for k, v in own])
            if self.draw.random() < 0.4:
                log.roll()

    def compact(self) -> None:
        lastwrite.compact(str(self.root), topic="t", config=_CLEAN, spark=Inline())


class RocketTopic(Topic):
    """A store with one queue. Each append writes the whole store again, without its compactions."""

    def __init__(self, root: Path, draw: random.Random) -> None:
        super().__init__(root, draw)
        self.sent: list[Sent] = []
        self.append([])

    def append(self, writes: list[tuple[str, str | None]]) -> None:
        first = len(self.sent)
        self.sent += [Sent(first + n, k, (v or "").encode()) for n, (k, v) in enumerate(writes)]
        shutil.rmtree(self.root / "compaction", ignore_errors=True)
        files = [self.sent[n : n + _A_FILE] for n in range(0, len(self.sent), _A_FILE)]
        write_queue(self.root, "t", 0, files or [[]])

    def compact(self) -> None:
        lastwrite.compact(str(self.root), topic="t", spark=Inline())


class PulsarTopic(Topic):
    """A topic folder that gets new ledgers."""

    def __init__(self, root: Path, draw: random.Random) -> None:
        super().__init__(root, draw)
        self.folder = topic_folder(root, "persistent://public/default/t")
        self.sequence = 0
        self.append([("key-0", "first")])
        self.model[b"key-0"] = b"first"

    def append(self, writes: list[tuple[str, str | None]]) -> None:
        self.sequence += 100
        if not writes:
            return
        if self.draw.random() < 0.5:
            entries = [single(k, v or "", self.sequence + n) for n, (k, v) in enumerate(writes)]
        else:
            entries = [batch(writes, self.sequence)]
        write_ledger(self.folder, self.sequence, entries)

    def compact(self) -> None:
        lastwrite.compact(str(self.root), spark=Inline())
        # The new ledger's id is the next one.
        self.sequence += 100


TOPICS = {"kafka": KafkaTopic, "rocketmq": RocketTopic, "pulsar": PulsarTopic}


def _number(key: str) -> int:
    return int(key.partition("-")[2])
