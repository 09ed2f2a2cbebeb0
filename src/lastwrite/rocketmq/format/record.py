"""A record of a commit log or a compaction log, field by field.

This is the readable version of ``kernels``.

The smallest case is one message: total size, magic, checksum of the body, queue, offsets, times,
hosts, body, topic, properties. In addition:

- A host takes 8 bytes (IPv4) or 20 (IPv6); the sysFlag has one bit for each of the two hosts.
- The topic length has two bytes with magic v2, and one byte with v1.
- The last record of a file is *blank*: it has the number of bytes left, and a special magic. Later
  bytes have no meaning. In the file being written, data ends where the total size is 0.
- The body may be compressed. It is stored as the client sent it, and the checksum covers the stored
  bytes.
- An *inner batch* is one record whose body is a sequence of messages.
- A traditional batch leaves no trace: its messages are ordinary records.

Source: RocketMQ 5.5.0 and 4.9.3 ``MessageExtEncoder``, ``CommitLog.checkMessageAndReturnSize``,
``MessageDecoder``; docs/formats/rocketmq.md, "Record" and "Properties".
"""

from __future__ import annotations

import ipaddress
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

from lastwrite.encoding.compression import Codec, decompress
from lastwrite.encoding.layout import I32, I64, At, Buffer, layout
from lastwrite.errors import (
    CorruptLog,
    InvalidConfig,
    LogError,
    OutOfMemoryBudget,
    TruncatedLog,
    UnsupportedFormat,
)
from lastwrite.rocketmq.format.java_hash import decode, is_blank
from lastwrite.rocketmq.format.properties import (
    INNER_BASE,
    INNER_NUM,
    KEYS,
    RECORD_CRC_BYTES,
    TAGS,
    UNIQUE_KEY,
    build,
    parse,
    record_crc_item,
)

# Magics, as the signed numbers that the layouts below decode.
MAGIC_V1 = 0xDAA320A7 - (1 << 32)
MAGIC_V2 = 0xDAA320AB - (1 << 32)
MAGIC_BLANK = 0xCBD43194 - (1 << 32)

# sysFlag bits.
COMPRESSED = 0x1
MULTI_TAGS = 0x2
TRANSACTION_MASK = 0xC
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
BORN_V6 = 0x10
STORE_V6 = 0x20
NEEDS_UNWRAP = 0x40
INNER_BATCH = 0x80
COMPRESSION_MASK = 0x700  # bits of the compression type; only with COMPRESSED
COMPRESSION_LZ4 = 0x100
COMPRESSION_ZSTD = 0x200
COMPRESSION_ZLIB = 0x300

IS_INNER = NEEDS_UNWRAP | INNER_BATCH  # both bits: the body is a sequence of messages

BLANK_BYTES = 8
SMALLEST_RECORD_BYTES = 91  # size with IPv4 hosts, magic v1, no body, topic or properties
PHYSICAL_OFFSET_AT = 28  # only the 8 bytes from here on change when a record is copied
DEFAULT_LIMIT_BYTES = 64 << 20  # largest size of a decompressed body

_MAX_I16 = (1 << 15) - 1
_MAX_I32 = (1 << 31) - 1
_SMALLEST_ITEM_BYTES = 22


class RecordHead(NamedTuple):
    """The first fields of a record, which are the same for all magics and kinds of hosts."""

    # fmt: off
    #                               offset  type
    size:            Annotated[int, At(0,  I32)]  # bytes of the record, this field included
    magic:           Annotated[int, At(4,  I32)]
    # CRC-32 of the stored body, top bit cleared; 0 without body
    body_crc:        Annotated[int, At(8,  I32)]
    queue_id:        Annotated[int, At(12, I32)]
    flag:            Annotated[int, At(16, I32)]  # defined by the application
    queue_offset:    Annotated[int, At(20, I64)]
    # address of the record's first byte in its log
    physical_offset: Annotated[int, At(28, I64)]
    sys_flag:        Annotated[int, At(36, I32)]
    born_time_ms:    Annotated[int, At(40, I64)]  # creation time by the client's clock
    # 48: born host
    # fmt: on


