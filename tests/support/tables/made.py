"""Tables of keys and numbers, written with a format's own calls, not by ``table_to``."""

from __future__ import annotations

import io
import uuid
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from lastwrite.storage.objects.address import store_at
from lastwrite.tables.format import DataFile, Head, TableChange, TableFormat, TableState

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
Rows = Mapping[bytes, bytes]


def state(offset: int, rows: int) -> TableState:
    return TableState(
        system="kafka",
        topic="orders",
        identity={0: "an-id"},
        offsets={0: offset},
        settings={},
        buckets=4,
        rows=rows,
        checksum="0" * 32,
    )


def bucket_of(key: bytes) -> int:
    return key[0] % 4


def write_file(
    table: TableFormat, bucket: int, rows: Rows, offset: int, schema: pa.Schema = SCHEMA
) -> DataFile:
    """Write a data file with these rows for a bucket."""
    some = [
        {"key": key, "value": value, "_partition": 0, "_offset": offset, "_timestamp": offset}
        for key, value in sorted(rows.items())
    ]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(some, schema=schema), sink)
    path = table.data_path(bucket, f"{uuid.uuid4().hex}.parquet")
    store, key = store_at(path) if "://" in path else store_at("/")
    writer = store.writer(key or path.lstrip("/"))
    writer.write(sink.getvalue())
    writer.close()
    footer = pq.read_metadata(io.BytesIO(sink.getvalue()))
    return DataFile(path, bucket, len(some), len(sink.getvalue()), footer=footer)


def become(
    table: TableFormat,
    head: Head | None,
    rows: Rows,
    offset: int,
    touched: Sequence[int] = (0, 1, 2, 3),
    schema: pa.Schema = SCHEMA,
) -> Head:
    """Commit a change after which the buckets in ``touched`` have exactly these rows."""
    in_bucket = {
        bucket: {key: value for key, value in rows.items() if bucket_of(key) == bucket}
        for bucket in touched
    }
    added = [
        write_file(table, bucket, some, offset, schema)
        for bucket, some in in_bucket.items()
        if some
    ]
    was = () if head is None else head.files
    removed = [file.path for file in was if file.bucket in touched]
    change = TableChange(added, removed, {}, state(offset, len(rows)), schema)
    return table.commit(head, change)
