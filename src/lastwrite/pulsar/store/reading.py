"""Read a few entries of one ledger by their numbers, from its data object.

An index object has only the first entry of every block. So an entry is found by walking from the
start of its block. The positions of a walked block's entries are cached. No file stays open between
two calls.

Source: docs/formats/pulsar.md, "Compacted ledger" and "Offloaded ledger".
"""

from __future__ import annotations

import mmap
import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import NamedTuple, overload

import numpy as np

from lastwrite.errors import CommitConflict, CorruptLog, LogError, located
from lastwrite.pulsar.format.compacted import MessageId, decode_record
from lastwrite.pulsar.format.entry import Entry, decode_entry
from lastwrite.pulsar.format.offload import (
    ENTRY_HEAD,
    ENTRY_HEAD_BYTES,
    EntryHead,
    block_entries,
    parse_block_header,
)
from lastwrite.pulsar.format.remedy import RESTORE
from lastwrite.pulsar.store.single import StoredIn
from lastwrite.pulsar.store.topic import Ledger
from lastwrite.storage.files import to_log_error
from lastwrite.storage.objects.address import is_address

READ_ENTRIES = 100  # maximum entries of one read: dispatcherMaxReadBatchSize
READ_BYTES = 5 << 20  # maximum bytes of one read: dispatcherMaxReadSizeBytes

# Maps a block's number to bytes of the object, the block's start in these bytes, and the position
# of these bytes in the object.
Blocks = Callable[[int], tuple[memoryview, int, int]]

_KEPT_BLOCKS = 8


class StoredEntry(NamedTuple):
    """A stored entry: its number in its ledger, its first byte in the file, and its bytes."""

    number: int
    position: int
    data: bytes


def decoded(stored: StoredEntry | StoredIn, ledger: int | None) -> tuple[Entry, bytes]:
    """Decode a stored entry. Returns the entry and its framed bytes.

    ``ledger`` is None for a compacted ledger, whose records contain the entry.

    Raises:
        CorruptLog: the bytes are not an entry. Positions count from the stored entry's start.
    """
    if ledger is not None:
        return decode_entry(stored.data, ledger, stored.number), stored.data
    position, _, body = decode_record(stored.data)
    try:
        return decode_entry(body, position.ledger, position.entry), body
    except LogError as error:
        shift = len(stored.data) - len(body)
        raise type(error)(error.problem, None if error.at is None else error.at + shift) from error


class LedgerMoved(Exception):
    """The data object was replaced or removed after the listing. List the folder again."""


