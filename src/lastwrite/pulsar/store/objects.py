"""Ledgers in a topic folder: data and index objects in the object-store offloader's layout.

A data object is written block by block under a temporary name, ``<name>.<attempt>.aside``. A
block's header is written when the block ends, because its length is unknown before. The index is
written last and renamed first, so a visible data object always has its index. A reader finds the
block of an entry by the index, then walks from entry to entry.

Source: Pulsar 4.2.4, offloaders 4.0.8 ``BlockAwareSegmentInputStreamImpl``,
``OffloadIndexBlockImpl``; docs/formats/pulsar.md, "Offloaded ledger".
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from io import FileIO

import numpy as np

from lastwrite.errors import CorruptLog, TruncatedLog, is_of_archive, located
from lastwrite.model.columns import ByteArray, Int64Array
from lastwrite.model.log import Segment
from lastwrite.pulsar.format.ledger_metadata import LedgerMetadata, custom_items
from lastwrite.pulsar.format.missing import MISSING, EntryRange, encode_ranges
from lastwrite.pulsar.format.names import (
    INDEX_SUFFIX,
    MANAGED_LEDGER,
    MANAGED_LEDGER_JSON,
    MANIFEST,
    object_name,
    parse_object_name,
)
from lastwrite.pulsar.format.offload import (
    BLOCK_HEADER_BYTES,
    ENTRY_HEAD,
    ENTRY_HEAD_BYTES,
    FIRST_PART,
    EntryHead,
    IndexObject,
    OffloadIndexEntry,
    block_header,
    walk_data,
)
from lastwrite.storage import files
from lastwrite.storage.mapping import mapped
from lastwrite.storage.missing import missing_error
from lastwrite.storage.objects.address import is_address
from lastwrite.storage.reading import AGAIN, ObjectReader, read_small, reader_of
from lastwrite.storage.staging import changing, remove_staged

# block size of new objects: a search for an entry walks half a block on average
BLOCK_BYTES = 1 << 20
ASIDE_SUFFIX = ".aside"
_BUFFER_BYTES = 1 << 20


class OffloadWriter:
    """Writes a ledger's two objects under temporary names in ``folder``, then renames them.

    Entry ids must ascend. A new block begins after skipped ids, and the index lists the skipped ids
    (``missing``). ``uid`` is the uuid in the objects' names; None generates a random one. Keeps the
    rows of the index in memory, 20 bytes a block. An entry larger than ``block_bytes`` has a block
    of its own.
    """

    def __init__(
        self,
        folder: str,
        ledger: int,
        *,
        uid: uuid.UUID | None = None,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self.path = os.path.join(folder, object_name(uid or uuid.uuid4(), ledger))
        self.size_bytes = 0  # bytes of the data object so far
        self.entries = 0
        # bytes of the entries without framing; the length in the ledger's metadata
        self.entry_bytes = 0
        self.last_entry = -1
        self._missing: list[EntryRange] = []  # ids skipped before the last entry
        self._block_bytes = block_bytes
        attempt = uuid.uuid4().hex[:12]
        self._staged = f"{self.path}.{attempt}{ASIDE_SUFFIX}"
        self._staged_index = f"{self.path}{INDEX_SUFFIX}.{attempt}{ASIDE_SUFFIX}"
        self._blocks: list[OffloadIndexEntry] = []
        # end of the open block so far; the last item of ``_blocks`` has its start
        self._block_end = 0
        self._is_open = False
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        siblings = [
            os.path.join(folder, name) for name in (MANAGED_LEDGER, MANAGED_LEDGER_JSON, MANIFEST)
        ]
        self._like = files.owner_of(self.path, siblings).as_far_as_may()
        with changing("create", self._staged):
            self._file: FileIO | None = files.create(self._staged, self._like)

    def rename(self, uid: uuid.UUID) -> None:
        """Set the uuid in the names of the ledger's two objects."""
        folder, name = os.path.split(self.path)
        parsed = parse_object_name(name)
        assert parsed is not None
        self.path = os.path.join(folder, object_name(uid, parsed[1]))

    def append(self, entry: int, data: bytes) -> None:
        """Append one entry to the ledger."""
        self._begin_entry(entry, ENTRY_HEAD_BYTES + len(data))
        self._waiting += (ENTRY_HEAD.pack(len(data), entry), data)
        self._waiting_bytes += ENTRY_HEAD_BYTES + len(data)
        self._count(1, len(data), entry)
        if self._waiting_bytes >= _BUFFER_BYTES:
            self._flush()

    def append_framed(self, data: ByteArray, positions: Int64Array, entries: Int64Array) -> None:
        """Append adjacent entries that are framed already (int32 size, int64 entry, bytes).

        ``positions`` are their positions in ``data``, and ``entries`` their ids.
        """
        self._flush()
        ends = np.append(positions[1:], len(data))
        gaps = np.append(np.flatnonzero(np.diff(entries) != 1) + 1, len(entries))
        done = 0
        while done < len(positions):
            start = int(positions[done])
            self._begin_entry(int(entries[done]), int(ends[done]) - start)
            room = self._blocks[-1].offset + self._block_bytes - self._block_end
            stop = max(int(np.searchsorted(ends, start + room, "right")), done + 1)
            stop = min(stop, int(gaps[np.searchsorted(gaps, done, "right")]))
            end = int(ends[stop - 1])
            self._write(memoryview(data)[start:end])
            count = stop - done
            self._count(count, end - start - ENTRY_HEAD_BYTES * count, int(entries[stop - 1]))
            done = stop

    def _begin_entry(self, entry: int, framed_bytes: int) -> None:
        if entry <= self.last_entry:
            raise CorruptLog(
                f"entry {entry} follows entry {self.last_entry}, out of order", path=self.path
            )
        if entry > self.last_entry + 1:
            self._missing.append(EntryRange(self.last_entry + 1, entry - 1))
            if self._is_open:
                self._end_block()
        if self._is_open:
            filled = self._block_end + self._waiting_bytes
            if filled + framed_bytes - self._blocks[-1].offset <= self._block_bytes:
                return
            self._end_block()
        self._blocks.append(
            OffloadIndexEntry(entry, FIRST_PART + len(self._blocks), self._block_end)
        )
        self._is_open = True
        self._write(bytes(BLOCK_HEADER_BYTES))

    def _end_block(self) -> None:
        """Write the header of the open block."""
        self._flush()
        assert self._file is not None
        block = self._blocks[-1]
        header = block_header(self._block_end - block.offset, block.first_entry)
        with changing("fill in", self._staged):
            os.pwrite(self._file.fileno(), header, block.offset)
        self._is_open = False

    def _count(self, entries: int, entry_bytes: int, last: int) -> None:
        self.entries += entries
        self.entry_bytes += entry_bytes
        self.last_entry = last

    def _flush(self) -> None:
        if self._waiting:
            waiting, self._waiting, self._waiting_bytes = b"".join(self._waiting), [], 0
            self._write(waiting)

    def _write(self, data: bytes | memoryview) -> None:
        assert self._file is not None
        with changing("append", self._staged):
            view = memoryview(data)
            self._block_end += len(view)
            while len(view):
                view = view[self._file.write(view) :]
        self.size_bytes = self._block_end

    def finish(self, metadata: LedgerMetadata) -> str:
        """Write the index, sync both objects and rename them. Returns the path of the data object.

        ``metadata`` are the ledger's metadata. In the index, length and last entry are set to the
        values of the written entries, and the ids skipped before the last entry are added. The
        caller syncs the folder.
        """
        if self._is_open:
            self._end_block()
        assert self._file is not None
        self._file.close()
        custom = {name: value for name, value in metadata.custom.items() if name != MISSING}
        if self._missing:
            custom[MISSING] = encode_ranges(self._missing)
        items = metadata.custom_items if custom == metadata.custom else custom_items(custom)
        said = replace(
            metadata, length=self.entry_bytes, last_entry=self.last_entry, custom_items=items
        )
        index = IndexObject(self.size_bytes, said.encode(), tuple(self._blocks))
        files.write(self._staged_index, index.encode(), like=self._like)
        files.fsync_file(self._staged)
        files.rename(self._staged_index, self.path + INDEX_SUFFIX)
        files.rename(self._staged, self.path)
        self._file = None
        return self.path

    def abandon(self) -> None:
        """Remove the temporary files. Does nothing after ``finish``."""
        if self._file is not None:
            self._file.close()
            remove_staged((self._staged, self._staged_index))


