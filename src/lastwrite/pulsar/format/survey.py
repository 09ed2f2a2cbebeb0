"""Find the kind of each entry of a ledger from the entry's metadata alone.

No checksum is verified and no payload is decompressed.

This is done once for each ledger; the stored results are the ledger's *survey*. Compaction
takes the number of records, the decided transactions and its own end position from the survey.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lastwrite.encoding.kernel import njit
from lastwrite.model.columns import ByteArray
from lastwrite.pulsar.format import kernels
from lastwrite.pulsar.format.chunk import PulsarFormat

SURVEYED = np.dtype(
    [
        ("offset", np.int64),  # ledger id and entry id as one number
        ("position", np.int64),  # position of the entry in the buffer
        ("records", np.int64),  # number of records that compaction would read
        ("messages", np.int64),  # number of messages in the metadata, without placeholders
        ("marker", np.int64),  # marker_type, or -1
        # transaction number of data and markers, as in ``producer_id``; -1 outside of transactions
        ("transaction", np.int64),
        ("publish_time", np.int64),
        ("is_part", np.int64),  # 1 for a chunk that is not the last chunk of its message
    ]
)

SurveyTable = npt.NDArray[np.void]

COMMIT_MARKER = 21
ABORT_MARKER = 22


class EntrySurveyor:
    """Reads entries' metadata chunk by chunk. Has reusable buffers, so use one per thread."""

    def __init__(self, plain_limit: int = 64 << 20) -> None:
        self._format = PulsarFormat(plain_limit, checks=False)
        self._found = np.empty(0, dtype=SURVEYED)

    def take(
        self, buffer: ByteArray, start: int, end: int, lowest_offset: int
    ) -> tuple[SurveyTable, int, int]:
        """The kinds of the entries in ``buffer[start:end]``.

        Returns a row per entry, valid until the next call; the end of the complete entries; and the
        size of the next, incomplete entry, or -1 if there is none.

        Raises:
            CorruptLog, UnsupportedFormat: as ``PulsarFormat.split``. A wrong checksum is ignored.
        """
        table, consumed, wanted, _ = self._format.split(buffer, start, end, lowest_offset)
        if len(self._found) < len(table):
            self._found = np.empty(len(self._format.entries), dtype=SURVEYED)
        _survey(table, self._format.entries, self._found)
        return self._found[: len(table)], consumed, wanted


@njit(cache=True, nogil=True)
def _survey(table, entries, found):
    for i in range(len(table)):
        row = table[i]
        entry = entries[i]
        one = found[i]
        one.offset = row.base_offset
        one.position = row.origin
        one.records = row.records
        one.messages = row.records
        if entry.kind == kernels.SINGLE and entry.messages > 1:
            one.messages = entry.messages
        one.marker = entry.marker
        one.transaction = row.producer_id
        one.publish_time = row.max_timestamp
        one.is_part = 1 if entry.marks & kernels.IS_PART else 0
