"""Ledgers in a topic folder: a data object of blocks and its index object, as the object-store
offloader writes them.

A data object is written aside, ``<name>.<attempt>.aside``, block after block; a block's header is
filled in when the block ends, for only then its length is known. The index comes last, and gets its
name first: whoever sees the data object sees both. Reading goes by the index: the block of an
entry, then from entry to entry.

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
    IndexEntry,
    IndexObject,
    block_header,
    walk_data,
)
from lastwrite.storage import files
from lastwrite.storage.mapping import mapped
from lastwrite.storage.missing import missing_error
from lastwrite.storage.objects.address import is_address
from lastwrite.storage.reading import AGAIN, ObjectReader, read_small, reader_of
from lastwrite.storage.staging import changing, remove_staged

BLOCK_BYTES = 1 << 20  # of the objects that we write: an entry is found by walking half a block
ASIDE_SUFFIX = ".aside"
_BUFFER_BYTES = 1 << 20


class ObjectWriter:
    """Writes ledger ``ledger`` aside in ``folder``, then gives the two objects their names.

    Entries come with rising ids; a block begins after ids that were left out, and the index says
    which (``missing``). ``uid`` is the uuid in the objects' names, drawn where none is given. Held:
    the rows of the index, 20 bytes a block. An entry larger than ``block_bytes`` has a block of its
    own.
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
        self.size_bytes = 0  # of the data object so far
        self.entries = 0
        self.entry_bytes = 0  # of the entries alone, as a ledger's length counts them
        self.last_entry = -1
        self._missing: list[EntryRange] = []  # before the last entry
        self._block_bytes = block_bytes
        attempt = uuid.uuid4().hex[:12]
        self._staged = f"{self.path}.{attempt}{ASIDE_SUFFIX}"
        self._staged_index = f"{self.path}{INDEX_SUFFIX}.{attempt}{ASIDE_SUFFIX}"
        self._blocks: list[IndexEntry] = []
        self._block_end = 0  # where the open block ends now; its begin is the last of ``_blocks``
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
        """Let the objects' names have another uuid."""
        folder, name = os.path.split(self.path)
        parsed = parse_object_name(name)
        assert parsed is not None
        self.path = os.path.join(folder, object_name(uid, parsed[1]))

    def append(self, entry: int, data: bytes) -> None:
        """Add one entry."""
        self._begin_entry(entry, ENTRY_HEAD_BYTES + len(data))
        self._waiting += (ENTRY_HEAD.pack(len(data), entry), data)
        self._waiting_bytes += ENTRY_HEAD_BYTES + len(data)
        self._count(1, len(data), entry)
        if self._waiting_bytes >= _BUFFER_BYTES:
            self._flush()

    def append_framed(self, data: ByteArray, positions: Int64Array, entries: Int64Array) -> None:
        """Add entries that are framed already (int32 size, int64 entry, bytes), one behind another
        in all of ``data``.

        ``positions``: where each begins; ``entries``: its id.
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
            raise CorruptLog(f"entry {entry} comes behind entry {self.last_entry}", path=self.path)
        if entry > self.last_entry + 1:
            self._missing.append(EntryRange(self.last_entry + 1, entry - 1))
            if self._is_open:
                self._end_block()
        if self._is_open:
            filled = self._block_end + self._waiting_bytes
            if filled + framed_bytes - self._blocks[-1].offset <= self._block_bytes:
                return
            self._end_block()
        self._blocks.append(IndexEntry(entry, FIRST_PART + len(self._blocks), self._block_end))
        self._is_open = True
        self._write(bytes(BLOCK_HEADER_BYTES))

    def _end_block(self) -> None:
        """Fill in the open block's header."""
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
        """Write the index, sync both objects and give them their names; returns the data object's
        path.

        ``metadata`` is the ledger's own; its length and last entry are set to what was written, and
        what was left out before the last entry is noted. The folder's names are the caller's to
        sync.
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
        """Remove what was written aside; after ``finish`` nothing is done."""
        if self._file is not None:
            self._file.close()
            remove_staged((self._staged, self._staged_index))


def find_staged(folder: str) -> list[str]:
    """What writers left aside in a topic folder: of those that were killed, if none is at work."""
    names = sorted(os.listdir(folder))
    return [os.path.join(folder, name) for name in names if name.endswith(ASIDE_SUFFIX)]


def read_index(path: str) -> IndexObject:
    """The index of the data object at ``path``.

    Raises:
        CorruptLog: it contradicts its format.
        UnsupportedFormat: it is of layout V2.
        LogError: it cannot be read.
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
    """Of an object, which nobody changes: it is read once."""
    with located(address):
        return IndexObject.decode(read_small(address))


def checked_index(path: str) -> IndexObject:
    """The index of the data object at ``path``, held against that object's size.

    Raises:
        CorruptLog: it contradicts its format, or the data object.
        LogError: as ``read_index``; or the data object is not there.
    """
    index = read_index(path)
    try:
        size = os.stat(path).st_size
    except OSError as error:
        raise files.to_log_error(error, path, "read the object") from error
    if index.data_bytes != size:
        kind = TruncatedLog if size < index.data_bytes else CorruptLog
        words = f"the data object has {size} bytes, its index says {index.data_bytes}"
        raise kind(words, min(size, index.data_bytes), path, "fetch it again")
    return index


def read_entries(
    path: str, first: int = 0, last: int | None = None, index: IndexObject | None = None
) -> Iterator[tuple[int, bytes]]:
    """The entries ``first`` to ``last`` of the data object at ``path``, with their ids; None: to
    the ledger's end. Ids that the index notes as missing are passed over.

    ``index``: what ``checked_index`` said, read here where it is not given. Held: an entry; of an
    object in a bucket a block.

    Raises:
        CorruptLog: a block or an entry is not where it has to be, or entries are missing.
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
    """The first entry of a ledger's data object, and at most so many of its bytes. None: it has none.

    Raises:
        CorruptLog: the object or its index contradicts its format.
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
            words = f"entry {block.first_entry} is not where it has to be"
            raise CorruptLog(words, at, segment.path, "fetch it again")
        data = np.empty(min(head.size, most_bytes), dtype=np.uint8)
        reader.read_into(data, at + ENTRY_HEAD_BYTES)
    return head.entry, data.tobytes()


def _views(path: str, index: IndexObject, first: IndexEntry) -> Iterator[tuple[memoryview, int]]:
    """The blocks from ``first`` on and the byte that each begins with: of a file all at once."""
    if not is_address(path):
        with mapped(path, index.data_bytes) as data, memoryview(data)[first.offset :] as view:
            yield view, first.offset
        return
    with ObjectReader(path, index.data_bytes, "", start=first.offset) as reader:
        for block in index.blocks[index.blocks.index(first) :]:
            content = np.empty(index.block_end(block) - block.offset, dtype=np.uint8)
            reader.read_into(content, block.offset)
            yield memoryview(content), block.offset
