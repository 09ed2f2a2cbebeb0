"""Queues of a RocketMQ compaction topic, written file by file, with the package's record encoder.

    write_queue(store, "prices", 0, [[Sent(3, "a", b"1"), Sent(7, "b", b"")], [Sent(8, "a", b"2")]])

Source: docs/formats/rocketmq-compaction.md, "Into the compaction log".
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lastwrite.rocketmq.format.names import file_name
from lastwrite.rocketmq.format.record import COMPRESSED, encode_blank, encode_message, make_message
from lastwrite.rocketmq.format.units import BATCH_UNIT, END_UNIT

LOG_BYTES, INDEX_BYTES = 6_072, 1_012
TIME_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Sent:
    """A message. An empty body deletes its key."""

    offset: int
    key: str | None
    body: bytes
    is_compressed: bool = False
    time_ms: int | None = None  # store time; None means a time that follows from the offset
    tag: str | None = None

    @property
    def store_time_ms(self) -> int:
        return TIME_MS + self.offset if self.time_ms is None else self.time_ms


def record(topic: str, queue: int, sent: Sent, address: int) -> bytes:
    properties = {} if sent.key is None else {"KEYS": sent.key}
    if sent.tag is not None:
        properties["TAGS"] = sent.tag
    return encode_message(
        make_message(
            topic,
            zlib.compress(sent.body) if sent.is_compressed else sent.body,
            properties,
            queue_id=queue,
            queue_offset=sent.offset,
            physical_offset=address,
            sys_flag=COMPRESSED if sent.is_compressed else 0,
            born_time_ms=sent.store_time_ms - 7,
            store_time_ms=sent.store_time_ms,
        )
    )


def paths_of(store: Path, topic: str, queue: int, number: int) -> tuple[Path, Path]:
    """The log file and the index of the queue's file ``number``."""
    name = file_name(number * LOG_BYTES)
    folders = [
        store / "compaction" / part / topic / str(queue)
        for part in ("compactionLog", "compactionCq")
    ]
    return folders[0] / name, folders[1] / name


def write_queue(
    store: Path,
    topic: str,
    queue: int,
    files: Sequence[Sequence[Sent]],
    is_closed: bool = True,
    junk: bytes = b"",
) -> None:
    """Write a pair of files for each of ``files``.

    If ``is_closed``, all pairs but the last end with a blank record and an end unit. Otherwise,
    they end with zeros. ``junk`` replaces the end of each log file.
    """
    for number, sents in enumerate(files):
        log_path, index_path = paths_of(store, topic, queue, number)
        for path in (log_path, index_path):
            path.parent.mkdir(parents=True, exist_ok=True)
        log, index = bytearray(), bytearray()
        for sent in sents:
            data = record(topic, queue, sent, number * LOG_BYTES + len(log))
            index += BATCH_UNIT.pack(
                number * LOG_BYTES + len(log),
                len(data),
                0,
                sent.store_time_ms,
                sent.offset,
                1,
                -1,
                0,
            )
            log += data
        assert len(log) + 8 <= LOG_BYTES and len(index) + BATCH_UNIT.size <= INDEX_BYTES, (
            "the model's file is too full"
        )
        if junk:
            log += junk[: LOG_BYTES - len(log)]
        elif is_closed and number + 1 < len(files):
            log += encode_blank(LOG_BYTES - len(log))
            index += END_UNIT
        log_path.write_bytes(log.ljust(LOG_BYTES, b"\0"))
        index_path.write_bytes(index.ljust(INDEX_BYTES, b"\0"))


def folded(queues: Sequence[Sequence[Sent]]) -> dict[str, bytes]:
    """The values by key after all queues are read.

    In a queue the later offset of a key wins, and between queues the later time.
    """
    table: dict[str, tuple[int, int, bytes]] = {}
    for number, sents in enumerate(queues):
        own = {sent.key: sent for sent in sents if sent.key is not None}
        for key, sent in own.items():
            entry = (sent.store_time_ms, number, sent.body)
            table[key] = max(table.get(key, entry), entry)
    return {key: body for key, (_, _, body) in table.items() if body}
