"""Count the contents of a ledger in one pass of the engine's kernels, which verifies checksums.

If a ledger is incomplete, or has contents that the kernels do not support, there is no result.
``look.inspect`` then reads the ledger entry by entry, which takes longer and reports all details.
Both ways produce the same counts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lastwrite.encoding.fingerprint import secret_from
from lastwrite.engine.chunks import BatchWindow, BatchWindows
from lastwrite.engine.plan import new_secret
from lastwrite.errors import LogError
from lastwrite.model.columns import KEYLESS, TOMBSTONE, ByteArray, UInt64Array
from lastwrite.model.work import Limits, ScanRange
from lastwrite.pulsar.format import kernels
from lastwrite.pulsar.format.chunk import PulsarFormat
from lastwrite.pulsar.format.codecs import PulsarCodec
from lastwrite.pulsar.format.position import ENTRY_BITS, MAX_LEDGER, Position
from lastwrite.pulsar.look.inspection import EntryCounts
from lastwrite.pulsar.store.topic import Ledger

_END = (1 << 63) - 1


class CountedLedger(NamedTuple):
    """The counts of a ledger, and the ids of its first and last entry.

    Both ids are None for an empty ledger.
    """

    contents: EntryCounts
    first: Position | None
    last: Position | None


def count_ledger(ledger: Ledger, is_compacted: bool) -> CountedLedger | None:
    """The counts of a ledger. None if it must be read entry by entry."""
    if ledger.missing or ledger.id > MAX_LEDGER:
        return None
    job = _Count(is_compacted)
    lowest = 0 if is_compacted else ledger.id << ENTRY_BITS
    piece = ScanRange.of(
        ledger.segment(lowest),
        number=0,
        place=0,
        start=0,
        end=ledger.size_bytes,
        end_offset=_END if is_compacted else lowest + (1 << ENTRY_BITS),
        keyed=True,
    )
    try:
        for chunk in BatchWindows(job.limits).of(job.format, piece):
            if not job.take(chunk):
                return None
    except LogError:
        return None
    found = job.found
    if found.entries != ledger.entries or (not is_compacted and job.first not in (None, lowest)):
        return None
    ends = (job.first, job.last)
    return CountedLedger(
        found, *(None if offset is None else Position.of(offset) for offset in ends)
    )


class _Count:
    def __init__(self, is_compacted: bool) -> None:
        self._is_compacted = is_compacted
        self.limits = Limits()
        self.format = PulsarFormat(self.limits.plain_bytes)
        self.found = EntryCounts()
        self.first: int | None = None
        self.last: int | None = None
        self._secret = secret_from(new_secret())
        self._states: ByteArray = np.empty(0, dtype=np.uint8)
        self._hashes: UInt64Array = np.empty((0, 2), dtype=np.uint64)

    def take(self, chunk: BatchWindow) -> bool:
        """Count the next entries. False if the kernels cannot count them."""
        table, found = chunk.table, self.found
        entries = self.format.entries[: len(table)]
        for run in self.format.opened(chunk.buffer, table):
            records = int(table["records"][run.first : run.last].sum())
            if records > len(self._states):
                self._states = np.empty(records + records // 2, dtype=np.uint8)
                self._hashes = np.empty((len(self._states), 2), dtype=np.uint64)
            self.format.walk(run, table, self._secret, 0, self._states, self._hashes, 0)
            states = self._states[:records]
            found.tombstones += int(np.count_nonzero(states & TOMBSTONE))
            found.keyless += int(np.count_nonzero(states & KEYLESS))
        kinds, marks = entries["kind"], entries["marks"]
        is_data = kinds != kernels.MARKER
        codecs = table["codec"][is_data]
        if (codecs >= len(PulsarCodec)).any():
            return False
        is_batch = kinds == kernels.BATCH
        if self._is_compacted and (entries["kept"][is_batch] == 0).any():
            # The kernels cannot count a batch of an old release: only its payload shows which
            # messages were removed.
            return False
        found.entries += len(table)
        is_whole = kinds == kernels.WHOLE  # an unreadable batch counts as one record
        found.records += int(table["records"][is_data & ~is_whole].sum())
        found.records += int(np.count_nonzero(is_whole))
        found.placeholders += int((entries["messages"] - table["records"])[is_batch].sum())
        found.markers += int(np.count_nonzero(~is_data))

        def marked(bit: int) -> int:
            return int(np.count_nonzero(is_data & (marks & bit != 0)))

        found.batches += marked(kernels.IS_BATCHED)
        found.encrypted += marked(kernels.IS_ENCRYPTED)
        found.chunks += marked(kernels.IS_CHUNKED)
        found.transactional += marked(kernels.HAS_TRANSACTION)
        found.unreadable += int(np.count_nonzero(is_whole))
        found.bytes += int(table["size"].sum())
        checked = int(np.count_nonzero(marks & kernels.HAS_CHECKSUM))
        found.formats["checksum"] += checked
        found.formats["no checksum"] += len(table) - checked
        found.formats["broker metadata"] += int(
            np.count_nonzero(entries["framed_at"] != table["position"])
        )
        for number, count in enumerate(np.bincount(codecs, minlength=len(PulsarCodec)).tolist()):
            if count:
                found.codecs[PulsarCodec(number).name] += count
        if len(codecs):
            times = table["max_timestamp"][is_data]
            found.add_time(int(times.min()))
            found.add_time(int(times.max()))
        if self.first is None:
            self.first = int(table["base_offset"][0])
        self.last = int(table["base_offset"][-1])
        return True
