"""Decode a segment that was stored in chunks.

This is the format of Aiven's tiered-storage-for-apache-kafka. ``STEM.log`` has the chunks one after
another, each optionally compressed and then optionally encrypted (``encryption``).
``STEM.rsm-manifest``, written last, contains the size of each chunk::

    {"version": "1",
     "chunkIndex": {"type": "variable", "originalChunkSize": 4194304, "originalFileSize": 9000000,
                    "transformedChunks": "base64 of zstd of the sizes"},
     "segmentIndexes": {"offset": {"position": 0, "size": 24}, …},     positions in STEM.indexes
     "compression": true, "encryption": {…}, "remoteLogSegmentMetadata": {…}}

Source: commit 8fb15816 of the plugin (2026-05-04): ``SegmentManifestV1``, ``FixedSizeChunkIndex``,
``ChunkSizesBinaryCodec``; files that its classes wrote in tests/corpus.
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
_MOST_CHUNKS = 1 << 22  # maximum number of chunks of a segment: 2 GiB in chunks of 512 bytes
_MOST_SIZES_BYTES = 64 << 20


class ChunkIndex(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The sizes of a segment's chunks. ``type`` decides which of the last three fields exist."""

    type: str
    original_chunk_size: int
    original_file_size: int
    transformed_chunk_size: int | None = None
    final_transformed_chunk_size: int | None = None
    transformed_chunks: str | None = None

    def sizes(self) -> list[int]:
        """The stored size of each chunk.

        Raises:
            CorruptLog: the fields do not match each other.
            OutOfMemoryBudget: there are more or larger chunks than any writer creates.
        """
        if self.original_chunk_size > _MOST_CHUNK_BYTES:
            raise OutOfMemoryBudget(
                f"the chunk index states chunks of {self.original_chunk_size} bytes, more than "
                "Lastwrite supports"
            )
        if self.original_chunk_size <= 0 or self.original_file_size < 0:
            raise CorruptLog(
                "the chunk index states a size of 0 or less for the chunks or the segment", 0
            )
        count = -(-self.original_file_size // self.original_chunk_size)
        if count > _MOST_CHUNKS:
            raise OutOfMemoryBudget(
                f"the chunk index states {count} chunks, more than Lastwrite supports"
            )
        if self.type == "fixed":
            size, last = self.transformed_chunk_size, self.final_transformed_chunk_size
            if size is None or last is None:
                raise CorruptLog("the chunk index has no chunk sizes", 0)
            found = [size] * (count - 1) + [last] * (count > 0)
        elif self.type == "variable":
            found = _sizes(self.transformed_chunks or "")
        else:
            raise UnsupportedFormat(f"the chunk index type {self.type!r} is not supported")
        if len(found) != count or any(size < 0 for size in found):
            raise CorruptLog(
                f"the chunk index has the sizes of {len(found)} chunks, but the segment has "
                f"{count} chunks",
                0,
            )
        return found


class IndexSlice(msgspec.Struct, frozen=True, kw_only=True):
    """The position and size of an index in ``STEM.indexes``, in bytes."""

    position: int
    size: int


class IndexSlices(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The indexes in ``STEM.indexes``."""

    offset: IndexSlice
    timestamp: IndexSlice
    producer_snapshot: IndexSlice
    leader_epoch: IndexSlice
    transaction: IndexSlice | None = None


class ChunkManifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The fields of a manifest that Lastwrite reads; the module's docstring has an example."""

    version: str
    chunk_index: ChunkIndex
    segment_indexes: IndexSlices
    compression: bool
    encryption: Encryption | None = None


def decode_manifest(data: bytes, path: str) -> ChunkManifest:
    """Decode a manifest. ``path`` is for error messages.

    Raises:
        CorruptLog: the data is not a manifest.
        UnsupportedFormat: the manifest has another version.
    """
    try:
        found = decode_struct(data, ChunkManifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptLog(f"the file is not the manifest of a segment: {error}", 0, path) from error
    if found.version != _VERSION:
        raise UnsupportedFormat(
            f"version {found.version!r} of a segment's manifest is not supported", path=path
        )
    return found


class SegmentChunks:
    """Locates and decodes the chunks of one segment. ``cipher`` decrypts encrypted chunks."""

    def __init__(self, manifest: ChunkManifest, cipher: SegmentCipher | None) -> None:
        index = manifest.chunk_index
        self.size_bytes = index.original_file_size
        self._each = index.original_chunk_size
        self._is_compressed, self._cipher = manifest.compression, cipher
        self._ends = [0, *accumulate(index.sizes())]

    @property
    def stored_bytes(self) -> int:
        """The stored size of all chunks together."""
        return self._ends[-1]

    def at(self, position: int) -> int:
        """The number of the chunk that contains byte ``position`` of the segment."""
        return position // self._each

    def start(self, number: int) -> int:
        """The position of a chunk's first byte in the segment."""
        return number * self._each

    def byte_range(self, number: int) -> tuple[int, int]:
        """The byte range of a chunk in the object that stores the segment. The end is exclusive."""
        return self._ends[number], self._ends[number + 1]

    def opened(self, number: int, stored: bytes) -> bytes | memoryview:
        """Decrypt and decompress a chunk.

        Raises:
            CorruptLog: the chunk has a wrong length, or fails to decrypt or decompress.
        """
        wanted = min(self._each, self.size_bytes - self.start(number))
        if self._cipher is not None:
            try:
                stored = self._cipher.opened(stored)
            except CorruptLog as error:
                raise CorruptLog(
                    f"the chunk cannot be decrypted: {error.problem}", self.start(number)
                ) from error
        plain: bytes | memoryview = stored
        if self._is_compressed:
            try:
                plain = decompress(Codec.ZSTD, stored, wanted)
            except (CorruptLog, OutOfMemoryBudget) as error:
                words = f"the chunk cannot be decompressed: {error.problem}"
                raise CorruptLog(words, self.start(number)) from error
        if len(plain) != wanted:
            raise CorruptLog(
                f"the chunk decompresses to {len(plain)} bytes, but its index states {wanted}",
                self.start(number),
            )
        return plain


def _sizes(text: str) -> list[int]:
    """Decode the sizes of chunks.

    The fields are the count, the least size, the width of a difference in bytes, the differences
    from the least size, and the last size. A single chunk has only the count and the last size.
    """
    try:
        packed = base64.b64decode(text, validate=True)
        data = decompress(Codec.ZSTD, packed, _MOST_SIZES_BYTES)
        (count,) = struct.unpack_from(">i", data)
        if count <= 1:
            return list(struct.unpack_from(f">{max(count, 0)}i", data, 4))
        least, width = struct.unpack_from(">iB", data, 4)
        if not 1 <= width <= 4 or len(data) != 13 + (count - 1) * width:
            raise CorruptLog(f"the list of {count} chunk sizes cannot have {len(data)} bytes", 0)
        wide = np.zeros((count - 1, 4), dtype=np.uint8)
        wide[:, 4 - width :] = np.frombuffer(data, np.uint8, (count - 1) * width, 9).reshape(
            count - 1, width
        )
        others = wide.view(">i4")[:, 0].astype(np.int64) + least
        return [*map(int, others), *struct.unpack_from(">i", data, len(data) - 4)]
    except (ValueError, struct.error) as error:
        raise CorruptLog(f"the chunk sizes cannot be decoded: {error}", 0) from error
