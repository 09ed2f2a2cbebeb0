"""Tests of kernels that call the codec libraries: same bytes as ``compression``, or a rejection."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import ModuleType

import cramjam
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from lastwrite.encoding import codec_libraries, lz4_frame, zstd_frame
from lastwrite.encoding.codec_libraries import Contexts
from lastwrite.encoding.compression import Codec, Codecs, compress
from tests.support.plains import plains

GUARD = 64  # bytes before and after the buffers that a kernel may touch
CONTEXTS = Contexts()
FRAMES = {Codec.LZ4: lz4_frame, Codec.ZSTD: zstd_frame}


def _run(kernel: Callable[..., int], data: bytes, before: int, room: int) -> bytes | None:
    """Run ``kernel`` on ``data`` with ``before`` bytes already in its output. None if
    it refuses.
    """
    source = np.full(len(data) + 2 * GUARD, 0xA5, np.uint8)
    source[GUARD : GUARD + len(data)] = np.frombuffer(data, np.uint8)
    target = np.full(before + room + 2 * GUARD, 0x5A, np.uint8)
    end = kernel(
        CONTEXTS.words,
        source.ctypes.data + GUARD,
        0,
        len(data),
        target.ctypes.data + GUARD,
        before,
        before + room,
    )
    assert (target[: GUARD + before] == 0x5A).all()
    assert (target[GUARD + before + room :] == 0x5A).all()
    if end < 0:
        return None
    assert before <= end <= before + room
    return bytes(target[GUARD + before : GUARD + end].tobytes())


def opened(frame: bytes, room: int, before: int = 0) -> bytes | None:
    return _run(zstd_frame.decode_frame, frame, before, room)


def by_library(frame: bytes, room: int) -> bytes | None:
    out = np.empty(room, np.uint8)
    try:
        return bytes(out[: cramjam.zstd.decompress_into(frame, out)].tobytes())
    except cramjam.DecompressionError:
        return None


@pytest.mark.skipif(sys.platform != "linux", reason="what its wheels show")
def test_both_libraries_export_their_functions() -> None:
    """All Linux wheels of these packages export them. Without them a round takes a tenth longer."""
    assert CONTEXTS.words.all()


@given(plains(), st.integers(0, 100), st.sampled_from([*FRAMES]))
def test_kernel_compresses_to_the_same_bytes_as_python(
    plain: bytes, before: int, codec: Codec
) -> None:
    packed = _run(FRAMES[codec].encode_frame, plain, before, 2 * len(plain) + 500)
    assert packed == (compress(codec, plain) if plain or codec is Codec.LZ4 else None)


@pytest.mark.parametrize("size", [131071, 131072, 131073, 262144, 300_000, 2 << 20, (2 << 20) + 1])
def test_large_batch_is_split_as_a_stream_splits_it(size: int) -> None:
    words = b"".join(b"%06d key %d, some words %x;" % (i, i * i, i**5) for i in range(60_000))
    for plain in (words[:size], np.random.default_rng(2).bytes(size)):
        packed = _run(zstd_frame.encode_frame, plain, 3, size + 1000)
        assert packed == (compress(Codec.ZSTD, plain) if size <= 2 << 20 else None)
        assert packed is None or opened(packed, size) == plain


@pytest.mark.parametrize("codec", FRAMES)
def test_reused_contexts_write_the_same_bytes(codec: Codec) -> None:
    draw, encode = np.random.default_rng(5), FRAMES[codec].encode_frame
    for n in range(1500):
        size = int(draw.integers(1, 400_000 if n % 50 == 0 else 20_000))
        plain = draw.integers(0, 1 + n % 9 * 7, size, dtype=np.uint8).tobytes()
        if n % 3 == 0:
            assert _run(encode, plain, 0, size // 100) in (None, compress(codec, plain))
            assert n % 2 or opened(compress(Codec.ZSTD, plain)[:-1], size) is None
        packed = _run(encode, plain, 0, 2 * size + 500)
        assert packed == compress(codec, plain)
        assert codec is not Codec.ZSTD or opened(packed, size) == plain


@given(plains(), st.integers(0, 100))
def test_kernel_decodes_zstd_frames_of_python(plain: bytes, before: int) -> None:
    frame = compress(Codec.ZSTD, plain or b"a")
    for room in (len(plain or b"a"), len(plain) + GUARD):
        assert opened(frame, room, before) == (plain or b"a")
    assert opened(frame, len(plain or b"a") - 1, before) is None


def test_other_zstd_frames_are_left_to_python() -> None:
    plain = b"a few words, a few words more " * 40
    good = compress(Codec.ZSTD, plain)
    assert opened(good, 10_000) == plain
    assert opened(good + good, 10_000) is None
    assert opened(good + b"\0", 10_000) is None
    for cut in range(len(good)):
        assert opened(good[:cut], 10_000) is None
    for options in ({"write_content_size": True}, {"write_checksum": True}):
        assert opened(zstandard.ZstdCompressor(**options).compress(plain), 10_000) is None
    # a window of 16 MiB, and a run of 69,077 bytes beyond its window of 2 KiB (found by fuzzing)
    assert opened(good[:5] + bytes([14 << 3]) + good[6:], 10_000) is None
    assert opened(good[:5] + bytes.fromhex("08aa6e085855000018616263"), 100_000) is None


@settings(max_examples=1500)
@given(plains(), st.data())
def test_kernel_accepts_nothing_that_python_refuses(plain: bytes, data: st.DataObject) -> None:
    """If both accept a frame with undetectable damage, both return the same bytes."""
    frame = bytearray(compress(Codec.ZSTD, plain))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(frame) - 1))
        frame[place] = data.draw(st.integers(0, 255))
    found = opened(bytes(frame), data.draw(st.sampled_from([len(plain), len(plain) + 3, 70_000])))
    if found is not None:
        assert found == by_library(bytes(frame), 140_000)


@pytest.mark.parametrize("missing", ["no such package", "no such function"])
def test_kernels_refuse_everything_without_the_libraries(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    codec_libraries._library.cache_clear()
    if missing == "no such package":
        monkeypatch.setattr(codec_libraries, "find_spec", lambda _: None)
    else:
        monkeypatch.setattr(codec_libraries, "_ZSTD_FREE", ("ZSTD_freeDCtx", "ZSTD_freeNothing"))
        monkeypatch.setattr(codec_libraries, "_LZ4_PACK", ("LZ4F_packNothing",))
    contexts = Codecs().contexts
    codec_libraries._library.cache_clear()
    assert not contexts.words.any()
    target, frame = np.zeros(100, np.uint8), np.frombuffer(compress(Codec.ZSTD, b"ab"), np.uint8)
    places = frame.ctypes.data, 0, len(frame), target.ctypes.data, 0, 100
    kernels: list[tuple[ModuleType, str]] = [
        (zstd_frame, "decode_frame"),
        (zstd_frame, "encode_frame"),
        (lz4_frame, "encode_frame"),
    ]
    for module, name in kernels:
        assert getattr(module, name)(contexts.words, *places) < 0
    assert not target.any()


def test_contexts_are_freed_with_their_owner() -> None:
    before = _resident_bytes()
    for _ in range(300):
        plain = np.random.default_rng(1).bytes(2000)
        contexts = Contexts()
        source, out = np.frombuffer(plain, np.uint8), np.empty(4000, np.uint8)
        places = source.ctypes.data, 0, len(plain), out.ctypes.data, 0, 4000
        assert zstd_frame.encode_frame(contexts.words, *places) > 0
    del contexts
    gc.collect()
    assert _resident_bytes() - before < 100 << 20, "each holds a MiB"


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
