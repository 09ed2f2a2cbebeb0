"""Converts records, index entries and small files of a RocketMQ store to rows for ``dump``.

Field names are never changed. Numbers are as stored, times are in milliseconds, bytes are base64.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator

from lastwrite.errors import CorruptLog, LogError
from lastwrite.model.log import TopicPartition
from lastwrite.reports.table import BODY_LIMIT_BYTES, Row
from lastwrite.rocketmq.format import names, record, sides, timer, units
from lastwrite.rocketmq.format import properties as properties_
from lastwrite.rocketmq.format.index_file import IndexFile
from lastwrite.rocketmq.format.record import RocketmqMessage
from lastwrite.rocketmq.store.place import StorePlace
from lastwrite.rocketmq.store.reading import MappedFile, RocketmqFileKind, map_file
from lastwrite.storage.reading import read_small

_ENTRIES_AT_ONCE = 1 << 14

TRANSACTIONS = {
    record.TRANSACTION_PREPARED: "prepared",
    record.TRANSACTION_COMMIT: "commit",
    record.TRANSACTION_ROLLBACK: "rollback",
}


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def message_rows(
    message: RocketmqMessage,
    file: str,
    position: int,
    found_by: str,
    is_commit_log: bool = True,
    whole_batches: bool = False,
) -> Iterator[Row]:
    """A row for each message of a record. Only an inner batch has several messages.

    ``whole_batches`` returns one row for an inner batch. ``position`` is the record's position in
    ``file``; ``found_by`` states how it was found.
    """
    if not message.is_inner_batch or whole_batches:
        yield message_row(message, file, position, found_by, is_commit_log)
        return
    try:
        inside = record.split_inner(message, BODY_LIMIT_BYTES)
    except LogError as error:
        yield message_row(message, file, position, found_by, is_commit_log, problem=error.problem)
        return
    problem = None if message.body_crc_holds else _crc_problem(message)
    for number, inner in enumerate(inside):
        row = message_row(
            inner, file, position, found_by, is_commit_log, number, problem, message.size
        )
        yield row | {"body_crc": message.body_crc, "compression": _compression(message)}


def message_row(
    message: RocketmqMessage,
    file: str,
    position: int,
    found_by: str,
    is_commit_log: bool = True,
    batch_index: int | None = None,
    problem: str | None = None,
    size: int | None = None,
) -> Row:
    """The row of a message. An undecodable body is null, and ``problem`` has the reason."""
    body: bytes | None
    if batch_index is not None:
        body = message.body  # the batch was decompressed as a whole
    else:
        try:
            body = record.body_of(message, BODY_LIMIT_BYTES)
        except LogError as error:
            body, problem = None, problem or error.problem
        if not message.body_crc_holds:
            problem = problem or _crc_problem(message)
        elif is_commit_log and properties_.RECORD_CRC in message.properties:
            if properties_.record_crc_holds(record.encode_message(message)) is False:
                problem = problem or "the record has a wrong checksum"
    message_id = None
    if is_commit_log:
        message_id = record.offset_message_id(message.store_host, message.physical_offset)
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "size": message.size if size is None else size,
        "magic": message.magic,
        "body_crc": message.body_crc,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "born_timestamp": message.born_time_ms,
        "born_host": str(message.born_host),
        "store_timestamp": message.store_time_ms,
        "store_host": str(message.store_host),
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_offset,
        "properties": message.properties,
        "body": None if body is None else base64_of(body),
        "stored_body": base64_of(message.body),
        "compression": _compression(message),
        "file": file,
        "position": position,
        "message_id": message_id,
        "transaction": TRANSACTIONS.get(message.sys_flag & record.TRANSACTION_MASK),
        "batch_index": batch_index,
        "properties_raw": None if _is_complete(message) else base64_of(message.properties_bytes),
        "found_by": found_by,
        "problem": problem,
    }


def _crc_problem(message: RocketmqMessage) -> str:
    return (
        f"the body has the checksum {record.body_crc(message.body):#010x}, but the record "
        f"contains {message.body_crc:#010x}"
    )


def _compression(message: RocketmqMessage) -> str:
    try:
        return str(record.compression_of(message.sys_flag))
    except LogError:
        return f"unknown ({(message.sys_flag & record.COMPRESSION_MASK) >> 8})"


def _is_complete(message: RocketmqMessage) -> bool:
    """Whether the parsed properties are complete: no name is repeated, and all bytes are UTF-8."""
    raw = message.properties_bytes
    items = properties_.items(raw)
    joined = b"\x02".join(name + b"\x01" + value for name, value in items)
    if raw not in (joined, joined + b"\x02") or len(items) != len(message.properties):
        return False
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


# ---------------------------------------------------------------------- entries of indexes


def _name(name: TopicPartition | None) -> Row:
    return {"topic": name.topic if name else None, "queue_id": name.partition if name else None}


def consume_queue_rows(
    data: bytes, name: TopicPartition | None, file: str, start: int, first: int = 0
) -> Iterator[Row]:
    """Rows of the units of a consume queue file that begins at byte ``start``. Skips fillers."""
    entries = units.consume_queue_units(data)
    number = start // units.CONSUME_QUEUE_UNIT.size
    for n in range(max(first - number, 0), units.valid_count(entries)):
        address, size, code = entries[n].tolist()
        if size != units.FILLER_SIZE:
            yield {
                "index": "consumequeue",
                **_name(name),
                "queue_offset": number + n,
                "physical_offset": address,
                "size": size,
                "tags_code": code,
                "file": file,
                "position": n * units.CONSUME_QUEUE_UNIT.size,
            }


def batch_unit_rows(
    data: bytes, name: TopicPartition | None, file: str, index: str, first: int = 0
) -> Iterator[Row]:
    """Rows of the units of a batch queue or compaction index file, from offset ``first`` on."""
    entries = units.batch_units(data)
    count = units.valid_count(entries)
    for n in range(units.find_offset(entries, first, count), count):
        address, size, code, time, base, number, compacted, reserved = entries[n].tolist()
        yield {
            "index": index,
            **_name(name),
            "queue_offset": base,
            "messages": number,
            "physical_offset": address,
            "size": size,
            "tags_code": code,
            "store_timestamp": time,
            "compacted_offset": compacted,
            "reserved": reserved,
            "file": file,
            "position": n * units.BATCH_UNIT.size,
        }


def extension_rows(
    data: bytes, name: TopicPartition | None, file: str, start: int
) -> Iterator[Row]:
    """Rows of the units of a consume queue extension file.

    ``address`` in a row is the tags code that refers to the unit.

    Raises:
        CorruptLog: the lengths in a unit are inconsistent. Earlier units were yielded.
    """
    at = 0
    while (unit := units.decode_extension(data, at, len(data))) is not None:
        yield {
            "index": "consumequeue_ext",
            **_name(name),
            "address": start + at + units.EXTENSION_BASE,
            "size": unit.size,
            "tags_code": unit.tags_code,
            "store_timestamp": unit.store_time_ms,
            "bitmap": unit.bitmap.hex(),
            "file": file,
            "position": at,
        }
        at += unit.size


def key_rows(file: MappedFile) -> Iterator[Row]:
    """Rows of the entries of an index file, in the order in which they were written.

    Raises:
        CorruptLog: the file is not an index file.
    """
    index = IndexFile.of(map_file(file))
    header = index.header
    entries = index.entries()
    for begin in range(0, len(entries), _ENTRIES_AT_ONCE):
        some = entries[begin : begin + _ENTRIES_AT_ONCE].tolist()
        for number, (hash_, address, seconds, previous) in enumerate(some, begin + 1):
            yield {
                "index": "index",
                "entry": number,
                "slot": hash_ % index.slots,
                "hash": hash_,
                "physical_offset": address,
                "seconds": seconds,
                "store_timestamp": header.first_store_time_ms + 1000 * seconds,
                "previous": previous,
                "file": file.path,
                "position": index.entry_at(number),
            }


# ---------------------------------------------------------------------- small files


POSITIONS_REMEDY = (
    "move the file out of the store and keep it; the next compaction then reads all closed "
    "files again"
)


def remedy_of(kind: RocketmqFileKind) -> str:
    """The remedy for a small file that cannot be read."""
    if kind is RocketmqFileKind.POSITIONS:
        return POSITIONS_REMEDY
    if kind is RocketmqFileKind.CHECKPOINT:
        return (
            "move the file out of the store and keep it; the broker's next start creates a new "
            "checkpoint and reads more of the commit log"
        )
    return "replace the file by its .bak file, or restore it from a replica or a backup"


def side_rows(place: StorePlace) -> Iterator[Row]:
    """Rows of the entries of a small file such as ``checkpoint`` or ``topics.json``.

    Raises:
        CorruptLog: the content does not match the file's name.
    """
    data = read_small(place.path)
    if place.file is RocketmqFileKind.CHECKPOINT:
        found = sides.decode_checkpoint(data)
        yield {
            "commit_log_timestamp": found.commit_log_time_ms,
            "consume_queue_timestamp": found.consume_queue_time_ms,
            "index_timestamp": found.index_time_ms,
            "master_flushed_offset": found.master_flushed_offset,
            "confirm_offset": found.confirm_offset,
            "consume_queue_offset": found.consume_queue_offset,
            "recovery_timestamp": found.recovery_time_ms,
        }
    elif place.file is RocketmqFileKind.ABORT:
        yield {"abort": True, "process": sides.decode_abort(data)}
    elif place.file is RocketmqFileKind.LOCK:
        yield {"lock": data[:64].decode("utf-8", "backslashreplace")}
    elif place.file is RocketmqFileKind.TOPICS:
        for topic in sides.decode_topics(data).values():
            yield {
                "topic": topic.name,
                "read_queues": topic.read_queues,
                "write_queues": topic.write_queues,
                "perm": topic.perm,
                "order": topic.is_ordered,
                "filter_type": topic.filter_type,
                "sys_flag": topic.system_flag,
                "attributes": topic.attributes,
            }
    elif place.file is RocketmqFileKind.CONSUMER_OFFSETS:
        for (topic_name, group), offsets in sides.decode_consumer_offsets(data).items():
            for queue, offset in offsets.items():
                yield {"topic": topic_name, "group": group, "queue_id": queue, "offset": offset}
    elif place.file is RocketmqFileKind.DELAY_OFFSETS:
        for level, offset in sides.decode_delay_offsets(data).items():
            yield {"level": level, "offset": offset}
    elif place.file is RocketmqFileKind.TIMER_CHECKPOINT:
        timed = timer.decode_timer_checkpoint(data)
        yield {
            "read_timestamp": timed.read_time_ms,
            "log_flushed_at": timed.log_flushed_at,
            "queue_offset": timed.queue_offset,
            "master_queue_offset": timed.master_queue_offset,
        }
    elif place.file is RocketmqFileKind.POSITIONS:
        for name, position in sides.decode_positions(data).items():
            topic_name, _, queue_text = name.rpartition("_")
            queue_number = names.parse_queue_name(queue_text)
            if queue_number is None:
                raise CorruptLog(f"the position of {name!r} belongs to no queue", path=place.path)
            yield {"topic": topic_name, "queue_id": queue_number, "position": position}
    else:
        yield {"file": os.path.basename(place.path), "content": sides.decode_config(data)}