class StoreTime(NamedTuple):
    """The store time of a record, by the broker's clock. The field follows the born host.

    Store times never decrease within a log.
    """

    # fmt: off
    #                             offset  type
    store_time_ms: Annotated[int, At(0, I64)]
    # 8: store host
    # fmt: on


class RecordTail(NamedTuple):
    """The fields of a record after the store host."""

    # fmt: off
    #                               offset  type
    reconsume_times: Annotated[int, At(0,  I32)]
    prepared_offset: Annotated[int, At(4,  I64)]  # address of the prepared message; 0: none
    body_length:     Annotated[int, At(12, I32)]
    # from byte 16 on: body; topic length, i8 or i16; topic; properties' length, i16; properties

    # fmt: on


class Blank(NamedTuple):
    """The blank record that ends a file. Bytes after it have no meaning."""

    # fmt: off
    #                     offset  type
    room:  Annotated[int, At(0, I32)]  # bytes from here to the file's end
    magic: Annotated[int, At(4, I32)]
    # fmt: on


class InnerHead(NamedTuple):
    """The first fields of a message in an inner batch."""

    # fmt: off
    #                           offset  type
    size:        Annotated[int, At(0,  I32)]  # bytes of the message, this field included
    magic:       Annotated[int, At(4,  I32)]  # always 0
    body_crc:    Annotated[int, At(8,  I32)]  # always 0
    flag:        Annotated[int, At(12, I32)]
    body_length: Annotated[int, At(16, I32)]
    # from byte 20 on: body; properties' length, i16; properties

    # fmt: on


RECORD_HEAD = layout(RecordHead, byte_order=">", size=48)
STORE_TIME = layout(StoreTime, byte_order=">", size=8)
RECORD_TAIL = layout(RecordTail, byte_order=">", size=16)
BLANK = layout(Blank, byte_order=">", size=BLANK_BYTES)
INNER_HEAD = layout(InnerHead, byte_order=">", size=20)


class Compression(StrEnum):
    """The compression type of a body."""

    NONE = "none"
    ZLIB = "zlib"
    LZ4 = "lz4"
    ZSTD = "zstd"


_COMPRESSIONS = {
    0: Compression.ZLIB,  # used by clients before 4.9.4
    COMPRESSION_LZ4: Compression.LZ4,
    COMPRESSION_ZSTD: Compression.ZSTD,
    COMPRESSION_ZLIB: Compression.ZLIB,
}


def compression_of(sys_flag: int) -> Compression:
    """The compression of the body according to the sysFlag.

    Raises:
        UnsupportedFormat: no release uses this compression type.
    """
    if not sys_flag & COMPRESSED:
        return Compression.NONE
    kind = sys_flag & COMPRESSION_MASK
    if kind not in _COMPRESSIONS:
        raise UnsupportedFormat(f"the record has the unknown compression type {kind >> 8}", 36)
    return _COMPRESSIONS[kind]


class Host(NamedTuple):
    """An address of 4 or 16 bytes, and a port."""

    address: bytes
    port: int

    @property
    def is_v6(self) -> bool:
        return len(self.address) == 16

    def __str__(self) -> str:
        text = str(ipaddress.ip_address(self.address))
        return f"[{text}]:{self.port}" if self.is_v6 else f"{text}:{self.port}"

    def encode(self) -> bytes:
        """Encode the address, then the port in four bytes, as in a record."""
        return self.address + struct.pack(">i", self.port)


LOCALHOST = Host(b"\x7f\0\0\1", 10911)


