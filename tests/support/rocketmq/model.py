"""A plain model of a queue's compaction log: appends, the broker's compaction, and Lastwrite's.

It is slow and shares no code with the engine: a queue is a list of file pairs, a pair a list of
records, and the key map a dict. Source: docs/formats/rocketmq-compaction.md.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import lz4.frame
import zstandard

from lastwrite.rocketmq.format.java_hash import tags_code
from lastwrite.rocketmq.format.names import file_name
from lastwrite.rocketmq.format.record import (
    COMPRESSED,
    Host,
    encode_blank,
    encode_message,
    make_message,
)
from lastwrite.rocketmq.format.sides import encode_positions
from lastwrite.rocketmq.format.units import BATCH_UNIT, END_UNIT

START_MS = 1_700_000_000_000
TOPIC = "ctopic"
V6 = Host(bytes.fromhex("20010db8000000000000000000000007"), 10911)

# The compression types of clients, and their flag bits.
COMPRESSIONS = {
    "none": (0, lambda body: body),
    "zlib": (COMPRESSED, lambda body: zlib.compress(body, 5)),
    "zlib, told": (COMPRESSED | 0x300, lambda body: zlib.compress(body, 5)),
    "lz4": (COMPRESSED | 0x100, lambda body: lz4.frame.compress(body)),
    "zstd": (COMPRESSED | 0x200, lambda body: zstandard.ZstdCompressor().compress(body)),
}


@dataclass(frozen=True, slots=True)
class ModelMessage:
    """A record of a compaction log. ``content`` has its bytes, with address 0."""

    offset: int
    key: str | None
    body: bytes  # the decompressed body
    store_ms: int
    tags_code: int
    content: bytes = field(repr=False)

    @property
    def is_delete(self) -> bool:
        return not self.body

    @property
    def size(self) -> int:
        return len(self.content)

    def at(self, address: int) -> bytes:
        return self.content[:28] + struct.pack(">q", address) + self.content[36:]


def message(
    offset: int,
    key: str | None,
    body: bytes,
    store_ms: int,
    *,
    queue: int = 0,
    tag: str | None = None,
    compression: str = "none",
    v6: bool = False,
    closed: bool = True,
    topic: str = TOPIC,
) -> ModelMessage:
    """A message as a broker writes it to its commit log.

    An empty stored body is never compressed.
    """
    sys_flag, compress = COMPRESSIONS[compression]
    properties = {} if key is None else {"KEYS": key}
    properties["UNIQ_KEY"] = f"{offset:032X}"
    if tag is not None:
        properties["TAGS"] = tag
    made = make_message(
        topic,
        compress(body),
        properties,
        queue_id=queue,
        queue_offset=offset,
        sys_flag=sys_flag,
        born_time_ms=store_ms - 1,
        store_time_ms=store_ms,
        born_host=V6 if v6 else Host(b"\x7f\0\0\1", 54321),
        closed=closed,
    )
    return ModelMessage(
        offset, key, body, store_ms, 0 if tag is None else tags_code(tag), encode_message(made)
    )


@dataclass(frozen=True, slots=True)
class ModelPair:
    """A log file and its index. If ``is_closed``, both end with an end mark."""

    start: int
    messages: tuple[ModelMessage, ...] = ()
    is_closed: bool = False

    @property
    def size(self) -> int:
        return sum(each.size for each in self.messages)


@dataclass(slots=True)
class ModelQueue:
    """One queue. The last pair is the active one."""

    log_bytes: int
    index_bytes: int
    number: int = 0
    topic: str = TOPIC
    position: int = -1
    pairs: list[ModelPair] = field(default_factory=list)

    @property
    def messages(self) -> list[ModelMessage]:
        return [each for pair in self.pairs for each in pair.messages]

    @property
    def end_offset(self) -> int:
        return max((each.offset for each in self.messages), default=-1) + 1

    def append(self, new: ModelMessage) -> None:
        """Append as a broker does: a message below the end offset or without a key is skipped."""
        if new.offset < self.end_offset or new.key is None or not new.key.strip():
            return
        self.pairs = appended(self.pairs, new, self.log_bytes, self.index_bytes)


def appended(
    pairs: Sequence[ModelPair], new: ModelMessage, log_bytes: int, index_bytes: int, first: int = 0
) -> list[ModelPair]:
    """The pairs with one more record, in a new pair if the last one is full."""
    pairs = list(pairs) or [ModelPair(first)]
    last = pairs[-1]
    no_room = new.size + 8 > log_bytes - last.size
    if no_room or (len(last.messages) + 1) * BATCH_UNIT.size >= index_bytes:
        pairs[-1] = replace(last, is_closed=True)
        last = ModelPair(last.start + log_bytes)
        pairs.append(last)
    pairs[-1] = replace(last, messages=(*last.messages, new))
    return pairs


def latest_in(pairs: Sequence[ModelPair], position: int) -> dict[str, int]:
    """The last offset above ``position`` of each key."""
    found = {}
    for each in (each for pair in pairs for each in pair.messages):
        if each.offset > position and each.key is not None:
            found[each.key] = each.offset
    return found


def is_dirty(pairs: Sequence[ModelPair], position: int) -> bool:
    return any(each.offset > position for pair in pairs for each in pair.messages)


def highest(pairs: Sequence[ModelPair]) -> int:
    return max(each.offset for pair in pairs for each in pair.messages)


def compact_like_broker(queue: ModelQueue) -> bool:
    """Run the broker's compaction. False if it does nothing, or fails and changes nothing."""
    closed, active = queue.pairs[:-1], queue.pairs[-1:]
    if not is_dirty(closed, queue.position):
        return False
    latest = latest_in(closed, queue.position)
    packed: list[ModelPair] = []
    for each in (each for pair in closed for each in pair.messages):
        if each.key is not None and each.offset >= latest.get(each.key, -1) and not each.is_delete:
            packed = appended(packed, each, queue.log_bytes, queue.index_bytes)
    if not packed:
        return False
    queue.pairs = [*packed, *active]
    queue.position = highest(closed)
    return True


