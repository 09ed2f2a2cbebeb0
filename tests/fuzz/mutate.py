"""Damaged segments: batches with flipped bits, truncation, splices or wrong values.

Half of the changes inside a batch get a matching checksum, so that they reach the code after the
check.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import google_crc32c

from lastwrite.encoding.compression import Codec, compress
from lastwrite.kafka.format.batch import ControlType, encode_batch
from lastwrite.kafka.format.batch_layout import Record
from tests.support.kafka.old_entries import encode_message, encode_wrapper
from tests.support.kafka.single import encode_control_record

START = 1_700_000_000_000
_EXTREMES = [
    0,
    1,
    2,
    6,
    7,
    13,
    14,
    48,
    49,
    60,
    61,
    127,
    128,
    255,
    2**15,
    2**31 - 1,
    -1,
    -2,
    -(2**31),
]


def sound_segments(rng: random.Random) -> list[bytes]:
    """Small intact segments: codecs, formats, headers, nulls, horizons, gaps, empty batches.

    Some of them were written by real brokers.
    """
    found = []
    for codec in Codec:
        for _ in range(3):
            found.append(_segment(rng, codec))
    for _ in range(12):
        found.append(_old_segment(rng))
    for _ in range(8):
        found.append(_transactions(rng))
    corpus = Path(__file__).parents[1] / "corpus"
    for file in sorted(corpus.rglob("*.log")):
        data = file.read_bytes()
        if 0 < len(data) <= 8192:
            found.append(data)
    return found


def _segment(rng: random.Random, codec: Codec) -> bytes:
    out, offset = [], rng.choice([0, 7, 2**33])
    for _ in range(rng.randint(1, 3)):
        records = []
        base = offset
        for _ in range(rng.randint(0, 5)):
            key = rng.choice(
                [None, b"", b"a", b"b", b"key-%d" % rng.randint(0, 3), rng.randbytes(30)]
            )
            value = rng.choice([None, b"", b"v" * rng.randint(1, 90)])
            headers = rng.choice([(), (), ((b"h", None), (b"", b"x"))])
            records.append(Record(offset, START + rng.randint(-9, 9), key, value, headers))
            offset += rng.choice([1, 1, 1, 5])
        offset = max(offset, base + 1)
        out.append(
            encode_batch(
                records,
                base_offset=base,
                last_offset=offset - 1,
                codec=codec,
                leader_epoch=rng.randint(0, 3),
                delete_horizon_ms=rng.choice([None, START + 50]) if records else None,
            )
        )
    return b"".join(out)


def _transactions(rng: random.Random) -> bytes:
    """Data and markers of one or two producers. Some markers have lost their record."""
    out, offset = [], rng.choice([0, 7])
    for _ in range(rng.randint(1, 3)):
        writer: dict[str, Any] = {
            "producer_id": rng.randint(0, 2),
            "producer_epoch": 1,
            "transactional": True,
        }
        record = Record(offset, START, rng.choice([None, b"a", b"b"]), b"v")
        out.append(
            encode_batch([record], base_sequence=offset, codec=rng.choice(list(Codec)), **writer)
        )
        marker = encode_control_record(
            offset + 1, START, rng.choice([ControlType.ABORT, ControlType.COMMIT]), 3
        )
        held = [marker] if rng.random() < 0.8 else []
        out.append(
            encode_batch(
                held, base_offset=offset + 1, last_offset=offset + 1, control=True, **writer
            )
        )
        offset += 2
    return b"".join(out)


def _old_segment(rng: random.Random) -> bytes:
    """Messages and wrappers of v0 and v1, sometimes with a batch of v2 among them."""
    out, offset = [], rng.choice([0, 0, 7, 2**33])
    for _ in range(rng.randint(1, 4)):
        records = []
        for _ in range(rng.randint(1, 5)):
            value = rng.choice([None, b"", b"v" * rng.randint(1, 90)])
            records.append(
                Record(
                    offset, START + rng.randint(-9, 9), rng.choice([None, b"", b"a", b"b"]), value
                )
            )
            offset += rng.choice([1, 1, 5])
        magic, codec = rng.randint(0, 1), Codec(rng.randint(0, 3))
        if rng.random() < 0.1:
            out.append(encode_batch(records))
        elif codec is Codec.NONE:
            out += [
                encode_message(record, magic, append_time=rng.random() < 0.2) for record in records
            ]
        else:
            append_ms = rng.choice([None, None, START])
            out.append(encode_wrapper(records, magic, codec, append_time_ms=append_ms))
    return b"".join(out)


def _broken_wrapper(rng: random.Random) -> bytes:
    """A wrapper with a valid checksum around damaged messages."""
    data = bytearray(_old_segment(rng))
    for _ in range(rng.choice([0, 1, 1, 3])):
        starts = _entry_starts(data)
        start, size = rng.choice(starts)
        if size:
            data[start + rng.randrange(min(size, rng.choice([18, 40, size])))] = rng.choice(
                [0, 1, 2, 127, 255]
            )
            _reseal(data, start, size, rng.random() < 0.8)
    magic, codec = rng.randint(0, 1), Codec(rng.randint(1, 3))
    shell = bytearray(
        encode_wrapper([Record(rng.choice([0, 3, 99, 2**33 + 40]), START, None, b"")], magic, codec)
    )
    blob = compress(codec, data)
    at = 30 if magic else 22
    shell[at:] = len(blob).to_bytes(4, "big") + blob
    shell[8:12] = (len(shell) - 12).to_bytes(4, "big")
    _reseal(shell, 0, len(shell), True)
    return bytes(shell) + rng.choice([b"", _old_segment(rng)])


def mutate(rng: random.Random, segments: list[bytes]) -> bytes:
    """A damaged segment. Rarely, the result is still intact."""
    if rng.random() < 0.1:
        return _broken_wrapper(rng)
    data = bytearray(rng.choice(segments))
    kind = rng.randrange(8)
    if kind == 0:
        return rng.randbytes(rng.choice([0, 1, 16, 17, 60, 61, 200, 1000]))
    if kind == 1:
        return bytes(data[: rng.randrange(len(data) + 1)])
    if kind == 2:
        other = rng.choice(segments)
        at, start = rng.randrange(len(data) + 1), rng.randrange(len(other))
        return bytes(
            data[:at] + other[start : start + rng.randrange(1, len(other) + 1)] + data[at:]
        )
    if kind == 3:
        at = rng.randrange(len(data))
        del data[at : at + rng.randrange(1, 40)]
        return bytes(data)
    starts = _entry_starts(data)
    start, size = rng.choice(starts)
    if kind in (4, 5):
        for _ in range(rng.choice([1, 1, 2, 8])):
            data[start + rng.randrange(size)] ^= 1 << rng.randrange(8)
    elif kind == 6:  # a wrong value in a header field
        fields = [
            (0, ">q"),
            (8, ">i"),
            (16, ">b"),
            (21, ">h"),
            (23, ">i"),
            (27, ">q"),
            (35, ">q"),
            (57, ">i"),
        ]
        if (
            size < 61 or data[start + 16] < 2
        ):  # the codec, and the usual positions of the lengths of key and value
            fields = [(0, ">q"), (8, ">i"), (16, ">b"), (17, ">b"), (18, ">i"), (22, ">i")]
        at, form = rng.choice(fields)
        if start + at + struct.calcsize(form) > len(data):
            return bytes(data)
        value = rng.choice(_EXTREMES)
        bits = 8 * struct.calcsize(form)
        struct.pack_into(
            form, data, start + at, (value + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
        )
    elif size > 26:  # wrong bytes among the records
        head = min(size - 1, 61 if data[start + 16] >= 2 else 18)
        at = start + head + rng.randrange(size - head)
        contradiction = rng.choice(
            [
                b"\xff" * rng.randint(1, 11),
                b"\x00",
                b"\x01",
                b"\x7f",
                b"\xfe\xff\xff\xff\x0f",
                rng.randbytes(3),
            ]
        )
        data[at : at + len(contradiction)] = contradiction[: start + size - at]
    _reseal(data, start, size, rng.random() < 0.7)
    return bytes(data)


def _reseal(data: bytearray, start: int, size: int, fits: bool) -> None:
    """Correct the checksum of an entry for its current magic, if ``fits``."""
    if not fits or start + size > len(data) or size < 26:
        return
    if data[start + 16] < 2:
        struct.pack_into(">I", data, start + 12, zlib.crc32(data[start + 16 : start + size]))
    else:
        struct.pack_into(
            ">I", data, start + 17, google_crc32c.value(bytes(data[start + 21 : start + size]))
        )


def _entry_starts(data: bytes | bytearray) -> list[tuple[int, int]]:
    found, at = [], 0
    while at + 26 <= len(data):
        size = 12 + struct.unpack_from(">i", data, at + 8)[0]
        if size < 26 or at + size > len(data):
            break
        found.append((at, size))
        at += size
    return found or [(0, len(data))]


_NUMBERS = [
    0,
    1,
    2,
    3,
    4,
    6,
    7,
    8,
    12,
    13,
    14,
    16,
    46,
    60,
    61,
    91,
    127,
    128,
    255,
    2**15 - 1,
    2**15,
    2**16 - 1,
]
_NUMBERS += [2**24 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
_VARINTS = [
    b"\xff",
    b"\0",
    b"\x01",
    b"\x7f",
    b"\x80",
    b"\x80\0",
    b"\xff\xff\xff\xff\x07",
    b"\xfe\xff\xff\xff\x0f",
]
_VARINTS += [
    b"\xff\xff\xff\xff\x0f",
    b"\xff" * 9 + b"\x01",
    b"\xff" * 9 + b"\x7f",
    b"\xff" * 10,
    b"\x80" * 12,
]
_TEXTS = [
    b"0",
    b"-1",
    b"9" * 19,
    b"9" * 25,
    b"1e999",
    b"NaN",
    b"null",
    b"{}",
    b"[]",
    b'"',
    b"\n",
    b" ",
    b"[" * 3000,
]
_TEXTS += [
    b"1" * 5000,
    b"\xc3\xa9",
    b"\xed\xa0\x80",
    b"\xf0\x9f\x98\x80",
    "\u0661".encode(),
    "\u00b2".encode(),
    b"\\ud800",
]


def harm(
    rng: random.Random, data: bytes, others: Sequence[bytes], extra: Sequence[bytes] = ()
) -> bytes:
    """Damage a file of any kind. Rarely, the result is still intact.

    Writes noise, truncates, splices, removes bytes, flips bits, or writes extreme values.
    """
    out = bytearray(data)
    kind = rng.randrange(9)
    if kind == 0:
        if rng.random() < 0.2:
            return rng.randbytes(rng.choice([0, 1, 4, 12, 40, 128, 140, 300]))
        kind = 4
    if kind == 1:
        return bytes(out[: rng.randrange(len(out) + 1)])
    at = rng.randrange(len(out) + 1)
    if kind == 2:
        other = rng.choice(others)
        start = rng.randrange(len(other) + 1)
        out[at:at] = other[start : start + rng.randrange(min(len(other), 400) + 1)]
    elif kind == 3:
        del out[at : at + rng.randrange(1, 40)]
    elif kind == 4:
        for _ in range(rng.choice([1, 1, 2, 8])):
            if out:
                out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    elif kind == 5:
        size = rng.choice([1, 2, 4, 4, 8])
        out[at : at + size] = (rng.choice(_NUMBERS) % 256**size).to_bytes(
            size, rng.choice(["big", "big", "little"])
        )
    elif kind == 6:
        contradiction = rng.choice(_VARINTS)
        out[at : at + len(contradiction) * rng.randrange(2)] = contradiction
    elif kind == 7:
        contradiction = rng.choice([*_TEXTS, *extra])
        out[at : at + rng.choice([0, 1, len(contradiction)])] = contradiction
    elif out:
        size = rng.randrange(1, 60)
        out[at:at] = out[at : at + size] * rng.choice([1, 1, 2, 30])
    return bytes(out)