@dataclass(frozen=True, slots=True)
class RocketmqMessage:
    """A record with every field as stored. Sizes and lengths are computed from the fields."""

    magic: int = MAGIC_V1
    body_crc: int = 0
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    sys_flag: int = 0
    born_time_ms: int = 0
    born_host: Host = LOCALHOST
    store_time_ms: int = 0
    store_host: Host = LOCALHOST
    reconsume_times: int = 0
    prepared_offset: int = 0
    body: bytes = b""  # as stored: perhaps compressed
    topic_bytes: bytes = b""
    properties_bytes: bytes = b""
    properties: dict[str, str] = field(default_factory=dict)  # parsed from the bytes

    @property
    def topic(self) -> str:
        return decode(self.topic_bytes)

    @property
    def keys(self) -> str | None:
        """The value of KEYS, which is the key for compaction. None if it is missing or blank."""
        keys = self.properties.get(KEYS)
        return None if is_blank(keys) else keys

    @property
    def tags(self) -> str | None:
        return self.properties.get(TAGS)

    @property
    def unique_key(self) -> str | None:
        return self.properties.get(UNIQUE_KEY)

    @property
    def body_at(self) -> int:
        """The position of the body, counted from the record's first byte."""
        return 72 + _host_bytes(self.sys_flag, BORN_V6) + _host_bytes(self.sys_flag, STORE_V6)

    @property
    def size(self) -> int:
        """The size of the record in bytes."""
        lengths = 4 if self.magic == MAGIC_V2 else 3  # bytes of the two length fields
        parts = (self.body, self.topic_bytes, self.properties_bytes)
        return self.body_at + lengths + sum(map(len, parts))

    @property
    def is_inner_batch(self) -> bool:
        return self.sys_flag & IS_INNER == IS_INNER

    @property
    def body_crc_holds(self) -> bool:
        """Whether the stored body matches its checksum.

        As in a broker, an empty body always matches.
        """
        return not self.body or body_crc(self.body) == self.body_crc


def body_crc(body: Buffer) -> int:
    """The checksum of a stored body: CRC-32 without its top bit; 0 for an empty body."""
    return zlib.crc32(body) & 0x7FFF_FFFF


def _host_bytes(sys_flag: int, bit: int) -> int:
    return 20 if sys_flag & bit else 8


def decode_blank(buffer: Buffer, at: int, end: int) -> int | None:
    """The size stored in the blank record at ``at``. None if there is no blank record."""
    if end - at < BLANK_BYTES:
        return None
    blank = Blank._make(BLANK.unpack_from(buffer, at))
    return blank.room if blank.magic == MAGIC_BLANK else None


def decode_message(buffer: Buffer, at: int, end: int) -> RocketmqMessage:
    """Decode the record at position ``at`` of ``buffer``, whose data ends at ``end``.

    Checks the magic and every length, as a broker does, but neither checksum; use
    ``body_crc_holds`` and ``properties.record_crc_holds``. Does not compare ``physical_offset``
    with the record's position.

    Raises:
        TruncatedLog: the bytes end inside the record.
        CorruptLog: size 0 (the end of written data), a blank record, another magic, or lengths that
            do not add up. Positions are bytes of ``buffer``.
    """
    size = _record_size(buffer, at, end)
    end = at + size
    head = RecordHead._make(RECORD_HEAD.unpack_from(buffer, at))
    born_bytes = _host_bytes(head.sys_flag, BORN_V6)
    store_bytes = _host_bytes(head.sys_flag, STORE_V6)
    topic_length_bytes = 2 if head.magic == MAGIC_V2 else 1
    fixed = 74 + born_bytes + store_bytes + topic_length_bytes
    if size < fixed:
        raise CorruptLog(
            f"the record's size is {size} bytes, but its fixed fields take {fixed}", at
        )
    stored_at = at + RECORD_HEAD.size + born_bytes
    (store_time_ms,) = STORE_TIME.unpack_from(buffer, stored_at)
    tail_at = stored_at + STORE_TIME.size + store_bytes
    tail = RecordTail._make(RECORD_TAIL.unpack_from(buffer, tail_at))
    body_at = tail_at + RECORD_TAIL.size
    if not 0 <= tail.body_length <= size - fixed:
        raise CorruptLog(
            f"the body length is {tail.body_length}, which does not fit into a record of {size} "
            "bytes",
            body_at - 4,
        )
    place = body_at + tail.body_length
    topic_length = _signed(buffer, place, topic_length_bytes)
    if not 0 <= topic_length <= size - fixed - tail.body_length:
        raise CorruptLog(
            f"the topic length is {topic_length}, which does not fit into a record of {size} bytes",
            place,
        )
    topic_at = place + topic_length_bytes
    place = topic_at + topic_length + 2
    properties_length = _signed(buffer, place - 2, 2)
    if properties_length != end - place:
        raise CorruptLog(
            f"the properties length is {properties_length}, but the record has {end - place} "
            "bytes left",
            place - 2,
        )
    properties_bytes = bytes(buffer[place:end])
    return RocketmqMessage(
        *head[1:],
        born_host=_decode_host(buffer, at + RECORD_HEAD.size, born_bytes),
        store_time_ms=store_time_ms,
        store_host=_decode_host(buffer, stored_at + STORE_TIME.size, store_bytes),
        reconsume_times=tail.reconsume_times,
        prepared_offset=tail.prepared_offset,
        body=bytes(buffer[body_at : body_at + tail.body_length]),
        topic_bytes=bytes(buffer[topic_at : topic_at + topic_length]),
        properties_bytes=properties_bytes,
        properties=parse(properties_bytes),
    )