def compact(
    queue: ModelQueue,
    now_ms: int,
    retention_ms: int,
    *,
    keeps_keyless: bool = False,
    include_active: bool = False,
) -> bool:
    """Run Lastwrite's round: each file keeps its name and its remaining records.

    False if nothing is dirty.
    """
    closed = queue.pairs if include_active else queue.pairs[:-1]
    if not is_dirty(closed, queue.position):
        return False
    latest, last = latest_in(closed, queue.position), queue.end_offset - 1

    def stays(each: ModelMessage) -> bool:
        if each.offset == last:
            return True
        if each.key is None or not each.key.strip():
            return keeps_keyless
        if each.offset < latest.get(each.key, -1):
            return False
        return not each.is_delete or now_ms - retention_ms < each.store_ms

    made = [replace(pair, messages=tuple(filter(stays, pair.messages))) for pair in closed]
    queue.position = highest(closed)
    queue.pairs = [*(pair for pair in made if pair.messages), *queue.pairs[len(closed) :]]
    return True


# ---------------------------------------------------------------------- files


def encode_pair(pair: ModelPair, log_bytes: int, index_bytes: int) -> tuple[bytes, bytes]:
    """The bytes of the log file and of its index, padded to the full sizes."""
    log, index = bytearray(), bytearray()
    for each in pair.messages:
        address = pair.start + len(log)
        index += BATCH_UNIT.pack(
            address, each.size, each.tags_code, each.store_ms, each.offset, 1, -1, 0
        )
        log += each.at(address)
    if pair.is_closed:
        room = log_bytes - len(log)
        log += encode_blank(room) if room >= 8 else b""
        index += END_UNIT if len(index) < index_bytes else b""
    return bytes(log).ljust(log_bytes, b"\0"), bytes(index).ljust(index_bytes, b"\0")


def files_of(queue: ModelQueue) -> dict[str, bytes]:
    """All files of the queue by path below ``compaction``."""
    found = {}
    for pair in queue.pairs:
        for kind, content in zip(
            ("compactionLog", "compactionCq"),
            encode_pair(pair, queue.log_bytes, queue.index_bytes),
            strict=True,
        ):
            found[f"{kind}/{queue.topic}/{queue.number}/{file_name(pair.start)}"] = content
    return found


def write_store(root: Path, queues: Sequence[ModelQueue]) -> None:
    """Write a store with exactly these queues and their positions, in place of what is there."""
    tree = root / "compaction"
    for queue in queues:
        wanted = files_of(queue)
        for kind in ("compactionLog", "compactionCq"):
            folder = tree / kind / queue.topic / str(queue.number)
            folder.mkdir(parents=True, exist_ok=True)
            for path in folder.iterdir():
                if str(path.relative_to(tree)) not in wanted:
                    path.unlink()
        for place, content in wanted.items():
            if not (tree / place).exists() or (tree / place).read_bytes() != content:
                (tree / place).write_bytes(content)
    known = {
        f"{queue.topic}_{queue.number}": queue.position for queue in queues if queue.position >= 0
    }
    if known:
        (tree / "position-checkpoint").write_bytes(encode_positions(known))


def read_files(root: Path) -> dict[str, bytes]:
    """All files of all queues, by path below ``compaction``."""
    tree = root / "compaction"
    return {
        str(path.relative_to(tree)): path.read_bytes()
        for kind in ("compactionLog", "compactionCq")
        for path in sorted((tree / kind).rglob("*"))
        if path.is_file()
    }


# ---------------------------------------------------------------------- random messages


def random_message(
    rng: random.Random, offset: int, keys: int, store_ms: int, queue: int = 0
) -> ModelMessage:
    """A message with one of a few keys. One in eight is a delete.

    Bodies may be compressed, hosts may be IPv6, and the properties end in one of two ways.
    """
    body = b"" if rng.random() < 0.12 else rng.randbytes(rng.randrange(1, 160))
    compression = rng.choice(("none", "none", *COMPRESSIONS))
    key = rng.choice(("k", "schlüssel ", "two keys ")) + str(rng.randrange(keys))
    return message(
        offset,
        key,
        body,
        store_ms,
        queue=queue,
        tag=rng.choice((None, "TagA", f"tag{offset % 3}")),
        compression=compression,
        v6=rng.random() < 0.2,
        closed=rng.random() < 0.7,
    )
