"""Properties of the partitions that the server derives.

Some present another system's topic as Kafka's, and some only the last writes of an uncompacted
topic. Each is read as a consumer would read it, at random moments of the source's history, and
compared with the list of writes.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import lastwrite
from lastwrite.archive.layout import systems_at
from lastwrite.commands.compact import compact
from lastwrite.commands.systems import system_of
from lastwrite.encoding.compression import Codec
from lastwrite.engine.system import system_named
from lastwrite.errors import CommitConflict
from lastwrite.kafka.format.batch import encode_batch, iter_batches
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.server.catalog import Catalog, ServedPartition, ServedSource
from lastwrite.server.copy_store import CopyStore
from lastwrite.server.files import Files
from lastwrite.server.materialized import CopyPolicy
from lastwrite.spark.inline import INLINE
from tests.support.kafka.logs import write_segment
from tests.support.pulsar.folders import batch, single, write_ledger
from tests.support.pulsar.topics import topic_folder
from tests.support.rocketmq.queues import Sent, write_queue

TOPIC = "orders"
ROUND = {"min.cleanable.dirty.ratio": 0, "cleanup.policy": "compact"}


class Written(ABC):
    """A topic of one partition that grows and is compacted.

    ``written`` has all writes by offset.
    """

    def __init__(self, folder: Path, draw: random.Random) -> None:
        self.folder, self.draw = folder, draw
        self.path = str(folder / "archive")
        self.written: dict[int, tuple[bytes, bytes | None]] = {}

    def drawn(self) -> tuple[bytes, bytes | None]:
        key = b"k%d" % self.draw.randrange(12)
        return key, None if self.draw.random() < 0.2 else b"v%d" % self.draw.randrange(1 << 30)

    @property
    def table(self) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        for _, (key, value) in sorted(self.written.items()):
            found.pop(key, None)
            if value is not None:
                found[key] = value
        return found

    @abstractmethod
    def grow(self) -> None: ...

    def compact(self) -> None:
        report = lastwrite.compact(self.path, config=self.settings(), spark=INLINE)
        assert report.exit_status == 0, report.to_dict()

    def settings(self) -> dict[str, object]:
        return {}


class OfKafka(Written):
    """A log directory, fetched into an archive."""

    def grow(self) -> None:
        base = max(self.written, default=-1) + 1
        made = [Record(base + n, 1_700_000_000_000 + n, *self.drawn(), ()) for n in range(14)]
        self.written |= {each.offset: (each.key or b"", each.value) for each in made}
        batches = [encode_batch(made[n : n + 3], leader_epoch=2) for n in range(0, 14, 3)]
        write_segment(self.folder / "log" / f"{TOPIC}-0", base, batches, 200)
        lastwrite.fetch([str(self.folder / "log")], to=self.path, config=ROUND, include_active=True)

    def settings(self) -> dict[str, object]:
        return {**ROUND, "delete.retention.ms": 0}


class InFolder(OfKafka):
    """A log directory. Its last segment is the active one."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        super().__init__(folder, draw)
        self.path = str(folder / "log")

    def grow(self) -> None:
        base = max(self.written, default=-1) + 1
        made = [Record(base + n, 1_700_000_000_000 + n, *self.drawn(), ()) for n in range(14)]
        self.written |= {each.offset: (each.key or b"", each.value) for each in made}
        batches = [encode_batch(made[n : n + 3], leader_epoch=2) for n in range(0, 14, 3)]
        folder = self.folder / "log" / f"{TOPIC}-0"
        segments = sorted(folder.glob("*.log"))
        if segments and self.draw.random() < 0.5:
            with segments[-1].open("ab") as active:
                active.write(b"".join(batches))
        else:
            write_segment(folder, base, batches, 200)


class OfRocketmq(Written):
    """A store, fetched into an archive."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        super().__init__(folder, draw)
        self._files: list[list[Sent]] = []

    def grow(self) -> None:
        base = max(self.written, default=-1) + 1
        made = []
        for n in range(12):
            key, value = self.drawn()
            made.append(Sent(base + n, key.decode(), value or b"", self.draw.random() < 0.3))
            self.written[base + n] = key, value
        self._files.append(made)
        write_queue(self.folder / "store", TOPIC, 0, self._files)
        lastwrite.fetch([str(self.folder / "store")], to=self.path, include_active=True)

    def settings(self) -> dict[str, object]:
        return {}


class OfPulsar(Written):
    """A topic folder that gets new ledgers."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        super().__init__(folder, draw)
        self._topic = topic_folder(folder / "archive", f"persistent://public/default/{TOPIC}")
        self._ledger = 3

    def grow(self) -> None:
        entries: list[bytes] = []
        for entry in range(6):
            place = (self._ledger << 24 | entry) << 12
            if self.draw.random() < 0.5:
                key, value = self.drawn()
                entries.append(single(key.decode(), value, entry))
                self.written[place] = key, value
                continue
            found = [self.drawn() for _ in range(self.draw.randint(1, 5))]
            sent = [(k.decode(), None if v is None else v.decode()) for k, v in found]
            entries.append(batch(sent, entry))
            self.written |= {place | n: each for n, each in enumerate(found)}
        write_ledger(self._topic, self._ledger, entries)
        self._ledger += 2


