"""Tests of the LZ4 kernel against the library.

Both return the same bytes or reject the frame, and the kernel writes only to its buffer.
"""

from __future__ import annotations

from typing import Any

import cramjam
import lz4.block
import lz4.frame
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastwrite.encoding.compression import Codec, OutputTooSmall, compress, decompress_into
from lastwrite.encoding.lz4_frame import REFUSED, decode_frame
from lastwrite.model.columns import ByteArray
from tests.support.plains import plains

HEADER = bytes.fromhex("04224d18604082")
GUARD = 64  # bytes before and after the buffers that a kernel may touch
WORDS = b"".join(
    b"key-%06d some words that repeat, some that do not %x;" % (i, i * i * i) for i in range(6000)
)


def decoded(frame: bytes, room: int, before: int = 0, tight: bool = True) -> bytes | None:
    """Decode ``frame`` by the kernel after ``before`` bytes of output. None if it rejects the
    frame.

    Guard bytes around the buffers show that it writes nowhere else, and that bytes after the input
    do not matter. ``tight`` means that it must not read them.
    """
    source = np.full(len(frame) + 2 * GUARD, 0xA5, np.uint8)
    source[GUARD : GUARD + len(frame)] = np.frombuffer(frame, np.uint8)
    target = np.full(before + room + 2 * GUARD, 0x5A, np.uint8)
    end = decode_frame(
        source.ctypes.data + GUARD,
        0,
        len(frame),
        len(frame) + (0 if tight else GUARD),
        target.ctypes.data + GUARD,
        before,
        before + room,
    )
    assert (target[: GUARD + before] == 0x5A).all() and (
        target[GUARD + before + room :] == 0x5A
    ).all()
    if end == REFUSED:
        return None
    assert before <= end <= before + room
    return bytes(target[GUARD + before : GUARD + end].tobytes())


def by_library(frame: bytes, room: int) -> bytes | None:
    out: ByteArray = np.empty(room, np.uint8)
    try:
        return bytes(out[: cramjam.lz4.decompress_into(frame, out)].tobytes())
    except cramjam.DecompressionError:
        return None


def framed(block: bytes) -> bytes:
    return HEADER + len(block).to_bytes(4, "little") + block + bytes(4)


@given(plains(), st.integers(0, 100), st.booleans())
def test_frame_of_the_library_is_decoded(plain: bytes, before: int, tight: bool) -> None:
    frame = compress(Codec.LZ4, plain)
    assert decoded(frame, len(plain) + GUARD, before, tight) == plain
    assert decoded(frame, len(plain), before, tight) == plain, (
        "also where nothing may be written behind it"
    )
    if plain:
        assert decoded(frame, len(plain) - 1, before, tight) is None


@pytest.mark.parametrize(
    "size", [0, 1, 5, 12, 13, 65535, 65536, 65537, 131072, 200_000, len(WORDS)]
)
@pytest.mark.parametrize("level", [0, 9])
def test_frames_of_several_blocks_are_decoded(size: int, level: int) -> None:
    frame = lz4.frame.compress(
        WORDS[:size], block_size=4, block_linked=False, store_size=False, compression_level=level
    )
    assert decoded(frame, size) == decoded(frame, size + 1000, 7, tight=False) == WORDS[:size]


@pytest.mark.parametrize("size", [20, 1000, 65536, 100_000])
def test_incompressible_data_is_decoded(size: int) -> None:
    noise = np.random.default_rng(3).bytes(size)
    assert decoded(compress(Codec.LZ4, noise), size) == noise
    assert decoded(compress(Codec.LZ4, noise), size - 1) is None


