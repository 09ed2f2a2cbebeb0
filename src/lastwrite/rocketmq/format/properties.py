r"""The properties of a message: names and values in one flat string.

``KEYS\x01order-1\x02TAGS\x01TagA\x02``: a name, byte 1, a value, byte 2, and so on. Brokers before
5.2.0 leave the last byte 2 out. Nothing is escaped, so a value may hold a byte 1 but never a byte
2. A broker that writes record checksums puts ``__CRC32#`` last, always 20 bytes: ten digits, the
least significant first.

A piece without byte 1, without a name or without a value says nothing; of a name that is there
twice the last counts.

Source: RocketMQ 5.5.0 ``MessageDecoder.string2messageProperties``, ``MessageExtEncoder``,
``UtilAll.crc32``; docs/formats/rocketmq.md, "Record" and "Properties";
docs/formats/rocketmq-compaction.md, "What 5.5.0 does otherwise than older releases".
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Final

from lastwrite.rocketmq.format import names
from lastwrite.rocketmq.format.java_hash import decode, is_blank

NAME_END: Final = 0x01
VALUE_END: Final = 0x02

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
UNIQUE_KEY: Final = "UNIQ_KEY"
INNER_NUM: Final = "INNER_NUM"  # of an inner batch: its messages
INNER_BASE: Final = "INNER_BASE"  # of an inner batch: its first queue offset
DELAY: Final = "DELAY"  # a level of messageDelayLevel, from 1
MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"  # further (light) queues, separated by commas
MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"  # its offsets there
RECORD_CRC: Final = "__CRC32#"

RECORD_CRC_BYTES: Final = 20
_RECORD_CRC_HEAD = RECORD_CRC.encode() + bytes([NAME_END])


def items(raw: bytes) -> list[tuple[bytes, bytes]]:
    """Names and values as they lie there, in their order, repeated ones too."""
    found = []
    for piece in raw.split(b"\x02"):
        name, separator, value = piece.partition(b"\x01")
        if separator and name and value:
            found.append((name, value))
    return found


def parse(raw: bytes) -> dict[str, str]:
    """The properties as a broker sees them. Broken UTF-8 becomes U+FFFD, as in Java."""
    return {decode(name): decode(value) for name, value in items(raw)}


def light_queues(found: Mapping[str, str], queue_id: int) -> list[tuple[str, int, int]]:
    """Topic, queue and offset of each light queue that a record of queue ``queue_id`` names.

    As a broker reads them: none unless there are as many offsets as names, and none from an offset
    on that is no number. A queue that a record names twice has it once.

    Source: RocketMQ 5.5.0 ``ConsumeQueue.multiDispatchLmqQueue``.
    """
    named, offsets = found.get(MULTI_DISPATCH), found.get(MULTI_QUEUE_OFFSET)
    if named is None or offsets is None or is_blank(named) or is_blank(offsets):
        return []
    topics, places = named.rstrip(",").split(","), offsets.rstrip(",").split(",")
    queues: dict[tuple[str, int], int] = {}
    for topic, place in zip(topics, places, strict=True) if len(topics) == len(places) else ():
        if "/" in topic:
            continue
        if not place.isascii() or not place.removeprefix("+").isdigit():
            break
        number = 0 if topic.startswith(names.LIGHT_QUEUE) else queue_id
        queues.setdefault((topic, number), int(place))
    return [(*name, offset) for name, offset in queues.items()]


def build(pairs: Mapping[str, str] | Iterable[tuple[str, str]], *, closed: bool = True) -> bytes:
    """The properties' bytes; ``closed``: with the last byte 2, as brokers from 5.2.0 on write it.

    Raises:
        ValueError: a name or value that would not be read back.
    """
    out = []
    for name, value in pairs.items() if isinstance(pairs, Mapping) else pairs:
        if not name or not value or "\x01" in name or "\x02" in name + value:
            raise ValueError(f"property {name!r} of value {value!r}")
        out.append(name.encode() + b"\x01" + value.encode())
    return b"\x02".join(out) + (b"\x02" if out and closed else b"")


def record_crc(record: bytes | memoryview) -> int:
    """The checksum that a record states: over all but its last 20 bytes, top bit cleared."""
    return zlib.crc32(memoryview(record)[:-RECORD_CRC_BYTES]) & 0x7FFF_FFFF


def record_crc_item(crc: int) -> bytes:
    """The last property of a record with a checksum."""
    return _RECORD_CRC_HEAD + f"{crc:010d}"[::-1].encode() + bytes([VALUE_END])


def record_crc_holds(record: bytes | memoryview) -> bool | None:
    """Whether a whole record is what its record checksum says; None where it states none.

    Of a record in a compaction log it never holds: the address changed after it was computed.
    """
    tail = bytes(memoryview(record)[-RECORD_CRC_BYTES:])
    digits = tail[len(_RECORD_CRC_HEAD) : -1]
    if not tail.startswith(_RECORD_CRC_HEAD) or tail[-1] != VALUE_END or not digits.isdigit():
        return None
    return int(digits[::-1]) == record_crc(record)
