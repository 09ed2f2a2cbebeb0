"""Targets for what all systems share: codecs, varints, LZ4 frames, stored scans."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from lastwrite.encoding import lz4_frame, zstd_frame
from lastwrite.encoding.compression import (
    Codec,
    Codecs,
    OutputTooSmall,
    compress,
    decompress,
    decompress_into,
    with_lz4_header_checksum,
)
from lastwrite.encoding.varint import decode_varint, decode_varlong
from lastwrite.errors import LogError
from lastwrite.scan_cache import format
from lastwrite.scan_cache.segment import CachedBlock, CachedPiece, CachedSegment, SegmentIdentity
from tests.fuzz.mutate import harm
from tests.fuzz.target import INPUT, OUTPUT, Target, outcome, reader

PLAIN_LIMIT = 1 << 20


def targets() -> list[Target]:
    """The targets for all readers of bytes that belong to no system."""
    plain = [
        b"x",
        b"abc" * 90,
        bytes(range(256)) * 4,
        b"\0" * 70_000,
        random.Random(3).randbytes(300),
    ]
    packed = [(codec, compress(codec, data)) for codec in Codec for data in plain]
    frames = [data for codec, data in packed if codec is Codec.LZ4]

    def payload(rng: random.Random) -> tuple[bytes, Any]:
        codec, data = rng.choice(packed)
        for _ in range(rng.choice([0, 1, 1, 2])):
            data = harm(rng, data, [data])
        if codec is Codec.LZ4 and rng.random() < 0.4:
            data = with_lz4_header_checksum(data)
        return data, codec

    def frame(rng: random.Random) -> tuple[bytes, Any]:
        data = rng.choice(frames)
        harmed = harm(rng, data[7:], [data])
        if rng.random() < 0.7 and len(harmed) > 8:  # correct the size of the block
            harmed = (len(harmed) - 8).to_bytes(4, "little") + harmed[4:-4] + bytes(4)
        return data[:7] + harmed, None

    def number(data: bytes) -> None:
        for decode in (decode_varint, decode_varlong):
            at = 0
            while at < len(data):
                _, at = decode(data, at)

    return [
        Target(
            "payload",
            payload,
            check_payload,
            (
                "compression:decompress_into",
                "compression:decompress",
                "compression:Codecs.decompress_into",
                "zstd_frame:decode_frame",
            ),
            share=3,
        ),
        Target(
            "lz4 frame",
            frame,
            check_frame,
            ("lz4_frame:decode_frame", "lz4_frame:decode_block"),
            share=2,
        ),
        reader(
            "varints",
            number,
            [bytes(range(0, 256, 5)), b"\x80\x01\xff\xff\xff\xff\x0f\x02"],
            ["varint:decode_varint", "varint:decode_varlong"],
            share=0.5,
        ),
        Target(
            "kept scan",
            _kept,
            check_kept,
            (
                "scan_cache.format:decode_header",
                "scan_cache.format:decode_segment",
                "scan_cache.format:checksum",
            ),
        ),
        reader(
            "kept secret",
            lambda data: format.decode_secret(data, 16),
            [format.encode_secret(bytes(range(16)))],
            ["scan_cache.format:decode_secret"],
            share=0.2,
        ),
    ]


_CODECS = Codecs()


def check_payload(data: bytes, codec: Codec, rng: random.Random) -> str:
    """Check that both decompressors agree, and that neither writes more than the limit."""
    room = rng.choice([10, 300, 100_000])
    found: list[bytes | None] = []
    for opened in (decompress_into, _CODECS.decompress_into):
        out = OUTPUT.room(room)
        try:
            found.append(out[: opened(codec, data, out)].tobytes())
        except LogError:
            found.append(None)
        except OutputTooSmall:
            found.append(b"too small")
    assert found[0] == found[1], "two ways to open a payload differ"
    if codec is Codec.ZSTD:
        source, target, words = INPUT.put(data), OUTPUT.room(room), _CODECS.contexts.words
        places = source.ctypes.data, 0, len(source), target.ctypes.data, 0, len(target)
        end = zstd_frame.decode_frame(words, *places)
        assert end < 0 or target[:end].tobytes() == found[0], "and so does the kernel"
    outcome(lambda: decompress(codec, data, rng.choice([100, PLAIN_LIMIT])))
    return "refused" if found[0] is None else "read"


def check_frame(data: bytes, _: Any, rng: random.Random) -> str:
    """Check that the library decompresses a frame that the kernel accepts to the same bytes."""
    source, target = INPUT.put(data), OUTPUT.room(rng.choice([10, 300, 100_000]))
    end = _decode_frame(source, target)
    if end < 0:
        return "refused"
    out = np.zeros(end + 1, np.uint8)
    assert decompress_into(Codec.LZ4, data, out) == end and (out[:end] == target[:end]).all()
    return "read"


def _decode_frame(source: np.ndarray, target: np.ndarray) -> int:
    return int(
        lz4_frame.decode_frame(
            source.ctypes.data, 0, len(source), len(source), target.ctypes.data, 0, len(target)
        )
    )


def _kept(rng: random.Random) -> tuple[bytes, Any]:
    """The damaged header and tables of a stored scan. Mostly, the checksums match."""
    at, pieces, blocks = 0, [], format.HEADER.size
    for _ in range(rng.randrange(1, 4)):
        counts = [rng.randrange(1, 9) for _ in range(rng.randrange(1, 3))]
        own = []
        for count in counts:
            own.append(CachedBlock(blocks, count, 7))
            blocks += format.block_bytes(count, 2)
        pieces.append(CachedPiece(at, at + 100, sum(counts), 1, at, at + 9, tuple(own)))
        at += 100
    identity = SegmentIdentity((at, 1, 1, 1), (8, 1, 1, 2), (12, 1, 1, 3))
    known = CachedSegment("x", 0, 2, identity, bytes(16), tuple(pieces))
    tables = format.encode_tables(pieces)
    for _ in range(rng.choice([0, 1, 1, 2])):
        tables = harm(rng, tables, [tables])
    header = format.header_of(known, blocks, tables)
    if rng.random() < 0.5:
        field = rng.choice(
            ["tables_at", "bits", "piece_count", "log_size", "base_offset", "tables_crc"]
        )
        header = header._replace(**{field: rng.choice([0, 1, 2, 24, 25, 31, 2**31 - 1, 2**32 - 1])})
    head = format.encode_header(header)
    if rng.random() < 0.3:
        head = harm(rng, head, [head])
    return head + tables, len(head)


def check_kept(data: bytes, cut: int, rng: random.Random) -> str:
    def read() -> None:
        format.decode_segment(format.decode_header(data[:cut], "x"), data[cut:], "x")

    return outcome(read)
