"""Targets for RocketMQ: logs, units, index files, other files of a store, frames, queues.

Records go through the kernels and are compared with the slow decoder. They also go through split,
open, walk and rebuild of a round, and through dispatch. A store with damaged files is compacted and
inspected. A queue that is not cleaned must stay unchanged byte for byte.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import struct
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

import lastwrite
from lastwrite.encoding.fingerprint import SECRET_WORDS, secret_from
from lastwrite.errors import CorruptLog, LogError, OutOfMemoryBudget, TruncatedLog
from lastwrite.model.columns import COPY, DROP, KEYLESS, ROW_COLUMNS, TOMBSTONE, batch_table
from lastwrite.reports.compaction import Status
from lastwrite.rocketmq.format import (
    chunk_kernels,
    dispatch,
    index_file,
    java_hash,
    kernels,
    names,
    properties,
    sides,
    timer,
    units,
)
from lastwrite.rocketmq.format.chunk import RocketmqFormat
from lastwrite.rocketmq.format.property_columns import property_items
from lastwrite.rocketmq.format.record import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    body_of,
    decode_blank,
    decode_message,
    decompress_body,
    encode_blank,
    encode_message,
    make_message,
    parse_message_id,
    split_inner,
)
from lastwrite.rocketmq.network import frame, route
from lastwrite.rocketmq.store.positions import read_positions
from lastwrite.spark.inline import INLINE
from tests.fuzz.mutate import harm
from tests.fuzz.target import INPUT, OUTPUT, Target, files, on_disk, reader
from tests.support.rocketmq.model import (
    START_MS,
    ModelQueue,
    message,
    random_message,
    read_files,
    write_store,
)
from tests.support.rocketmq.records import (
    EXAMPLE_INNER,
    EXAMPLE_RECORD_CRC,
    EXAMPLE_V1,
    EXAMPLE_V1_OLD,
    EXAMPLE_V2,
    EXAMPLE_V3,
    slow_split,
)
from tests.support.rocketmq.stores import shop

PLAIN_LIMIT = 1 << 20
SECRET = secret_from(bytes(range(1, 9)) * SECRET_WORDS)
CORPUS = Path(__file__).parents[1] / "corpus" / "rocketmq"
_LIES = [0, 1, 2, 0x7F, 0x80, 0xFF]
_FIELDS = [
    (0, ">i"),
    (4, ">I"),
    (8, ">i"),
    (20, ">q"),
    (28, ">q"),
    (36, ">i"),
    (40, ">q"),
    (84, ">i"),
]
_EXTREMES = [
    0,
    1,
    2,
    7,
    8,
    90,
    91,
    92,
    127,
    2**15 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    2**63,
    2**64 - 1,
]
_MAGICS = [0xDAA320A7, 0xDAA320AB, 0xCBD43194]


def targets() -> list[Target]:
    """The targets for all readers of RocketMQ's bytes."""
    logs = _sound_logs()
    form = RocketmqFormat(PLAIN_LIMIT)
    queues = _sound_queues()

    def log(rng: random.Random) -> tuple[bytes, Any]:
        return _broken_log(rng, logs), None

    def of_queue(rng: random.Random) -> tuple[bytes, Any]:
        return _broken_queue(rng, queues), None

    found = [
        Target(
            "rocketmq split",
            log,
            lambda data, _, rng: check_split(data, rng),
            (
                "rocketmq.kernels:split",
                "rocketmq.kernels:index_keys",
                "rocketmq.record:decode_message",
                "rocketmq.record:decode_blank",
                "rocketmq.properties:parse",
                "rocketmq.properties:items",
                "rocketmq.property_columns:property_items",
                "rocketmq.java_hash:decode",
                "rocketmq.java_hash:sequence_length",
                "rocketmq.properties:record_crc",
                "rocketmq.properties:record_crc_holds",
                "rocketmq.record:body_crc",
                "rocketmq.record:decompress_body",
                "rocketmq.record:split_inner",
                "rocketmq.record:body_of",
            ),
            share=4,
        ),
        Target(
            "rocketmq round",
            log,
            lambda data, _, rng: check_round(form, data, rng),
            (
                "rocketmq.chunk:RocketmqFormat.split",
                "rocketmq.chunk:RocketmqFormat.opened",
                "rocketmq.chunk:RocketmqFormat.walk",
                "rocketmq.chunk:RocketmqFormat.rebuild",
                "rocketmq.chunk:RocketmqFormat.records_below",
                "rocketmq.chunk_kernels:walk",
                "rocketmq.chunk_kernels:rebuild",
                "rocketmq.chunk_kernels:place",
                "rocketmq.kernels:is_whole",
            ),
            share=4,
        ),
        Target(
            "rocketmq dispatch",
            log,
            lambda data, _, rng: check_dispatch(data, rng),
            (
                "rocketmq.dispatch:find_record",
                "rocketmq.dispatch:take",
                "rocketmq.dispatch:find_light_queues",
                "rocketmq.kernels:value_end",
                "rocketmq.kernels:is_blank",
                "rocketmq.kernels:decimal",
                "rocketmq.dispatch:copy_records",
                "rocketmq.dispatch:QueueNumbers.add",
            ),
            share=3,
        ),
        Target(
            "rocketmq units",
            of_queue,
            lambda data, _, rng: check_units(data, rng),
            (
                "rocketmq.units:consume_queue_units",
                "rocketmq.units:batch_units",
                "rocketmq.units:queue_units",
                "rocketmq.units:offsets_of",
                "rocketmq.units:valid_count",
                "rocketmq.units:find_offset",
                "rocketmq.chunk_kernels:count_units",
                "rocketmq.chunk_kernels:follow_units",
                "rocketmq.chunk_kernels:compare_units",
            ),
            share=3,
        ),
        Target(
            "rocketmq store", lambda rng: (rng.randbytes(8), None), on_disk(check_store), share=0.02
        ),
    ]
    return found + _side_files() + _spoken()