def _record_size(buffer: Buffer, at: int, end: int) -> int:
    """The size field of the record at ``at``. Raises the errors of ``decode_message``."""
    left = end - at
    if left < BLANK_BYTES:
        raise TruncatedLog(f"the file ends inside a record: {max(left, 0)} bytes are left", at)
    size, magic = BLANK.unpack_from(buffer, at)
    if magic == MAGIC_BLANK:
        raise CorruptLog(f"a blank record fills the last {size} bytes of the file", at)
    if size == 0:
        raise CorruptLog("no record begins here: the size is 0", at)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise CorruptLog(f"no record begins here: the magic is {magic & 4294967295:08X}", at + 4)
    if size < SMALLEST_RECORD_BYTES:
        raise CorruptLog(f"the record's size is {size} bytes, less than the smallest record", at)
    if size > left:
        raise TruncatedLog(
            f"the file ends inside a record: it has {left} of the record's {size} bytes", at
        )
    return int(size)


def _signed(buffer: Buffer, at: int, size: int) -> int:
    return int.from_bytes(bytes(buffer[at : at + size]), "big", signed=True)


def _decode_host(buffer: Buffer, at: int, size: int) -> Host:
    return Host(bytes(buffer[at : at + size - 4]), _signed(buffer, at + size - 4, 4))


def make_message(
    topic: str,
    body: bytes = b"",
    properties: dict[str, str] | None = None,
    *,
    closed: bool = True,
    **fields: Any,
) -> RocketmqMessage:
    """Create a message, with the checksum of its body and the flags for its hosts.

    ``closed`` is passed to ``properties.build``; ``fields`` are other fields of
    ``RocketmqMessage``.
    """
    raw = build(properties or {}, closed=closed)
    made = RocketmqMessage(
        **fields,
        body_crc=body_crc(body),
        body=body,
        topic_bytes=topic.encode(),
        properties_bytes=raw,
        properties=parse(raw),
    )
    bits = (BORN_V6 if made.born_host.is_v6 else 0) | (STORE_V6 if made.store_host.is_v6 else 0)
    return replace(made, sys_flag=made.sys_flag & ~(BORN_V6 | STORE_V6) | bits)


