"""A new compacted ledger under a temporary name: a data object and an index of layout V1.

Blocks have one mebibyte, so that a reader finds an id with the index and a short walk. A full block
has no padding. Upstream pads because its uploader must send a part's length in advance. Entry ids
count from 0 in each part of a ledger; ``join`` renumbers the later parts and concatenates them.

Source: Pulsar 4.2.4; docs/formats/pulsar.md.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from itertools import chain

import numpy as np

from lastwrite.archive.partition_store import partition_store_at
from lastwrite.archive.rounds import partition_and_round, partition_of
from lastwrite.errors import LogError
from lastwrite.model.columns import (
    ROW_BASE_OFFSET,
    ROW_MAX_TIMESTAMP,
    ByteArray,
    Int64Array,
)
from lastwrite.model.log import AbortedTransaction
from lastwrite.model.work import RewriteUnit, SegmentOutput
from lastwrite.pulsar.format import framing
from lastwrite.pulsar.format.compacted import COMPACTED_TO, MessageId, ledger_custom_metadata
from lastwrite.pulsar.format.ledger_metadata import (
    Digest,
    LedgerMetadata,
    LedgerState,
    custom_items,
)
from lastwrite.pulsar.format.names import INDEX_SUFFIX, TopicName
from lastwrite.pulsar.format.offload import (
    BLOCK_HEADER_BYTES,
    IndexObject,
    OffloadIndexEntry,
    block_header,
)
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.store.archived import StoredLedger, is_archived, small
from lastwrite.pulsar.store.manifest import ASIDE_SUFFIX
from lastwrite.pulsar.store.objects import read_index
from lastwrite.pulsar.store.place import name_of, name_or_none
from lastwrite.pulsar.store.topic import MADE_BY
from lastwrite.storage import files, ownership
from lastwrite.storage.new_file import NewFile
from lastwrite.storage.objects.store import Writer
from lastwrite.storage.ownership import Ownership
from lastwrite.storage.parallel_sync import overlapped
from lastwrite.storage.staging import changing, remove_staged, sync_staged

BLOCK_BYTES = 1 << 20  # the size of a block with its header, unless one entry is larger

_VERSION = b"1"
_PART = "compacted"  # file name of each part's data object; each part has a separate folder
_QUORUM = 2  # a broker's default quorum; it has no effect, since no bookie stores the ledger
_MISTAKE = "nothing was changed; report this as a bug"


class StagedLedger:
    """Writes a new compacted ledger to ``<folder>/<attempt>.aside``.

    If ``unit.folder`` is None, it only counts bytes and entries.
    """

    def __init__(self, unit: RewriteUnit) -> None:
        name = name_or_none(_topic_folder(unit))
        self._tail = framing.id_tail(-1 if name is None else name.partition)
        self._is_part = unit.parts > 1
        self._first: int | None = None
        self._last = unit.base_offset
        self._largest_timestamp_ms = -1
        self._block_bytes = unit.index_interval_bytes
        self._block: ByteArray = np.empty(
            self._block_bytes if unit.folder is not None else 0, dtype=np.uint8
        )
        self._filled = 0  # bytes of the open block, header included; 0 without an open block
        self._blocks: list[tuple[int, int]] = []  # first entry and position of each block
        self._entries = 0
        self._size = 0  # bytes of the closed blocks
        self._path = ""
        self._like: Ownership | None = None
        self._file: NewFile | None = None
        self._counts_only = unit.folder is None
        if unit.folder is not None:
            self._open(unit, unit.folder)

    def _open(self, unit: RewriteUnit, folder: str) -> None:
        self._path = new_path(folder)
        with changing("create", self._path):
            # A part gets no owner here: ``join`` sets the owner of the ledger that it joins from
            # the parts.
            self._like = ownership.private() if self._is_part else owner_of_new(folder, unit.source)
            self._file = NewFile(self._path, self._like, is_read_soon=self._is_part)

    def _write(self, data: memoryview) -> None:
        """Write the next block. The caller reuses the buffer afterwards."""
        assert self._file is not None
        with changing("append", self._path):
            self._file.append(data)

    def append(self, data: ByteArray, rows: Int64Array) -> None:
        """Append framed entries, with a row of ``ROW_COLUMNS`` each."""
        if not len(rows):
            return
        self._largest_timestamp_ms = max(
            self._largest_timestamp_ms, int(rows[:, ROW_MAX_TIMESTAMP].max())
        )
        self._first = int(rows[0, ROW_BASE_OFFSET]) if self._first is None else self._first
        self._last = int(rows[-1, ROW_BASE_OFFSET])
        sizes = np.empty(len(rows), dtype=np.int64)
        framing.framed_sizes(rows, len(self._tail), sizes)
        ends = np.cumsum(sizes)
        done = before = 0
        while done < len(rows):
            if not self._filled:
                self._blocks.append((self._entries, self._size))
                self._filled = BLOCK_HEADER_BYTES
            room = self._block_bytes - self._filled
            end = int(np.searchsorted(ends, before + room, side="right"))
            if end == done and self._filled == BLOCK_HEADER_BYTES:
                end += 1  # an entry larger than a block has a block of its own
            if end > done:
                self._add(data, rows, done, end, int(ends[end - 1]) - before)
            if end < len(rows):
                self._close_block()
            done, before = end, int(ends[end - 1]) if end else 0

    def _add(self, data: ByteArray, rows: Int64Array, first: int, last: int, size: int) -> None:
        if not self._counts_only:
            if self._filled + size > len(self._block):
                grown = np.empty(self._filled + size, dtype=np.uint8)
                grown[: self._filled] = self._block[: self._filled]
                self._block = grown
            framing.frame(
                data, rows, first, last, self._tail, self._entries, self._block, self._filled
            )
        self._filled += size
        self._entries += last - first

    def _close_block(self) -> None:
        if not self._counts_only:
            head = block_header(self._filled, self._blocks[-1][0])
            self._block[:BLOCK_HEADER_BYTES] = np.frombuffer(head, dtype=np.uint8)
            self._write(memoryview(self._block)[: self._filled])
        self._size += self._filled
        self._filled = 0

    def finish(
        self, result: SegmentOutput, mtime_ns: int, aborted: Sequence[AbortedTransaction] = ()
    ) -> None:
        """Write the last block and the index, and set the file names in ``result``.

        For a part, only the name of the data file is set.
        """
        if self._filled:
            self._close_block()
        result.bytes_written = self._size
        result.largest_timestamp_ms = self._largest_timestamp_ms
        if self._file is None:
            return
        with changing("append", self._path):
            self._file.close()
        result.log_path = self._path
        index_path = _write_index(
            self._path, self._entries, self._size, self._blocks, Position.of(self._last), self._like
        )
        if not self._is_part:
            result.index_path = index_path

    def abandon(self) -> None:
        """Remove the written files."""
        if self._file is not None:
            self._file.abandon()
            discard(self._path)


class StagedPart(StagedLedger):
    """Writes a part of an archived topic's compacted ledger to a new object.

    Parts in an archive are never joined.
    """

    def _open(self, unit: RewriteUnit, folder: str) -> None:
        place = partition_and_round(folder)
        assert place is not None
        self._topic, prefix = place
        self._place = partition_store_at(self._topic, unit.limits.stores)
        self._key = f"{prefix}{uuid.uuid4().hex[:12]}/{_PART}"
        self._writer: Writer | None = None

    def _write(self, data: memoryview) -> None:
        # created with the first block: a part without records has no object
        if self._writer is None:
            self._writer = self._place.store.writer(self._place.key(self._key))
        self._writer.write(np.frombuffer(data, dtype=np.uint8))

    def finish(
        self, result: SegmentOutput, mtime_ns: int, aborted: Sequence[AbortedTransaction] = ()
    ) -> None:
        """Complete the objects, and describe them in ``result``."""
        if self._filled:
            self._close_block()
        result.bytes_written = self._size
        result.largest_timestamp_ms = self._largest_timestamp_ms
        result.stored = ()
        if self._writer is None or self._first is None:
            return
        last = Position.of(self._last)
        index = _index_of(name_of(self._topic), self._entries, self._size, self._blocks, last)
        content = index.encode()
        self._place.put(self._key + INDEX_SUFFIX, content)
        found = self._writer.close()
        part = StoredLedger(
            ledger=0,  # the commit assigns the ledger's number
            key=self._key,
            bytes=self._size,
            etag=found.version.etag,
            index_bytes=len(content),
            entries=self._entries,
            stored=self._entries,
            length=index.metadata.length,
            first=str(Position.of(self._first)),
            last=str(last),
            mtime_ms=mtime_ns // 1_000_000,
            index=small(content),
        )
        result.stored = (part,)
        result.log_path = part.path(self._topic)

    def abandon(self) -> None:
        if self._writer is not None:
            self._writer.abandon()


def _topic_folder(unit: RewriteUnit) -> str:
    """The folder of the unit's topic."""
    if unit.folder is not None:
        return partition_of(unit.folder) if partition_and_round(unit.folder) else unit.folder
    path = unit.pieces[0].path if unit.pieces else ""
    in_archive = path.rpartition("/data/")[0]
    return in_archive if in_archive and is_archived(in_archive) else os.path.dirname(path)


