"""The columns of a table: the key, the value, and the row's place in the log.

The names are ``_log_partition``, ``_offset`` and ``_timestamp``, because Spark reserves
``_partition`` in Iceberg tables. If keys are decoded into anything but text, the column ``_key``
contains the bytes that identify them.
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
PLACE: Final = (PARTITION, OFFSET)  # identifies a row's record in the log


def identity_of(schema: pa.Schema) -> str:
    """The column with the bytes that identify a key; rows are bucketed and sorted by it."""
    return RAW_KEY if RAW_KEY in schema.names else KEY


def as_bytes(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Keys, binary or text, as one array of bytes."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(whole, pa.ChunkedArray):  # if there are no rows
        whole = pa.concat_arrays(whole.chunks) if whole.num_chunks else pa.array([], whole.type)
    return whole if whole.type == pa.binary() else whole.cast(pa.binary())
