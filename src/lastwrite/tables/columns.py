"""The columns of a table: the key, the value, and where in the log the row is from.

``_log_partition``, ``_offset``, ``_timestamp``: an Iceberg table may not have a column
``_partition``, which Spark keeps for itself. Where keys are decoded into anything but text, the
bytes that tell them apart are a column of their own, ``_key``.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from lastwrite.rows.arrow import HEADERS

KEY: Final = "key"
RAW_KEY: Final = "_key"
VALUE: Final = "value"
PARTITION: Final = "_log_partition"
OFFSET: Final = "_offset"
TIMESTAMP: Final = "_timestamp"
TABLE_HEADERS: Final = "_headers"
NAMES: Final = {
    "key": KEY,
    "value": VALUE,
    "partition": PARTITION,
    "offset": OFFSET,
    "timestamp": TIMESTAMP,
    HEADERS: TABLE_HEADERS,
}
PLACE: Final = (PARTITION, OFFSET)  # what tells a row of the log, beside its key


def identity_of(schema: pa.Schema) -> str:
    """The column whose bytes tell keys apart, by which rows are in buckets and sorted."""
    return RAW_KEY if RAW_KEY in schema.names else KEY


def as_bytes(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Keys, which may be text, as one array of bytes."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(whole, pa.ChunkedArray):  # of no rows
        whole = pa.concat_arrays(whole.chunks) if whole.num_chunks else pa.array([], whole.type)
    return whole if whole.type == pa.binary() else whole.cast(pa.binary())
