"""Targets for AutoMQ: objects, write-ahead objects, META streams, metadata records, keys."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

from lastwrite.encoding.compression import Codec, compress
from lastwrite.errors import LogError
from lastwrite.kafka.automq import meta_stream, names, stored_objects
from lastwrite.kafka.automq.cluster_image import ClusterImage, decode_end_offsets
from lastwrite.kafka.automq.metadata_records import (
    OBJECT,
    SET_OBJECT,
    STREAM,
    decode_cluster_record,
    decode_partition_key,
    mask_node_settings,
)
from lastwrite.kafka.automq.partition import StoredRun
from lastwrite.kafka.automq.payloads import payloads, strip_run
from lastwrite.kafka.automq.stored_objects import FOOTER, INDEX_ENTRY, NORMAL_MAGIC
from lastwrite.kafka.automq.wal_objects import decode_wal_object
from tests.fuzz.mutate import harm
from tests.fuzz.target import INPUT, READ, REFUSED, Target, reader
from tests.support.kafka.automq import (
    StreamRecord,
    blob,
    crc,
    encode_blocks,
    encode_composite,
    encode_object,
    encode_wal,
    record,
)

RECORDS = [
    StreamRecord(stream, base, count, b"x" * size)
    for stream, base, count, size in [(3, 0, 2, 9), (3, 2, 5, 0), (3, 7, 1, 61), (9, 4, 1, 30)]
]
PREFIX = "kafka.automq."


def targets() -> list[Target]:
    """The targets for all readers of AutoMQ's bytes."""
    return [_objects(), _runs(), _write_ahead(), *_values(), *_metadata(), _keys()]


def _objects() -> Target:
    data, entries = encode_object(RECORDS)
    composite = encode_composite([(7, entries[:1]), (8, entries[1:])])

    def read(content: bytes) -> None:
        footer = stored_objects.decode_footer(content[-500:], len(content))
        index = content[footer.index_position : footer.index_position + footer.index_bytes]
        is_normal = footer.magic == NORMAL_MAGIC
        table = stored_objects.decode_index(index, footer.index_position if is_normal else None)
        assert len(table) == footer.index_bytes // INDEX_ENTRY.size
        for entry in table if is_normal else ():
            assert 0 <= entry["position"] <= len(content) - FOOTER.size - entry["size_bytes"]
        if not is_normal:
            links = stored_objects.decode_links(content[: footer.index_position], len(table))
            assert all(0 <= link.first_entry < max(len(table), 1) for link in links)

    functions = ["decode_footer", "decode_index", "decode_links"]
    return reader(
        "automq object",
        read,
        [data, composite],
        [f"{PREFIX}stored_objects:{each}" for each in functions],
        share=2,
    )


def _runs() -> Target:
    """Target for runs in data blocks and write-ahead objects, by kernel and slow reader."""
    of_stream = [each for each in RECORDS if each.stream == 3]
    blocks = [encode_blocks(of_stream, count) for count in (1, 2, 3)]
    in_wal = bytes(24).join(each.encode() for each in of_stream)

    def make(rng: random.Random) -> tuple[bytes, Any]:
        is_wal = rng.random() < 0.4
        data = in_wal if is_wal else rng.choice(blocks)
        for _ in range(rng.choice([0, 1, 1, 2])):
            data = harm(rng, data, [*blocks, in_wal])
        return data, (is_wal, rng.choice([0, 0, 2, 5]), rng.choice([8, 8, 7, 3]))

    def check(data: bytes, context: Any, rng: random.Random) -> str:
        is_wal, first, stop = context
        raw = INPUT.put(data)
        run = StoredRun(
            key="" if is_wal else "k",
            position=0,
            size_bytes=len(data),
            stream_id=3,
            stream_offset=0,
            stream_end=8,
            first=first,
            stop=stop,
            start_offset=first,
            end_offset=stop,
            records=3,
            is_one_block=False,
        )
        try:
            found = strip_run(raw, run)
        except LogError:
            return REFUSED
        slow = [bytes(payload) for _, payload in payloads(raw, run)]
        assert bytes(found) == b"".join(slow)
        return READ

    return Target(
        "automq run",
        make,
        check,
        (
            f"{PREFIX}payloads:strip_run",
            f"{PREFIX}payloads:payloads",
            f"{PREFIX}stream_kernels:copy_payloads",
        ),
        share=2,
    )


def _write_ahead() -> Target:
    sample = encode_wal(1 << 26, 5, [each.encode() for each in RECORDS])
    old = struct.pack(">Iqqqiq", 0x12345678, 1 << 26, len(sample) - 48, 0, 1, 9) + sample[48:]

    def read(content: bytes) -> None:
        found = decode_wal_object(content, None)
        for row in found.records:
            end = int(row["position"] + row["size_bytes"])
            assert 0 < row["position"] < end <= len(content)

    def seal(data: bytearray) -> bytes:
        """Correct the checksums of the first record."""
        if len(data) >= 72:
            body = bytes(data[72 : 72 + max(0, int.from_bytes(data[52:56], "big", signed=True))])
            data[64:68] = struct.pack(">I", crc(body))
            data[68:72] = struct.pack(">I", crc(bytes(data[48:68])))
        return bytes(data)

    return reader(
        "automq write-ahead object",
        read,
        [sample, old],
        [f"{PREFIX}wal_objects:decode_wal_object"],
        seal=seal,
    )


