"""The metadata of a ledger in BookKeeper's metadata store.

The node ``/ledgers/00/0000/L0010`` of ledger 10 contains a line of text,
``BookieMetadataFormatVersion<tab>3<newline>``, then a LedgerMetadataFormat message after its length
as a varint.
Version 2 has the message in text form. The index of an offloaded ledger and key -1 of a MapFile
contain the bare message.

Source: BookKeeper 4.17.3 ``LedgerMetadataSerDe``, ``DbLedgerMetadata.proto``; Pulsar 4.2.4
``OffloadIndexBlockImpl``; docs/formats/pulsar.md, "Ledger metadata".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any

from lastwrite.errors import CorruptLog, TruncatedLog, UnsupportedFormat
from lastwrite.pulsar.format.compacted import COMPACTED_TOPIC, COMPONENT, COMPONENT_COMPACTED
from lastwrite.pulsar.format.protobuf import (
    BYTES,
    INT32,
    INT64,
    STRING,
    ProtoField,
    ProtoMessage,
    decode_varint,
    put_varint,
)

NODE_HEAD = b"BookieMetadataFormatVersion\t"
NODE_VERSION = 3
_TEXT_VERSION = 2


class LedgerState(IntEnum):
    """Whether a ledger is open, in recovery or closed. Only an open ledger grows."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


