"""Tests of converting old formats while reading, against the slow ``kafka.old_format.entries``."""

from __future__ import annotations

import os
import zlib
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.encoding.compression import Codec
from lastwrite.encoding.fingerprint import SECRET_WORDS, secret_from
from lastwrite.engine.chunks import BatchWindows
from lastwrite.errors import CorruptLog, LogError, OutOfMemoryBudget
from lastwrite.kafka.format.batch import (
    decode_batch,
    encode_batch,
    encode_records,
    iter_batches,
    rebuild_batch,
    seal_batch,
)
from lastwrite.kafka.format.batch_layout import (
    BATCH_HEADER,
    CODEC_BITS,
    Batch,
    BatchHeader,
    Record,
    decode_attributes,
)
from lastwrite.kafka.format.chunk import KafkaFormat
from lastwrite.model.columns import (
    COPY,
    DROP,
    EMPTY,
    IS_OLD,
    KEYLESS,
    NO_HORIZON,
    REBUILD,
    TOMBSTONE,
    BatchTable,
    ByteArray,
)
from lastwrite.model.work import Limits, ScanRange
from tests.support.kafka.old_entries import encode_message, encode_wrapper

SECRET = secret_from(os.urandom(SECRET_WORDS * 8))
START = 1_700_000_000_000
CODECS = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4)

contents = st.none() | st.binary(max_size=40) | st.binary(min_size=60, max_size=200)
stamps = st.integers(START - 1000, START + 1000) | st.sampled_from([-1, 0, 2**62])


@st.composite
def entries(draw: st.DrawFn, new_too: bool = True) -> list[bytes]:
    """One to six consecutive entries of any magic: messages, wrappers and batches of magic 2."""
    out, base = [], draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(1, 6))):
        places = sorted(draw(st.sets(st.integers(0, 300), min_size=1, max_size=8)))
        records = [Record(base + n, draw(stamps), draw(contents), draw(contents)) for n in places]
        magic = draw(st.integers(0, 2 if new_too else 1))
        append_time = draw(st.booleans())
        if magic == 2:
            out.append(
                encode_batch(records, base_offset=base, codec=draw(st.sampled_from(list(Codec))))
            )
        elif draw(st.booleans()):
            records = records[:1]
            out.append(encode_message(records[0], magic, append_time=append_time))
        else:
            out.append(
                encode_wrapper(
                    records,
                    magic,
                    draw(st.sampled_from(CODECS)),
                    append_time_ms=START if append_time else None,
                    inner_magic=draw(st.integers(0, magic)),
                )
            )
        base = records[-1].offset + 1 + draw(st.integers(0, 9))
    return out


def array(data: bytes) -> ByteArray:
    return np.frombuffer(data, dtype=np.uint8).copy()


class Part(NamedTuple):
    """A copy of the result of one call of ``split``."""

    table: BatchTable
    buffer: ByteArray


def parts(format: KafkaFormat, data: ByteArray) -> list[Part]:
    found, at, floor = [], 0, 0
    while at < len(data):
        table, at, wanted, buffer = format.split(data, at, len(data), floor)
        assert wanted == -1 and len(table)
        assert len({bool(flags & IS_OLD) for flags in table["flags"]}) == 1
        found.append(Part(table.copy(), buffer.copy()))
        floor = int(table["next_offset"][-1])
    return found


def converted(row: np.void, buffer: ByteArray) -> Batch:
    """A converted batch as the slow decoder sees it, without codec and with a correct CRC."""
    raw = buffer[int(row["position"]) : int(row["position"] + row["size"])].tobytes()
    header = BatchHeader._make(BATCH_HEADER.unpack_from(raw))
    assert header.crc == 0
    plain = header._replace(attributes=header.attributes & ~CODEC_BITS)
    return Batch(
        header,
        decode_attributes(header.attributes),
        decode_batch(seal_batch(plain, raw[61:]), 0).records,
    )