def find_staged(folder: str) -> list[str]:
    """The temporary files of writers in a topic folder.

    If no writer is active, these files are the remains of killed writers.
    """
    names = sorted(os.listdir(folder))
    return [os.path.join(folder, name) for name in names if name.endswith(ASIDE_SUFFIX)]


def read_index(path: str) -> IndexObject:
    """The index of the data object at ``path``.

    Raises:
        CorruptLog: the index is broken.
        UnsupportedFormat: the index is of layout V2.
        LogError: the index cannot be read.
    """
    index_path = path + INDEX_SUFFIX
    if is_address(path):
        return _index_at(index_path)
    try:
        with open(index_path, "rb") as file, located(index_path):
            return IndexObject.decode(file.read())
    except FileNotFoundError as error:
        if is_of_archive(index_path):
            raise missing_error(index_path, "the object", AGAIN) from error
        raise files.to_log_error(error, index_path, "read the object") from error
    except OSError as error:
        raise files.to_log_error(error, index_path, "read the object") from error


@lru_cache(maxsize=1024)
def _index_at(address: str) -> IndexObject:
    """The index of an object in a bucket. Objects do not change, so the index is cached."""
    with located(address):
        return IndexObject.decode(read_small(address))


def checked_index(path: str) -> IndexObject:
    """The index of the data object at ``path``, checked against that object's size.

    Raises:
        CorruptLog: the index is broken, or does not match the data object.
        LogError: as ``read_index``, or the data object does not exist.
    """
    index = read_index(path)
    try:
        size = os.stat(path).st_size
    except OSError as error:
        raise files.to_log_error(error, path, "read the object") from error
    if index.data_bytes != size:
        kind = TruncatedLog if size < index.data_bytes else CorruptLog
        words = f"the data object has {size} bytes, but its index states {index.data_bytes}"
        raise kind(words, min(size, index.data_bytes), path, "fetch the object again")
    return index


