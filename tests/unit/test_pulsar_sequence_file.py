"""Tests of the SequenceFiles of the file-system offloader: plain, compressed by record or by block,
and malformed.
"""

from __future__ import annotations

import random
import zlib

import pytest

from lastwrite.errors import (
    CorruptLog,
    LogError,
    OutOfMemoryBudget,
    TruncatedLog,
    UnsupportedFormat,
)
from lastwrite.pulsar.format.sequence_file import (
    DEFAULT_CODEC,
    DEFLATE_CODEC,
    GZIP_CODEC,
    METADATA_KEY,
    _BufferReader,
    decode_header,
    walk_sequence_file,
)
from tests.support.pulsar.writers import encode_sequence_file, encode_vlong

SYNC = bytes(range(16))
randbytes = random.Random(7).randbytes
PAIRS = [(METADATA_KEY, b"metadata"), *((n, randbytes(n) * 2) for n in range(120)), (1 << 40, b"")]
CODECS = [None, DEFAULT_CODEC, GZIP_CODEC, DEFLATE_CODEC]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("has_blocks", [False, True])
def test_pairs_round_trip(codec: str | None, has_blocks: bool) -> None:
    data = encode_sequence_file(PAIRS, SYNC, codec=codec, has_blocks=has_blocks, block_bytes=2000)
    assert [(pair.key, pair.value) for pair in walk_sequence_file(data)] == PAIRS
    header = decode_header(data)
    assert (header.version, header.codec, header.has_blocks, header.sync) == (
        6,
        codec,
        has_blocks,
        SYNC,
    )
    assert data.count(SYNC) > 1
    for cut in [*range(header.size_bytes + 1, header.size_bytes + 200), len(data) - 1]:
        try:
            found = [(pair.key, pair.value) for pair in walk_sequence_file(data[:cut])]
        except TruncatedLog:
            continue
        assert found == PAIRS[: len(found)] and len(found) < len(PAIRS)
    for cut in range(header.size_bytes):
        with pytest.raises(TruncatedLog):
            decode_header(data[:cut])


def test_encoded_bytes_equal_hadoops() -> None:
    data = encode_sequence_file([(-1, b"ab")], SYNC, codec=None)
    assert data == (
        b"SEQ\x06\x21org.apache.hadoop.io.LongWritable\x22org.apache.hadoop.io.BytesWritable"
        b"\0\0\0\0\0\0" + SYNC + bytes.fromhex("0000000e 00000008 ffffffffffffffff 00000002 6162")
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "00"),
        (127, "7f"),
        (-112, "90"),
        (128, "8f80"),
        (255, "8fff"),
        (256, "8e0100"),
        (-113, "8770"),
        (-257, "860100"),
        ((1 << 63) - 1, "887fffffffffffffff"),
        (-(1 << 63), "807fffffffffffffff"),
    ],
)
def test_hadoop_variable_length_numbers_round_trip(value: int, text: str) -> None:
    assert encode_vlong(value) == bytes.fromhex(text)
    assert _BufferReader(bytes.fromhex(text), 0, len(text) // 2).vlong("number") == value


def test_file_metadata_is_decoded() -> None:
    data = encode_sequence_file(PAIRS, SYNC, codec=None)
    at = decode_header(data).size_bytes - 20
    more = data[:at] + (1).to_bytes(4, "big") + b"\x01k\x02vv" + data[at + 4 :]
    assert decode_header(more).metadata == (("k", "vv"),)
    assert [(pair.key, pair.value) for pair in walk_sequence_file(more)] == PAIRS


def test_version_5_has_no_metadata() -> None:
    data = encode_sequence_file(PAIRS, SYNC)
    at = decode_header(data).size_bytes - 20
    old = data[:3] + b"\5" + data[4:at] + data[at + 4 :]
    assert [(pair.key, pair.value) for pair in walk_sequence_file(old)] == PAIRS


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", TruncatedLog),
        (b"SEX\x06", CorruptLog),
        (b"SEQ\x07", UnsupportedFormat),
        (b"SEQ\x06\x8b\xff\xff\xff\xff", CorruptLog),
        (b"SEQ\x06\x80\xff\xff\xff\xff\xff\xff\xff\xff", LogError),
        (
            encode_sequence_file([], SYNC, codec=GZIP_CODEC).replace(b"Gzip", b"Lz44"),
            UnsupportedFormat,
        ),
        (
            encode_sequence_file(PAIRS, SYNC).replace(b"LongWritable", b"Text_ritable"),
            UnsupportedFormat,
        ),
    ],
)
def test_file_that_is_not_a_sequence_file_is_refused(data: bytes, error: type[LogError]) -> None:
    with pytest.raises(error):
        list(walk_sequence_file(data))


