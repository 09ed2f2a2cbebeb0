"""Writes a bucket and a metadata log as AutoMQ does, for tests without an AutoMQ.

Appended records are in a write-ahead log until ``upload`` writes them to a stream set object.
``split`` and ``compose`` do what AutoMQ's compactions do.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.text import topic_id_text
from lastwrite.kafka.producers.snapshot import encode_snapshot
from tests.support.kafka.metadata import setting, text, topic, write_identity

CLUSTER = "AutomqTestCluster00000"
NODE, NODE_EPOCH = 1, 100
WAL_STEP = 64 << 20
COMMITTED, DESTROYED = 2, 3


class StreamRecord(NamedTuple):
    stream: int
    base: int
    count: int
    payload: bytes

    @property
    def end(self) -> int:
        return self.base + self.count

    def encode(self) -> bytes:
        head = struct.pack(
            ">Bqqqii", 0x22, self.stream, 1, self.base, self.count, len(self.payload)
        )
        return head + self.payload


class Entry(NamedTuple):
    """An index entry."""

    stream: int
    start: int
    end: int
    records: int
    position: int
    size: int

    def encode(self) -> bytes:
        return struct.pack(
            ">qqiiqi",
            self.stream,
            self.start,
            self.end - self.start,
            self.records,
            self.position,
            self.size,
        )


def encode_blocks(records: Sequence[StreamRecord], records_per_block: int) -> bytes:
    """Consecutive data blocks of one stream."""
    out = b""
    for at in range(0, len(records), records_per_block):
        block = records[at : at + records_per_block]
        body = b"".join(each.encode() for each in block)
        out += struct.pack(">BBii", 0x5A, 2, len(block), len(body)) + body
    return out


def footer(position: int, size: int, magic: int = 0x88E241B785F4CFF7) -> bytes:
    return struct.pack(">qi28xQ", position, size, magic)


def encode_object(
    records: Iterable[StreamRecord], records_per_block: int = 4, blocks_per_run: int = 2
) -> tuple[bytes, list[Entry]]:
    """An object with these records, sorted by stream and offset, and its index entries."""
    streams: dict[int, list[StreamRecord]] = {}
    for each in sorted(records):
        streams.setdefault(each.stream, []).append(each)
    out, entries = b"", []
    for stream, found in streams.items():
        step = records_per_block * blocks_per_run
        for at in range(0, len(found), step):
            run = found[at : at + step]
            data = encode_blocks(run, records_per_block)
            entries.append(Entry(stream, run[0].base, run[-1].end, len(run), len(out), len(data)))
            out += data
    index = b"".join(each.encode() for each in entries)
    return out + index + footer(len(out), len(index)), entries


def encode_composite(links: Sequence[tuple[int, Sequence[Entry]]]) -> bytes:
    """A composite object that links to entries of other objects."""
    out, first = struct.pack(">Bi", 0x52, len(links)), 0
    for object_id, entries in links:
        out += struct.pack(">qih", object_id, first, 0)
        first += len(entries)
    index = b"".join(each.encode() for _, entries in links for each in entries)
    return out + index + footer(len(out), len(index), 0x88E241B785F4CFF8)


def encode_wal(start: int, trim: int, records: Iterable[bytes], epoch: int = NODE_EPOCH) -> bytes:
    """A write-ahead object of version V1."""
    body, offset = b"", start
    for each in records:
        offset += 24
        head = struct.pack(">IiqI", 0x87654321, len(each), offset, crc(each))
        body += head + struct.pack(">I", crc(head)) + each
        offset += len(each)
    return struct.pack(">IqqqIqq", 0xEDCBA987, start, len(body), 0, NODE, epoch, trim) + body


def crc(data: bytes) -> int:
    return zlib.crc32(data) & 0x7FFFFFFF


def uvarint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def record(number: int, version: int, body: bytes) -> bytes:
    """A metadata record: its frame and its fields, without tagged fields."""
    return b"\1" + uvarint(number) + uvarint(version) + body + b"\0"


def blob(data: bytes) -> bytes:
    return uvarint(len(data) + 1) + data


@dataclass
class Part:
    """A partition: the ids of its streams, and the appended batches."""

    topic: str
    number: int
    topic_id: str
    streams: dict[str, int]
    segments: list[dict[str, object]] = field(default_factory=list)
    # base offset, end offset, bytes
    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    end: int = 0
    start: int = 0


class Cluster:
    """A cluster of one node in ``folder``: ``bucket`` and ``__cluster_metadata-0``."""

    def __init__(
        self,
        folder: Path,
        version: int = 7,
        segment_records: int = 30,
        *,
        is_running: bool = False,
    ) -> None:
        """``is_running``: write each metadata record at once, and delete what was replaced."""
        self._is_running = is_running
        self.bucket = folder / "bucket"
        self.metadata = folder / "__cluster_metadata-0"
        self.namespace = f"_kafka_{CLUSTER}"
        self.parts: dict[tuple[str, int], Part] = {}
        self.stored: dict[int, list[StreamRecord]] = {}  # the records of each live object
        self.entries: dict[int, list[Entry]] = {}
        self.streams_of: dict[int, int] = {}  # the stream of each live stream object
        self.sets: list[int] = []  # the live stream set objects
        self.ends: dict[int, int] = {}  # the end offset of each stream
        self.starts: dict[int, int] = {}
        self.pending: list[StreamRecord] = []  # records that are not uploaded yet
        self.written = 0  # how many of ``pending`` are in write-ahead objects
        self.wal_offset = self.wal_end = 0
        self._values: list[bytes] = []
        self._logged = 0  # of ``_values``, in the metadata log
        self._objects = self._streams = 0
        self._segment_records = segment_records
        self.records_per_block, self.blocks_per_run = 4, 2
        self.has_snapshots = False  # of producers, at the base of each segment
        write_identity(folder, CLUSTER)
        self.add(record(12, 0, text("automq.version") + struct.pack(">h", version)))
        self.add(record(513, 0, struct.pack(">iq?", NODE, NODE_EPOCH, False)))
        self.add(
            self._key_value("__automq_node/1", b'{"w":"0@s3://b?accessKey=KEY&secretKey=SECRET"}')
        )

    def topic(self, name: str, partitions: int = 1, **settings: str) -> None:
        """Create a topic with its META and log streams."""
        topic_id = hashlib.md5(name.encode()).digest()
        self.add(topic(name, topic_id))
        for key, value in settings.items():
            self.add(setting(name, key.replace("_", "."), value))
        for number in range(partitions):
            place = struct.pack(">i", number) + topic_id
            one = b"\2" + struct.pack(">i", NODE)
            self.add(
                b"\1\3\1" + place + one * 2 + b"\1\1" + struct.pack(">iii", NODE, 0, 0) + b"\1\0"
            )
            streams = {each: self._stream() for each in ("meta", "log")}
            part = Part(name, number, topic_id_text(topic_id), streams)
            self.parts[name, number] = part
            key = f"{self.namespace}/{part.topic_id}/{number}"
            self.add(self._key_value(key, struct.pack(">q", streams["meta"])))
            self._roll(part)
            self.save(part)

    def append(self, name: str, number: int, *values: bytes | None, hole: int = 0) -> None:
        """Append a batch with one record for each value.

        A record's key is the value's first byte.
        """
        part = self.parts[name, number]
        if part.end - int(str(part.segments[-1]["bo"])) >= self._segment_records:
            self._roll(part)
            self.save(part)
        base, before = part.end + hole, part.end
        records = [
            Record(base + n, 1_700_000_000_000 + base + n, (value or b"k")[:1], value)
            for n, value in enumerate(values)
        ]
        batch = encode_batch(records, base_offset=base, leader_epoch=0)
        part.end = base + len(values)
        part.batches.append((base, part.end, batch))
        self._write(part.streams["log"], part.end - before, batch)

    def save(self, part: Part) -> None:
        """Write the partition's state to its META stream."""
        log = {
            "streamMap": {"log": part.streams["log"], "tim": -1, "txn": -1},
            "segmentMetas": part.segments,
        }
        values = {
            "LOG": json.dumps(log).encode(),
            "PARTITION": json.dumps({"s": part.start, "c": 0, "r": 0, "cs": False}).encode(),
            "LEADER_EPOCH_CHECKPOINT": struct.pack(">iiiq", 0, 1, 0, 0),
            "PRODUCER_SNAPSHOTS": b"\x18" + self._snapshots(part),
        }
        for key, value in values.items():
            payload = b"\0" + struct.pack(">i", len(key)) + key.encode() + value
            self._write(part.streams["meta"], 1, payload)

    def _snapshots(self, part: Part) -> bytes:
        bases = [int(str(each["bo"])) for each in part.segments if self.has_snapshots]
        empty = encode_snapshot([])
        return b"".join(struct.pack(">qi", base, len(empty)) + empty for base in bases if base)

    def delete_records(self, name: str, number: int, offset: int) -> None:
        """Raise the log start, and remove the segments below it."""
        part = self.parts[name, number]
        part.start = offset
        while len(part.segments) > 1 and int(str(part.segments[1]["bo"])) <= offset:
            del part.segments[0]
        self.save(part)
        first: dict[str, int] = part.segments[0]["ls"]  # type: ignore[assignment]
        stream = part.streams["log"]
        self.starts[stream] = first["s"]
        self.add(self._stream_record(stream))
        self._commit_all()

    def upload(self) -> int | None:
        """Upload all pending records in a stream set object. Returns its id."""
        if not self.pending:
            return None
        object_id = self._new_object(self.pending)
        self._commit(object_id, len(self._read(object_id)))
        self.add(record(507, 1, struct.pack(">iqqq", NODE, object_id, object_id, 0)))
        ends = {each.stream: each.end for each in sorted(self.pending)}
        data = b"\1" + b"".join(struct.pack(">qq", *each) for each in ends.items())
        self.add(record(515, 0, blob(data)))
        self.sets.append(object_id)
        self.pending, self.written = [], 0
        done = self.wal_paths()
        self._put_wal([struct.pack(">Bqqqii", 0x22, -1, -1, 0, 0, 0)], self.wal_offset)
        self._commit_all()
        for path in done:
            path.unlink()
        return object_id

    def write_ahead(self) -> None:
        """Write the pending records that are in no write-ahead object yet to a new one."""
        todo = sorted(self.pending[self.written :])
        if todo:
            self._put_wal([each.encode() for each in todo], self._trim)
            self.written = len(self.pending)

    def split(self, object_id: int) -> list[int]:
        """Move the streams of a stream set object to stream objects of their own.

        Returns their ids.
        """
        made = []
        streams: dict[int, list[StreamRecord]] = {}
        for each in self.stored[object_id]:
            streams.setdefault(each.stream, []).append(each)
        for stream, records in streams.items():
            new = self._new_object(records)
            self._commit(new, len(self._read(new)))
            self._add_stream_object(stream, new)
            made.append(new)
        self.add(record(508, 0, struct.pack(">iq", NODE, object_id)))
        self._destroy(object_id)
        self.sets.remove(object_id)
        self._commit_all()
        if self._is_running:
            self.object_path(object_id).unlink()
        return made

    def compose(self, stream: int) -> int | None:
        """Link all stream objects of a stream from a composite object. Returns its id."""
        parts = sorted(
            (id for id, each in self.streams_of.items() if each == stream),
            key=lambda id: self.stored[id][0].base,
        )
        ends = [(self.stored[id][0].base, self.stored[id][-1].end) for id in parts]
        if len(parts) < 2 or any(a[1] != b[0] for a, b in zip(ends, ends[1:], strict=False)):
            return None
        new, self._objects = self._objects, self._objects + 1
        self._put(new, encode_composite([(id, self.entries[id]) for id in parts]))
        self.stored[new] = [each for id in parts for each in self.stored[id]]
        size = sum(entry.size for id in parts for entry in self.entries[id])
        self._commit(new, size, kind=1)
        for id in parts:
            self.add(record(506, 0, struct.pack(">qq", stream, id)))
            self.add(record(510, 0, struct.pack(">q", id)))
            del self.streams_of[id]
        self._add_stream_object(stream, new)
        del self.streams_of[new]  # an object can be composed only once
        self._commit_all()
        return new

    def write_metadata(self) -> None:
        """Append the new metadata records to the log as one batch."""
        self.metadata.mkdir(exist_ok=True, parents=True)
        records = [
            Record(offset, 0, None, value)
            for offset, value in enumerate(self._values[self._logged :], self._logged)
        ]
        with (self.metadata / f"{0:020d}.log").open("ab") as file:
            file.write(encode_batch(records) if records else b"")
        self._logged = len(self._values)

    def _commit_all(self) -> None:
        """Write the metadata records of one change, as one batch, if the cluster is running."""
        if self._is_running:
            self.write_metadata()

    def object_path(self, object_id: int) -> Path:
        name = f"{object_id:08x}"[::-1]
        return self.bucket / name / self.namespace / str(object_id)

    def wal_paths(self) -> list[Path]:
        return sorted(self.wal_folder.glob("*-*"), key=lambda path: int(path.name.split("-")[0]))

    def object_paths(self) -> list[Path]:
        """The paths of the data objects in the bucket."""
        return sorted(
            path for path in self.bucket.rglob("*") if path.is_file() and "wal" not in path.parts
        )

    @property
    def wal_folder(self) -> Path:
        spread = hashlib.md5(str(NODE).encode()).hexdigest().upper()
        return self.bucket / spread / self.namespace / str(NODE) / str(NODE_EPOCH) / "wal"

    def _roll(self, part: Part) -> None:
        end = self.ends[part.streams["log"]]
        if part.segments:
            before: dict[str, int] = part.segments[-1]["ls"]  # type: ignore[assignment]
            before["e"] = end
        part.segments.append(
            {"bo": part.end, "s": "", "ls": {"s": end, "e": -1}, "txs": {"s": -1, "e": -1}}
        )

    def _write(self, stream: int, count: int, payload: bytes) -> None:
        self.pending.append(StreamRecord(stream, self.ends[stream], count, payload))
        self.ends[stream] += count

    def _stream(self) -> int:
        stream, self._streams = self._streams, self._streams + 1
        self.ends[stream] = self.starts[stream] = 0
        self.add(self._stream_record(stream))
        self.add(record(503, 0, struct.pack(">qqiqqi", stream, 1, 0, 0, 0, NODE)))
        return stream

    def _stream_record(self, stream: int) -> bytes:
        return record(501, 0, struct.pack(">qqiqb", stream, 1, 0, self.starts[stream], 1))

    def _key_value(self, key: str, value: bytes) -> bytes:
        pair = uvarint(len(key) + 1) + key.encode() + blob(value) + b"\0"
        return record(516, 0, b"\2" + pair)

    def _new_object(self, records: Sequence[StreamRecord]) -> int:
        object_id, self._objects = self._objects, self._objects + 1
        sizes = self.records_per_block, self.blocks_per_run
        data, self.entries[object_id] = encode_object(records, *sizes)
        self.stored[object_id] = sorted(records)
        self._put(object_id, data)
        return object_id

    def _add_stream_object(self, stream: int, object_id: int) -> None:
        records = self.stored[object_id]
        self.streams_of[object_id] = stream
        range_ = struct.pack(">qqqq", stream, records[0].base, records[-1].end, object_id)
        self.add(record(505, 1, range_))

    def _commit(self, object_id: int, size: int, kind: int = 0, state: int = COMMITTED) -> None:
        self.add(record(509, 1, struct.pack(">qqbiq", object_id, size, state, kind, 0)))

    def _destroy(self, object_id: int) -> None:
        self._commit(object_id, len(self._read(object_id)), state=DESTROYED)
        del self.stored[object_id]

    def put_object(self, object_id: int, records: Sequence[StreamRecord]) -> bytes:
        """Write an object that the metadata log does not list. Returns its bytes."""
        data, _ = encode_object(records)
        self._put(object_id, data)
        return data

    def _put(self, object_id: int, data: bytes) -> None:
        path = self.object_path(object_id)
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(data)

    def _read(self, object_id: int) -> bytes:
        return self.object_path(object_id).read_bytes()

    def _put_wal(self, bodies: Sequence[bytes], trim: int) -> None:
        start = self.wal_end
        data = encode_wal(start, trim, bodies)
        self.wal_offset = start + len(data) - 48 - 1  # the offset of a byte in the last record
        self.wal_end = -(-(start + len(data)) // WAL_STEP) * WAL_STEP
        self._trim = trim
        self.wal_folder.mkdir(exist_ok=True, parents=True)
        path = self.wal_folder / f"{start}-{self.wal_end}"
        path.with_name("new").write_bytes(data)
        path.with_name("new").rename(path)  # an object appears at once

    _trim = -1

    def add(self, value: bytes) -> None:
        """Add a record to the metadata log."""
        self._values.append(value)
