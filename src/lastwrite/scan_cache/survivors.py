"""Select the index entries of the records that survive a round, for the new piece.

For example, a piece contains ``a@0 b@1 c@2``, and the round removes ``b@1``. The entries of ``a``
and ``c`` stay, still sorted by bucket, and their ordinals become 0 and 1. A scan of the new piece
would return the same block.

A record is *plain* if its state byte is 0: it has a key and a value, is in no aborted transaction,
and was not shadowed.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def, assignment"

from __future__ import annotations

import numpy as np

from lastwrite.encoding.kernel import njit
from lastwrite.engine.rules.election import ORDINAL_MASK


@njit(cache=True, nogil=True)
def renumber(states, ordinals):
    """Assign new ordinals to plain records, whose state is 0. Returns the number of plain records.

    ``ordinals`` is uint32, one per record. The values for other records are undefined.
    """
    count = 0
    for i in range(len(states)):
        ordinals[i] = count
        count += states[i] == 0
    return count


@njit(cache=True, nogil=True)
def keep_entries(rows, ends, finer, states, ordinals, out_rows, out_ends):
    """Copy the entries of plain records, whose state is 0, with their new ``ordinals``.

    Returns their number.

    ``ends`` has the block's bucket ends. ``2**finer`` neighbouring buckets become one in
    ``out_ends``.
    """
    kept = 0
    start = 0
    for bucket in range(len(out_ends)):
        end = np.int64(ends[((bucket + 1) << finer) - 1])
        for i in range(start, end):
            ordinal = np.int64(rows[i, 1] & np.uint64(ORDINAL_MASK))
            if states[ordinal] == 0:
                out_rows[kept, 0] = rows[i, 0]
                out_rows[kept, 1] = (rows[i, 1] & ~np.uint64(ORDINAL_MASK)) | np.uint64(
                    ordinals[ordinal]
                )
                kept += 1
        start = end
        out_ends[bucket] = kept
    return kept
