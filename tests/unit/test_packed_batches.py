"""Tests that many compressed batches processed together give the same result as each alone."""

from __future__ import annotations

import numpy as np
import pytest

from lastwrite.encoding.checksum import crc32c
from lastwrite.encoding.codec_libraries import Contexts
from lastwrite.encoding.compression import Codec
from lastwrite.encoding.kernel_cache import code_files, may_keep_code
from lastwrite.errors import CorruptLog, OutOfMemoryBudget
from lastwrite.kafka import warm_up
from lastwrite.kafka.format import packed_kernels
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.chunk import KafkaFormat
from lastwrite.model.columns import COPY, DROP, NO_HORIZON, REBUILD, ByteArray

NO_WORDS = np.zeros_like(Contexts().words)
STAMP = 1_700_000_000_000
MIXED = [
    Codec.LZ4,
    Codec.LZ4,
    Codec.ZSTD,
    Codec.NONE,
    Codec.LZ4,
    Codec.GZIP,
    Codec.SNAPPY,
    Codec.ZSTD,
]


def batch(base: int, codec: Codec, records: int, value: int) -> bytes:
    draw = np.random.default_rng(base)
    made = [
        Record(
            base + i, STAMP + i, b"key-%d" % draw.integers(1000), draw.bytes(9) * (value // 9), ()
        )
        for i in range(records)
    ]
    return encode_batch(made, base_offset=base, codec=codec)


def log(codecs: list[Codec], sizes: list[tuple[int, int]]) -> ByteArray:
    """A log with one batch for each codec. ``sizes`` cycles through (records, bytes of a value)."""
    parts = [batch(100 * n, codec, *sizes[n % len(sizes)]) for n, codec in enumerate(codecs)]
    return np.frombuffer(b"".join(parts), np.uint8).copy()


# Small batches, some of several LZ4 blocks, and one that exceeds a run of batches.
SIZES = [(20, 90), (1, 9), (100, 1800), (7, 300), (60, 2000), (90, 9000)]


def opened(data: ByteArray, limit: int, wanted: ByteArray | None = None) -> list[tuple[int, bytes]]:
    form = KafkaFormat(limit)
    table = form.split(data, 0, len(data), 0).table
    return [
        (b, run.plain[int(table["plain_start"][b]) : int(table["plain_end"][b])].tobytes())
        for run in form.opened(data, table, wanted)
        for b in range(run.first, run.last)
    ]


def rebuilt(
    data: ByteArray, actions: ByteArray, keep: ByteArray, limit: int
) -> tuple[bytes, list[list[int]]]:
    form = KafkaFormat(limit)
    table = form.split(data, 0, len(data), 0).table
    horizons = np.full(len(table), NO_HORIZON, np.int64)
    out = np.empty(form.rebuilt_size(table, int(table["records"].sum())), np.uint8)
    rows = np.zeros((len(table), 5), np.int64)
    out, size, filled = form.rebuild(data, table, actions, horizons, keep, out, rows)
    return out[:size].tobytes(), rows[:filled].tolist()


@pytest.fixture(params=["by kernels", "by Python"], autouse=True)
def codecs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A codec's library is called by kernels, or by Python."""
    if request.param == "by Python":
        monkeypatch.setattr(Contexts, "__init__", lambda self: setattr(self, "words", NO_WORDS))


@pytest.mark.parametrize("limit", [850_000, 1 << 20, 64 << 20])
def test_runs_equal_single_batches(limit: int) -> None:
    data = log(MIXED * 6, SIZES)
    found = opened(data, limit)
    assert [b for b, _ in found] == list(range(len(MIXED) * 6))
    table = KafkaFormat().split(data, 0, len(data), 0).table
    for b, plain in found:
        alone = data[
            int(table["position"][b]) : int(table["position"][b] + table["size"][b])
        ].copy()
        assert opened(alone, limit) == [(0, plain)]
    wanted = (np.random.default_rng(1).random(len(found)) < 0.6).astype(np.uint8)
    assert opened(data, limit, wanted) == [entry for entry in found if wanted[entry[0]]]
    assert opened(data, limit, np.zeros(len(found), np.uint8)) == []


@pytest.mark.parametrize("seed", range(6))
def test_batches_rebuilt_together_equal_batches_rebuilt_alone(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(seed)
    data = log(([Codec.LZ4] * 40, [Codec.ZSTD] * 40, MIXED * 5)[seed % 3], SIZES)
    table = KafkaFormat().split(data, 0, len(data), 0).table.copy()
    actions = draw.choice(np.array([REBUILD, COPY, DROP], np.uint8), len(table), p=[0.8, 0.1, 0.1])
    keep = (draw.random(int(table["records"].sum())) < 0.4).astype(np.uint8)
    starts = np.cumsum(table["records"]) - table["records"]
    keep[starts] = 1
    together, rows = rebuilt(data, actions, keep, 64 << 20)
    monkeypatch.undo()
    assert together == rebuilt(data, actions, keep, 64 << 20)[0]
    assert together == rebuilt(data, actions, keep, 850_000)[0]
    alone, at = b"", 0
    for b, row in enumerate(table):
        one = data[int(row["position"]) : int(row["position"] + row["size"])].copy()
        kept = keep[starts[b] : starts[b] + row["records"]]
        made, (*notes,) = rebuilt(one, actions[b : b + 1], kept, 64 << 20)
        for position, *rest in notes:
            assert rows[at] == [position + len(alone), *rest]
            at += 1
        alone += made
    assert together == alone and at == len(rows)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_first_damaged_batch_is_named(codec: Codec) -> None:
    """A run of batches ends before it. The batches before it were returned."""
    data = log([codec] * 8, [(20, 90)])
    table = KafkaFormat().split(data, 0, len(data), 0).table.copy()
    places = table["position"].tolist()
    for b in (5, 6):
        end = places[b] + int(table["size"][b])
        data[end - 9 : end] ^= 0xFF
        data[places[b] + 17 : places[b] + 21] = np.array(
            [crc32c(data, places[b] + 21, end)], ">u4"
        ).view(np.uint8)
    form = KafkaFormat()
    table = form.split(data, 0, len(data), 0).table
    seen = 0
    with pytest.raises(CorruptLog) as caught:
        for run in form.opened(data, table):
            seen = run.last
    assert (seen, caught.value.at) == (5, places[5])
    actions, horizons = np.full(8, REBUILD, np.uint8), np.full(8, NO_HORIZON, np.int64)
    keep = np.ones(int(table["records"].sum()), np.uint8)
    out, rows = np.empty(form.rebuilt_size(table, len(keep)), np.uint8), np.zeros((8, 5), np.int64)
    with pytest.raises(CorruptLog) as caught:
        form.rebuild(data, table, actions, horizons, keep, out, rows)
    assert caught.value.at == places[5]


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_memory_limit_applies_to_each_batch(codec: Codec) -> None:
    data = log([codec] * 3, [(20, 90), (90, 9000)])
    assert len(opened(data, 850_000)) == 3
    form = KafkaFormat(800_000)
    table = form.split(data, 0, len(data), 0).table
    with pytest.raises(OutOfMemoryBudget) as caught:
        for _ in form.opened(data, table):
            pass
    assert caught.value.at == int(table["position"][1])


@pytest.mark.skipif(not may_keep_code(), reason="Numba is told where to keep things")
def test_warm_up_compiles_the_kernels_of_compressed_batches() -> None:
    """No kernel is called with other types later, as this would compile it during a scan."""
    for part in warm_up.PARTS:
        part()
    needed = [
        f"{packed_kernels.__name__}:{name}"
        for name in ("open_many", "thin_many", "pack_many", "seal_many")
    ]
    before = list(map(code_files, needed))
    data = log(MIXED, SIZES)
    records = int(KafkaFormat().split(data, 0, len(data), 0).table["records"].sum())
    keep = np.arange(records, dtype=np.uint8) % 2
    rebuilt(data, np.full(len(MIXED), REBUILD, np.uint8), keep, 64 << 20)
    assert before == list(map(code_files, needed)) and all(before)
