r"""The properties of a message: names and values in one flat string.

``KEYS\x01order-1\x02TAGS\x01TagA\x02`` has a name, byte 1, a value, byte 2, and so on. Brokers
before 5.2.0 omit the last byte 2. Nothing is escaped, so a value may contain a byte 1 but never a
byte 2. A broker that writes record checksums writes the property ``__CRC32#`` last. It always has
20 bytes; its value has ten digits, the least significant first.

A piece without byte 1, without a name or without a value is ignored. If a name is repeated, its
last value counts.

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
INNER_NUM: Final = "INNER_NUM"  # number of messages in an inner batch
INNER_BASE: Final = "INNER_BASE"  # first queue offset of an inner batch
DELAY: Final = "DELAY"  # a level of messageDelayLevel, from 1
MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"  # light queues, separated by commas
MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"  # the offsets in the light queues
RECORD_CRC: Final = "__CRC32#"

RECORD_CRC_BYTES: Final = 20
_RECORD_CRC_HEAD = RECORD_CRC.encode() + bytes([NAME_END])


def items(raw: bytes) -> list[tuple[bytes, bytes]]:
    """The names and values in stored order, including repeated names."""
    found = []
    for piece in raw.split(b"\x02"):
        name, separator, value = piece.partition(b"\x01")
        if separator and name and value:
            found.append((name, value))
    return found


def parse(raw: bytes) -> dict[str, str]:
    """Parse the properties as a broker does. Invalid UTF-8 becomes U+FFFD, as in Java."""
    return {decode(name): decode(value) for name, value in items(raw)}


def light_queues(found: Mapping[str, str], queue_id: int) -> list[tuple[str, int, int]]:
    """The topic, queue and offset of each light queue in the properties of a record.

    ``queue_id`` is the queue of the record.

    As in a broker, there are none if the numbers of names and offsets differ. The list ends before
    an offset that is not a number. A queue that is named twice is returned once.

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
    """Encode properties. ``closed`` adds the last byte 2, as brokers since 5.2.0 do.

    Raises:
        ValueError: a name or value cannot be encoded, because it is empty or contains a separator.
    """
    out = []
    for name, value in pairs.items() if isinstance(pairs, Mapping) else pairs:
        if not name or not value or "\x01" in name or "\x02" in name + value:
            raise ValueError(f"property {name!r} of value {value!r}")
        out.append(name.encode() + b"\x01" + value.encode())
    return b"\x02".join(out) + (b"\x02" if out and closed else b"")


def record_crc(record: bytes | memoryview) -> int:
    """The checksum of a record without its last 20 bytes: CRC-32 with the top bit cleared."""
    return zlib.crc32(memoryview(record)[:-RECORD_CRC_BYTES]) & 0x7FFF_FFFF


def record_crc_item(crc: int) -> bytes:
    """Encode the property that contains the record checksum; it is a record's last property."""
    return _RECORD_CRC_HEAD + f"{crc:010d}"[::-1].encode() + bytes([VALUE_END])


def record_crc_holds(record: bytes | memoryview) -> bool | None:
    """Whether a whole record matches its record checksum. Returns None without a checksum.

    In a compaction log the checksum never matches, because the copy has another address.
    """
    tail = bytes(memoryview(record)[-RECORD_CRC_BYTES:])
    digits = tail[len(_RECORD_CRC_HEAD) : -1]
    if not tail.startswith(_RECORD_CRC_HEAD) or tail[-1] != VALUE_END or not digits.isdigit():
        return None
    return int(digits[::-1]) == record_crc(record)
