"""Zig-zag varints: small positive and negative numbers in few bytes.

Zig-zag makes the sign the lowest bit (0, -1, 1, -2 become 0, 1, 2, 3). The result is stored in
groups of seven bits, the lowest first, with bit 7 set on every byte except the last. So 0 is
``00``, -1 is ``01``, 1 is ``02``, 64 is ``80 01``. A 32-bit number needs at most five bytes, a
64-bit number ten. Bits beyond the number's width are ignored, as in Java.

Source: Kafka 4.4 ``ByteUtils.readVarint`` and ``readVarlong``; docs/formats/kafka.md, "Record
batch".
"""

from __future__ import annotations

from lastwrite.encoding.layout import Buffer
from lastwrite.errors import CorruptLog, TruncatedLog


def decode_varint(buffer: Buffer, at: int, end: int | None = None) -> tuple[int, int]:
    """The 32-bit number that starts at byte ``at``, and the position after it.

    ``end`` is the end of the readable bytes, by default the buffer's end.

    Raises:
        TruncatedLog: the number is not complete before ``end``.
        CorruptLog: the number does not end with its fifth byte.
    """
    return _decode(buffer, at, len(buffer) if end is None else end, 32, 5)


def decode_varlong(buffer: Buffer, at: int, end: int | None = None) -> tuple[int, int]:
    """The 64-bit number that starts at byte ``at``, and the position after it.

    Errors as ``decode_varint``.
    """
    return _decode(buffer, at, len(buffer) if end is None else end, 64, 10)


def encode_varint(number: int) -> bytes:
    """Encode a number from -2^31 to 2^31 - 1. Other numbers raise ``ValueError``."""
    if not -(1 << 31) <= number < 1 << 31:
        raise ValueError(f"{number} does not fit 32 bits")
    return _encode(number)


def encode_varlong(number: int) -> bytes:
    """Encode a number from -2^63 to 2^63 - 1. Other numbers raise ``ValueError``."""
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{number} does not fit 64 bits")
    return _encode(number)


def encode_unsigned(number: int) -> bytes:
    """Encode a non-negative number without zig-zag, as for lengths in Kafka's messages."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def varint_bytes(number: int) -> int:
    """The number of bytes that ``number`` needs as a varint or varlong."""
    return max(1, -(-(2 * number if number >= 0 else -2 * number - 1).bit_length() // 7))


def _decode(buffer: Buffer, at: int, end: int, bits: int, longest: int) -> tuple[int, int]:
    folded = 0
    for place in range(longest):
        if at + place >= end:
            raise TruncatedLog("the data end inside a varint", at)
        byte = int(buffer[at + place])
        folded |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            folded &= (1 << bits) - 1
            return (folded >> 1) ^ -(folded & 1), at + place + 1
    raise CorruptLog(f"the varint is longer than {longest} bytes", at)


def _encode(number: int) -> bytes:
    return encode_unsigned(2 * number if number >= 0 else -2 * number - 1)
