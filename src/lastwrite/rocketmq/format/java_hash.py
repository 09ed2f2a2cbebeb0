"""Java strings and their hash code.

Topics and properties in a record are UTF-8. The broker decodes them to Java strings and hashes
their UTF-16 code units; a character above U+FFFF has two. Java replaces each invalid UTF-8
sequence by U+FFFD, so two different byte strings may become the same Java string.

The hash begins at 0. For each code unit ``u`` it becomes ``31 * h + u`` in wrapping 32-bit
arithmetic.

Source: Java 17 ``String``; RocketMQ 5.5.0 ``IndexFile.indexKeyHashMethod``,
``MessageExtBrokerInner.tagsString2tagsCode``; docs/formats/rocketmq.md.
"""

from __future__ import annotations

from functools import lru_cache

_REPLACEMENT = "\ufffd"

# The code units for which Java's Character.isWhitespace is true; commons-lang's isBlank uses it.
_SPACES = frozenset(
    [*range(0x09, 0x0E), *range(0x1C, 0x21), 0x1680, *range(0x2000, 0x2007), 0x2008, 0x2009, 0x200A]
    + [0x2028, 0x2029, 0x205F, 0x3000]
)


def decode(raw: bytes) -> str:
    """Decode UTF-8 like Java's ``new String(raw, UTF_8)``. Never fails."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _decode_broken(raw)


def _decode_broken(raw: bytes) -> str:
    out: list[str] = []
    at = 0
    while at < len(raw):
        size = sequence_length(raw, at)
        if size > 0:
            out.append(raw[at : at + size].decode())
        else:
            out.append(_REPLACEMENT)
        at += abs(size)
    return "".join(out)


def sequence_length(raw: bytes, at: int) -> int:
    """The number of bytes of the UTF-8 character at ``at``.

    A negative number ``-n`` means that ``n`` invalid bytes become one U+FFFD. An encoded surrogate
    is an invalid sequence of three bytes. Any other invalid sequence ends before the first byte
    that does not continue it.
    """
    left = len(raw) - at
    first = raw[at]
    if first < 0x80:
        return 1
    second = raw[at + 1] if left > 1 else -1
    third = raw[at + 2] if left > 2 else -1
    fourth = raw[at + 3] if left > 3 else -1
    if 0xC2 <= first <= 0xDF:
        return 2 if _continues(second) else -1
    if 0xE0 <= first <= 0xEF:
        if not _continues(second) or (first == 0xE0 and second < 0xA0):
            return -1
        if not _continues(third):
            return -2
        return -3 if first == 0xED and second >= 0xA0 else 3
    if 0xF0 <= first <= 0xF4:
        if (
            not _continues(second)
            or (first == 0xF0 and second < 0x90)
            or (first == 0xF4 and second > 0x8F)
        ):
            return -1
        if not _continues(third):
            return -2
        return 4 if _continues(fourth) else -3
    return -1


def _continues(byte: int) -> bool:
    return byte & 0xC0 == 0x80 and byte >= 0


def string_hash(text: str) -> int:
    """Java's ``text.hashCode()``, from -2**31 to 2**31 - 1."""
    value = 0
    units = text.encode("utf-16-le", "surrogatepass")
    for i in range(0, len(units), 2):
        value = (31 * value + (units[i] | units[i + 1] << 8)) & 0xFFFF_FFFF
    return value - (1 << 32) if value >> 31 else value


def index_hash(topic: str, key: str) -> int:
    """The hash of a topic and key in an index file: 0 to 2**31 - 1."""
    value = abs(string_hash(f"{topic}#{key}"))
    return value if value < 1 << 31 else 0


@lru_cache(1 << 12)
def tags_code(tag: str | None) -> int:
    """The hash of a tag in a consume queue unit; 0 if ``tag`` is None or empty."""
    return string_hash(tag) if tag else 0


def is_blank(text: str | None) -> bool:
    """Whether a key counts as missing: absent, empty, or only Java white space."""
    return text is None or all(ord(character) in _SPACES for character in text)
