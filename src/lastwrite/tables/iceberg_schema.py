"""Convert Arrow schemas to Iceberg schemas: columns keep their ids, and new ones get unused ids."""

# mypy: disable-error-code="call-arg"
# pydantic accepts fields by name and by alias; mypy accepts the aliases only.

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from lastwrite.errors import InvalidConfig

_FIELD_ID = b"PARQUET:field_id"  # metadata key of Iceberg's column id, as in module ``written``


def next_schema(table: Table | None, schema: pa.Schema) -> Schema:
    """The Iceberg schema of the table, extended by the new columns of ``schema``.

    If the table's schema cannot be extended, returns a new schema with unused column ids.
    """
    if table is not None and plain_schema(table.schema()) == schema:
        return table.schema()
    _check_names(schema)
    first = 1 if table is None else table.metadata.last_column_id + 1
    count = itertools.count(first)
    convert: Any = Catalog._convert_schema_if_needed
    wanted: Schema = convert(schema, 2)
    if table is not None:
        united = _united(table.schema().as_struct(), wanted.as_struct(), count)
        assert isinstance(united, StructType)
        grown = Schema(*united.fields)
        if plain_schema(grown) == schema:
            return grown
        count = itertools.count(first)
    return assign_fresh_schema_ids(wanted, lambda: next(count))


def _check_names(schema: pa.Schema) -> None:
    """Check that no two columns have the same path in Iceberg.

    Raises:
        InvalidConfig: two columns have the same path in Iceberg, because a name contains a dot.
    """
    seen: set[str] = set()
    for path in _paths(schema, ""):
        if path in seen:
            raise InvalidConfig(
                f"two columns have the Iceberg name {path}, because one has a dot in its name; "
                "nothing was changed",
                remedy="rename one of them in the reader's schema, or create a Delta table with "
                "--as delta",
            )
        seen.add(path)


def _paths(fields: Iterable[pa.Field], above: str) -> Iterator[str]:
    for each in fields:
        path = f"{above}{each.name}"
        yield path
        kind = each.type
        if pa.types.is_struct(kind):
            yield from _paths(kind, f"{path}.")
        elif pa.types.is_list(kind):
            yield from _paths([pa.field("element", kind.value_type)], f"{path}.")
        elif pa.types.is_map(kind):
            inner = [pa.field("key", kind.key_type), pa.field("value", kind.item_type)]
            yield from _paths(inner, f"{path}.")


def plain_schema(schema: Schema) -> pa.Schema:
    """Convert an Iceberg schema to an Arrow schema with the types that lastwrite writes."""
    found = schema_to_pyarrow(schema, include_field_ids=False)
    return pa.schema([pa.field(each.name, _plain(each.type)) for each in found])


def numbered(schema: pa.Schema, known: Schema) -> pa.Schema:
    """The columns with Iceberg's column ids as metadata, as a Parquet file needs them."""
    fields = known.as_struct().fields
    return pa.schema([_numbered_field(schema.field(each.name), each) for each in fields])


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _plain(each.type)) for each in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    return kind


def _united(known: IcebergType, wanted: IcebergType, count: Iterator[int]) -> IcebergType:
    """The fields of ``known``, extended by the fields that only ``wanted`` has.

    New fields get ids from ``count``.
    """
    if isinstance(known, StructType) and isinstance(wanted, StructType):
        later = {each.name: each for each in wanted.fields}
        fields = []
        for each in known.fields:
            other = later.pop(each.name, None)
            kind = (
                each.field_type
                if other is None
                else _united(each.field_type, other.field_type, count)
            )
            fields.append(each.model_copy(update={"field_type": kind}))
        for each in later.values():
            number = next(count)
            kind = assign_fresh_schema_ids(Schema(each), lambda: next(count)).fields[0].field_type
            fields.append(each.model_copy(update={"field_id": number, "field_type": kind}))
        return StructType(*fields)
    if isinstance(known, ListType) and isinstance(wanted, ListType):
        kind = _united(known.element_type, wanted.element_type, count)
        return known.model_copy(update={"element_type": kind})
    if isinstance(known, MapType) and isinstance(wanted, MapType):
        kind = _united(known.value_type, wanted.value_type, count)
        return known.model_copy(update={"value_type": kind})
    return wanted if known.is_primitive and wanted.is_primitive else known


def renamed_schema(schema: Schema, renamed: Mapping[str, str]) -> Schema:
    """The schema with renamed columns. ``renamed`` maps new paths to old names."""
    names: dict[tuple[str, str], str] = {}
    for path, old in renamed.items():
        above, _, new = path.rpartition(".")
        names[above, old] = new
    made = _renamed(schema.as_struct(), "", names)
    assert isinstance(made, StructType)
    return Schema(*made.fields)


def _renamed(kind: IcebergType, where: str, names: Mapping[tuple[str, str], str]) -> IcebergType:
    if isinstance(kind, StructType):
        fields = []
        for each in kind.fields:
            name = names.get((where, each.name), each.name)
            inner = _renamed(each.field_type, f"{where}.{name}".lstrip("."), names)
            fields.append(each.model_copy(update={"name": name, "field_type": inner}))
        return StructType(*fields)
    if isinstance(kind, ListType):
        inner = _renamed(kind.element_type, f"{where}.element", names)
        return kind.model_copy(update={"element_type": inner})
    if isinstance(kind, MapType):
        return kind.model_copy(
            update={
                "key_type": _renamed(kind.key_type, f"{where}.key", names),
                "value_type": _renamed(kind.value_type, f"{where}.value", names),
            }
        )
    return kind


def _numbered_field(field: pa.Field, known: NestedField) -> pa.Field:
    kind = _numbered_type(field.type, known.field_type)
    return pa.field(field.name, kind, metadata={_FIELD_ID: str(known.field_id)})


def _numbered_type(kind: pa.DataType, known: IcebergType) -> pa.DataType:
    if isinstance(known, StructType):
        return pa.struct([_numbered_field(kind.field(each.name), each) for each in known.fields])
    if isinstance(known, ListType):
        return pa.list_(_numbered_field(pa.field("element", kind.value_type), known.element_field))
    if isinstance(known, MapType):
        key = _numbered_field(pa.field("key", kind.key_type), known.key_field)
        return pa.map_(
            key.with_nullable(False),
            _numbered_field(pa.field("value", kind.item_type), known.value_field),
        )
    return kind
