"""A message to be sent, encoded as by RocketMQ's own client.

A delete is a message with an empty body. Because of a bug, 5.x brokers reject a single message with
an empty body. So a delete is sent as an empty zlib stream with the compression flag. Every reader,
including the broker's compaction, decompresses it to an empty body.

Source: RocketMQ 5.5.0 ``DefaultMQProducerImpl``, ``MessageClientIDSetter``,
``SendMessageProcessor``; docs/formats/rocketmq.md, "Properties" and "Record";
docs/formats/rocketmq-compaction.md.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import lz4.frame
import zstandard

from lastwrite.errors import InvalidConfig
from lastwrite.rocketmq.format import properties as names
from lastwrite.rocketmq.format.java_hash import is_blank
from lastwrite.rocketmq.format.record import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    Compression,
)

COMPRESS_FROM_BYTES = 4096  # compressMsgBodyOverHowmuch

_LEVEL = 5  # level of RocketMQ's client for zlib, LZ4 and zstd
_FLAGS = {
    Compression.NONE: 0,
    Compression.ZLIB: COMPRESSED | COMPRESSION_ZLIB,
    Compression.LZ4: COMPRESSED | COMPRESSION_LZ4,
    Compression.ZSTD: COMPRESSED | COMPRESSION_ZSTD,
}
_DELETE = zlib.compress(b"", _LEVEL)
_OWN = {names.KEYS, names.TAGS, names.UNIQUE_KEY}  # properties that the fields of a message set
_MOST_PROPERTY_BYTES = (1 << 15) - 1


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message to send. If ``body`` is None, the message deletes the key."""

    key: str | None
    body: bytes | None
    tag: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    compression: Compression = Compression.ZLIB
    compress_from: int = COMPRESS_FROM_BYTES  # smallest body in bytes that is compressed

    def encode_properties(self, unique_key: str) -> str:
        """Encode the properties as a flat string.

        Raises:
            InvalidConfig: a name or value is empty or contains a separator, or the name is
                reserved.
        """
        given: dict[str, str] = {}
        if self.key is not None:
            if is_blank(self.key):
                raise InvalidConfig(
                    f"the key {self.key!r} is blank",
                    remedy="give a key with a visible character, because brokers ignore a blank "
                    "key",
                )
            given[names.KEYS] = self.key
        if self.tag is not None:
            given[names.TAGS] = self.tag
        for name, value in self.properties.items():
            if name in _OWN:
                raise InvalidConfig(
                    f"the property {name} is reserved",
                    remedy="set the key and the tag with their own fields",
                )
            given[name] = value
        given[names.UNIQUE_KEY] = unique_key
        try:
            flat = names.build(given)
        except ValueError as error:
            raise InvalidConfig(
                f"{error}: a name and a value must not be empty or contain the characters "
                "U+0001 and U+0002"
            ) from error
        if len(flat) > _MOST_PROPERTY_BYTES:
            raise InvalidConfig(
                f"the properties of the message have {len(flat):,} bytes",
                remedy=f"shorten them to {_MOST_PROPERTY_BYTES:,} bytes",
            )
        return flat.decode()

    def encode_body(self) -> tuple[bytes, int]:
        """The body as sent and stored, and its sysFlag.

        Raises:
            InvalidConfig: the body is empty, and brokers reject such a message.
        """
        if self.body is None:
            return _DELETE, COMPRESSED
        if not self.body:
            raise InvalidConfig(
                "the body of the message is empty, which brokers refuse",
                remedy="to delete the key, give the body null",
            )
        if self.compression is Compression.NONE or len(self.body) < self.compress_from:
            return self.body, 0
        return compress(self.body, self.compression), _FLAGS[self.compression]


def compress(body: bytes, compression: Compression) -> bytes:
    """Compress a body as clients do: as zlib, an LZ4 frame, or zstd without content size."""
    if compression is Compression.ZLIB:
        return zlib.compress(body, _LEVEL)
    if compression is Compression.LZ4:
        return bytes(
            lz4.frame.compress(body, block_linked=False, store_size=False, compression_level=_LEVEL)
        )
    if compression is Compression.ZSTD:
        return zstandard.ZstdCompressor(level=_LEVEL, write_content_size=False).compress(body)
    return body


def encode_batch_member(message: OutgoingMessage, unique_key: str, flag: int = 0) -> bytes:
    """Encode a message of a batch. The body is not compressed; a delete has an empty body.

    The layout is the same as in an inner batch (``rocketmq.format.record.InnerHead``).
    """
    flat = message.encode_properties(unique_key).encode()
    body = message.body or b""
    size = 22 + len(body) + len(flat)
    head = b"".join(
        number.to_bytes(4, "big", signed=True) for number in (size, 0, 0, flag, len(body))
    )
    return head + body + len(flat).to_bytes(2, "big") + flat