class LedgerReader:
    """Reads one ledger's entries.

    Caches the positions of the entries of some blocks, 8 bytes each.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        blocks = ledger.index.blocks
        self._firsts = [block.first_entry for block in blocks]
        self._starts = [block.offset for block in blocks]
        self._places: dict[int, tuple[array[int], CorruptLog | None]] = {}
        # the block that ``_fetched`` read last, and its bytes
        self._last: tuple[int, memoryview] | None = None

    def path_of(self, number: int) -> str:
        """The path of the data object that contains the entry."""
        return self.ledger.path

    @property
    def count(self) -> int:
        """The end of the entry numbers: the last entry + 1."""
        return self.ledger.entries

    def present(self, number: int) -> int:
        """The first present entry from this number on, according to the index."""
        found = bisect_right(self.ledger.missing, number, key=lambda each: each.first) - 1
        return max(number, self.ledger.missing[found].last + 1) if found >= 0 else number

    @property
    def block_starts(self) -> list[int]:
        """The ascending numbers of the blocks' first entries, which are found without a walk."""
        return self._firsts

    def next_after_damage(self, number: int) -> int:
        """The entry to continue with after damage: the next block's first entry, or ``count``."""
        block = bisect_right(self._firsts, number)
        return self._firsts[block] if block < len(self._firsts) else self.count

    def read(
        self, first: int, most: int = READ_ENTRIES, most_bytes: int = READ_BYTES
    ) -> list[StoredEntry]:
        """Read at most ``most`` entries and ``most_bytes`` bytes, from number ``first`` on.

        Returns at least one entry if there is one. Entries that the index lists as missing are
        skipped at the start of the read. Later in the read, they end it.

        Raises:
            LedgerMoved: the file was replaced or removed.
            CorruptLog: the object does not match its index.
            LogError: the object cannot be read.
        """
        found: list[StoredEntry] = []
        total = 0
        first = self.present(first)
        if first >= self.count:
            return found
        gap = bisect_right(self.ledger.missing, first, key=lambda each: each.first)
        end = self.ledger.missing[gap].first if gap < len(self.ledger.missing) else self.count
        with self._opened() as blocks:
            for number in range(first, min(first + most, end)):
                try:
                    data, shift, at, size = self._locate(blocks, number)
                except CorruptLog:
                    if found:
                        break  # the next read begins at the damage and raises the error
                    raise
                total += size
                if found and total > most_bytes:
                    break
                found.append(StoredEntry(number, shift + at, bytes(data[at : at + size])))
        return found

    def begin(self, number: int, most_bytes: int) -> StoredEntry:
        """The first bytes of one entry, at most ``most_bytes``. Errors as ``read``."""
        with self._opened() as blocks:
            data, shift, at, size = self._locate(blocks, number)
            return StoredEntry(number, shift + at, bytes(data[at : at + min(size, most_bytes)]))

    def check_end(self) -> None:
        """Check that the object ends with the last entry of its metadata. Errors as ``read``."""
        if not self._firsts:
            return
        with self._opened() as blocks:
            places, damage = self._walk(blocks, len(self._firsts) - 1)
            end = self._firsts[-1] + len(places)
            if damage is None and end != self.count:
                words = f"the object has {end} entries, but its index states {self.count}"
                raise CorruptLog(words, self.ledger.size_bytes, remedy=RESTORE)

    @contextmanager
    def _opened(self) -> Iterator[Blocks]:
        ledger = self.ledger
        if is_address(ledger.path):
            try:
                yield self._fetched
            except CommitConflict:
                raise LedgerMoved from None
            except LogError as error:
                raise error.located(ledger.path) from error
            return
        try:
            handle = os.open(ledger.path, os.O_RDONLY)
        except FileNotFoundError:
            raise LedgerMoved from None
        except OSError as error:
            raise to_log_error(error, ledger.path, "read the ledger") from error
        try:
            seen = os.fstat(handle)
            identity = seen.st_size, ledger.mtime_ns if ledger.etag else seen.st_mtime_ns
            if identity != (ledger.size_bytes, ledger.mtime_ns):
                raise LedgerMoved
            if not seen.st_size:
                raise CorruptLog("the data object is empty", remedy=RESTORE)
            with (
                mmap.mmap(handle, seen.st_size, prot=mmap.PROT_READ) as data,
                memoryview(data) as view,
            ):
                yield lambda block: (view, self._starts[block], 0)
        except LogError as error:
            raise error.located(ledger.path) from error
        finally:
            os.close(handle)

    def _fetched(self, block: int) -> tuple[memoryview, int, int]:
        """The bytes of a block of an object in a bucket. The block of the last call is cached."""
        start = self._starts[block]
        if self._last is None or self._last[0] != block:
            end = self.ledger.index.block_end(self.ledger.index.blocks[block])
            content = np.empty(end - start, dtype=np.uint8)
            with self.ledger.reader() as reader:
                reader.read_into(content, start)
            self._last = block, memoryview(content)
        return self._last[1], 0, start

    def _locate(self, blocks: Blocks, number: int) -> tuple[memoryview, int, int, int]:
        """Locate an entry.

        Returns bytes of the object, the position of these bytes in the object, the entry's position
        in these bytes, and the entry's size.
        """
        block = bisect_right(self._firsts, number) - 1
        if block < 0:
            words = f"the index has no block for entry {number}"
            raise CorruptLog(words, remedy=RESTORE)
        data, _, shift = blocks(block)
        first = self._firsts[block]
        if number == first:
            at = self._first_of(blocks, block)
        else:
            if block not in self._places:
                if len(self._places) >= _KEPT_BLOCKS:
                    self._places.pop(next(iter(self._places)))
                self._places[block] = self._walk(blocks, block)
            places, damage = self._places[block]
            if number - first >= len(places):
                words = f"entry {number} is not in its block"
                raise damage or CorruptLog(words, self._starts[block])
            at = places[number - first]
        size = EntryHead._make(ENTRY_HEAD.unpack_from(data, at)).size
        return data, shift, at + ENTRY_HEAD_BYTES, size

    def _first_of(self, blocks: Blocks, block: int) -> int:
        """Check a block's header and its first entry's head. Returns the head's position."""
        data, start, shift = blocks(block)
        first = self._firsts[block]
        with located(self.ledger.path, shift):
            header = parse_block_header(data, start, len(data))
            if header.first_entry != first:
                words = (
                    f"the block begins with entry {header.first_entry}, but the index states "
                    f"entry {first}"
                )
                raise CorruptLog(words, start, remedy=RESTORE)
            for _, at, _ in block_entries(data, start, header.block_bytes, first):
                return at - ENTRY_HEAD_BYTES
            raise CorruptLog(
                f"the block does not contain its first entry {first}", start, remedy=RESTORE
            )

    def _walk(self, blocks: Blocks, block: int) -> tuple[array[int], CorruptLog | None]:
        """The positions of the heads of a block's entries, and the damage that ended the walk."""
        data, start, shift = blocks(block)
        number = self._firsts[block]
        self._first_of(blocks, block)
        size = parse_block_header(data, start, len(data)).block_bytes
        found = array("q")
        try:
            with located(self.ledger.path, shift):
                found.extend(
                    at - ENTRY_HEAD_BYTES for _, at, _ in block_entries(data, start, size, number)
                )
        except CorruptLog as error:
            return found, error
        return found, None