@pytest.mark.parametrize("period", range(1, 70))
def test_overlapping_matches_are_decoded(period: int) -> None:
    plain = bytes(range(1, period + 1)) * (3000 // period)
    for size in (len(plain), len(plain) - 1, len(plain) - 17):
        assert decoded(compress(Codec.LZ4, plain[:size]), size) == plain[:size]


@pytest.mark.parametrize(
    "options",
    [
        {"block_size": 5},
        {"store_size": True},
        {"block_checksum": True},
        {"content_checksum": True},
        {"block_linked": True},
    ],
)
def test_other_frames_are_left_to_the_library(options: dict[str, Any]) -> None:
    frame = lz4.frame.compress(
        WORDS, **{"block_size": 4, "block_linked": False, "store_size": False, **options}
    )
    assert decoded(frame, len(WORDS) + GUARD) is None


@pytest.mark.parametrize(
    ("block", "why"),
    [
        (b"", "no token"),
        (b"\x50abcd", "a literal short"),
        (b"\xf0", "a length without an end"),
        (b"\xf0\xff\xff\xff", "a long length without an end"),
        (b"\x1fa\x01\x00\xff\xff\xff\xff\xff\xff\xff\xff", "a match's length without an end"),
        (b"\x44abcd\x00\x00\x50abcde", "an offset of 0"),
        (b"\x44abcd\x05\x00\x50abcde", "a match before the begin"),
        (b"\x04\x01\x00\x50abcde", "a match before any byte"),
        (b"\x44abcd\x04", "an offset cut short"),
        (b"\x44abcd\x04\x00", "a match at the end"),
        (b"\x44abcd\x04\x00\x40abcd", "four literals at the end"),
        (b"\x1fa\x01\x00" + b"\xff" * 257 + b"\x00\x50abcde", "more than 64 KiB"),
        (b"\xf0" + b"\xff" * 257 + b"\x00" + b"a" * 65550, "more than 64 KiB of literals"),
    ],
)
def test_broken_block_is_refused(block: bytes, why: str) -> None:
    if len(block) <= 65536:
        assert decoded(framed(block), 1 << 18) is None, why


def test_broken_frame_is_refused() -> None:
    good = compress(Codec.LZ4, WORDS[:1000])
    assert decoded(good, 1000) is not None
    for cut in range(len(good)):
        assert decoded(good[:cut], 1000) is None
    assert decoded(good + b"\0", 1000) is None
    for place in range(7):
        assert decoded(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :], 1000) is None
    assert decoded(good[:7] + (65537).to_bytes(4, "little") + bytes(70_000), 1 << 18) is None
    assert decoded(good[:7] + (0xFFFFFFFF).to_bytes(4, "little") + bytes(70_000), 1 << 18) is None


@settings(max_examples=1500)
@given(plains(), st.data())
def test_kernel_accepts_nothing_that_the_library_refuses(plain: bytes, data: st.DataObject) -> None:
    """If both accept a frame with undetectable damage, both return the same bytes."""
    block = bytearray(lz4.block.compress(plain, store_size=False))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(block) - 1))
        how = data.draw(st.integers(0, 3))
        if how == 0:
            block[place] = data.draw(st.integers(0, 255))
        elif how == 1:
            block[place] ^= 1 << data.draw(st.integers(0, 7))
        elif how == 2 and len(block) > 1:
            del block[place]
        else:
            block.insert(place, data.draw(st.sampled_from([0, 1, 15, 16, 240, 255])))
    room = data.draw(st.sampled_from([len(plain), len(plain) + 3, 70_000]))
    ours = decoded(framed(bytes(block)), room, tight=data.draw(st.booleans()))
    if ours is not None:
        assert ours == by_library(framed(bytes(block)), 140_000)


@settings(max_examples=500)
@given(st.binary(max_size=200), st.integers(0, 300))
def test_noise_is_refused_or_decoded_like_the_library(noise: bytes, room: int) -> None:
    for frame in (noise, HEADER + noise, framed(noise)):
        ours = decoded(frame, room)
        if ours is not None:
            out = np.empty(room, np.uint8)
            assert (
                decompress_into(Codec.LZ4, frame, out) == len(ours)
                and out[: len(ours)].tobytes() == ours
            )


def test_library_refuses_a_small_buffer() -> None:
    with pytest.raises(OutputTooSmall):
        decompress_into(Codec.LZ4, compress(Codec.LZ4, WORDS), np.empty(len(WORDS) - 1, np.uint8))
