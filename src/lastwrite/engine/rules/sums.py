"""What a table of batches comes to, in one look at each: a reduction of NumPy over one column takes
as long as this takes for all of them.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import numpy as np

from lastwrite.encoding.kernel import njit


@njit(cache=True, nogil=True)
def sums_of(table):
    """Of a BATCH table with a row at least: (records, the fewest of a batch, bytes before they were
    converted, flags that any has).
    """
    records = np.int64(0)
    origin_bytes = np.int64(0)
    flags = np.int64(0)
    fewest = table[0].records
    for b in range(len(table)):
        row = table[b]
        records += row.records
        fewest = min(fewest, row.records)
        origin_bytes += row.origin_size
        flags |= row.flags
    return records, fewest, origin_bytes, flags