def _values() -> list[Target]:
    log = (
        b'{"streamMap":{"log":3,"tim":4,"txn":-1},"segmentMetas":[{"bo":0,"s":"","ls":{"s":0,'
        b'"e":9},"txs":{"s":-1,"e":-1},"lmt":5,"fbt":7,"tle":{"t":1,"o":2}},{"bo":20,"s":'
        b'".cleaned","ls":{"s":0,"e":-1}}]}'
    )
    samples: dict[str, tuple[Callable[[bytes], object], list[bytes]]] = {
        "decode_pair": (meta_stream.decode_pair, [b"\0\0\0\0\3LOG" + log]),
        "decode_log_meta": (meta_stream.decode_log_meta, [log]),
        "decode_partition_meta": (
            meta_stream.decode_partition_meta,
            [b'{"s":0,"c":3,"r":9,"cs":false}'],
        ),
        "decode_stored_epochs": (
            meta_stream.decode_stored_epochs,
            [struct.pack(">iiiqiq", 0, 2, 0, 0, 3, 70)],
        ),
        "decode_producer_snapshots": (
            meta_stream.decode_producer_snapshots,
            [b"\x18" + struct.pack(">qi", 70, 4) + b"snap" + struct.pack(">qi", 90, 0)],
        ),
    }
    return [
        reader(f"automq {name}", read, contents, [f"{PREFIX}meta_stream:{name}"], share=0.5)
        for name, (read, contents) in samples.items()
    ]


def _metadata() -> list[Target]:
    ranges = struct.pack(">qqi", 3, 0, 8) + struct.pack(">qqi", 9, 4, 1)
    plain = b"\1\0" + struct.pack(">i", len(ranges)) + ranges
    packed = b"\1\2" + struct.pack(">i", len(ranges)) + compress(Codec.ZSTD, ranges)
    ends = b"\1" + struct.pack(">qqqq", 3, 8, 9, 5)
    key = b"_kafka_c/41jvpIn1gGLxDdcxa2Vkng/0"
    values = [
        record(STREAM, 1, struct.pack(">qqiqb", 3, 1, 0, 0, 1) + b"\1"),
        record(503, 0, struct.pack(">qqiqqi", 3, 1, 0, 0, 8, 1)),
        record(505, 0, struct.pack(">qqqqq", 3, 0, 8, 7, 0)),
        record(SET_OBJECT, 0, struct.pack(">iqqq", 1, 7, 7, 0) + blob(packed)),
        record(OBJECT, 0, struct.pack(">qqqqqqb", 7, 900, 0, 0, 0, 0, 2)),
        record(OBJECT, 1, struct.pack(">qqbiq", 7, 900, 2, 1, 0)),
        record(515, 0, blob(ends)),
        record(516, 0, b"\2" + blob(key) + blob(bytes(8)) + b"\0"),
        record(517, 0, b"\2" + blob(key)),
        record(518, 0, struct.pack(">i", 1) + b"\2" + struct.pack(">qqq", 3, 0, 8) + b"\0"),
    ]

    def replay(value: bytes) -> None:
        image = ClusterImage()
        assert len(mask_node_settings(value)) == len(value)
        for each in (values[0], value):
            found = decode_cluster_record(each)
            if found is not None and found[0] not in (23, 24, 25):
                image.apply(*found)

    return [
        reader(
            "automq metadata record",
            replay,
            values,
            [
                f"{PREFIX}metadata_records:decode_cluster_record",
                f"{PREFIX}metadata_records:mask_node_settings",
            ],
        ),
        reader(
            "automq ranges",
            stored_objects.decode_stream_ranges,
            [plain, packed],
            [f"{PREFIX}stored_objects:decode_stream_ranges"],
            share=0.5,
        ),
        reader(
            "automq end offsets",
            decode_end_offsets,
            [ends],
            [f"{PREFIX}cluster_image:decode_end_offsets"],
            share=0.3,
        ),
    ]


def _keys() -> Target:
    samples = [
        b"C4CA4238A0B923820DCC509A6F75849B/_kafka_c/1/1795827953167/wal/36104568832-36171677696",
        b"C4CA4238A0B923820DCC509A6F75849B/_kafka_c/1_object/1795827953167/wal/36104568832",
        b"_kafka_c/41jvpIn1gGLxDdcxa2Vkng/0",
    ]

    def read(data: bytes) -> None:
        key = data.decode("utf-8", "replace")
        names.decode_wal_key(key)
        decode_partition_key(key)

    return reader(
        "automq key",
        read,
        samples,
        [f"{PREFIX}names:decode_wal_key", f"{PREFIX}metadata_records:decode_partition_key"],
        share=0.3,
    )
