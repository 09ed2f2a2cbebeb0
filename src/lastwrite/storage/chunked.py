"""A segment that was cut into chunks before it was stored, read as if it were whole.

As Aiven's tiered-storage-for-apache-kafka writes one: the chunks lie one behind another in
``STEM.log``, each compressed by itself or not, and then encrypted (``encryption``) or not, and
``STEM.rsm-manifest``, which is written last, says how long each is there::

    {"version": "1",
     "chunkIndex": {"type": "variable", "originalChunkSize": 4194304, "originalFileSize": 9000000,
                    "transformedChunks": "base64 of zstd of the sizes"},
     "segmentIndexes": {"offset": {"position": 0, "size": 24}, …},     of STEM.indexes
     "compression": true, "encryption": {…}, "remoteLogSegmentMetadata": {…}}

Source: commit 8fb15816 of the plugin (2026-05-04): ``SegmentManifestV1``, ``FixedSizeChunkIndex``,
``ChunkSizesBinaryCodec``; what its classes wrote in tests/corpus.
"""

from __future__ import annotations

import base64
import struct
from itertools import accumulate

import msgspec
import numpy as np

from lastwrite.encoding.compression import Codec, decompress
from lastwrite.encoding.json_structs import decode_struct
from lastwrite.errors import CorruptLog, OutOfMemoryBudget, UnsupportedFormat
from lastwrite.storage.encryption import Encryption, SegmentCipher

MANIFEST, LOG, INDEXES = ".rsm-manifest", ".log", ".indexes"
_VERSION = "1"
_MOST_CHUNK_BYTES = 256 << 20
_MOST_CHUNKS = 1 << 22  # of 2 GiB, more than a segment has, in 512 bytes
_MOST_SIZES_BYTES = 64 << 20


class ChunkIndex(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How a segment was cut; ``type`` says which of the last three are there."""

    type: str
    original_chunk_size: int
    original_file_size: int
    transformed_chunk_size: int | None = None
    final_transformed_chunk_size: int | None = None
    transformed_chunks: str | None = None

    def sizes(self) -> list[int]:
        """How long each chunk is as it was stored.

        Raises:
            CorruptLog: the fields contradict each other.
            OutOfMemoryBudget: chunks larger than anybody makes them.
        """
        if self.original_chunk_size > _MOST_CHUNK_BYTES:
            raise OutOfMemoryBudget(f"chunks of {self.original_chunk_size} bytes")
        if self.original_chunk_size <= 0 or self.original_file_size < 0:
            raise CorruptLog("chunks or a segment of no size", 0)
        count = -(-self.original_file_size // self.original_chunk_size)
        if count > _MOST_CHUNKS:
            raise OutOfMemoryBudget(f"a segment in {count} chunks")
        if self.type == "fixed":
            size, last = self.transformed_chunk_size, self.final_transformed_chunk_size
            if size is None or last is None:
                raise CorruptLog("a chunk index without sizes", 0)
            found = [size] * (count - 1) + [last] * (count > 0)
        elif self.type == "variable":
            found = _sizes(self.transformed_chunks or "")
        else:
            raise UnsupportedFormat(f"a chunk index of type {self.type!r}")
        if len(found) != count or any(size < 0 for size in found):
            raise CorruptLog(f"sizes of {len(found)} chunks, where there are {count}", 0)
        return found


class IndexSlice(msgspec.Struct, frozen=True, kw_only=True):
    """Where something lies in ``STEM.indexes``."""

    position: int
    size: int


class IndexSlices(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is in there."""

    offset: IndexSlice
    timestamp: IndexSlice
    producer_snapshot: IndexSlice
    leader_epoch: IndexSlice
    transaction: IndexSlice | None = None


class ChunkManifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """See the module."""

    version: str
    chunk_index: ChunkIndex
    segment_indexes: IndexSlices
    compression: bool
    encryption: Encryption | None = None


def decode_manifest(data: bytes, path: str) -> ChunkManifest:
    """A manifest of its bytes; ``path`` is for errors.

    Raises:
        CorruptLog: they are none.
        UnsupportedFormat: of another version.
    """
    try:
        found = decode_struct(data, ChunkManifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptLog(f"not the manifest of a segment: {error}", 0, path) from error
    if found.version != _VERSION:
        raise UnsupportedFormat(f"a segment's manifest of version {found.version!r}", path=path)
    return found


class SegmentChunks:
    """The chunks of one segment: which lies where, and what it is when it is opened; by ``cipher``
    where they are encrypted.
    """

    def __init__(self, manifest: ChunkManifest, cipher: SegmentCipher | None) -> None:
        index = manifest.chunk_index
        self.size_bytes = index.original_file_size
        self._each = index.original_chunk_size
        self._is_compressed, self._cipher = manifest.compression, cipher
        self._ends = [0, *accumulate(index.sizes())]

    @property
    def stored_bytes(self) -> int:
        """Of all of them, as they lie there."""
        return self._ends[-1]

    def at(self, position: int) -> int:
        """The chunk that has this byte of the segment."""
        return position // self._each

    def start(self, number: int) -> int:
        """Where a chunk begins in the segment."""
        return number * self._each

    def place(self, number: int) -> tuple[int, int]:
        """Where it lies in the object, from and to."""
        return self._ends[number], self._ends[number + 1]

    def opened(self, number: int, stored: bytes) -> bytes | memoryview:
        """The bytes of the segment in a chunk.

        Raises:
            CorruptLog: they are not as long as they should be, or neither decrypt nor decompress.
        """
        wanted = min(self._each, self.size_bytes - self.start(number))
        if self._cipher is not None:
            try:
                stored = self._cipher.opened(stored)
            except CorruptLog as error:
                raise CorruptLog(f"a chunk: {error.problem}", self.start(number)) from error
        plain: bytes | memoryview = stored
        if self._is_compressed:
            try:
                plain = decompress(Codec.ZSTD, stored, wanted)
            except (CorruptLog, OutOfMemoryBudget) as error:
                words = f"a chunk that does not decompress: {error.problem}"
                raise CorruptLog(words, self.start(number)) from error
        if len(plain) != wanted:
            raise CorruptLog(
                f"a chunk of {len(plain)} bytes, where {wanted} should be", self.start(number)
            )
        return plain


def _sizes(text: str) -> list[int]:
    """Sizes of chunks: how many, the least, how many bytes each takes beyond that, those, and the
    last one in full; of one alone only that.
    """
    try:
        packed = base64.b64decode(text, validate=True)
        data = decompress(Codec.ZSTD, packed, _MOST_SIZES_BYTES)
        (count,) = struct.unpack_from(">i", data)
        if count <= 1:
            return list(struct.unpack_from(f">{max(count, 0)}i", data, 4))
        least, width = struct.unpack_from(">iB", data, 4)
        if not 1 <= width <= 4 or len(data) != 13 + (count - 1) * width:
            raise CorruptLog(f"{len(data)} bytes of sizes of {count} chunks", 0)
        wide = np.zeros((count - 1, 4), dtype=np.uint8)
        wide[:, 4 - width :] = np.frombuffer(data, np.uint8, (count - 1) * width, 9).reshape(
            count - 1, width
        )
        others = wide.view(">i4")[:, 0].astype(np.int64) + least
        return [*map(int, others), *struct.unpack_from(">i", data, len(data) - 4)]
    except (ValueError, struct.error) as error:
        raise CorruptLog(f"sizes of chunks that are none: {error}", 0) from error
