"""Whole RocketMQ stores with small files for tests, written as a broker writes them.

Records are made by the package's encoder. Queues and index files are written record by record from
the layouts, without the kernels of dispatch.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lastwrite.rocketmq.format import names, properties, record, sides, units
from lastwrite.rocketmq.format.index_file import INDEX_ENTRY, INDEX_HEADER, index_bytes
from lastwrite.rocketmq.format.java_hash import index_hash, tags_code
from lastwrite.rocketmq.format.record import (
    Host,
    RocketmqMessage,
    encode_blank,
    encode_inner,
    encode_message,
    make_message,
)

BORN = 1_700_000_000_000
CLIENT = Host(b"\x7f\0\0\1", 54321)
BROKER = Host(b"\x7f\0\0\1", 10911)


class StoreWriter:
    """A store that grows in memory message by message. ``write`` writes it to disk.

    ``sent`` has the messages in order. The size arguments are file sizes: of the commit log, a
    consume queue, an index (slots, entries), a compaction log and its index.
    """

    def __init__(
        self,
        root: Path,
        log_bytes: int = 4000,
        queue_bytes: int = 200,
        slots: int = 7,
        entries: int = 40,
        compaction_bytes: int = 5060,
        compaction_index_bytes: int = 1012,
    ) -> None:
        self.root = root
        self.log_bytes, self.queue_bytes = log_bytes, queue_bytes
        self.slots, self.entries = slots, entries
        self.compaction_bytes, self.compaction_index_bytes = (
            compaction_bytes,
            compaction_index_bytes,
        )
        self.log = bytearray()
        self.sent: list[RocketmqMessage] = []
        self.topics: dict[str, dict[str, str]] = {}
        self._next: dict[tuple[str, int], int] = defaultdict(int)

    def send(
        self,
        topic: str,
        body: bytes = b"",
        pairs: dict[str, str] | None = None,
        queue: int = 0,
        **fields: Any,
    ) -> RocketmqMessage:
        """Append one record as a broker does.

        With ``inner``, a list of (flag, body, properties), the record is an inner batch.
        """
        inner = fields.pop("inner", None)
        pairs = dict(pairs or {})
        offset = self._next[topic, queue]
        if inner is not None:
            body = encode_inner(inner)
            pairs |= {properties.INNER_NUM: str(len(inner)), properties.INNER_BASE: str(offset)}
            fields["sys_flag"] = (
                fields.get("sys_flag", 0) | record.INNER_BATCH | record.NEEDS_UNWRAP
            )
        is_dispatched = fields.get("sys_flag", 0) & record.TRANSACTION_MASK not in (
            record.TRANSACTION_PREPARED,
            record.TRANSACTION_ROLLBACK,
        )
        fields.setdefault("born_host", CLIENT)
        fields.setdefault("store_host", BROKER)
        fields.setdefault("born_time_ms", BORN + 10 * len(self.sent))
        fields.setdefault("store_time_ms", BORN + 10 * len(self.sent) + 1)
        message = make_message(
            topic,
            body,
            pairs,
            queue_id=queue,
            queue_offset=offset if is_dispatched else 0,
            **fields,
        )
        room = self.log_bytes - len(self.log) % self.log_bytes
        if message.size + 8 > room:
            self.log += encode_blank(room).ljust(room, b"\0")
        message = replace(message, physical_offset=len(self.log))
        self.log += encode_message(message)
        self.sent.append(message)
        if is_dispatched:
            self._next[topic, queue] += 1 if inner is None else len(inner)
        self.topics.setdefault(topic, {})
        return message

    # ------------------------------------------------------------------ files

    def write(self, first_file: int = 0) -> Path:
        """Write the store without the commit log files before ``first_file``, which expired."""
        self.write_commit_log(first_file)
        self.write_queues()
        self.write_index()
        config = self.root / "config"
        config.mkdir(parents=True, exist_ok=True)
        table = {
            topic: {
                "attributes": attributes,
                "order": True,
                "perm": 6,
                "readQueueNums": 2,
                "writeQueueNums": 2,
                "topicFilterType": "SINGLE_TAG",
                "topicName": topic,
                "topicSysFlag": 0,
            }
            for topic, attributes in self.topics.items()
        }
        (config / "topics.json").write_text(
            json.dumps({"dataVersion": {"counter": 1}, "topicConfigTable": table})
        )
        (config / "consumerOffset.json").write_text('{"offsetTable":{"orders@readers":{0:3,1:5}}}')
        (self.root / "checkpoint").write_bytes(
            sides.encode_checkpoint(sides.Checkpoint(BORN, BORN, BORN, 0, 7, 99))
        )
        (self.root / "lock").write_bytes(b"lock")
        return self.root

    def write_commit_log(
        self, first_file: int = 0, folders: tuple[str, ...] = ("commitlog",)
    ) -> None:
        for n, start in enumerate(range(0, max(len(self.log), 1), self.log_bytes)):
            if n >= first_file:
                self._put(
                    folders[n % len(folders)],
                    start,
                    bytes(self.log[start : start + self.log_bytes]),
                    self.log_bytes,
                )

    def write_queues(self) -> None:
        queues: dict[tuple[str, int], bytearray] = defaultdict(bytearray)
        batches: dict[tuple[str, int], bytearray] = defaultdict(bytearray)
        for message in self.sent:
            if message.sys_flag & record.TRANSACTION_MASK in (
                record.TRANSACTION_PREPARED,
                record.TRANSACTION_ROLLBACK,
            ):
                continue
            code = tags_code(message.tags)
            if message.is_inner_batch:
                batches[message.topic, message.queue_id] += units.BATCH_UNIT.pack(
                    message.physical_offset,
                    message.size,
                    code,
                    message.store_time_ms,
                    message.queue_offset,
                    int(message.properties[properties.INNER_NUM]),
                    -1,
                    0,
                )
            else:
                queues[message.topic, message.queue_id] += units.CONSUME_QUEUE_UNIT.pack(
                    message.physical_offset, message.size, code
                )
        for (topic, queue), data in queues.items():
            self._put_all(f"consumequeue/{topic}/{queue}", bytes(data), self.queue_bytes)
        for (topic, queue), data in batches.items():
            self._put_all(f"batchconsumequeue/{topic}/{queue}", bytes(data), 46 * 4)

    def write_index(self) -> None:
        """Write the index files entry by entry."""
        files: list[bytearray] = []
        count, first = self.entries, (0, 0)
        for message in self.sent:
            if message.sys_flag & record.TRANSACTION_MASK == record.TRANSACTION_ROLLBACK:
                continue
            keys = [
                message.unique_key or "",
                *message.properties.get(properties.KEYS, "").split(" "),
            ]
            for key in filter(None, keys):
                if count >= self.entries:
                    files.append(bytearray(index_bytes(self.slots, self.entries)))
                    count = 1
                    first = (message.store_time_ms, message.physical_offset)
                self._enter(files[-1], count, message, key, first)
                count += 1
        folder = self.root / "index"
        folder.mkdir(parents=True, exist_ok=True)
        for n, data in enumerate(files):
            (folder / f"{20231114221320000 + n:017d}").write_bytes(data)

    def _enter(
        self,
        data: bytearray,
        number: int,
        message: RocketmqMessage,
        key: str,
        first: tuple[int, int],
    ) -> None:
        value = index_hash(message.topic, key)
        slot_at = INDEX_HEADER.size + 4 * (value % self.slots)
        previous = int.from_bytes(data[slot_at : slot_at + 4], "big")
        at = INDEX_HEADER.size + 4 * self.slots + INDEX_ENTRY.size * number
        data[at : at + 20] = INDEX_ENTRY.pack(
            value, message.physical_offset, (message.store_time_ms - first[0]) // 1000, previous
        )
        data[slot_at : slot_at + 4] = number.to_bytes(4, "big")
        used = int.from_bytes(data[32:36], "big") + (previous == 0)
        data[:40] = INDEX_HEADER.pack(
            first[0], message.store_time_ms, first[1], message.physical_offset, used, number + 1
        )

    def write_compaction(self, topic: str, queue: int = 0, position: int | None = None) -> None:
        """Write the queue's compaction log as a broker fills it, before any compaction."""
        self.topics[topic] = {sides.CLEANUP_POLICY: sides.COMPACTION_POLICY}
        log, index = bytearray(), bytearray()
        start = 0
        for message in self.sent:
            is_back = message.sys_flag & record.TRANSACTION_MASK == record.TRANSACTION_ROLLBACK
            if (
                is_back
                or (message.topic, message.queue_id) != (topic, queue)
                or message.keys is None
            ):
                continue
            room = self.compaction_bytes - len(log)
            if message.size + 8 > room or len(index) + 46 >= self.compaction_index_bytes:
                self._put_pair(
                    topic, queue, start, log + encode_blank(room), index + units.END_UNIT
                )
                start, log, index = start + self.compaction_bytes, bytearray(), bytearray()
            address = start + len(log)
            log += encode_message(replace(message, physical_offset=address))
            index += units.BATCH_UNIT.pack(
                address,
                message.size,
                tags_code(message.tags),
                message.store_time_ms,
                message.queue_offset,
                1,
                -1,
                0,
            )
        self._put_pair(topic, queue, start, log, index)
        if position is not None:
            path = self.root / "compaction" / "position-checkpoint"
            path.write_bytes(sides.encode_positions({sides.position_name(topic, queue): position}))

    def _put_pair(
        self, topic: str, queue: int, start: int, log: bytearray, index: bytearray
    ) -> None:
        self._put(
            f"compaction/compactionLog/{topic}/{queue}", start, bytes(log), self.compaction_bytes
        )
        self._put(
            f"compaction/compactionCq/{topic}/{queue}",
            start,
            bytes(index),
            self.compaction_index_bytes,
        )

    def _put_all(self, folder: str, data: bytes, size: int) -> None:
        for start in range(0, len(data), size):
            self._put(folder, start, data[start : start + size], size)

    def _put(self, folder: str, start: int, data: bytes, size: int) -> None:
        path = self.root / folder / names.file_name(start)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.ljust(size, b"\0"))