def read_entries(
    path: str, first: int = 0, last: int | None = None, index: IndexObject | None = None
) -> Iterator[tuple[int, bytes]]:
    """The entries ``first`` to ``last`` of the data object at ``path``, with their ids.

    ``last`` None means up to the ledger's end. Ids that the index lists as missing are skipped.
    ``index`` is the result of ``checked_index``; None calls that function. Keeps one entry in
    memory, or one block for an object in a bucket.

    Raises:
        CorruptLog: a block or an entry is at a wrong position, or entries are missing.
    """
    index = checked_index(path) if index is None else index
    block = index.block_of(max(first, 0)) or next(iter(index.blocks), None)
    if block is None:
        return
    for view, start in _views(path, index, block):
        with located(path, start):
            for entry, at, size in walk_data(view, bool(index.missing)):
                if last is not None and entry > last:
                    return
                if entry >= first:
                    yield entry, bytes(view[at : at + size])


def first_entry_of(segment: Segment, most_bytes: int) -> tuple[int, bytes] | None:
    """Id and first ``most_bytes`` bytes of a data object's first entry. None without entries.

    Raises:
        CorruptLog: the object or its index is broken.
        CommitConflict: the object was replaced after it was listed.
    """
    block = next(iter(read_index(segment.path).blocks), None)
    if block is None:
        return None
    at, data = block.offset + BLOCK_HEADER_BYTES, np.empty(ENTRY_HEAD_BYTES, dtype=np.uint8)
    with reader_of(segment) as reader:
        reader.read_into(data, at)
        head = EntryHead._make(ENTRY_HEAD.unpack_from(data))
        left = segment.file_bytes - at - ENTRY_HEAD_BYTES
        if head.entry != block.first_entry or not 0 <= head.size <= left:
            words = f"the index places entry {block.first_entry} at this byte, where it is not"
            raise CorruptLog(words, at, segment.path, "fetch the object again")
        data = np.empty(min(head.size, most_bytes), dtype=np.uint8)
        reader.read_into(data, at + ENTRY_HEAD_BYTES)
    return head.entry, data.tobytes()


def _views(
    path: str, index: IndexObject, first: OffloadIndexEntry
) -> Iterator[tuple[memoryview, int]]:
    """The bytes of the blocks from ``first`` on, each with its position.

    A local file is returned as one view.
    """
    if not is_address(path):
        with mapped(path, index.data_bytes) as data, memoryview(data)[first.offset :] as view:
            yield view, first.offset
        return
    with ObjectReader(path, index.data_bytes, "", start=first.offset) as reader:
        for block in index.blocks[index.blocks.index(first) :]:
            content = np.empty(index.block_end(block) - block.offset, dtype=np.uint8)
            reader.read_into(content, block.offset)
            yield memoryview(content), block.offset
