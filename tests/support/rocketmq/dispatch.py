"""A plain model of a broker's commit log and reput thread: the files of a store after dispatch.

It handles one message after the other, without the code under test. Source:
docs/formats/rocketmq.md and docs/formats/rocketmq-compaction.md.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from lastwrite.rocketmq.format.record import (
    MAGIC_V1,
    MAGIC_V2,
    RocketmqMessage,
    encode_message,
    make_message,
)

START = 1_700_000_000_000
DELAYS_MS = {1: 1_000, 2: 5_000, 3: 10_000, 18: 7_200_000}
TRANSACTION, COMMIT = 0xC, 0x8
COMPACTED, BATCHED, DELAYED = "compacted", "batched", "SCHEDULE_TOPIC_XXXX"

Files = dict[str, bytes]  # content by path below the store


@dataclass(frozen=True)
class Sizes:
    """File sizes small enough for a few messages to fill files."""

    commit_log: int = 4096
    queue: int = 20 * 7
    batch: int = 46 * 3
    slots: int = 5
    entries: int = 9
    log: int = 5 * 46 * 8
    log_index: int = 46 * 8

    def config(self) -> dict[str, object]:
        return {
            "mappedFileSizeConsumeQueue": self.queue,
            "mapperFileSizeBatchConsumeQueue": self.batch,
            "maxHashSlotNum": self.slots,
            "maxIndexNum": self.entries,
            # The broker makes a log file at least as large as five index files.
            "compactionMappedFileSize": 1000,
            "compactionCqMappedFileSize": self.log_index,
        }


def java_hash(text: str) -> int:
    value = 0
    raw = text.encode("utf-16-be")
    for i in range(0, len(raw), 2):
        value = (31 * value + raw[i] * 256 + raw[i + 1]) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@dataclass(repr=False)
class Pair:
    name: int
    log: bytearray
    index: bytearray
    log_wrote: int = 0
    index_wrote: int = 0


@dataclass(repr=False)
class Broker:
    """A broker's store in memory.

    ``log`` is the commit log, all other fields are dispatched from it.
    """

    sizes: Sizes = field(default_factory=Sizes)
    first_address: int = 0
    log: list[bytearray] = field(default_factory=list)
    wrote: int = 0
    queues: dict[tuple[str, int], tuple[int, bytearray]] = field(
        default_factory=dict
    )  # first byte of the first file, units
    batches: dict[tuple[str, int], bytearray] = field(default_factory=dict)
    index: list[bytearray] = field(default_factory=list)
    pairs: dict[tuple[str, int], list[Pair]] = field(default_factory=dict)
    highest: dict[tuple[str, int], int] = field(default_factory=dict)
    addresses: list[int] = field(default_factory=list)
    told: list[str] = field(default_factory=list)  # descriptions of the messages, for failures

    def __repr__(self) -> str:
        return f"Broker({self.sizes}, {self.first_address}, {self.told})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def put(self, message: RocketmqMessage) -> int:
        """Append a message to the commit log and dispatch it. Returns its address."""
        size = message.size
        if not self.log or size + 8 > self.sizes.commit_log - self.wrote:
            if self.log:
                room = self.sizes.commit_log - self.wrote
                self.log[-1][self.wrote : self.wrote + 8] = struct.pack(">iI", room, 0xCBD43194)
            self.log.append(bytearray(self.sizes.commit_log))
            self.wrote = 0
        address = self.first_address + (len(self.log) - 1) * self.sizes.commit_log + self.wrote
        raw = encode_message(replace(message, physical_offset=address))
        assert len(raw) == size
        self.log[-1][self.wrote : self.wrote + size] = raw
        self.wrote += size
        self.addresses.append(address)
        self.told.append(
            f"{address}: {message.topic}-{message.queue_id} {message.queue_offset} {message.sys_flag:#x} "
            f"{message.properties} {message.size} B"
        )
        self.dispatch(message, address, raw)
        return address

    def dispatch(self, message: RocketmqMessage, address: int, raw: bytes) -> None:
        name = (message.topic, message.queue_id)
        tags = java_hash(message.tags) if message.tags else 0
        if message.topic == DELAYED and "DELAY" in message.properties:
            tags = message.store_time_ms + DELAYS_MS[int(message.properties["DELAY"])]
        stage = message.sys_flag & TRANSACTION
        if stage in (0, COMMIT):
            if message.topic == BATCHED:
                self.put_batch(name, message, address, tags)
            else:
                self.put_unit(name, message, address, tags)
                self.put_light_units(message, address, tags)
        self.open_index()
        if stage != TRANSACTION:
            self.put_keys(message, address)
        if message.topic == COMPACTED:
            self.put_record(name, message, raw, tags)

    def put_unit(
        self, name: tuple[str, int], message: RocketmqMessage, address: int, tags: int
    ) -> None:
        place = message.queue_offset * 20
        if message.queue_offset == 0 and name in self.queues:
            del self.queues[name]  # the topic was deleted and created again
        if name not in self.queues:
            start = place - place % self.sizes.queue
            self.queues[name] = (
                start,
                bytearray(struct.pack(">qiq", 0, 2**31 - 1, 0) * ((place - start) // 20)),
            )
        start, units = self.queues[name]
        if start + len(units) == place:
            units += struct.pack(">qiq", address, message.size, tags)

    def put_light_units(self, message: RocketmqMessage, address: int, tags: int) -> None:
        named = message.properties.get("INNER_MULTI_DISPATCH", "").rstrip(",").split(",")
        offsets = message.properties.get("INNER_MULTI_QUEUE_OFFSET", "").rstrip(",").split(",")
        if message.topic == DELAYED or len(named) != len(offsets) or offsets == [""]:
            return
        for topic, offset in zip(named, offsets, strict=True):
            if "/" in topic:
                continue
            if not offset.isdigit():
                return  # a broker's dispatch stops here for good
            name = (topic, 0 if topic.startswith("%LMQ%") else message.queue_id)
            start, units = self.queues.get(name, (0, bytearray()))
            if len(units) >= 20 and struct.unpack_from(">q", units, len(units) - 20)[0] == address:
                continue  # the message names the queue twice
            number = int(offset)
            if number and name in self.queues:
                number = min(number, (start + len(units)) // 20)
            self.put_unit(name, replace(message, queue_offset=number), address, tags)

    def put_batch(
        self, name: tuple[str, int], message: RocketmqMessage, address: int, tags: int
    ) -> None:
        number, base = 1, message.queue_offset
        if "INNER_NUM" in message.properties and "INNER_BASE" in message.properties:
            number, base = (
                int(message.properties["INNER_NUM"]),
                int(message.properties["INNER_BASE"]),
            )
        if number >= 0 and base >= 0:
            units = self.batches.setdefault(name, bytearray())
            units += struct.pack(
                ">qiqqqhii", address, message.size, tags, message.store_time_ms, base, number, -1, 0
            )

    def new_index(self, address: int, stored: int) -> bytearray:
        file = bytearray(40 + 4 * self.sizes.slots + 20 * self.sizes.entries)
        struct.pack_into(">qqqqii", file, 0, stored, stored, address, address, 0, 1)
        return file

    def put_keys(self, message: RocketmqMessage, address: int) -> None:
        keys = [message.properties["UNIQ_KEY"]] if "UNIQ_KEY" in message.properties else []
        keys += [key for key in message.properties.get("KEYS", "").split(" ") if key]
        keys += [f"T#{message.tags}"] if message.tags else []
        for key in keys:
            self.put_key(
                self.open_index(), f"{message.topic}#{key}", address, message.store_time_ms
            )

    def open_index(self) -> bytearray:
        if not self.index:
            self.index.append(self.new_index(0, 0))
        last = self.index[-1]
        _, stored, _, address, _, count = struct.unpack_from(">qqqqii", last)
        if count >= self.sizes.entries:
            self.index.append(self.new_index(address, stored))
        return self.index[-1]

    def put_key(self, file: bytearray, key: str, address: int, stored: int) -> None:
        first, _, first_address, _, used, count = struct.unpack_from(">qqqqii", file)
        value = abs(java_hash(key))
        value = value if value < 1 << 31 else 0
        slot = 40 + 4 * (value % self.sizes.slots)
        (before,) = struct.unpack_from(">i", file, slot)
        seconds = max(0, (stored - first) // 1000) if first > 0 else 0
        place = 40 + 4 * self.sizes.slots + 20 * count
        struct.pack_into(">iqii", file, place, value, address, seconds, before)
        struct.pack_into(">i", file, slot, count)
        if count == 1:
            first, first_address = stored, address
        struct.pack_into(
            ">qqqqii",
            file,
            0,
            first,
            stored,
            first_address,
            address,
            used + (before == 0),
            count + 1,
        )

    def put_record(
        self, name: tuple[str, int], message: RocketmqMessage, raw: bytes, tags: int
    ) -> None:
        sizes = self.sizes
        keys = message.properties.get("KEYS", "")
        if message.queue_offset <= self.highest.get(name, -1) or not keys.strip():
            return
        if len(raw) + 8 > sizes.log:
            # A broker loses this message and makes a pair that hides the queue. Lastwrite skips the
            # message.
            return
        pairs = self.pairs.setdefault(name, [])
        if pairs:
            last = pairs[-1]
            if (
                len(raw) + 8 > sizes.log - last.log_wrote
                or last.index_wrote + 46 >= sizes.log_index
            ):
                end = struct.pack(">qiqqqhii", -1, 0, 0, 0, 0, 0, -1, 0)
                last.index[last.index_wrote : last.index_wrote + 46] = end
                blank = struct.pack(">iI", sizes.log - last.log_wrote, 0xCBD43194)
                last.log[last.log_wrote : last.log_wrote + 8] = blank
                pairs.append(
                    Pair(last.name + sizes.log, bytearray(sizes.log), bytearray(sizes.log_index))
                )
        else:
            pairs.append(Pair(0, bytearray(sizes.log), bytearray(sizes.log_index)))
        last = pairs[-1]
        address = last.name + last.log_wrote
        last.log[last.log_wrote : last.log_wrote + len(raw)] = (
            raw[:28] + struct.pack(">q", address) + raw[36:]
        )
        last.log_wrote += len(raw)
        last.index[last.index_wrote : last.index_wrote + 46] = struct.pack(
            ">qiqqqhii",
            address,
            len(raw),
            tags,
            message.store_time_ms,
            message.queue_offset,
            1,
            -1,
            0,
        )
        last.index_wrote += 46
        self.highest[name] = message.queue_offset

    # ------------------------------------------------------------------ files

    def log_bytes(self, number: int) -> bytes:
        """A message's record in the commit log."""
        file, at = divmod(self.addresses[number] - self.first_address, self.sizes.commit_log)
        size = int.from_bytes(self.log[file][at : at + 4], "big")
        return bytes(self.log[file][at : at + size])

    def commit_log(self) -> Files:
        size = self.sizes.commit_log
        return {
            f"commitlog/{self.first_address + n * size:020d}": bytes(file)
            for n, file in enumerate(self.log)
        }

    def dispatched(self) -> Files:
        """All dispatched files by path.

        Index files have their ordinal as name, because theirs is a time.
        """
        found: Files = {}
        for (topic, queue), (start, units) in self.queues.items():
            found |= _cut(f"consumequeue/{topic}/{queue}", start, units, self.sizes.queue)
        for (topic, queue), units in self.batches.items():
            found |= _cut(f"batchconsumequeue/{topic}/{queue}", 0, units, self.sizes.batch)
        for (topic, queue), pairs in self.pairs.items():
            for pair in pairs:
                found[f"compaction/compactionLog/{topic}/{queue}/{pair.name:020d}"] = bytes(
                    pair.log
                )
                found[f"compaction/compactionCq/{topic}/{queue}/{pair.name:020d}"] = bytes(
                    pair.index
                )
        return found | {f"index/{n}": bytes(file) for n, file in enumerate(self.index)}