def with_record(record: str, *, has_blocks: bool = False, codec: str | None = None) -> bytes:
    return encode_sequence_file([], SYNC, codec=codec, has_blocks=has_blocks) + bytes.fromhex(
        record
    )


@pytest.mark.parametrize(
    ("record", "error"),
    [
        ("0000000c 00000008 0000000000000000 00000001", CorruptLog),
        ("0000000c 00000008 0000000000000000 ffffffff", CorruptLog),
        ("0000000a 00000008 0000000000000000 0000", CorruptLog),
        ("0000000c 00000007 0000000000000000 00000000", CorruptLog),
        ("00000007 00000008 0000000000000000", CorruptLog),
        ("7fffffff 00000008 0000000000000000", TruncatedLog),
        ("fffffffe 00000008 0000000000000000", CorruptLog),
        ("ffffffff 000102030405060708090a0b0c0d0e10", CorruptLog),
        ("ffffffff 0001", TruncatedLog),
    ],
)
def test_malformed_record_is_refused(record: str, error: type[LogError]) -> None:
    with pytest.raises(error):
        list(walk_sequence_file(with_record(record)))


SYNC_MARK = "ffffffff000102030405060708090a0b0c0d0e0f"


@pytest.mark.parametrize(
    ("block", "error"),
    [
        ("01 01 08 08 0000000000000000 01 04", TruncatedLog),
        ("01 01 08 08 0000000000000000 01 04 04 00000001", CorruptLog),
        ("01 01 08 08 0000000000000000 01 05 04 00000000", CorruptLog),
        ("01 01 07 08 0000000000000000 01 04 04 00000000", CorruptLog),
        ("02 01 08 08 0000000000000000 01 04 04 00000000", CorruptLog),
        ("8c7fffffff 01 08 08 0000000000000000 01 04 04 00000000", CorruptLog),
        ("ff 01 08 08 0000000000000000 01 04 04 00000000", CorruptLog),
        ("01 ff", TruncatedLog),
    ],
)
def test_malformed_block_is_refused(block: str, error: type[LogError]) -> None:
    sound = with_record(
        SYNC_MARK + "01 01 08 08 0000000000000003 01 04 04 00000000", has_blocks=True
    )
    assert [(pair.key, pair.value) for pair in walk_sequence_file(sound)] == [(3, b"")]
    with pytest.raises(error):
        list(walk_sequence_file(with_record(SYNC_MARK + block, has_blocks=True)))
    with pytest.raises(CorruptLog, match="does not begin with a sync"):
        list(walk_sequence_file(with_record("00000001" + block, has_blocks=True)))


def test_value_that_decompresses_beyond_the_limit_is_refused() -> None:
    data = encode_sequence_file([(0, bytes(1 << 20))], SYNC)
    assert len(data) < 3000 and len(list(walk_sequence_file(data, 1 << 21))) == 1
    with pytest.raises(OutOfMemoryBudget):
        list(walk_sequence_file(data, 1 << 19))


def test_invalid_zlib_data_is_refused() -> None:
    whole = zlib.compress(b"\0\0\0\1a")
    for stored, error in ((b"no zlib", "cannot be decompressed"), (whole[:-1], "end early")):
        record = (
            (8 + len(stored)).to_bytes(4, "big")
            + bytes.fromhex("00000008 0000000000000000")
            + stored
        )
        with pytest.raises(CorruptLog, match=error):
            list(walk_sequence_file(encode_sequence_file([], SYNC) + record))