SOURCES = [OfKafka, InFolder, OfRocketmq, OfPulsar]


class Reader:
    """A consumer: the records that it has read, and its position."""

    def __init__(self, partition: ServedPartition, most_bytes: int) -> None:
        self._partition = partition
        self._most = most_bytes
        self.begin = self.at = partition.log().log.log_start
        self.records: list[tuple[int, bytes, bytes | None]] = []

    def step(self, files: Files) -> bool:
        """Fetch once, as ``server.fetch`` does. Returns whether there were records."""
        for _ in range(4):
            try:
                log = self._partition.log()
                found = log.stretch(self.at, self._most, False, True)
                if found is None:
                    return False
                data = files.read(found.segment, found.position, found.size)
                break
            except CommitConflict:
                self._partition.reread()
        else:
            raise AssertionError("it changed four times")
        for _, each in iter_whole(data):
            for record in each.records:
                if record.offset >= self.at:
                    assert record.key is not None
                    self.records.append((record.offset, record.key, record.value))
            self.at = max(self.at, each.header.last_offset + 1)
        return True

    def table(self) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        for _, key, value in self.records:
            found.pop(key, None)
            if value is not None:
                found[key] = value
        return found


def iter_whole(data: bytes) -> Iterator[tuple[int, object]]:
    from lastwrite.errors import TruncatedLog

    try:
        yield from iter_batches(data)
    except TruncatedLog:
        return


def settled(partition: ServedPartition) -> None:
    """Refresh until the partition has seen all records."""
    while partition.refresh() or not partition.is_unchanged():
        pass


class Served:
    """A catalog with one source."""

    def __init__(self, folder: Path, path: str, is_compacted: bool, codec: Codec) -> None:
        self.files = Files(1 << 20)
        self.copies = CopyStore(str(folder / "copies"), 1 << 30)
        self.told: list[str] = []
        self._threads = ThreadPoolExecutor(1)
        making = CopyPolicy(
            self.copies, self._threads, codec, is_compacted, {}, self.told.append, 0.3
        )
        names = systems_at(path) or [system_of(path)]
        sources = [ServedSource(path, system_named(name)) for name in names]
        self.catalog = Catalog(sources, [], self.files, making.partition)

    def partition(self, topic: str = TOPIC, number: int = 0) -> ServedPartition:
        found = self.catalog.topic(topic)
        assert found is not None
        return found.partitions[number]

    def close(self) -> None:
        self._threads.shutdown()
        self.catalog.close()
        self.files.close()


def test_log_that_grows_before_it_is_compacted_is_served_to_its_new_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = OfKafka(tmp_path, random.Random(1))
    source.grow()

    def grow_and_compact(*args: object, **options: object) -> object:
        source.grow()
        return compact(*args, **options)

    monkeypatch.setattr("lastwrite.server.materialized.compact", grow_and_compact)
    served = Served(tmp_path, source.path, True, Codec.NONE)
    reader = Reader(served.partition(), 1 << 20)
    while reader.step(served.files):
        pass
    assert reader.at == served.partition().log().log.high_watermark == max(source.written) + 1
    assert reader.table() == source.table
    served.close()


@pytest.mark.parametrize("is_compacted", [False, True], ids=["as it lies", "compacted"])
@pytest.mark.parametrize("kind", SOURCES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("seed", range(2))
def test_reader_at_any_moment_has_the_four_guarantees(
    tmp_path: Path, kind: type[Written], is_compacted: bool, seed: int
) -> None:
    draw = random.Random(f"{kind.__name__} {is_compacted} {seed}")
    source = kind(tmp_path, draw)
    source.grow()
    served = Served(tmp_path, source.path, is_compacted, draw.choice((Codec.NONE, Codec.LZ4)))
    partition = served.partition()
    readers = [Reader(partition, 300)]
    rounds = 0
    for _ in range(50):
        what = draw.random()
        if what < 0.12:
            source.grow()
        elif what < 0.18:
            settled(partition)  # while the server makes a copy, the log directory is not locked
            source.compact()
            rounds += 1
        elif what < 0.28:
            readers.append(Reader(partition, draw.choice((1, 200, 1000, 1 << 20))))
        elif what < 0.45:
            partition.refresh()
        else:
            draw.choice(readers).step(served.files)
    settled(partition)
    last = Reader(partition, 1 << 20)
    readers.append(last)
    for reader in readers:
        while reader.step(served.files):
            pass
        offsets = [offset for offset, _, _ in reader.records]
        assert offsets == sorted(set(offsets)), "order is kept"
        for offset, key, value in reader.records:
            assert source.written[offset] == (key, value), "an offset names one record for ever"
        assert reader.at == partition.log().log.end_offset > max(source.written)
        if not rounds and not is_compacted:
            assert offsets == sorted(source.written), "nothing is left out"
    assert last.table() == source.table, "a reader from the begin has the last writes"
    there = {offset for offset, _, _ in last.records}
    newest = {key: offset for offset, (key, _) in sorted(source.written.items())}
    for reader in readers:
        table = reader.table()
        for key in table.keys() - source.table.keys():
            assert newest[key] not in there, "only a delete that was cleaned away is not seen"
            del table[key]
        assert table == source.table
    served.close()