def _cut(folder: str, start: int, units: bytearray, size: int) -> Files:
    found = {}
    for at in range(0, len(units), size):
        found[f"{folder}/{start + at:020d}"] = bytes(units[at : at + size]).ljust(size, b"\0")
    return found


TOPICS = {
    "dataVersion": {},
    "topicConfigTable": {
        "plain": {"topicName": "plain"},
        COMPACTED: {"topicName": COMPACTED, "attributes": {"cleanup.policy": "COMPACTION"}},
        BATCHED: {"topicName": BATCHED, "attributes": {"queue.type": "BatchCQ"}},
    },
}


def write_store(root: Path, broker: Broker) -> Path:
    """Write the store with its commit log and topics, but without dispatched files."""
    write_files(root, broker.commit_log())
    write_files(root, {"config/topics.json": json.dumps(TOPICS).encode()})
    return root


def write_files(root: Path, files: Files) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def read_dispatched(root: Path) -> Files:
    """The dispatched files in a store, in the form of ``Broker.dispatched``."""
    found = {}
    for tree in ("consumequeue", "batchconsumequeue", "compaction"):
        for path in sorted((root / tree).rglob("*")):
            if path.is_file():
                found[str(path.relative_to(root))] = path.read_bytes()
    files = sorted((root / "index").iterdir()) if (root / "index").is_dir() else []
    return found | {f"index/{n}": path.read_bytes() for n, path in enumerate(files)}