def shop(root: Path, count: int = 120, **sizes: int) -> StoreWriter:
    """A store with the topics orders and invoices, two queues each.

    It has repeated keys, deletes, compressed bodies, tags, delays, IPv6 hosts and transactions that
    were rolled back.
    """
    writer = StoreWriter(root, **sizes)
    rng = np.random.default_rng(7)
    for n in range(count):
        topic = "orders" if n % 3 else "invoices"
        pairs = {
            "KEYS": f"key-{n % 11}" + (" extra" if n % 7 == 3 else ""),
            "UNIQ_KEY": f"{n:032X}",
        }
        if n % 5 == 1:
            pairs["TAGS"] = f"tag{n % 2}"
        if n % 13 == 5:
            pairs["DELAY"] = "3"
        body = b"" if n % 17 == 4 else f"value {n} ".encode() * int(rng.integers(1, 12))
        fields: dict[str, Any] = {}
        if n % 10 == 6:
            body, fields["sys_flag"] = compressed(n)
        if n % 19 == 8:
            fields["born_host"] = Host(bytes(15) + b"\1", 54321)
        if n % 23 == 9:
            fields["sys_flag"] = record.TRANSACTION_ROLLBACK
        writer.send(topic, body, pairs, queue=n % 2, **fields)
    return writer


# 64 times "a", compressed by RocketMQ's own classes. Other libraries may compress it differently.
_COMPRESSED = (
    (record.COMPRESSED | record.COMPRESSION_ZLIB, "785e4b4ca40c0000148d1841"),
    (
        record.COMPRESSED | record.COMPRESSION_LZ4,
        "04224d186070730b0000001f6101002750616161616100000000",
    ),
    (record.COMPRESSED | record.COMPRESSION_ZSTD, "28b52ffd00584400001061610100930016010000"),
)


def compressed(number: int) -> tuple[bytes, int]:
    """A body compressed in one of three ways, and its flag bits."""
    sys_flag, digits = _COMPRESSED[number % 3]
    return bytes.fromhex(digits), sys_flag