def encode_message(message: RocketmqMessage, *, record_crc: bool = False) -> bytes:
    """Encode a record. Lengths are computed; the body's checksum is the message's ``body_crc``.

    ``record_crc`` appends a record checksum to the properties. The properties must end with byte 2,
    or a reader does not find the checksum.

    Raises:
        ValueError: a value does not fit its field, or the hosts do not match the sysFlag.
    """
    if message.magic not in (MAGIC_V1, MAGIC_V2):
        raise ValueError(f"magic {message.magic}")
    for host, bit in ((message.born_host, BORN_V6), (message.store_host, STORE_V6)):
        if len(host.address) + 4 != _host_bytes(message.sys_flag, bit):
            raise ValueError(
                f"sysFlag {message.sys_flag:#x} is for another address length than {host}"
            )
    tail = RECORD_CRC_BYTES if record_crc else 0
    size = message.size + tail
    if size > _MAX_I32:
        raise ValueError(f"record of {size} bytes")
    try:
        out = b"".join(
            (
                RECORD_HEAD.pack(
                    size,
                    message.magic,
                    message.body_crc,
                    message.queue_id,
                    message.flag,
                    message.queue_offset,
                    message.physical_offset,
                    message.sys_flag,
                    message.born_time_ms,
                ),
                message.born_host.encode(),
                STORE_TIME.pack(message.store_time_ms),
                message.store_host.encode(),
                RECORD_TAIL.pack(
                    message.reconsume_times, message.prepared_offset, len(message.body)
                ),
                message.body,
                struct.pack(">h" if message.magic == MAGIC_V2 else ">b", len(message.topic_bytes)),
                message.topic_bytes,
                struct.pack(">h", len(message.properties_bytes) + tail),
                message.properties_bytes,
            )
        )
    except struct.error as error:
        raise ValueError(f"record of {size} bytes: {error}") from error
    if record_crc:
        out += record_crc_item(zlib.crc32(out) & 0x7FFF_FFFF)
    return out


def encode_blank(room: int) -> bytes:
    """Encode the blank record for the last ``room`` bytes of a file.

    Raises:
        ValueError: ``room`` is less than the 8 bytes of a blank record, or 2 GiB or more.
    """
    if not BLANK_BYTES <= room <= _MAX_I32:
        raise ValueError(f"a blank record in {room} bytes")
    return BLANK.pack(room, MAGIC_BLANK)