# ---------------------------------------------------------------------- logs


def _sound_logs() -> list[bytes]:
    """Intact logs: records of every kind, a real broker's log, and a store's log.

    The store's log has deletes, tags and inner batches.
    """
    rng = random.Random(0)
    examples = [
        EXAMPLE_V1,
        EXAMPLE_V1_OLD,
        EXAMPLE_V2,
        EXAMPLE_V3,
        EXAMPLE_RECORD_CRC,
        EXAMPLE_INNER,
    ]
    found = [b"".join(rng.choices(examples, k=rng.randint(1, 4))) for _ in range(20)]
    for _ in range(40):
        offset, made = rng.randint(0, 3), []
        for n in range(rng.randint(1, 6)):
            made.append(random_message(rng, offset, 3, START_MS + n).content)
            offset += rng.choice([1, 1, 4])
        found.append(b"".join(made))
    found += [some + encode_blank(300) + b"\0" * 40 for some in found[:6]]
    with tempfile.TemporaryDirectory() as folder:
        written = shop(Path(folder), 40)
        at = 0
        for sent in written.sent:
            found.append(encode_message(sent))
            at += sent.size
    for path in sorted(CORPUS.glob("*/commitlog/*")):
        found.append(path.read_bytes()[:3000])
    return found


def _starts(data: bytes | bytearray) -> list[tuple[int, int]]:
    found, at = [], 0
    while at + 91 <= len(data):
        size, magic = struct.unpack_from(">iI", data, at)
        if size < 91 or size > len(data) - at or magic not in _MAGICS[:2]:
            break
        found.append((at, size))
        at += size
    return found or [(0, len(data))]


def _broken_log(rng: random.Random, logs: list[bytes]) -> bytes:
    """Damage a log anywhere, in a field, in the body or among the properties.

    Often the lengths and the checksum match afterwards.
    """
    if rng.random() < 0.25:
        return harm(rng, rng.choice(logs), logs)
    data = bytearray(rng.choice(logs) + (rng.choice(logs) if rng.random() < 0.3 else b""))
    for _ in range(rng.choice([1, 1, 2])):
        at, size = rng.choice(_starts(data))
        kind = rng.randrange(4)
        if kind == 0:
            place, form = rng.choice(_FIELDS)
            width = struct.calcsize(form)
            if at + place + width <= len(data):
                value = rng.choice(_MAGICS if place == 4 and rng.random() < 0.7 else _EXTREMES)
                data[at + place : at + place + width] = (value % 256**width).to_bytes(width, "big")
        elif kind == 1 and size > 92:
            data[at + rng.randrange(84, size)] = rng.choice([*_LIES, rng.randrange(256)])
        elif size:
            data[at + rng.randrange(size)] = rng.choice([*_LIES, rng.randrange(256)])
        if kind == 3 and size >= 91:
            data[at : at + size] = _repacked(rng, bytes(data[at : at + size]))
        else:
            _reseal(rng, data, at, size)
    return bytes(data if rng.random() < 0.85 else data[: rng.randrange(len(data) + 1)])