class Digest(IntEnum):
    """The kind of checksum in each entry of a ledger."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensemble(ProtoMessage):
    """BookKeeper's Segment: the bookies that store the entries from ``first_entry`` on."""

    bookies: Annotated[tuple[str, ...], ProtoField(1, STRING, repeated=True)] = ()
    first_entry: Annotated[int, ProtoField(2, INT64, required=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomMetadata(ProtoMessage):
    """One name and value of a ledger's custom metadata."""

    key: Annotated[str | None, ProtoField(1, STRING)] = None
    value: Annotated[bytes | None, ProtoField(2, BYTES)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerMetadata(ProtoMessage):
    """BookKeeper's protobuf message LedgerMetadataFormat: the metadata of a ledger."""

    # fmt: off
    # number of bookies that store each entry
    quorum:        Annotated[int, ProtoField(1, INT32, required=True)]
    ensemble:      Annotated[int, ProtoField(2, INT32, required=True)]
    # bytes of all entries, set once the ledger is closed
    length:        Annotated[int, ProtoField(3, INT64, required=True)]
    # last entry id; -1 if the ledger is empty
    last_entry:    Annotated[int | None, ProtoField(4, INT64)] = None
    state:         Annotated[int, ProtoField(5, INT32, required=True)]   # see LedgerState
    ensembles:     Annotated[tuple[Ensemble, ...], ProtoField(6, Ensemble, repeated=True)] = ()
    digest:        Annotated[int | None, ProtoField(7, INT32)] = None    # see Digest
    password:      Annotated[bytes | None, ProtoField(8, BYTES)] = None
    ack_quorum:    Annotated[int | None, ProtoField(9, INT32)] = None
    ctime_ms:      Annotated[int | None, ProtoField(10, INT64)] = None
    custom_items: Annotated[
        tuple[CustomMetadata, ...], ProtoField(11, CustomMetadata, repeated=True)
    ] = ()
    ctoken:        Annotated[int | None, ProtoField(12, INT64)] = None
    # fmt: on

    @property
    def is_closed(self) -> bool:
        return self.state == LedgerState.CLOSED

    @property
    def custom(self) -> dict[str, bytes]:
        """The values of the custom metadata by name."""
        return {item.key or "": item.value or b"" for item in self.custom_items}

    @property
    def compacted_topic(self) -> str | None:
        """The full name of the topic whose compacted ledger this is. None for any other ledger."""
        custom = self.custom
        if custom.get(COMPONENT) != COMPONENT_COMPACTED:
            return None
        return custom.get(COMPACTED_TOPIC, b"").decode(errors="replace")

    @classmethod
    def decode_node(cls, data: bytes) -> LedgerMetadata:
        """Decode a node of the metadata store, version 2 or 3.

        Raises:
            CorruptLog: the first line is not BookKeeper's, the length is wrong, or the message is
                broken.
            UnsupportedFormat: version 1, which releases before 4.2 wrote.
        """
        line, _, rest = data.partition(b"\n")
        version = line[len(NODE_HEAD) :]
        if not line.startswith(NODE_HEAD) or not version.isdigit() or len(version) > 9:
            raise CorruptLog(
                "the data are not ledger metadata: the first line is not BookKeeper's header", 0
            )
        begin = len(line) + 1
        if int(version) == _TEXT_VERSION:
            return cls(**_of_text(rest.decode(errors="replace"), begin))
        if int(version) != NODE_VERSION:
            raise UnsupportedFormat(
                f"version {int(version)} of ledger metadata is not supported",
                0,
                remedy="only versions 2 and 3 can be read; export the topic's metadata as JSON "
                "with pulsar-admin topics stats-internal TOPIC",
            )
        size, at = decode_varint(data, begin, len(data))
        if size > len(data) - at:
            raise TruncatedLog(
                f"the length of the ledger metadata is {size} bytes, but only {len(data) - at} "
                "bytes follow",
                begin,
            )
        if size < len(data) - at:
            raise CorruptLog(
                f"{len(data) - at - size} extra bytes follow the ledger metadata", at + size
            )
        return cls.decode(data, at)

    def encode_node(self) -> bytes:
        """The bytes of the node, version 3."""
        message = self.encode()
        return NODE_HEAD + b"%d\n" % NODE_VERSION + put_varint(len(message)) + message


def custom_items(custom: dict[str, bytes]) -> tuple[CustomMetadata, ...]:
    """Custom metadata as message fields, in the dictionary's order."""
    return tuple(CustomMetadata(key=key, value=value) for key, value in custom.items())


# ---------------------------------------------------------------- version 2: protobuf's text form

_TOKEN = re.compile(r'\s*(?:([A-Za-z_]\w*)\s*(:|\{)|(\})|("(?:[^"\\\n]|\\.)*"|-?\w+))')
_ESCAPE = re.compile(r"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|.)")
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_NAMES = {
    "quorumSize": "quorum",
    "ensembleSize": "ensemble",
    "length": "length",
    "lastEntryId": "last_entry",
    "state": "state",
    "digestType": "digest",
    "password": "password",
    "ackQuorumSize": "ack_quorum",
    "ctime": "ctime_ms",
    "cToken": "ctoken",
}


def _of_text(text: str, begin: int) -> dict[str, Any]:
    """Decode the fields of a message from protobuf's text form.

    The message begins at byte ``begin`` of the node.
    """
    found: dict[str, Any] = {}
    ensembles: list[Ensemble] = []
    custom: list[CustomMetadata] = []
    for name, value in _text_items(text, begin):
        if name == "segment" and isinstance(value, list):
            bookies = tuple(
                _text_bytes(v).decode(errors="replace") for n, v in value if n == "ensembleMember"
            )
            first = next((_text_number(v, begin) for n, v in value if n == "firstEntryId"), 0)
            ensembles.append(Ensemble(bookies=bookies, first_entry=first))
        elif name == "customMetadata" and isinstance(value, list):
            item = dict(value)
            key = _text_bytes(item.get("key", '""')).decode(errors="replace")
            custom.append(CustomMetadata(key=key, value=_text_bytes(item.get("value", '""'))))
        elif isinstance(value, str) and name in _NAMES:
            number = {**LedgerState.__members__, **Digest.__members__}.get(value)
            if name == "password":
                found[name] = _text_bytes(value)
            else:
                found[_NAMES[name]] = int(number or _text_number(value, begin))
    for name in ("quorum", "ensemble", "length", "state"):
        if name not in found:
            raise CorruptLog(f"the field {name} of the ledger metadata is missing", begin)
    return {**found, "ensembles": tuple(ensembles), "custom_items": tuple(custom)}


def _text_items(text: str, begin: int) -> list[tuple[str, Any]]:
    """Pairs of name and value. A value is text or, at the top level, a list of pairs of texts."""
    items: list[tuple[str, Any]] = []
    inner: list[tuple[str, str]] | None = None
    name = ""
    at = 0
    while text[at:].strip():
        token = _TOKEN.match(text, at)
        if token is None or (name and token[4] is None) or (not name and token[4] is not None):
            raise CorruptLog(
                "the ledger metadata are not a Protobuf message in text form", begin + at
            )
        at = token.end()
        if token[2] == "{" and inner is None:
            inner = []
            items.append((token[1], inner))
        elif token[3] and inner is not None:
            inner = None
        elif token[2] == ":":
            name = token[1]
        elif token[4] is not None:
            (items if inner is None else inner).append((name, token[4]))
            name = ""
        else:
            raise CorruptLog("the braces in the ledger metadata do not match", begin + at)
    if inner is not None or name:
        raise TruncatedLog("the ledger metadata end inside a field", begin + at)
    return items


def _text_number(value: str, begin: int) -> int:
    try:
        return int(value)
    except ValueError:
        words = f"the ledger metadata have {value[:40]!r} in the place of a number"
        raise CorruptLog(words, begin) from None


def _text_bytes(value: str) -> bytes:
    """The bytes of a quoted text. Escapes are bytes, mostly octal."""

    def plain(found: re.Match[str]) -> str:
        code = found[1]
        if code[0] in "01234567":
            return chr(int(code, 8) & 0xFF)
        if code[0] == "x" and len(code) > 1:
            return chr(int(code[1:], 16))
        return _LETTERS.get(code, code)

    return _ESCAPE.sub(plain, value[1:-1] if value[:1] == '"' else value).encode(
        "latin-1", errors="replace"
    )
