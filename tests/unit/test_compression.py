"""Tests of the codecs: exact framings, limits and malformed data."""

from __future__ import annotations

import gzip
import tracemalloc
from itertools import pairwise
from typing import Any

import cramjam
import lz4.frame
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.encoding.compression import (
    XERIAL_HEADER,
    Codec,
    Codecs,
    OutputTooSmall,
    compress,
    decompress,
    decompress_into,
)
from lastwrite.errors import (
    CorruptLog,
    LogError,
    OutOfMemoryBudget,
    TruncatedLog,
    UnsupportedFormat,
)

REAL = [codec for codec in Codec if codec is not Codec.NONE]
PLAIN = b"".join(
    b"key-%06d some words that repeat, some words that do not %x;" % (i, i * i * i)
    for i in range(3000)
)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("size", [0, 1, 7, 1000, 32767, 32768, 32769, 65536, 65537, len(PLAIN)])
def test_compressed_bytes_round_trip(codec: Codec, size: int) -> None:
    data = compress(codec, PLAIN[:size])
    assert bytes(decompress(codec, data, size)) == PLAIN[:size]
    for view in (
        data,
        bytearray(data),
        memoryview(b"xx" + data)[2:],
        np.frombuffer(data, np.uint8),
    ):
        out = np.full(size + 10, 0xEE, np.uint8)
        assert decompress_into(codec, view, out) == size
        assert out[:size].tobytes() == PLAIN[:size]
        assert compress(codec, out[:size]) == data
    exact = np.empty(size, np.uint8)
    assert decompress_into(codec, data, exact) == size


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("short_by", [1, 5000, len(PLAIN)])
def test_small_output_buffer_is_not_reported_as_damage(codec: Codec, short_by: int) -> None:
    with pytest.raises(OutputTooSmall):
        decompress_into(codec, compress(codec, PLAIN), np.empty(len(PLAIN) - short_by, np.uint8))


@pytest.mark.parametrize("codec", Codec)
def test_decompression_honours_the_size_limit(codec: Codec) -> None:
    data = compress(codec, PLAIN)
    assert len(decompress(codec, data, len(PLAIN))) == len(PLAIN)
    with pytest.raises(OutOfMemoryBudget):
        decompress(codec, data, len(PLAIN) - 1)
    with pytest.raises(OutOfMemoryBudget):
        decompress(codec, data, 0)


@pytest.mark.parametrize("codec", REAL)
def test_decompression_memory_follows_the_data_and_not_the_limit(codec: Codec) -> None:
    data = compress(codec, PLAIN[:1000])
    tracemalloc.start()
    try:
        decompress(codec, data, 1 << 40)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def snappy_chunk_ends(data: bytes) -> list[int]:
    ends = [len(XERIAL_HEADER)]
    while ends[-1] < len(data):
        ends.append(ends[-1] + 4 + int.from_bytes(data[ends[-1] : ends[-1] + 4], "big"))
    return ends


@pytest.mark.parametrize("codec", REAL)
def test_truncated_data_is_refused(codec: Codec) -> None:
    data = compress(codec, PLAIN[:70_000])
    out = np.empty(len(PLAIN), np.uint8)
    for cut in [*range(40), *range(40, len(data), 997), len(data) - 1]:
        if codec is Codec.SNAPPY and cut in snappy_chunk_ends(data):
            # A xerial stream has no end mark. Cut between two chunks, it is a valid shorter stream.
            assert decompress_into(codec, data[:cut], out) < 70_000
            continue
        with pytest.raises(CorruptLog):
            decompress_into(codec, data[:cut], out)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("tail", [b"\0", b"\xff" * 3, b"some words behind", bytes(100)])
def test_trailing_bytes_are_refused(codec: Codec, tail: bytes) -> None:
    with pytest.raises(CorruptLog):
        decompress(codec, compress(codec, PLAIN) + tail, 1 << 20)


@pytest.mark.parametrize("codec", REAL)
def test_empty_input_is_truncated(codec: Codec) -> None:
    with pytest.raises(TruncatedLog):
        decompress(codec, b"", 100)


@given(st.sampled_from(REAL), st.binary(max_size=80), st.binary(min_size=1, max_size=60), st.data())
def test_damage_raises_only_log_errors(
    codec: Codec, noise: bytes, plain: bytes, data: st.DataObject
) -> None:
    flipped = bytearray(compress(codec, plain))
    flipped[data.draw(st.integers(0, len(flipped) - 1))] = data.draw(st.integers(0, 255))
    head = {Codec.SNAPPY: XERIAL_HEADER, Codec.LZ4: bytes.fromhex("04224d18604082")}.get(
        codec, flipped[:4]
    )
    for broken in (noise, bytes(flipped), head + noise):
        try:
            assert len(decompress(codec, broken, 100_000)) <= 100_000
        except LogError as error:
            assert error.at is not None or isinstance(error, OutOfMemoryBudget)