@given(entries())
def test_converted_batches_equal_the_slow_decoder(encoded: list[bytes]) -> None:
    format = KafkaFormat()
    expected = list(iter_batches(b"".join(encoded)))
    seen = [
        (row, part.buffer) for part in parts(format, array(b"".join(encoded))) for row in part.table
    ]
    assert len(seen) == len(expected)
    for (row, buffer), (at, twin), raw in zip(seen, expected, encoded, strict=True):
        header = twin.header
        assert (int(row["origin"]), int(row["origin_size"])) == (at, len(raw))
        assert (int(row["base_offset"]), int(row["next_offset"])) == (
            header.base_offset,
            header.next_offset,
        )
        assert (int(row["records"]), int(row["codec"])) == (
            len(twin.records),
            twin.attributes.codec,
        )
        assert (int(row["max_timestamp"]), int(row["horizon"])) == (
            header.max_timestamp_ms,
            NO_HORIZON,
        )
        assert bool(row["flags"] & IS_OLD) == (header.magic < 2)
        if header.magic < 2:
            assert int(row["producer_id"]) == int(row["producer_epoch"]) == -1
            made = converted(row, buffer)
            assert made.records == twin.records
            assert made.header == header._replace(
                magic=2, crc=0, batch_length=int(row["size"]) - 12
            )


@given(entries())
def test_walk_equals_the_slow_decoder(encoded: list[bytes]) -> None:
    format = KafkaFormat()
    expected = [record for _, batch in iter_batches(b"".join(encoded)) for record in batch.records]
    states, rows, keys = (
        np.zeros(100, np.uint8),
        np.zeros((100, 2), np.uint64),
        np.zeros((100, 2), np.int64),
    )
    at = filled = 0
    seen_keys: list[bytes] = []
    for part in parts(format, array(b"".join(encoded))):
        for run in format.opened(part.buffer, part.table):
            before = filled
            filled = format.walk(run, part.table, SECRET, at, states[at:], rows, filled, keys)
            at += int(part.table["records"][run.first : run.last].sum())
            seen_keys += [run.plain[k : k + n].tobytes() for k, n in keys[before:filled]]
    assert seen_keys == [record.key for record in expected if record.key is not None]
    assert states[:at].tolist() == [
        KEYLESS if record.key is None else TOMBSTONE if record.value is None else 0
        for record in expected
    ]


@given(entries(), st.data())
def test_rebuild_equals_the_slow_encoder(encoded: list[bytes], data: st.DataObject) -> None:
    format = KafkaFormat()
    for table, buffer in parts(format, array(b"".join(encoded))):
        total = int(table["records"].sum())
        keep = np.array(
            data.draw(st.lists(st.booleans(), min_size=total, max_size=total)), dtype=np.uint8
        )
        actions, horizons = np.zeros(len(table), np.uint8), np.array(table["horizon"])
        expected: list[bytes] = []
        at = 0
        for b, row in enumerate(table):
            twin = decode_batch(b"".join(encoded), int(row["origin"]))
            stays = keep[at : at + len(twin.records)]
            at += len(twin.records)
            chosen = [record for record, kept in zip(twin.records, stays, strict=True) if kept]
            if not chosen:
                actions[b] = data.draw(st.sampled_from([EMPTY, DROP]))
                if actions[b] == EMPTY:
                    expected.append(rebuild_batch(twin.header, []))
                continue
            horizon = data.draw(st.sampled_from([None, START + 86_400_000]))
            if horizon is not None:
                horizons[b] = horizon
            whole = len(chosen) == len(twin.records) and horizon is None
            actions[b] = COPY if whole else REBUILD
            if whole and twin.header.magic == 2:
                expected.append(encoded_of(encoded, int(row["origin"])))
            else:
                expected.append(rebuild_batch(twin.header, chosen, delete_horizon_ms=horizon))
        out, rows = (
            np.zeros(format.rebuilt_size(table, total), np.uint8),
            np.zeros((len(table), 5), np.int64),
        )
        out, size, filled = format.rebuild(buffer, table, actions, horizons, keep, out, rows)
        assert filled == len(expected)
        for (position, length, next_offset, largest, base), want in zip(
            rows[:filled].tolist(), expected, strict=True
        ):
            assert out[position : position + length].tobytes() == want
            header = decode_batch(want, 0).header
            assert (base, next_offset, largest) == (
                header.base_offset,
                header.next_offset,
                header.max_timestamp_ms,
            )
        assert size == sum(map(len, expected))


def encoded_of(encoded: list[bytes], at: int) -> bytes:
    places = np.cumsum([0, *map(len, encoded)]).tolist()
    return encoded[places.index(at)]


