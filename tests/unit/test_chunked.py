"""Tests of chunked segments: manifests written by Aiven's own classes, and malformed manifests."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from lastwrite.errors import CommitConflict, CorruptLog, OutOfMemoryBudget, UnsupportedFormat
from lastwrite.model.stores import StoreSettings
from lastwrite.storage.chunked import ChunkIndex, decode_manifest
from lastwrite.storage.objects import address
from lastwrite.storage.reading import ChunkedReader, read_small

CORPUS = Path(__file__).parent.parent / "corpus" / "tiered"
KINDS = ("zstd", "plain", "encrypted", "encrypted-plain")
KEYS = StoreSettings(
    encryption_keys=tuple((name, f"{CORPUS}/chunks/keys/{name}.pem") for name in ("one", "two"))
)


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "_settings", KEYS)


def packed(values: list[int], width: int) -> str:
    """Chunk sizes in the encoding of Aiven's ``ChunkSizesBinaryCodec``."""
    data = struct.pack(">i", len(values))
    if len(values) > 1:
        least = min(values[:-1])
        data += struct.pack(">iB", least, width)
        data += b"".join((each - least).to_bytes(width, "big") for each in values[:-1])
    data += b"".join(struct.pack(">i", each) for each in values[-1:])
    return base64.b64encode(zstandard.ZstdCompressor().compress(data)).decode()


def index(**fields: Any) -> ChunkIndex:
    known: dict[str, Any] = {"type": "variable", "original_chunk_size": 10}
    return ChunkIndex(**(known | {"original_file_size": 25} | fields))


@pytest.mark.parametrize(
    ("values", "width"),
    [([], 1), ([7], 1), ([300, 5], 1), ([3, 258, 9], 2), ([1, 70_000, 2], 3), ([0, 1 << 30, 8], 4)],
)
def test_chunk_sizes_are_decoded(values: list[int], width: int) -> None:
    found = index(original_file_size=10 * len(values), transformed_chunks=packed(values, width))
    assert found.sizes() == values


def test_malformed_chunk_sizes_are_refused() -> None:
    with pytest.raises(CorruptLog, match="sizes of 2 chunks, but the segment has 3"):
        index(transformed_chunks=packed([1, 2], 1)).sizes()
    with pytest.raises(CorruptLog):
        index(transformed_chunks="no base 64").sizes()
    with pytest.raises(CorruptLog):
        index(transformed_chunks=base64.b64encode(b"no zstd").decode()).sizes()
    # Only one of the two sizes above the minimum is present.
    short = struct.pack(">iiBhi", 3, 1, 2, 1, 3)
    text = base64.b64encode(zstandard.ZstdCompressor().compress(short)).decode()
    with pytest.raises(CorruptLog, match="chunk sizes cannot have"):
        index(transformed_chunks=text).sizes()
    with pytest.raises(CorruptLog, match="sizes of 3 chunks"):
        index(type="fixed", transformed_chunk_size=-1, final_transformed_chunk_size=1).sizes()
    with pytest.raises(CorruptLog, match="has no chunk sizes"):
        index(type="fixed").sizes()
    with pytest.raises(UnsupportedFormat):
        index(type="another").sizes()
    with pytest.raises(OutOfMemoryBudget):
        index(original_chunk_size=1 << 30).sizes()


def manifests(kind: str) -> list[Path]:
    if "encrypted" in kind:
        pytest.importorskip("Crypto")
    return sorted((CORPUS / "chunks" / kind).rglob("*.rsm-manifest"))


@pytest.mark.parametrize("kind", KINDS)
def test_chunked_segment_reads_as_the_original(kind: str) -> None:
    for path in manifests(kind):
        (whole,) = (CORPUS / "tier").rglob(f"{path.stem}.log")
        plain = whole.read_bytes()
        with ChunkedReader(str(path), len(plain)) as reader:
            for begin, end in [(0, len(plain)), (100, 110), (len(plain) - 90, len(plain)), (0, 61)]:
                target = np.empty(end - begin, dtype=np.uint8)
                reader.read_into(target, begin)
                assert target.tobytes() == plain[begin:end]


@pytest.mark.parametrize("kind", KINDS)
def test_side_files_equal_those_of_the_segment(kind: str) -> None:
    for path in manifests(kind):
        at = decode_manifest(path.read_bytes(), str(path)).segment_indexes
        indexes = path.with_suffix(".indexes")
        for side, stretch in [
            (".index", at.offset),
            (".timeindex", at.timestamp),
            (".snapshot", at.producer_snapshot),
            (".leader_epoch_checkpoint", at.leader_epoch),
            (".txnindex", at.transaction),
        ]:
            found = list((CORPUS / "tier").rglob(f"{path.stem}{side}"))
            assert bool(found) == (stretch is not None)
            if stretch is not None:
                part = read_small(f"{indexes}#{stretch.position}+{stretch.size}")
                assert part == found[0].read_bytes()


def test_missing_or_replaced_segment_is_an_error(tmp_path: Path) -> None:
    source = manifests("zstd")[0]
    size = json.loads(source.read_bytes())["chunkIndex"]["originalFileSize"]
    path = tmp_path / source.name
    with pytest.raises(CommitConflict, match="another program deleted"):
        ChunkedReader(str(path), size)
    path.write_bytes(source.read_bytes())
    with pytest.raises(CommitConflict, match="another program deleted"):
        ChunkedReader(str(path), size)
    log = path.with_suffix(".log")
    log.write_bytes(source.with_suffix(".log").read_bytes())
    with pytest.raises(CommitConflict, match="changed"):
        ChunkedReader(str(path), size + 1)
    content = bytearray(log.read_bytes())
    content[:4] = b"none"
    log.write_bytes(content)
    with (
        ChunkedReader(str(path), size) as reader,
        pytest.raises(CorruptLog, match="cannot be decompressed") as error,
    ):
        reader.read_into(np.empty(10, dtype=np.uint8), 0)
    assert error.value.path == str(path)
    path.write_bytes(b"{}")
    with pytest.raises(CorruptLog, match="not the manifest of a segment"):
        ChunkedReader(str(path), size)
