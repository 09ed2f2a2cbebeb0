"""Tests of many clients that read a compacted topic and then new records.

Also of tables of Kafka Streams and of Spark's Kafka source.
"""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

import lastwrite
from lastwrite.encoding.compression import Codec
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.server.serve import RunningServer
from lastwrite.spark.inline import INLINE
from tests.support.jars import Unavailable
from tests.support.kafka.logs import write_segment
from tests.support.kafka.readers.programs import READERS, STREAMS, java

pytestmark = pytest.mark.slow
TOPIC = "orders"
KEYS = 400
SECONDS = 120


class Place:
    """A compacted archive of a log of 1,000 records, and a server of it."""

    def __init__(self, folder: Path) -> None:
        self._root, self._archive = folder / "log", folder / "archive"
        self._stage = 0
        self.records: list[tuple[int, str, str | None]] = []  # offset, key, value
        self.append(1000)
        report = lastwrite.compact(
            str(self._archive),
            config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0},
            include_active=True,
            spark=INLINE,
        )
        assert report.exit_status == 0, report.to_dict()
        newest = {key: offset for offset, key, _ in self.records}
        self.records = [each for each in self.records if newest[each[1]] == each[0]]
        self.serving: RunningServer = lastwrite.serve(
            str(self._archive), listen="127.0.0.1:0", state=str(folder / "state")
        )

    @property
    def end(self) -> int:
        return self.records[-1][0] + 1

    @property
    def table(self) -> dict[str, str]:
        table: dict[str, str] = {}
        for _, key, value in self.records:
            if value is None:
                table.pop(key, None)
            else:
                table[key] = value
        return table

    def append(self, count: int) -> None:
        """Append records in batches of ten and fetch them.

        Every other batch is compressed. The last record has the key ``end``.
        """
        self._stage += 1
        begin = self.end if self.records else 0
        made = []
        for offset in range(begin, begin + count):
            key = f"key-{offset * 7 % KEYS}"
            value: str | None = None if offset % 11 == 0 else f"value-{offset}"
            if offset == begin + count - 1:
                key, value = "end", str(self._stage)
            self.records.append((offset, key, value))
            content = None if value is None else value.encode()
            headers = ((b"header", b"x"),) if offset % 3 else ()
            made.append(Record(offset, 1_700_000_000_000 + offset, key.encode(), content, headers))
        batches = [
            encode_batch(made[n : n + 10], codec=(Codec.NONE, Codec.GZIP)[n // 10 % 2])
            for n in range(0, count, 10)
        ]
        write_segment(self._root / f"{TOPIC}-0", begin, batches, 200)
        lastwrite.fetch(
            [str(self._root)],
            to=str(self._archive),
            config={"cleanup.policy": "compact"},
            include_active=True,
        )


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    with found.serving:
        yield found


class Program:
    """A process whose output lines are read as they arrive."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._said: list[str] = []
        self._threads = [
            threading.Thread(target=self._hear, daemon=True),
            threading.Thread(target=self._hear_errors, daemon=True),
        ]
        for each in self._threads:
            each.start()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))

    def _hear_errors(self) -> None:
        assert self._process.stderr is not None
        self._said.extend(self._process.stderr)

    def lines(self, count: int) -> list[str]:
        """The next ``count`` lines."""
        found: list[str] = []
        try:
            while len(found) < count:
                found.append(self._lines.get(timeout=SECONDS))
        except queue.Empty:
            raise AssertionError(f"{found[-3:]} of {count}, then nothing: {self.said()}") from None
        return found

    def until(self, last: str) -> list[str]:
        """The lines before the given one."""
        found: list[str] = []
        while (line := self.lines(1)[0]) != last:
            found.append(line)
        return found

    def said(self) -> str:
        return "".join(self._said)[-3000:]

    def __enter__(self) -> Program:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._process.kill()
        assert self._process.wait(SECONDS) == 0 or kind is not None, self.said()
        for each in self._threads:
            each.join(SECONDS)
        assert kind is not None or self._lines.empty()


LONG = [pytest.mark.long, pytest.mark.broker]


@pytest.mark.parametrize(
    "name",
    [each if each == "confluent" else pytest.param(each, marks=LONG) for each in READERS],
)
def test_client_reads_to_the_end_and_then_new_records(place: Place, name: str) -> None:
    reader = READERS[name]
    old = [f"{offset} {key} {value or 'NULL'}" for offset, key, value in place.records]
    try:
        command = reader.command(place.serving.address, TOPIC, str(len(old) + 100), "readers")
    except Unavailable as reason:
        pytest.skip(str(reason))
    with Program(command) as program:
        assert program.lines(len(old)) == old
        place.append(100)
        assert program.lines(100) == [
            f"{offset} {key} {value or 'NULL'}" for offset, key, value in place.records[-100:]
        ]
    if reader.commits:
        consumer = Consumer({"bootstrap.servers": place.serving.address, "group.id": "readers"})
        (found,) = consumer.committed([TopicPartition(TOPIC, 0)], 30)
        consumer.close()
        assert found.offset == place.end


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.parametrize("kind", ["global", "table"])
def test_table_of_kafka_streams_equals_the_topic(place: Place, tmp_path: Path, kind: str) -> None:
    try:
        command = java(STREAMS, "Table", "kafka-streams")
    except Unavailable as reason:
        pytest.skip(str(reason))
    folder = str(tmp_path / "streams")
    with Program([*command, place.serving.address, TOPIC, kind, folder]) as program:
        for _ in range(2):
            found = program.until("whole")
            assert dict(line.split() for line in found) == place.table
            assert len(found) == len(place.table)
            if _ == 0:
                place.append(100)