def body_of(message: RocketmqMessage, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> bytes:
    """The decompressed body, of at most ``limit_bytes``.

    As in a broker, an empty body is returned unchanged whatever its sysFlag, and bytes after the
    end of a zlib stream are ignored.

    Raises:
        CorruptLog: the body does not decompress; positions count from the record's first byte.
        UnsupportedFormat: no release uses this compression type.
        OutOfMemoryBudget: the body decompresses to more than ``limit_bytes``.
    """
    return decompress_body(message.body, message.sys_flag, message.body_at, limit_bytes)


def decompress_body(
    body: bytes, sys_flag: int, body_at: int, limit_bytes: int = DEFAULT_LIMIT_BYTES
) -> bytes:
    """Decompress a body without decoding its record. Raises the errors of ``body_of``."""
    if not body or not sys_flag & COMPRESSED:
        return body
    compression = compression_of(sys_flag)
    if compression is Compression.ZLIB:
        return _inflate(body, body_at, limit_bytes)
    codec = Codec.LZ4 if compression is Compression.LZ4 else Codec.ZSTD
    try:
        return bytes(decompress(codec, body, limit_bytes))
    except OutOfMemoryBudget:
        raise _past_limit(limit_bytes, body_at) from None
    except LogError as error:
        raise type(error)(error.problem, body_at + (error.at or 0)) from error


def _inflate(body: bytes, body_at: int, limit_bytes: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        out = stream.decompress(body, limit_bytes + 1)  # 0 would mean no limit
    except zlib.error as error:
        raise CorruptLog(f"the body's zlib data is damaged: {error}", body_at) from None
    if len(out) > limit_bytes:
        raise _past_limit(limit_bytes, body_at)
    if not stream.eof:
        raise CorruptLog(f"the body's zlib data ends early, after {len(out)} bytes", body_at)
    return out


def _past_limit(limit_bytes: int, body_at: int) -> OutOfMemoryBudget:
    return OutOfMemoryBudget(
        f"the body decompresses to more than {limit_bytes} bytes",
        body_at,
        remedy="raise --memory",
    )


def split_inner(
    message: RocketmqMessage, limit_bytes: int = DEFAULT_LIMIT_BYTES
) -> list[RocketmqMessage]:
    """The messages of an inner batch, each with its own flag, body, properties and queue offset.

    All other fields, including the address, are copied from the record. A message that is not an
    inner batch is returned alone.

    Raises:
        CorruptLog: the messages do not fill the body, or their number is not INNER_NUM. Positions
            count from the record's first byte.
    """
    if not message.is_inner_batch:
        return [message]
    body = body_of(message, limit_bytes)
    base = _number(message, INNER_BASE)
    found: list[RocketmqMessage] = []
    at = 0
    while at < len(body):
        item, at = _decode_item(body, at, message)
        offset = (message.queue_offset if base is None else base) + len(found)
        found.append(replace(item, queue_offset=offset))
    count = _number(message, INNER_NUM)
    if count is not None and count != len(found):
        raise CorruptLog(
            f"the inner batch has {len(found)} messages, but its INNER_NUM is {count}",
            message.body_at,
        )
    return found


def _number(message: RocketmqMessage, name: str) -> int | None:
    text = message.properties.get(name)
    if text is None:
        return None
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits.isascii() or not digits.isdigit() or len(digits) > 19:
        raise CorruptLog(f"the inner batch has the invalid {name} {text!r}", message.body_at)
    return int(text)


def _decode_item(body: bytes, at: int, record: RocketmqMessage) -> tuple[RocketmqMessage, int]:
    left = len(body) - at
    place = record.body_at + at
    if left < _SMALLEST_ITEM_BYTES:
        raise CorruptLog(
            f"the inner batch has a message that needs more than the {left} bytes left", place
        )
    head = InnerHead._make(INNER_HEAD.unpack_from(body, at))
    if not _SMALLEST_ITEM_BYTES <= head.size <= left:
        raise CorruptLog(
            f"a message of the inner batch has a size of {head.size} bytes, but {left} are left",
            place,
        )
    if not 0 <= head.body_length <= head.size - _SMALLEST_ITEM_BYTES:
        wrong = (
            f"a message of the inner batch has a size of {head.size} bytes and a body of "
            f"{head.body_length}"
        )
        raise CorruptLog(wrong, place + 16)
    end = at + head.size
    properties_at = at + INNER_HEAD.size + head.body_length + 2
    properties_length = _signed(body, properties_at - 2, 2)
    if properties_length != end - properties_at:
        raise CorruptLog(
            f"a message of the inner batch has a properties length of {properties_length}, but "
            f"{end - properties_at} bytes are left",
            place,
        )
    raw = body[properties_at:end]
    item = replace(
        record,
        flag=head.flag,
        body=body[at + INNER_HEAD.size : properties_at - 2],
        body_crc=head.body_crc,
        properties_bytes=raw,
        properties=parse(raw),
    )
    return item, end


def encode_inner(messages: Sequence[tuple[int, bytes, bytes]]) -> bytes:
    """Encode the body of an inner batch from (flag, body, properties) of each message."""
    out = bytearray()
    for flag, body, raw in messages:
        if len(raw) > _MAX_I16:
            raise ValueError(f"properties of {len(raw)} bytes")
        size = _SMALLEST_ITEM_BYTES + len(body) + len(raw)
        out += INNER_HEAD.pack(size, 0, 0, flag, len(body))
        out += body + struct.pack(">h", len(raw)) + raw
    return bytes(out)


def offset_message_id(host: Host, physical_offset: int) -> str:
    """The id by which a broker finds a message in its commit log: host and address in hex.

    ``physical_offset`` must be the address in the commit log, not the one in a compaction log.
    """
    return (host.encode() + struct.pack(">q", physical_offset)).hex().upper()


def parse_message_id(text: str) -> tuple[Host, int]:
    """The store host and the commit log address in an offset message id.

    Raises:
        InvalidConfig: not 32 or 56 hex digits, or an address below 0.
    """
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) not in (16, 28) or len(text) != 2 * len(raw):
        raise InvalidConfig(
            f"{text!r} is not an offset message id",
            remedy="give an id of 32 hexadecimal digits, or of 56 for an IPv6 address",
        )
    host = _decode_host(raw, 0, len(raw) - 8)
    physical_offset = _signed(raw, len(raw) - 8, 8)
    if physical_offset < 0:
        raise InvalidConfig(
            f"message id {text} contains the invalid physical offset {physical_offset}",
            remedy="give the id that the broker returned",
        )
    return host, physical_offset
