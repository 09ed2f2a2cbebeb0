"""Writers of files that Lastwrite only reads: whole data objects, and Hadoop's MapFiles."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

from lastwrite.pulsar.format.offload import (
    BLOCK_HEADER_BYTES,
    DEFAULT_BLOCK_BYTES,
    ENTRY_HEAD,
    ENTRY_HEAD_BYTES,
    FIRST_PART,
    PADDING,
    OffloadIndexEntry,
    block_header,
)
from lastwrite.pulsar.format.sequence_file import (
    BYTES_WRITABLE,
    DEFAULT_CODEC,
    LONG_WRITABLE,
    MAGIC,
    VERSION,
    WINDOW_BITS,
)

_KEY_BYTES = 8
_SYNC_INTERVAL_BYTES = 100 * (4 + 16)


def encode_data(
    entries: Sequence[bytes], block_bytes: int = DEFAULT_BLOCK_BYTES, first_entry: int = 0
) -> tuple[bytes, list[OffloadIndexEntry]]:
    """A V1 data object of these entries, in the offloader's blocks, and the blocks' index.

    A block has the largest size, or the size of the remaining entries. Without entries there is no
    block.

    Raises:
        ValueError: An entry does not fit in a block.
    """
    out = bytearray()
    blocks: list[OffloadIndexEntry] = []
    left = sum(len(entry) + ENTRY_HEAD_BYTES for entry in entries)
    done = 0
    while done < len(entries):
        size = min(block_bytes, BLOCK_HEADER_BYTES + left)
        begin = len(out)
        blocks.append(OffloadIndexEntry(first_entry + done, FIRST_PART + len(blocks), begin))
        out += block_header(size, first_entry + done)
        before = done
        while (
            done < len(entries) and len(out) - begin + ENTRY_HEAD_BYTES + len(entries[done]) <= size
        ):
            out += ENTRY_HEAD.pack(len(entries[done]), first_entry + done) + entries[done]
            left -= ENTRY_HEAD_BYTES + len(entries[done])
            done += 1
        if done == before:
            raise ValueError(f"an entry of {len(entries[done])} bytes in blocks of {block_bytes}")
        room = begin + size - len(out)
        out += (PADDING * (room // len(PADDING) + 1))[:room]
    return bytes(out), blocks


def encode_sequence_file(
    pairs: Iterable[tuple[int, bytes]],
    sync: bytes,
    *,
    codec: str | None = DEFAULT_CODEC,
    has_blocks: bool = False,
    block_bytes: int = 1 << 20,
) -> bytes:
    """A SequenceFile of entry ids and bytes, as Hadoop writes it. ``sync`` has 16 random bytes."""
    out = bytearray(MAGIC + bytes([VERSION]) + _text(LONG_WRITABLE) + _text(BYTES_WRITABLE))
    out += bytes([codec is not None, has_blocks])
    if codec is not None:
        out += _text(codec)
    out += bytes(4) + sync
    if has_blocks:
        return bytes(out) + _encoded_blocks(pairs, sync, codec, block_bytes)
    last = len(out)
    for key, value in pairs:
        if len(out) >= last + _SYNC_INTERVAL_BYTES:
            out += b"\xff\xff\xff\xff" + sync
            last = len(out)
        stored = _packed(codec, len(value).to_bytes(4, "big") + value)
        out += (_KEY_BYTES + len(stored)).to_bytes(4, "big") + _KEY_BYTES.to_bytes(4, "big")
        out += key.to_bytes(8, "big", signed=True) + stored
    return bytes(out)


def _encoded_blocks(
    pairs: Iterable[tuple[int, bytes]], sync: bytes, codec: str | None, block_bytes: int
) -> bytes:
    out = bytearray()
    held: list[tuple[int, bytes]] = []

    def flush() -> None:
        if not held:
            return
        values = [len(value).to_bytes(4, "big") + value for _, value in held]
        out.extend(b"\xff\xff\xff\xff" + sync + encode_vlong(len(held)))
        for part in (
            encode_vlong(_KEY_BYTES) * len(held),
            b"".join(key.to_bytes(8, "big", signed=True) for key, _ in held),
            b"".join(encode_vlong(len(value)) for value in values),
            b"".join(values),
        ):
            stored = _packed(codec, part)
            out.extend(encode_vlong(len(stored)) + stored)
        held.clear()

    for pair in pairs:
        held.append(pair)
        if sum(len(value) for _, value in held) >= block_bytes:
            flush()
    flush()
    return bytes(out)


def encode_vlong(value: int) -> bytes:
    """A number as Hadoop's ``writeVLong`` encodes it."""
    if -112 <= value <= 127:
        return value.to_bytes(1, "big", signed=True)
    shown = value if value >= 0 else ~value
    size = (shown.bit_length() + 7) // 8
    return ((-112 if value >= 0 else -120) - size).to_bytes(1, "big", signed=True) + shown.to_bytes(
        size, "big"
    )


def _text(text: str) -> bytes:
    encoded = text.encode()
    return encode_vlong(len(encoded)) + encoded


def _packed(codec: str | None, plain: bytes) -> bytes:
    if codec is None:
        return plain
    stream = zlib.compressobj(wbits=WINDOW_BITS[codec])
    return stream.compress(plain) + stream.flush()
