"""The columns of a table: the key, the value, and the partition, offset and time of the record.

The partition's column is ``_log_partition``, because Spark reserves ``_partition`` in Iceberg
tables. If keys are decoded into anything but text, the column ``_key`` contains their bytes.
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
    """The column that contains the keys' bytes. It determines the bucket and the order of rows."""
    return RAW_KEY if RAW_KEY in schema.names else KEY


def as_bytes(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Convert a column of binary or text keys to one array of bytes."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(whole, pa.ChunkedArray):  # a column without rows stays chunked
        whole = pa.concat_arrays(whole.chunks) if whole.num_chunks else pa.array([], whole.type)
    return whole if whole.type == pa.binary() else whole.cast(pa.binary())