@given(entries(new_too=False), st.data())
def test_kernels_and_slow_decoder_refuse_the_same_input(
    encoded: list[bytes], data: st.DataObject
) -> None:
    """Any bit is flipped. In half of the cases the entry's checksum is corrected afterwards."""
    whole = bytearray(b"".join(encoded))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= 1 << data.draw(st.integers(0, 7))
    if data.draw(st.booleans()):
        starts = np.cumsum([0, *map(len, encoded)]).tolist()
        n = int(np.searchsorted(starts, place, side="right")) - 1
        covered = bytes(whole[starts[n] + 16 : starts[n + 1]])
        whole[starts[n] + 12 : starts[n] + 16] = zlib.crc32(covered).to_bytes(4, "big")
    assert kernels_accept(bytes(whole)) == twin_accepts(bytes(whole))


def twin_accepts(data: bytes) -> list[int]:
    """The end positions of all entries before the first rejected one."""
    at, floor, ends = 0, 0, []
    while at < len(data):
        try:
            header = decode_batch(data, at).header
        except LogError:
            break
        if header.base_offset < floor:
            break
        at, floor = at + header.size_bytes, header.next_offset
        ends.append(at)
    return ends


def kernels_accept(data: bytes) -> list[int]:
    format, buffer = KafkaFormat(), array(data)
    at, floor, ends = 0, 0, []
    while at < len(data):
        try:
            table, at, wanted, _ = format.split(buffer, at, len(buffer), floor)
        except CorruptLog as error:
            assert error.at is not None and at <= error.at < len(data)
            break
        if not len(table):
            assert wanted >= 0
            break
        ends += (table["origin"] + table["origin_size"]).tolist()
        assert ends[-1] == at
        floor = int(table["next_offset"][-1])
    return ends


def test_split_requests_the_bytes_of_a_truncated_entry() -> None:
    records = [Record(5, START, b"k", b"v" * 100), Record(6, START, b"k", None)]
    for encoded in (encode_message(records[0], 0), encode_wrapper(records, 1, Codec.GZIP)):
        buffer = array(encoded * 2)
        buffer[len(encoded) + 7] += 2  # the second entry's offset, which the CRC does not cover
        format = KafkaFormat()
        for end in range(len(encoded)):
            table, consumed, wanted, _ = format.split(buffer, 0, end, 0)
            assert (len(table), consumed) == (0, 0)
            assert wanted == (len(encoded) if end >= 17 else 0 if end else -1)
        for end in range(len(encoded), 2 * len(encoded)):
            table, consumed, wanted, _ = format.split(buffer, 0, end, 0)
            behind = end - len(encoded)
            assert (len(table), consumed) == (1, len(encoded))
            assert wanted == (len(encoded) if behind >= 17 else 0 if behind else -1)


def test_entries_continue_in_a_second_table() -> None:
    encoded = b"".join(encode_message(Record(n, -1, b"k%d" % n, b""), 0) for n in range(10_000))
    found = parts(KafkaFormat(), array(encoded))
    assert [len(part.table) for part in found] == [4096, 4096, 1808]
    assert np.concatenate([part.table["base_offset"] for part in found]).tolist() == list(
        range(10_000)
    )


def test_converted_entries_continue_in_a_second_output() -> None:
    """Entries beyond the limit are converted by the next call. A single entry may use the whole
    limit.
    """
    value = bytes(1 << 19)
    wrappers = [encode_wrapper([Record(n, START, b"k", value)], 1, Codec.LZ4) for n in range(20)]
    messages = [encode_message(Record(20 + n, START, b"k", value), 1) for n in range(20)]
    large = encode_wrapper(
        [Record(40 + n, START, b"k", value) for n in range(11)], 1, Codec.LZ4, offset=50
    )
    found = parts(KafkaFormat(12 << 20), array(b"".join([*wrappers, *messages, large])))
    assert np.concatenate([part.table["base_offset"] for part in found]).tolist() == list(range(41))
    assert [int(part.table["records"][-1]) for part in found][-1] == 11
    assert max(len(part.buffer) for part in found) < 6 << 20
    sizes = [int(part.table["size"].sum()) for part in found[:-1]]
    assert len(sizes) == 6 and max(sizes) < 4 << 20
    for encoded in (large, messages[0]):
        with pytest.raises(OutOfMemoryBudget) as caught:
            KafkaFormat(1 << 18).split(array(encoded), 0, len(encoded), 0)
        assert caught.value.at == 0