def send(
    broker: Broker,
    topic: str,
    queue: int,
    offset: int,
    *,
    keys: str | None = "k",
    body: bytes = b"v",
    sys_flag: int = 0,
    stored: int = START,
    **properties: str,
) -> int:
    """Put a message. Returns its address."""
    found = {"KEYS": keys, **properties}
    magic = MAGIC_V2 if len(topic.encode()) > 127 else MAGIC_V1
    return broker.put(
        make_message(
            topic,
            body,
            {name: text for name, text in found.items() if text},
            magic=magic,
            queue_id=queue,
            queue_offset=offset,
            sys_flag=sys_flag,
            store_time_ms=stored,
        )
    )


_LIGHT = ["%LMQ%a", "%LMQ%b", "%LMQ%größe", "other", "a/b"]


@st.composite
def light_queues(draw: st.DrawFn, offsets: dict[tuple[str, int], int]) -> dict[str, str]:
    """Properties that name light queues, with each queue's next offset. Some are malformed."""
    named = draw(st.lists(st.sampled_from(_LIGHT), min_size=1, max_size=3))
    places = [str(offsets.get((name, -1), 0)) for name in named]
    for name in named:
        offsets[name, -1] = offsets.get((name, -1), 0) + 1
    if draw(st.integers(0, 9)) == 0:
        places = draw(st.sampled_from([places[1:], [*places, "7"], ["", *places[1:]], []]))
    pairs = {
        "INNER_MULTI_DISPATCH": ",".join(named),
        "INNER_MULTI_QUEUE_OFFSET": ",".join(places) + draw(st.sampled_from(["", "", ",", ",,"])),
    }
    return {name: text for name, text in pairs.items() if text}