def _repacked(rng: random.Random, record: bytes) -> bytes:
    """The record with another body or other properties, and matching lengths."""
    try:
        found = decode_message(record, 0, len(record))
    except LogError:
        return record
    raw, body = found.properties_bytes, found.body
    if rng.random() < 0.6:
        raw = harm(
            rng,
            raw,
            [raw, b"KEYS\1a b  c\2", b"INNER_NUM\x013\2INNER_BASE\x01-1\2", b"TAGS\1\2"],
            [b"\1", b"\2"],
        )
    if rng.random() < 0.6:
        body = harm(rng, body, [body, zlib.compress(b"x" * 50)])
    flag = rng.choice(
        [
            found.sys_flag,
            found.sys_flag
            | COMPRESSED
            | rng.choice([0, COMPRESSION_LZ4, COMPRESSION_ZSTD, COMPRESSION_ZLIB, 0x400]),
            found.sys_flag | 0xC0,
        ]
    )
    made = make_message(
        found.topic,
        body,
        queue_id=found.queue_id,
        queue_offset=found.queue_offset,
        sys_flag=flag,
        physical_offset=found.physical_offset,
        store_time_ms=found.store_time_ms,
        magic=found.magic,
    )
    with contextlib.suppress(ValueError, UnicodeEncodeError):
        return encode_message(dataclasses.replace(made, properties_bytes=raw[:32767]))
    return record


def _reseal(rng: random.Random, data: bytearray, at: int, size: int) -> None:
    if size < 91 or at + size > len(data) or rng.random() < 0.3:
        return
    flag = struct.unpack_from(">i", data, at + 36)[0]
    body_at = at + 72 + (20 if flag & 0x10 else 8) + (20 if flag & 0x20 else 8)
    length = struct.unpack_from(">i", data, body_at - 4)[0] if body_at <= at + size else -1
    if 0 <= length <= at + size - body_at:
        struct.pack_into(
            ">I", data, at + 8, zlib.crc32(data[body_at : body_at + length]) & 0x7FFFFFFF
        )


def check_split(data: bytes, rng: random.Random) -> str:
    """Compare the kernel with the slow decoder, and read the records that it found."""
    buffer, table = INPUT.put(data), np.zeros(100, kernels.MESSAGE)
    check_crc = rng.random() < 0.7
    count, consumed, code, at, wanted = kernels.split(buffer, 0, len(data), table, check_crc)
    rows, twin_consumed, twin_code = slow_split(data, check_crc)
    table = table[:count]
    found = [dict(zip(table.dtype.names, row.tolist(), strict=True)) for row in table]
    assert found == rows and (consumed, code) == (twin_consumed, twin_code), (
        "kernel and twin disagree"
    )
    assert 0 <= at <= len(data) and (code != kernels.NEED_MORE or wanted > len(data) - consumed)
    room = int(table["properties_length"].sum()) + 4 * count
    hashes, places, times = (np.zeros(room, np.int64) for _ in range(3))
    kernels.index_keys(buffer, table, 0, count, hashes, places, times, rng.random() < 0.5)
    items = property_items(buffer, table["properties_at"], table["properties_length"])
    for n, row in enumerate(found):
        sent = decode_message(data, row["position"], len(data))
        span = range(items.offsets[n], items.offsets[n + 1])
        columns = zip(
            items.name_at, items.name_length, items.value_at, items.value_length, strict=True
        )
        spans = list(columns)
        pairs = {_text(data, *spans[k][:2]): _text(data, *spans[k][2:]) for k in span}
        assert pairs == sent.properties
        properties.items(sent.properties_bytes)
        properties.record_crc_holds(data[row["position"] : row["position"] + row["size"]])
        assert (
            java_hash.sequence_length(sent.topic_bytes, 0) <= len(sent.topic_bytes)
            if sent.topic_bytes
            else True
        )
        for read in (lambda: body_of(sent, PLAIN_LIMIT), lambda: split_inner(sent, PLAIN_LIMIT)):  # noqa: B023
            with contextlib.suppress(LogError):
                read()
        with contextlib.suppress(LogError):
            decompress_body(sent.body, rng.choice([1, 0x101, 0x201, 0x301, 0x701]), 0, PLAIN_LIMIT)
    decode_blank(data, consumed, len(data))
    return (
        "whole"
        if code in (kernels.OK, kernels.BLANK, kernels.END)
        else "cut"
        if code == kernels.NEED_MORE
        else "bad"
    )