def test_wrapper_with_a_wrong_size_is_refused_in_little_memory() -> None:
    bomb = encode_wrapper([Record(0, START, b"k", bytes(8 << 20))], 0, Codec.GZIP)
    with pytest.raises(OutOfMemoryBudget, match="decompresses to more than"):
        KafkaFormat(1 << 20).split(array(bomb), 0, len(bomb), 0)


def test_error_position_is_relative_to_the_file() -> None:
    good = encode_message(Record(0, START, b"k", b"v"), 1)
    bad = bytearray(encode_message(Record(1, START, b"k", b"v"), 1))
    bad[-1] ^= 1
    format, buffer = KafkaFormat(), array(good + bytes(bad))
    _, consumed, _, _ = format.split(buffer, 0, len(buffer), 0)
    assert consumed == len(good)
    with pytest.raises(CorruptLog, match="checksum") as caught:
        format.split(buffer, consumed, len(buffer), 1)
    assert caught.value.at == len(good) + 12


# ---------------------------------------------------------------------- through a file


def mixed() -> list[bytes]:
    """Sixty entries of all magics and of very different sizes."""
    found = []
    for n in range(60):
        records = [
            Record(10 * n + k, START + n, b"k%d" % k, b"v" * (n * n % 400))
            for k in range(1 + n % 5)
        ]
        if n % 7 == 3:
            found.append(encode_batch(records, codec=Codec.LZ4))
        elif n % 3:
            found.append(encode_wrapper(records, n % 2, CODECS[n % 3]))
        else:
            found.append(encode_message(records[0], n % 2))
    return found


def piece_of(path: Path, data: bytes) -> ScanRange:
    path.write_bytes(data)
    seen = path.stat()
    return ScanRange(0, 0, str(path), 0, len(data), seen.st_size, seen.st_mtime_ns, 0, 10_000, True)


@pytest.mark.parametrize("chunk_bytes", [64, 100, 1000, 1 << 20])
def test_chunks_of_any_size_give_the_same_batches(tmp_path: Path, chunk_bytes: int) -> None:
    encoded = mixed()
    piece = piece_of(tmp_path / "log", b"".join(encoded))
    format = KafkaFormat()
    seen = []
    for chunk in BatchWindows(Limits(chunk_bytes=chunk_bytes)).of(format, piece):
        for run in format.opened(chunk.buffer, chunk.table):
            for row in chunk.table[run.first : run.last]:
                plain = run.plain[int(row["plain_start"]) : int(row["plain_end"])].tobytes()
                seen.append(
                    (int(row["origin"]) + chunk.shift, int(row["base_offset"]), zlib.crc32(plain))
                )
    starts = np.cumsum([0, *map(len, encoded)]).tolist()[:-1]
    assert [at for at, _, _ in seen] == starts
    twins = [decode_batch(raw, 0) for raw in encoded]
    plain = [
        encode_records(twin.records, twin.header.base_offset, twin.records[0].timestamp_ms)
        for twin in twins
    ]
    assert [(base, crc) for _, base, crc in seen] == [
        (twin.header.base_offset, zlib.crc32(raw)) for twin, raw in zip(twins, plain, strict=True)
    ]


@pytest.mark.parametrize("chunk_bytes", [100, 1 << 20])
def test_error_names_the_byte_of_the_file(tmp_path: Path, chunk_bytes: int) -> None:
    encoded = mixed()
    starts = np.cumsum([0, *map(len, encoded)]).tolist()
    chunks = BatchWindows(Limits(chunk_bytes=chunk_bytes))
    for n in range(0, 60, 5):
        data = bytearray(b"".join(encoded))
        data[starts[n + 1] - 1] ^= 1
        with pytest.raises(CorruptLog) as caught:
            for _ in chunks.of(KafkaFormat(), piece_of(tmp_path / "log", bytes(data))):
                pass
        assert caught.value.at == starts[n] + (17 if encoded[n][16] == 2 else 12)
        assert caught.value.path == str(tmp_path / "log")
    whole = piece_of(tmp_path / "log", b"".join(encoded))
    with pytest.raises(CorruptLog, match="beyond the segment's end") as caught:
        for _ in chunks.of(KafkaFormat(), replace(whole, end_offset=311)):
            pass
    assert caught.value.at == starts[31]