def join_stored(parts: Sequence[SegmentOutput], base_offset: int) -> SegmentOutput:
    """Combine the results for the parts of an archived topic's compacted ledger.

    The field ``stored`` of the combined result lists the parts.
    """
    whole = SegmentOutput(parts[0].partition, parts[0].group, 0, base_offset=base_offset)
    made = [part.stored for part in parts if isinstance(part.stored, tuple)]
    whole.stored = tuple(chain.from_iterable(made))
    _add_up(whole, parts)
    whole.bytes_written = sum(part.bytes_written for part in parts)
    whole.log_path = next((part.log_path for part in parts if part.log_path), "")
    return whole


def _add_up(whole: SegmentOutput, parts: Sequence[SegmentOutput]) -> None:
    whole.largest_timestamp_ms = max(part.largest_timestamp_ms for part in parts)
    whole.records = sum(part.records for part in parts)
    whole.counts = tuple(map(sum, zip(*(part.counts for part in parts), strict=True)))


def new_path(folder: str) -> str:
    """A new temporary path for a data object.

    The index has the same name with the usual suffix.
    """
    return os.path.join(folder, f"{uuid.uuid4().hex}{ASIDE_SUFFIX}")


def owner_of_new(folder: str, source: str | None) -> Ownership:
    """The owner of a new ledger file in the topic folder ``folder``.

    This is the owner of ``source``, the first input ledger. If ``source`` is in another folder and
    the process has no permission to set this owner, the file keeps the user or group of the
    process.
    """
    if source is None:
        return ownership.of_new(folder)
    found = files.owner_of(source)
    is_here = os.path.dirname(os.path.abspath(source)) == os.path.abspath(folder)
    return found if is_here else found.as_far_as_may()