@st.composite
def brokers(draw: st.DrawFn, most: int = 60) -> Broker:
    """A broker with messages of every kind. The oldest commit log files may be deleted."""
    broker = Broker(
        Sizes(commit_log=draw(st.sampled_from([900, 2048, 8192]))),
        draw(st.sampled_from([0, 900 * 2048 * 8192])),
    )
    offsets: dict[tuple[str, int], int] = {}
    clock = START
    first = draw(st.sampled_from([0, 0, 3, 25]))
    for _ in range(draw(st.integers(1, most))):
        clock += draw(st.sampled_from([0, 1, 700, 5000]))
        topic = draw(
            st.sampled_from(["plain", "ünïcode\U0001f600", COMPACTED, COMPACTED, BATCHED, DELAYED])
        )
        queue = draw(st.integers(0, 2))
        name = topic, queue
        offset = offsets.setdefault(name, first)
        keys = draw(st.sampled_from([None, " ", "a", "a b", "  x  yé ", "k1", "k2", "\U0001f600"]))
        body = draw(st.binary(max_size=120))
        tag = draw(st.sampled_from([{}, {"TAGS": "t"}, {"TAGS": "größe"}]))
        unique = draw(st.sampled_from([{}, {"UNIQ_KEY": f"ID{offset}"}]))
        stage = draw(st.sampled_from([0, 0, 0, 0, 0x4, 0x8, 0xC])) if topic != BATCHED else 0
        more: dict[str, str] = {}
        taken = 1
        if topic == BATCHED and draw(st.booleans()):
            taken = draw(st.integers(1, 4))
            more = {"INNER_NUM": str(taken), "INNER_BASE": str(offset)}
        if topic == DELAYED:
            more = {"DELAY": str(queue + 1)}
        more |= draw(light_queues(offsets)) if draw(st.booleans()) else {}
        is_queued = stage in (0, COMMIT)
        if is_queued and topic == "plain" and offset and draw(st.integers(0, 15)) == 0:
            offset = offsets[name] = 0  # the topic is deleted and created again
        send(
            broker,
            topic,
            queue,
            offset if is_queued else 0,
            keys=keys,
            body=body,
            sys_flag=stage,
            stored=clock,
            **tag,
            **unique,
            **more,
        )
        if is_queued:
            offsets[name] = offset + taken
    return broker