class PartsReader(LedgerReader):
    """Reads the entries of a compacted ledger that has several parts.

    The entry numbers continue from part to part.
    """

    def __init__(self, parts: Sequence[Ledger]) -> None:
        self._parts = [LedgerReader(part) for part in parts]
        self._bases = [0, *accumulate(part.entries for part in parts)]
        self._block_starts = [
            base + first
            for base, part in zip(self._bases, self._parts, strict=False)
            for first in part.block_starts
        ]

    @property
    def count(self) -> int:
        return self._bases[-1]

    @property
    def block_starts(self) -> list[int]:
        return self._block_starts

    def _part(self, number: int) -> tuple[LedgerReader, int]:
        """The part that contains an entry, and the number of the part's first entry."""
        n = bisect_right(self._bases, number, hi=len(self._parts)) - 1
        return self._parts[n], self._bases[n]

    def path_of(self, number: int) -> str:
        return self._part(number)[0].ledger.path

    def present(self, number: int) -> int:
        return number

    def next_after_damage(self, number: int) -> int:
        part, base = self._part(number)
        return base + part.next_after_damage(number - base)

    def read(
        self, first: int, most: int = READ_ENTRIES, most_bytes: int = READ_BYTES
    ) -> list[StoredEntry]:
        if first >= self.count:
            return []
        part, base = self._part(first)
        found = part.read(first - base, most, most_bytes)
        return [each._replace(number=base + each.number) for each in found]

    def begin(self, number: int, most_bytes: int) -> StoredEntry:
        part, base = self._part(number)
        return part.begin(number - base, most_bytes)._replace(number=number)

    def check_end(self) -> None:
        for part in self._parts:
            part.check_end()


def reader_of_parts(parts: Sequence[Ledger]) -> LedgerReader:
    """A reader of a compacted ledger."""
    return LedgerReader(parts[0]) if len(parts) == 1 else PartsReader(parts)


_MOST_ID_BYTES = 4 + 4096


class CompactedOffsets(Sequence[int]):
    """The offsets of a compacted ledger's entries, by entry number.

    Each offset is read at its first use.

    Errors as ``LedgerReader.read``.
    """

    def __init__(self, reader: LedgerReader) -> None:
        self._reader = reader
        self._offsets: dict[int, int] = {}

    def __len__(self) -> int:
        return self._reader.count

    @overload
    def __getitem__(self, number: int) -> int: ...
    @overload
    def __getitem__(self, number: slice) -> list[int]: ...
    def __getitem__(self, number: int | slice) -> int | list[int]:
        if isinstance(number, slice):
            return [self[place] for place in range(*number.indices(len(self)))]
        if not 0 <= number < len(self):
            raise IndexError(number)
        if number not in self._offsets:
            self._offsets[number] = self._offset(number)
        return self._offsets[number]

    def _offset(self, number: int) -> int:
        found = self._reader.begin(number, _MOST_ID_BYTES)
        with located(self._reader.path_of(number), found.position):
            size = int.from_bytes(found.data[:4], "big")
            if not 4 <= 4 + size <= len(found.data):
                raise CorruptLog(
                    f"the id's length {size} does not fit into its compacted record", 0
                )
            return MessageId.decode(found.data, 4, 4 + size).position.offset