def _text(data: bytes, at: int, length: int) -> str:
    return java_hash.decode(data[at : at + length])


def check_round(form: RocketmqFormat, data: bytes, rng: random.Random) -> str:
    """Scan and rewrite.

    Keys and deletes must equal the slow decoder's, kept records stay unchanged.
    """
    buffer = INPUT.put(data)
    floor = rng.choice([0, 0, -(2**63)])
    try:
        table, consumed, _, _ = form.split(buffer, 0, len(buffer), floor)
    except CorruptLog:
        return "refused"
    table = table.copy()
    sent = [decode_message(data, int(row["position"]), len(data)) for row in table]
    states, entries = np.full(len(table), 255, np.uint8), np.zeros((len(table) + 1, 2), np.uint64)
    filled, at = 0, 0
    try:
        for run in form.opened(buffer, table):
            filled = form.walk(run, table, SECRET, 0, states, entries, filled)
    except OutOfMemoryBudget:
        return "refused for its size"
    except LogError:
        return "does not open"
    assert filled == sum(each.keys is not None for each in sent)
    for state, each in zip(states.tolist(), sent, strict=True):
        assert bool(state & KEYLESS) == (each.keys is None)
        if each.keys is not None:
            assert bool(state & TOMBSTONE) == (not body_of(each, PLAIN_LIMIT))
    actions = np.array([rng.choice([COPY, DROP]) for _ in sent], np.uint8)
    out, rows = (
        OUTPUT.room(form.rebuilt_size(table, len(table))),
        np.zeros((len(table), ROW_COLUMNS), np.int64),
    )
    out, size, count = form.rebuild(
        buffer, table, actions, np.zeros(0, np.int64), states, out, rows
    )
    kept = [row for row, action in zip(table, actions.tolist(), strict=True) if action == COPY]
    assert count == len(kept) and size == sum(int(row["size"]) for row in kept)
    for row, place in zip(kept, rows[:count].tolist(), strict=True):
        begin = int(row["position"])
        assert (
            out[place[0] : place[0] + place[1]].tobytes() == data[begin : begin + int(row["size"])]
        )
    made = np.zeros(46 * count, np.uint8)
    chunk_kernels.place(out, rows, 0, count, rng.choice([0, 5000, 2**62]), made, 0)
    if len(table):
        form.records_below(None, table[0], rng.randrange(9))  # type: ignore[arg-type]
        at = int(table["position"][-1])
    assert at <= consumed <= len(data)
    return "whole"


def check_dispatch(data: bytes, rng: random.Random) -> str:
    """Check the search for a record's begin, and the units that dispatch makes."""
    buffer = INPUT.put(data)
    base = rng.choice([0, 0, 1 << 30])
    at = dispatch.find_record(buffer, rng.randrange(len(data) + 1), len(data), base)
    assert at == -1 or at + 91 <= len(data)
    table = np.zeros(100, kernels.MESSAGE)
    count = kernels.split(buffer, 0, len(data), table, False)[0]
    dispatch.count_dispatchable(table, count, base)
    queues = dispatch.QueueNumbers()
    rows, row_queues = (
        np.zeros((max(count, 1), dispatch.ROW_WORDS), np.int64),
        np.zeros(max(count, 1), np.int64),
    )
    light_queues, light_bad = np.zeros((20, dispatch.LIGHT_WORDS), np.int64), np.zeros(2, np.int64)
    done = filled = 0
    while done < count:
        done, filled, code = dispatch.take(
            buffer,
            table,
            done,
            count,
            queues.slots,
            queues.table,
            queues.topics,
            rows,
            row_queues,
            filled,
            0,
            rng.choice([dispatch.NO_LIGHT, dispatch.LIGHT_AT_ZERO, dispatch.LIGHT_BY_RECORD]),
            light_queues,
            light_bad,
        )
        if code == dispatch.NEW_LIGHT_QUEUE:
            at, length, queue = light_queues[0, :3].tolist()
            assert (data[at : at + length], queue) not in queues.names, (
                "a light queue that is known is not found"
            )
            queues.add(data[at : at + length], queue, is_compacted=False)
        elif code == dispatch.NEW_QUEUE:
            new = table[done]
            topic = data[int(new["topic_at"]) : int(new["topic_at"] + new["topic_length"])]
            assert (topic, int(new["queue_id"])) not in queues.names, (
                "a queue that is known is not found"
            )
            light = rng.choice([0, dispatch.TO_LIGHT, dispatch.NO_UNITS])
            queues.add(topic, int(new["queue_id"]), is_compacted=rng.random() < 0.5, light=light)
        elif code == dispatch.FULL:
            break
    size = int(np.maximum(rows[:filled, dispatch.SIZE], 0).sum())
    out, made = OUTPUT.room(min(size, OUTPUT.size)), np.zeros(46 * filled, np.uint8)
    written = dispatch.copy_records(
        buffer, base, rows[:filled], 0, np.zeros(filled, np.int64), out, made
    )
    assert written == -1 or written == size
    return "taken" if count else "nothing"


