"""Write a new data file of a bucket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from lastwrite.tables.buckets import order_of
from lastwrite.tables.columns import as_bytes
from lastwrite.tables.files import write_file
from lastwrite.tables.format import DataFile

_FIELD_ID: Final = b"PARQUET:field_id"  # metadata key of Iceberg's column id


def write_bucket(path: str, bucket: int, rows: pa.Table, identity: str) -> DataFile:
    """Write rows to one file, sorted by the column ``identity``.

    Raises:
        LogError, RemoteFailed: the file cannot be written.
    """
    order = order_of(as_bytes(rows.column(identity)))
    if order is not None:  # ``take`` is faster on one chunk
        rows = rows.combine_chunks().take(pa.array(order))
    written = write_file(path, rows)
    return DataFile(path, bucket, len(rows), written.size_bytes, 0, written.footer)


def fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows converted to a schema that has all their columns, and perhaps more.

    If both have Iceberg's column ids, columns match by id, and names may differ.
    """
    columns = []
    for each in schema:
        has = _same_field(each, list(rows.schema))
        if has is None:
            columns.append(pa.nulls(len(rows), each.type))
            continue
        column, kind = rows.column(has.name), _with_names(has.type, each.type)
        if kind != column.type:  # names do not change the layout in memory
            chunks = [chunk.view(kind) for chunk in column.chunks]
            column = pa.chunked_array(chunks, kind)
        columns.append(column.cast(each.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _same_field(expected: pa.Field, fields: Sequence[pa.Field]) -> pa.Field | None:
    number = _number(expected)
    for each in fields:
        if (
            each.name == expected.name
            if None in (number, _number(each))
            else number == _number(each)
        ):
            return each
    return None


def _number(field: pa.Field) -> bytes | None:
    return (field.metadata or {}).get(_FIELD_ID)


def _with_names(has: pa.DataType, expected: pa.DataType) -> pa.DataType:
    """The type ``has`` with the names of ``expected`` for fields with the same ids."""
    if pa.types.is_struct(has) and pa.types.is_struct(expected):
        fields, theirs = list(has), {_same_field(each, list(has)): each for each in expected}
        return pa.struct([_field_with_names(each, theirs.get(each)) for each in fields])
    if pa.types.is_list(has) and pa.types.is_list(expected):
        inner = _with_names(has.value_type, expected.value_type)
        return pa.list_(pa.field(has.value_field.name, inner))
    if pa.types.is_map(has) and pa.types.is_map(expected):
        key, item = (
            _with_names(one, other)
            for one, other in (
                (has.key_type, expected.key_type),
                (has.item_type, expected.item_type),
            )
        )
        return pa.map_(key, item)
    return has


def _field_with_names(has: pa.Field, expected: pa.Field | None) -> pa.Field:
    if expected is None:
        return pa.field(has.name, has.type)
    return pa.field(expected.name, _with_names(has.type, expected.type))
