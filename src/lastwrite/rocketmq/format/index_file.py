"""The index file, which maps a key to the commit log addresses of the records that have the key.

A file has a header, slots and entries. A key's hash selects a slot. The slot contains the number of
its newest entry. Each entry contains the number of the entry before it; 0 ends the chain. Entry 0
is never used, so the count in the header begins at 1. Hashes collide, so a lookup must compare the
keys in the records.

RocketMQ 5.5.0 also indexes a record's tag, under the key ``T#TAG``; 4.9.3 does not.

The file does not contain its number of slots or its capacity for entries; a broker reads both from
its settings. ``find_slots`` derives them from the file size and the entries.

Source: RocketMQ 5.5.0 ``IndexFile``, ``IndexHeader``, ``IndexService.buildIndex``;
docs/formats/rocketmq.md, "Index file".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt

from lastwrite.encoding.layout import I32, I64, At, Buffer, layout
from lastwrite.errors import CorruptLog, InvalidConfig, TruncatedLog
from lastwrite.model.columns import ByteArray, Int64Array
from lastwrite.rocketmq.format.java_hash import index_hash
from lastwrite.rocketmq.format.kernels import put_entries

DEFAULT_SLOTS = 5_000_000  # maxHashSlotNum
DEFAULT_ENTRIES = 20_000_000  # maxIndexNum


class IndexHeader(NamedTuple):
    """The first 40 bytes of an index file."""

    # fmt: off
    #                                     offset  type
    first_store_time_ms:   Annotated[int, At(0,  I64)]
    last_store_time_ms:    Annotated[int, At(8,  I64)]
    first_physical_offset: Annotated[int, At(16, I64)]
    last_physical_offset:  Annotated[int, At(24, I64)]
    used_slots:            Annotated[int, At(32, I32)]
    # number of the next entry to write; at least 1
    count:                 Annotated[int, At(36, I32)]  # type: ignore[assignment]
    # fmt: on


class KeyIndexEntry(NamedTuple):
    """An entry of an index file: one key of one record."""

    # fmt: off
    #                               offset  type
    hash:            Annotated[int, At(0,  I32)]  # hash of "TOPIC#KEY", not negative
    physical_offset: Annotated[int, At(4,  I64)]
    seconds:         Annotated[int, At(12, I32)]  # seconds after the header's first store time
    previous:        Annotated[int, At(16, I32)]  # previous entry's number in the slot; 0: none
    # fmt: on


INDEX_HEADER = layout(IndexHeader, byte_order=">", size=40)
INDEX_ENTRY = layout(KeyIndexEntry, byte_order=">", size=20)
ENTRY_DTYPE = np.dtype(INDEX_ENTRY.dtype_items())


def index_bytes(slots: int, entries: int) -> int:
    """The size of an index file.

    Raises:
        InvalidConfig: fewer than one slot or two entries.
    """
    if slots < 1 or entries < 2:
        raise InvalidConfig(
            f"an index file cannot have {slots} slots and {entries} entries",
            remedy="set maxHashSlotNum and maxIndexNum to the broker's values",
        )
    return INDEX_HEADER.size + 4 * slots + INDEX_ENTRY.size * entries


def decode_index_header(data: Buffer, at: int = 0) -> IndexHeader:
    """The header of an index file. A count of 0, as in a new file, is returned as 1.

    Raises:
        TruncatedLog: fewer than 40 bytes.
    """
    if len(data) - at < INDEX_HEADER.size:
        raise TruncatedLog(
            f"the index file ends inside its header: {len(data) - at} of {INDEX_HEADER.size} bytes",
            at,
        )
    header = IndexHeader._make(INDEX_HEADER.unpack_from(data, at))
    return header._replace(count=max(header.count, 1))


def find_slots(data: Buffer) -> int | None:
    """Derive the number of slots of an index file from its bytes.

    Returns None if that is impossible.

    RocketMQ's default ratio of four entries per slot is tested first, then every number that the
    size allows. A candidate determines the positions of the first and the last entry. It is
    accepted if both entries match the header, and their slots point to them or to later entries.
    """
    header = decode_index_header(data)
    rest = len(data) - INDEX_HEADER.size
    if header.count < 2 or rest % 4:
        return None
    if rest % 84 == 0 and _fits(data, header, rest // 84):
        return rest // 84
    # 4 * slots + 20 * entries = rest, which determines the number of slots modulo 5.
    first = rest // 4 % 5 or 5
    most = (rest - INDEX_ENTRY.size * header.count) // 4
    if most < first:
        return None
    view = np.frombuffer(data, np.uint8)
    wanted = np.frombuffer(header.first_physical_offset.to_bytes(8, "big", signed=True), np.uint8)
    candidates = np.arange(first, most + 1, 5, dtype=np.int64)
    for k in range(8):
        candidates = candidates[
            view[INDEX_HEADER.size + 4 * candidates + INDEX_ENTRY.size + 4 + k] == wanted[k]
        ]
    fitting = [int(slots) for slots in candidates.tolist() if _fits(data, header, slots)]
    # If the first entries have address 0, a layout shifted by one entry may fit too. The right
    # layout has zeros in entry 0 and after the last entry, unless a crash left an old header.
    best = (slots for slots in fitting if _ends_fit(data, header, slots))
    return next(best, fitting[0] if fitting else None)


def _ends_fit(data: Buffer, header: IndexHeader, slots: int) -> bool:
    base = INDEX_HEADER.size + 4 * slots
    ends = (base, base + INDEX_ENTRY.size * header.count)
    return not any(any(bytes(data[at : at + INDEX_ENTRY.size])) for at in ends)


def _fits(data: Buffer, header: IndexHeader, slots: int) -> bool:
    base = INDEX_HEADER.size + 4 * slots
    last = header.count - 1
    if slots < 1 or base + INDEX_ENTRY.size * header.count > len(data):
        return False
    for number, offset in ((1, header.first_physical_offset), (last, header.last_physical_offset)):
        entry = KeyIndexEntry._make(INDEX_ENTRY.unpack_from(data, base + INDEX_ENTRY.size * number))
        if entry.physical_offset != offset or entry.hash < 0 or not 0 <= entry.previous < number:
            return False
        slot_at = INDEX_HEADER.size + 4 * (entry.hash % slots)
        newest = int.from_bytes(bytes(data[slot_at : slot_at + 4]), "big", signed=True)
        if not number <= newest <= last:
            return False
    return True


@dataclass(frozen=True, slots=True)
class IndexFile:
    """An index file: its bytes, its number of slots and its header."""

    data: Buffer
    slots: int
    header: IndexHeader

    @classmethod
    def of(cls, data: Buffer, slots: int | None = None) -> IndexFile:
        """Parse an index file. If ``slots`` is None, the number of slots is derived.

        Raises:
            TruncatedLog: too few bytes for the header, the slots, or the entries that the header
                counts.
            CorruptLog: the number of slots cannot be derived.
        """
        header = decode_index_header(data)
        if slots is None:
            slots = find_slots(data)
        if slots is None:
            if header.count > 1:
                raise CorruptLog(
                    "the header's slot count and the entries of the index file contradict each "
                    "other",
                    36,
                )
            # Without entries, any number of slots is right.
            slots = max((len(data) - INDEX_HEADER.size) // 84, 1)
        held = header.count if header.count > 1 else 0
        needed = INDEX_HEADER.size + 4 * slots + INDEX_ENTRY.size * held
        if slots < 1 or needed > len(data):
            raise TruncatedLog(
                f"the index file has {len(data)} bytes, but its header requires {needed}", len(data)
            )
        return cls(data, slots, header)

    @property
    def capacity(self) -> int:
        """The number of entries for which the file has space, including the unused entry 0."""
        return (len(self.data) - INDEX_HEADER.size - 4 * self.slots) // INDEX_ENTRY.size

    @property
    def is_full(self) -> bool:
        return self.header.count >= self.capacity

    def slot(self, number: int) -> int:
        """The number of the newest entry of a slot; 0 if the slot is empty."""
        at = INDEX_HEADER.size + 4 * number
        return int.from_bytes(bytes(self.data[at : at + 4]), "big", signed=True)

    def entry_at(self, number: int) -> int:
        """The byte position of entry ``number`` in the file. The first used entry is number 1."""
        return INDEX_HEADER.size + 4 * self.slots + INDEX_ENTRY.size * number

    def entry(self, number: int) -> KeyIndexEntry:
        """The entry with this number, from 1 to ``header.count - 1``."""
        return KeyIndexEntry._make(INDEX_ENTRY.unpack_from(self.data, self.entry_at(number)))

    def entries(self) -> npt.NDArray[np.void]:
        """A view of all entries from number 1 on."""
        if self.header.count < 2:
            return np.empty(0, ENTRY_DTYPE)
        return np.frombuffer(self.data, ENTRY_DTYPE, self.header.count - 1, self.entry_at(1))

    def addresses(self, topic: str, key: str) -> list[int]:
        """The addresses of the entries with the key's hash, newest first.

        Raises:
            CorruptLog: the chain has an entry of another slot, or its entry numbers do not descend.
        """
        wanted = index_hash(topic, key)
        slot = wanted % self.slots
        number = self.slot(slot)
        found = []
        while number:
            if not 0 < number < self.header.count:
                raise CorruptLog(
                    f"slot {slot} points to entry {number}, but the last entry is "
                    f"{self.header.count - 1}"
                )
            entry = self.entry(number)
            if entry.hash % self.slots != slot or entry.hash < 0:
                raise CorruptLog(
                    f"slot {slot} points to entry {number}, which belongs to another slot"
                )
            if entry.hash == wanted:
                found.append(entry.physical_offset)
            if not 0 <= entry.previous < number:
                raise CorruptLog(
                    f"entry {number} points to entry {entry.previous}, which is not before it"
                )
            number = entry.previous
        return found


def new_index_file(
    slots: int, entries: int, *, last_physical_offset: int = 0, last_store_time_ms: int = 0
) -> ByteArray:
    """An index file without entries, as a broker creates it.

    Its header has the last address and store time of the previous index file.
    """
    out = np.zeros(index_bytes(slots, entries), np.uint8)
    time_ms, offset = max(last_store_time_ms, 0), max(last_physical_offset, 0)
    head = INDEX_HEADER.pack(time_ms, time_ms, offset, offset, 0, 1)
    out[: len(head)] = np.frombuffer(head, np.uint8)
    return out


def build(
    out: ByteArray,
    slots: int,
    hashes: Int64Array,
    places: Int64Array,
    times: Int64Array,
    first: int = 0,
) -> int:
    """Add the keys from ``first`` on to an index file until it is full.

    ``hashes``, ``places`` and ``times`` are filled by ``kernels.index_keys``.
    Returns the number of keys added. A broker writes the same bytes.

    Raises:
        ValueError: ``out`` is not an index file with ``slots`` slots.
    """
    capacity = (len(out) - INDEX_HEADER.size - 4 * slots) // INDEX_ENTRY.size
    if slots < 1 or capacity < 1:
        raise ValueError(f"an index file of {len(out)} bytes and {slots} slots")
    count = decode_index_header(out).count
    if count > capacity:
        raise ValueError(f"an index file of {capacity} entries that counts {count}")
    if min(len(hashes), len(places), len(times)) < len(hashes):
        raise ValueError("hashes, places and times differ in length")
    if len(hashes) and int(hashes.min()) < 0:
        raise ValueError("a hash below 0")
    return int(put_entries(out, slots, capacity, hashes, places, times, first, len(hashes)))
