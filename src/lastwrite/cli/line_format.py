r"""``dump -f FORMAT``: prints records by a format string, like kcat.

``%t %o %k\n`` prints topic, offset, key and a newline. No newline is added to the format. Keys and
values are printed byte for byte.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from lastwrite.errors import InvalidConfig

LETTERS = {
    "t": "topic",
    "p": "partition or queue",
    "o": "offset; Pulsar: the message id",
    "k": "key",
    "K": "the key's length, -1 for null",
    "s": "value",
    "S": "the value's length, -1 for null",
    "R": "the value's length in four bytes",
    "T": "timestamp, ms since 1970",
    "h": "headers or properties, name=value,…",
    "%": "a percent sign",
}
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "\\": b"\\", "0": b"\0"}
_TOKEN = re.compile(r"%(.?)|\\(x[0-9A-Fa-f]{2}|.?)|[^%\\]+", re.DOTALL)


class Formatted(NamedTuple):
    """The fields of a record that a format can print, for all systems."""

    topic: str
    partition: int
    offset: int | str
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: list[tuple[str, bytes | None]]


def line_format(text: str, null: bytes) -> Callable[[dict[str, Any]], bytes]:
    """A function that formats a row of ``dump`` by the format ``text``.

    It returns b"" for a row that is not a message, such as a transaction marker. A null key or
    value is printed as ``null``.

    Raises:
        InvalidConfig: the format has an unknown letter or escape. The returned function raises it
            for a row that is not a record.
    """
    parts = [_part(match, null) for match in _TOKEN.finditer(text)]

    def formatted(row: dict[str, Any]) -> bytes:
        found = _fields(row)
        return b"" if found is None else b"".join(part(found) for part in parts)

    return formatted


def _part(match: re.Match[str], null: bytes) -> Callable[[Formatted], bytes]:
    letter, escape = match[1], match[2]
    if letter is not None:
        return _letter(letter, null)
    if escape is None:
        plain = _utf8(match[0])
    elif len(escape) == 3:
        plain = bytes.fromhex(escape[1:])
    elif escape in _ESCAPES:
        plain = _ESCAPES[escape]
    else:
        raise InvalidConfig(
            f"-f contains the unknown escape \\{escape}", remedy=r"give one of: \n \t \r \\ \0 \xHH"
        )
    return lambda _: plain


def _letter(letter: str, null: bytes) -> Callable[[Formatted], bytes]:
    match letter:
        case "t":
            return lambda found: _utf8(found.topic)
        case "p":
            return lambda found: b"%d" % found.partition
        case "o":
            return lambda found: str(found.offset).encode()
        case "k":
            return lambda found: null if found.key is None else found.key
        case "K":
            return lambda found: b"%d" % _length(found.key)
        case "s":
            return lambda found: null if found.value is None else found.value
        case "S":
            return lambda found: b"%d" % _length(found.value)
        case "R":
            return lambda found: _length(found.value).to_bytes(4, "big", signed=True)
        case "T":
            return lambda found: b"%d" % found.timestamp_ms
        case "h":
            return lambda found: b",".join(
                _utf8(name) + b"=" + (b"NULL" if said is None else said)
                for name, said in found.headers
            )
        case "%":
            return lambda _: b"%"
    known = "; ".join(f"%{each} {meaning}" for each, meaning in LETTERS.items())
    raise InvalidConfig(f"-f contains the unknown field %{letter}", remedy=f"give one of: {known}")


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _fields(row: dict[str, Any]) -> Formatted | None:
    """The fields of a message for the format. Returns None for a marker or a placeholder."""
    if "stored_body" in row:  # RocketMQ
        properties = dict(row["properties"])
        key = properties.pop("KEYS", None)
        return Formatted(
            row["topic"],
            row["queue_id"],
            row["queue_offset"],
            None if key is None else _utf8(key),
            _bytes(row["body"]),
            row["store_timestamp"],
            [(name, _utf8(said)) for name, said in properties.items()],
        )
    if "message_id" in row and "producer" in row:  # Pulsar
        if row["marker"] is not None or row["compacted_out"]:
            return None
        key = row["key"]
        return Formatted(
            row["topic"] or "",
            row["partition"] if row["partition"] is not None else -1,
            row["message_id"],
            _bytes(key) if row["key_b64_encoded"] or key is None else _utf8(key),
            _bytes(row["value"] if row["encryption"] is None else row["stored_value"]),
            row["publish_time"],
            [(name, _utf8(said)) for name, said in row["properties"].items()],
        )
    if "headers" in row:  # Kafka
        if row["control"] is not None:
            return None
        return Formatted(
            row["topic"] or "",
            row["partition"] if row["partition"] is not None else -1,
            row["offset"],
            _bytes(row["key"]),
            _bytes(row["value"]),
            row["timestamp"],
            [(name, _bytes(said)) for name, said in row["headers"]],
        )
    raise InvalidConfig("-f formats records, but the path contains no records", remedy="remove -f")


def _bytes(coded: str | None) -> bytes | None:
    return None if coded is None else base64.b64decode(coded)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
