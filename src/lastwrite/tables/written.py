"""A bucket's new file."""

from __future__ import annotations

import pyarrow as pa

from lastwrite.tables.buckets import order_of
from lastwrite.tables.columns import as_bytes
from lastwrite.tables.files import write_file
from lastwrite.tables.format import DataFile


def write_bucket(path: str, bucket: int, rows: pa.Table, identity: str) -> DataFile:
    """Write rows, sorted by the column ``identity``, as one file.

    Raises:
        LogError, RemoteFailed: the place refuses it.
    """
    order = order_of(as_bytes(rows.column(identity)))
    if order is not None:  # rows of one chunk move faster
        rows = rows.combine_chunks().take(pa.array(order))
    written = write_file(path, rows)
    return DataFile(path, bucket, len(rows), written.size_bytes, 0, written.footer)


def fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows in a schema that has all their columns, and perhaps more."""
    columns = [
        rows.column(each.name).cast(each.type)
        if each.name in rows.schema.names
        else pa.nulls(len(rows), each.type)
        for each in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