def discard(path: str) -> None:
    """Remove a temporary data object and its index. Missing files are ignored."""
    remove_staged((path, path + INDEX_SUFFIX) if path else ())


def _write_index(
    path: str,
    entries: int,
    size_bytes: int,
    blocks: Sequence[tuple[int, int]],
    last: Position,
    like: Ownership | None,
) -> str:
    """Write the index of a compacted ledger with its data at ``path``.

    Returns the path of the index.
    """
    index = _index_of(name_of(os.path.dirname(path)), entries, size_bytes, blocks, last)
    files.write(path + INDEX_SUFFIX, index.encode(), is_synced=False, like=like)
    return path + INDEX_SUFFIX


def _index_of(
    name: TopicName,
    entries: int,
    size_bytes: int,
    blocks: Sequence[tuple[int, int]],
    last: Position,
) -> IndexObject:
    """The index object of a compacted ledger that Lastwrite made."""
    custom = ledger_custom_metadata(name.full, last, name.partition) | {MADE_BY: _VERSION}
    metadata = LedgerMetadata(
        quorum=_QUORUM,
        ensemble=_QUORUM,
        ack_quorum=_QUORUM,
        state=LedgerState.CLOSED,
        digest=Digest.CRC32,
        last_entry=entries - 1,
        custom_items=custom_items(custom),
        length=size_bytes - len(blocks) * BLOCK_HEADER_BYTES - entries * framing.ENTRY_HEAD_BYTES,
    )
    return IndexObject(
        data_bytes=size_bytes,
        metadata_bytes=metadata.encode(),
        blocks=tuple(
            OffloadIndexEntry(first, n + 1, offset) for n, (first, offset) in enumerate(blocks)
        ),
    )