# ---------------------------------------------------------------------------------- reused contexts


def test_reused_codecs_write_the_same_bytes() -> None:
    """Over thousands of batches: earlier data must not influence later output."""
    draw = np.random.default_rng(11)
    codecs = Codecs()
    out = np.empty(1 << 20, np.uint8)
    for n in range(4000):
        start = int(draw.integers(0, len(PLAIN)))
        size = int(draw.integers(0, len(PLAIN) if n % 50 == 0 else 20_000))
        plain = PLAIN[start : start + size]
        if n % 3 == 0:
            plain += draw.bytes(int(draw.integers(0, 3000)))
        codec = Codec.ZSTD if n % 8 else REAL[n // 8 % len(REAL)]
        packed = codecs.compress(codec, memoryview(plain))
        assert packed == compress(codec, plain)
        assert codecs.decompress_into(codec, packed, out) == len(plain)
        assert out[: len(plain)].tobytes() == plain


@given(st.sampled_from(REAL), st.binary(max_size=80), st.binary(min_size=1, max_size=60), st.data())
def test_reused_codecs_fail_like_the_functions(
    codec: Codec, noise: bytes, plain: bytes, data: st.DataObject
) -> None:
    codecs = Codecs()
    good = compress(codec, plain)
    flipped = bytearray(good)
    flipped[data.draw(st.integers(0, len(flipped) - 1))] = data.draw(st.integers(0, 255))
    room = data.draw(st.integers(0, 100))
    sized = bytes(cramjam.zstd.compress(plain, 3))
    for blob in (
        good,
        noise,
        bytes(flipped),
        good + noise,
        good + good,
        good[:-1],
        good[:5] + noise,
        sized,
        sized[:-1],
    ):
        found: list[object] = []
        for decode in (decompress_into, codecs.decompress_into, codecs.decompress_into):
            out = np.zeros(room, np.uint8)
            try:
                size = decode(codec, blob, out)
                found.append((size, out[:size].tobytes()))
            except (LogError, OutputTooSmall) as error:
                found.append((type(error), str(error), getattr(error, "at", None)))
        assert found[0] == found[1] == found[2]


def test_zstd_window_of_gigabytes_is_refused() -> None:
    """Both decoders refuse it without allocating the window."""
    packed = bytearray(compress(Codec.ZSTD, PLAIN))
    packed[5] = 0xF8
    for decode in (decompress_into, Codecs().decompress_into):
        with pytest.raises(CorruptLog):
            decode(Codec.ZSTD, packed, np.empty(len(PLAIN), np.uint8))


def test_unknown_codec_is_refused() -> None:
    assert [codec.label for codec in Codec] == ["none", "gzip", "snappy", "lz4", "zstd"]
    for number in (-1, 5, 6, 7):
        with pytest.raises(UnsupportedFormat) as caught:
            Codec.of(number, 21)
        assert caught.value.at == 21


# ------------------------------------------------------------------------- framings


def test_gzip_headers_of_other_writers_are_accepted() -> None:
    named = gzip.compress(PLAIN, 9, mtime=77)
    assert bytes(decompress(Codec.GZIP, named, 1 << 20)) == PLAIN
    assert (
        bytes(decompress(Codec.GZIP, named + compress(Codec.GZIP, b"more"), 1 << 20))
        == PLAIN + b"more"
    )


@pytest.mark.parametrize("tail", [bytes(8), b"no gzip", b"\x1f\x8b"])
def test_bytes_after_gzip_data_are_ignored_as_by_java(tail: bytes) -> None:
    stored = compress(Codec.GZIP, PLAIN)
    assert bytes(decompress(Codec.GZIP, stored + tail, 1 << 20)) == PLAIN
    assert bytes(decompress(Codec.GZIP, stored + stored + tail, 1 << 20)) == PLAIN + PLAIN
    with pytest.raises(OutputTooSmall):
        decompress_into(Codec.GZIP, stored + tail, np.empty(len(PLAIN) - 1, np.uint8))
    with pytest.raises(TruncatedLog, match="end early"):
        decompress(Codec.GZIP, stored + stored[:-3], 1 << 20)


def test_snappy_output_is_split_into_xerial_chunks() -> None:
    data = compress(Codec.SNAPPY, PLAIN)
    assert data[:16] == bytes.fromhex("82534e41505059000000000100000001")
    ends = snappy_chunk_ends(data)
    sizes = [cramjam.snappy.decompress_raw_len(data[a + 4 : b]) for a, b in pairwise(ends)]
    assert set(sizes[:-1]) == {32 * 1024} and sum(sizes) == len(PLAIN)
    assert bytes(decompress(Codec.SNAPPY, data + data, 1 << 20)) == PLAIN + PLAIN


def test_raw_snappy_block_of_librdkafka_is_accepted() -> None:
    raw = bytes(cramjam.snappy.compress_raw(PLAIN))
    assert bytes(decompress(Codec.SNAPPY, raw, 1 << 20)) == PLAIN
    with pytest.raises(CorruptLog):
        decompress(Codec.SNAPPY, raw + b"\0", 1 << 20)


@pytest.mark.parametrize(
    ("data", "error", "at"),
    [
        (XERIAL_HEADER[:15], TruncatedLog, 0),
        (XERIAL_HEADER + b"\0\0\0", TruncatedLog, 16),
        (XERIAL_HEADER + b"\0\0\0\0", CorruptLog, 16),
        (XERIAL_HEADER + b"\xff\xff\xff\xff", CorruptLog, 16),
        (XERIAL_HEADER + b"\x7f\xff\xff\xff\0", TruncatedLog, 16),
        (XERIAL_HEADER + b"\0\0\0\1\xff", CorruptLog, 20),
        (XERIAL_HEADER[:8] + bytes(8), UnsupportedFormat, 8),
        (XERIAL_HEADER + XERIAL_HEADER[:4] + bytes(12), CorruptLog, 16),
        (b"\xff\xff\xff\xff\x0f", CorruptLog, 0),  # one raw block with a stated size of 4 GiB
    ],
)
def test_broken_snappy_is_refused(data: bytes, error: type[LogError], at: int) -> None:
    with pytest.raises(error) as caught:
        decompress(Codec.SNAPPY, data, 1 << 20)
    assert type(caught.value) is error and caught.value.at == at


def lz4_frame(**options: Any) -> bytes:
    frame: bytes = lz4.frame.compress(PLAIN, **options)
    return frame


@pytest.mark.parametrize(
    "options",
    [
        {
            "block_linked": False,
            "block_size": size,
            "store_size": store,
            "block_checksum": blocks,
            "content_checksum": content,
        }
        for size in (4, 5, 6, 7)
        for store in (False, True)
        for blocks in (False, True)
        for content in (False, True)
    ],
)
def test_lz4_frames_of_other_writers_are_accepted(options: dict[str, Any]) -> None:
    assert bytes(decompress(Codec.LZ4, lz4_frame(**options), 1 << 20)) == PLAIN


def test_lz4_frame_has_kafkas_header() -> None:
    data = compress(Codec.LZ4, PLAIN)
    assert data[:7] == bytes.fromhex("04224d18604082")
    assert data[-4:] == bytes(4)


def test_lz4_frames_that_kafka_refuses_are_refused() -> None:
    with pytest.raises(UnsupportedFormat, match="dependent"):
        decompress(Codec.LZ4, lz4_frame(block_linked=True, block_size=4), 1 << 20)
    good = compress(Codec.LZ4, PLAIN[:100])
    for place, byte, error in (
        (0, 0x05, CorruptLog),
        (4, 0xA0, UnsupportedFormat),
        (4, 0x61, UnsupportedFormat),
        (4, 0x62, UnsupportedFormat),
        (5, 0x30, CorruptLog),
        (5, 0x41, CorruptLog),
        (5, 0xC0, CorruptLog),
        (6, 0x83, CorruptLog),
    ):
        broken = bytearray(good)
        broken[place] = byte
        with pytest.raises(error):
            decompress(Codec.LZ4, broken, 1 << 20)
    with pytest.raises(CorruptLog, match="follow the lz4 frame"):
        decompress(Codec.LZ4, good + good, 1 << 20)
    with pytest.raises(CorruptLog, match="lz4 block has 65537 bytes"):
        decompress(Codec.LZ4, good[:7] + (65537).to_bytes(4, "little") + bytes(65537 + 4), 1 << 20)


def test_zstd_frame_states_no_size() -> None:
    data = compress(Codec.ZSTD, PLAIN)
    assert data[:4] == bytes.fromhex("28b52ffd")
    assert data[4] == 0  # no content size, no checksum, no dictionary
    assert bytes(decompress(Codec.ZSTD, bytes(cramjam.zstd.compress(PLAIN, 19)), 1 << 20)) == PLAIN