# ---------------------------------------------------------------------- units


def _sound_queues() -> list[bytes]:
    rng, found = random.Random(1), [units.FILLER * 4, units.END_UNIT]
    for _ in range(20):
        place = base = 0
        plain, batch = b"", b""
        for n in range(rng.randint(1, 9)):
            size, number = rng.randint(91, 400), rng.choice([1, 1, 3])
            plain += units.CONSUME_QUEUE_UNIT.pack(place, size, rng.choice([0, 99, -(2**63) + 40]))
            batch += units.BATCH_UNIT.pack(place, size, 7, START_MS + n, base, number, -1, 0)
            place, base = place + size, base + number
        found += [plain, batch + units.END_UNIT, batch + bytes(46)]
    return found


def _broken_queue(rng: random.Random, queues: list[bytes]) -> bytes:
    data = bytearray(rng.choice(queues))
    if rng.random() < 0.4:
        return harm(rng, bytes(data), queues)
    for _ in range(rng.choice([1, 1, 2])):
        unit = rng.randrange(max(len(data) // 46, 1)) * 46
        place, width = rng.choice([(0, 8), (8, 4), (12, 8), (20, 8), (28, 8), (36, 2)])
        if unit + place + width <= len(data):
            value = rng.choice([*_EXTREMES, rng.randrange(3000)])
            data[unit + place : unit + place + width] = (value % 256**width).to_bytes(width, "big")
    return bytes(data)


def check_units(data: bytes, rng: random.Random) -> str:
    """Check the valid units by columns and by kernel. All results must lie within the units."""
    buffer = INPUT.put(data)
    batch = units.batch_units(data)
    valid = units.valid_count(batch)
    assert chunk_kernels.count_units(buffer, True) == valid
    chunk_kernels.count_units(buffer, False)
    floor = rng.choice([0, 0, 5, 2**62])
    wrong, unit, _, _ = chunk_kernels.follow_units(
        buffer, rng.choice([0, 2**62]), rng.choice([5000, 2**63 - 1]), floor
    )
    assert 0 <= unit <= len(batch) and (wrong != chunk_kernels.FITS or unit == 0)
    records = _some_rows(rng)
    skipped = units.BATCH_UNIT.size * rng.randrange(4)
    chunk_kernels.compare_units(buffer[skipped:], records, 0)
    for offset in (0, 1, rng.choice(_EXTREMES)):
        assert 0 <= units.find_offset(batch, offset) <= valid
    units.valid_count(units.queue_units(data, is_batch=False))
    return "all valid" if valid == len(batch) else "some"


def _some_rows(rng: random.Random) -> np.ndarray:
    """A few rows of a BATCH table."""
    table = batch_table(rng.randrange(4))
    table[:] = 0
    return table


# ---------------------------------------------------------------------- other files, and frames


def _side_files() -> list[Target]:
    def some(pattern: str) -> list[bytes]:
        return [path.read_bytes()[:6000] for path in sorted(CORPUS.glob(pattern))][:6]

    with tempfile.TemporaryDirectory() as folder:
        writer = shop(Path(folder), 60)
        writer.write_index()
        indexes = [path.read_bytes() for path in sorted((Path(folder) / "index").iterdir())]
        writer.write()
        topics = (Path(folder) / "config" / "topics.json").read_bytes()
    indexes += [index_file.new_index_file(2, 9).tobytes()]

    def keys(data: bytes) -> None:
        opened = index_file.IndexFile.of(data)
        index_file.find_slots(data)
        for n in range(3):
            opened.addresses("orders", f"key-{n}")
        for slot in range(min(opened.slots, 9)):
            opened.slot(slot)

    def extension(data: bytes) -> None:
        at = 0
        while (unit := units.decode_extension(data, at, len(data))) is not None:
            at += unit.size

    def name(data: bytes) -> None:
        word = data.decode("utf-8", "replace")
        names.parse_file_name(word)
        names.parse_queue_name(word)
        names.is_index_name(word)
        parse_message_id(word)

    positions = sides.encode_positions({"orders_0": 7, "invoices_1": 12})
    attributes = b'{"topicConfigTable":{"t":{"attributes":{"cleanup.policy":"COMPACTION"},"perm":6,"readQueueNums":2}}}'
    extensions = [
        units.encode_extension(5, START_MS, b"\1\2") * 3,
        units.encode_extension(5, 0) + b"\xff\xff\0\0",
    ]
    return [
        reader(
            "rocketmq index file",
            keys,
            indexes,
            [
                "rocketmq.index_file:IndexFile.of",
                "rocketmq.index_file:find_slots",
                "rocketmq.index_file:decode_index_header",
            ],
            share=1.5,
        ),
        reader("rocketmq extension", extension, extensions, ["rocketmq.units:decode_extension"]),
        reader(
            "rocketmq checkpoint",
            sides.decode_checkpoint,
            [p[:60] for p in some("*/checkpoint")],
            ["rocketmq.sides:decode_checkpoint"],
            share=0.3,
        ),
        reader(
            "rocketmq abort",
            sides.decode_abort,
            [b"1234", b" 99\n", b""],
            ["rocketmq.sides:decode_abort"],
            share=0.5,
        ),
        reader(
            "rocketmq topics",
            sides.decode_topics,
            [topics, attributes, *some("*/config/topics.json")],
            ["rocketmq.sides:decode_topics"],
            extra=[b"null", b"1.5", b"true", b'"x"', b"[]", b"{}"],
        ),
        reader(
            "rocketmq topic",
            lambda data: sides.decode_topic("orders", data),
            [b'{"readQueueNums":2,"perm":6,"attributes":{"cleanup.policy":"COMPACTION"}}'],
            ["rocketmq.sides:decode_topic"],
            extra=[b"null", b"1.5", b"true", b'"x"', b"[]", b"{}"],
        ),
        reader(
            "rocketmq consumer offsets",
            sides.decode_consumer_offsets,
            [
                b'{"offsetTable":{"orders@readers":{0:3,1:5}}}',
                *some("*/config/consumerOffset.json"),
            ],
            ["rocketmq.sides:decode_consumer_offsets"],
            extra=[b"null", b"1.5", b"[]", b"{}"],
        ),
        reader(
            "rocketmq lowered offsets",
            lambda data: sides.lower_consumer_offsets(data, {("orders", 0): 1}),
            [
                b'{"offsetTable":{"orders@readers":{0:3,1:5}}}',
                *some("*/config/consumerOffset.json"),
            ],
            ["rocketmq.sides:lower_consumer_offsets"],
            share=0.5,
        ),
        reader(
            "rocketmq delay offsets",
            sides.decode_delay_offsets,
            [b'{"dataVersion":{"counter":0},"offsetTable":{3:2,18:7}}'],
            ["rocketmq.sides:decode_delay_offsets"],
            extra=[b"null", b"1.5", b"[]", b"{}"],
        ),
        reader(
            "rocketmq lowered delays",
            lambda data: sides.lower_delay_offsets(data, {3: 1}),
            [b'{"dataVersion":{"counter":0},"offsetTable":{3:2,18:7}}'],
            ["rocketmq.sides:lower_delay_offsets"],
            share=0.5,
        ),
        reader(
            "rocketmq other settings",
            sides.decode_config,
            [b'{"orderInfoCount":0,"table":{"t@g":{0:{"l":[1,2]}}}}'],
            ["rocketmq.sides:decode_config"],
            share=0.3,
        ),
        reader(
            "rocketmq timer checkpoint",
            timer.decode_timer_checkpoint,
            [timer.TIMER_CHECKPOINT.pack(1, 2, 3, 4, 5, 6, 7).ljust(80, b"\0")],
            ["rocketmq.timer:decode_timer_checkpoint"],
            share=0.3,
        ),
        reader(
            "rocketmq timer log",
            lambda data: timer.timer_units(np.frombuffer(data, np.uint8)),
            [timer.TIMER_UNIT.pack(52, -1, 1, 9, 5, 77, 120, 7, 0) * 3 + bytes(20)],
            ["rocketmq.timer:timer_units"],
            share=0.3,
        ),
        reader(
            "rocketmq positions",
            sides.decode_positions,
            [positions, *some("*/compaction/position-checkpoint")],
            ["rocketmq.sides:decode_positions"],
            extra=[b"null", b"1.5", b"[]", b"{}"],
        ),
        reader(
            "rocketmq names",
            name,
            [b"00000000000000104857460", b"17", b"20231114221320000", b"7F000001" * 4],
            [
                "rocketmq.names:parse_file_name",
                "rocketmq.names:parse_queue_name",
                "rocketmq.names:is_index_name",
                "rocketmq.record:parse_message_id",
            ],
            share=0.7,
        ),
        files(
            "rocketmq positions file",
            lambda folder: read_positions(str(folder)),
            "position-checkpoint",
            [positions],
            ["rocketmq.store.positions:read_positions"],
        ),
    ]


def _spoken() -> list[Target]:
    commands = [
        frame.encode_command(frame.Command(code=105, fields={"topic": "orders"}, opaque=7))[4:],
        frame.encode_command(frame.Command(code=0, body=b"abc", flag=1, remark="fine"))[4:],
    ]
    known = {
        "brokerDatas": [{"brokerName": "a", "brokerAddrs": {"0": "127.0.0.1:10911"}}],
        "queueDatas": [{"brokerName": "a", "perm": 6, "readQueueNums": 4, "writeQueueNums": 4}],
    }
    routes = [json.dumps(known).encode(), json.dumps(known).replace('"0"', "0").encode()]
    routes.append(json.dumps({**known, "orderTopicConf": "a:4;b:2"}).encode())
    extra = [b"null", b"1.5", b"[]", b"{}", b"true", b";:", b"-1", b"65537"]
    return [
        reader(
            "rocketmq frame",
            frame.decode_command,
            commands,
            ["rocketmq.network.frame:decode_command"],
            extra=extra,
        ),
        reader(
            "rocketmq route",
            lambda data: route.decode_route("orders", data),
            routes,
            ["rocketmq.network.route:decode_route"],
            extra=extra,
        ),
    ]


# ---------------------------------------------------------------------- whole rounds


def check_store(data: bytes, folder: Path, rng: random.Random) -> str:
    """Compact and inspect a store of two queues with damaged files.

    A queue that is not cleaned stays unchanged, and only a LogError is allowed.
    """
    drawn = random.Random(data)
    queues = [ModelQueue(log_bytes=1840, index_bytes=368, number=number) for number in range(2)]
    clock = START_MS
    for queue in queues:
        for n in range(drawn.randrange(1, 12)):
            clock += drawn.randrange(200)
            queue.append(
                message(n, drawn.choice("abc"), drawn.randbytes(9), clock, queue=queue.number)
            )
    root = folder / "store"
    root.mkdir()
    write_store(root, queues)
    before = read_files(root)
    for _ in range(drawn.choice([1, 1, 2])):
        path = root / "compaction" / drawn.choice(sorted(before))
        path.write_bytes(
            harm(
                drawn, path.read_bytes()[: drawn.choice([300, 2000])], list(before.values())
            ).ljust(
                len(before[str(path.relative_to(root / "compaction"))])
                if drawn.random() < 0.8
                else 0,
                b"\0",
            )
        )
    before = read_files(root)
    try:
        report = lastwrite.compact(
            str(root), now_ms=clock, config={"delete.retention.ms": 50}, spark=INLINE
        )
    except LogError as error:
        assert read_files(root) == before
        return type(error).__name__
    after = read_files(root)
    for one in report.partitions:
        if one.status is not Status.CLEANED:
            inside = f"/ctopic/{one.partition}/"
            assert _of(before, inside) == _of(after, inside), f"{one.status}, yet changed"
    for look in (
        lambda: lastwrite.inspect(str(root)),
        lambda: list(lastwrite.dump(str(root), limit=20)),
    ):
        with contextlib.suppress(LogError):
            look()
    with contextlib.suppress(LogError, TruncatedLog):
        lastwrite.verify(str(root), spark=INLINE)
    return ", ".join(sorted({str(one.status) for one in report.partitions}))


def _of(found: dict[str, bytes], inside: str) -> dict[str, bytes]:
    return {place: content for place, content in found.items() if inside in place}