# ---------------------------------------------------------------------- parts


def join(
    folder: str, parts: Sequence[SegmentOutput], base_offset: int, source: str | None = None
) -> SegmentOutput:
    """Join the parts to one durable ledger. The files of the parts are moved into it.

    ``source`` is the first ledger that was read.

    Raises:
        LogError: a file could not be written. The temporary files are removed.
    """
    whole = SegmentOutput(parts[0].partition, parts[0].group, 0, base_offset=base_offset)
    path = new_path(folder)
    try:
        indexes = [read_index(part.log_path) for part in parts]
        firsts = np.cumsum([0, *map(_entries, indexes)]).tolist()
        for _ in overlapped(
            lambda n: _renumber(parts[n].log_path, indexes[n], firsts[n]),
            [n for n in range(1, len(parts)) if firsts[n] and parts[n].bytes_written],
        ):
            pass
        blocks = [(block.first_entry, block.offset) for block in indexes[0].blocks]
        size = indexes[0].data_bytes
        files.rename(parts[0].log_path, path)
        with changing("append", path), open(path, "r+b", buffering=0) as file:
            like = owner_of_new(folder, source)
            ownership.give(file.fileno(), like)
            file.seek(0, os.SEEK_END)
            for part, index, first in zip(parts[1:], indexes[1:], firsts[1:], strict=False):
                blocks += [
                    (block.first_entry + first, block.offset + size) for block in index.blocks
                ]
                size += files.append_file(part.log_path, file.fileno())
        last = next((index for index in reversed(indexes) if index.blocks), indexes[0])
        to = MessageId.decode(last.metadata.custom[COMPACTED_TO]).position
        whole.index_path = _write_index(path, firsts[-1], size, blocks, to, like)
        for part in parts:
            discard(part.log_path)
    except BaseException:
        for each in (path, *(part.log_path for part in parts)):
            discard(each)
        raise
    whole.log_path, whole.bytes_written = path, size
    _add_up(whole, parts)
    sync_staged([whole])
    if whole.error is not None:
        discard(path)
        raise whole.error
    return whole


def _entries(index: IndexObject) -> int:
    last = index.metadata.last_entry
    return 0 if last is None else last + 1


def _renumber(path: str, index: IndexObject, shift: int) -> None:
    """Add ``shift`` to all entry ids in a part's blocks and block headers, in place."""
    with changing("renumber", path):
        data = np.memmap(path, dtype=np.uint8, mode="r+")
    count = 0
    for block in index.blocks:
        start, end = block.offset, index.block_end(block)
        head = block_header(end - start, block.first_entry + shift)
        data[start : start + BLOCK_HEADER_BYTES] = np.frombuffer(head, dtype=np.uint8)
        found = int(framing.renumber(data, start + BLOCK_HEADER_BYTES, end, shift))
        if found < 0:
            raise LogError(
                "a block of a new ledger does not end with its last entry", start, path, _MISTAKE
            )
        count += found
    if count != _entries(index):
        raise LogError(
            f"the new ledger has {count} entries, but its index states {_entries(index)}",
            0,
            path,
            _MISTAKE,
        )
