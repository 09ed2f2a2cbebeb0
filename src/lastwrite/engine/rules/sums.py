"""Compute several sums over a batch table in one pass.

With NumPy, each single sum would take as long as this pass.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import numpy as np

from lastwrite.encoding.kernel import njit


@njit(cache=True, nogil=True)
def sums_of(table):
    """Return (records, fewest records of a batch, bytes before conversion, bitwise OR of flags).

    ``table`` is a BATCH table with at least one row.
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
