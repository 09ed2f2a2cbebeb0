"""The type of a decoded column, as a tree, and its names in Arrow and Spark.

All types are nullable, as in the schema of Spark's Kafka source. Logical types that Spark lacks are
not converted: their columns have plain numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from lastwrite.errors import InvalidConfig

if TYPE_CHECKING:
    import pyarrow as pa

MOST_DEPTH = 64  # most levels of nested shapes


class ShapeKind(Enum):
    """The kind of a decoded column's type."""

    BOOLEAN = "boolean"
    INT = "int"  # 32 bits
    LONG = "long"  # 64 bits
    FLOAT = "float"
    DOUBLE = "double"
    STRING = "string"
    BYTES = "bytes"
    ENUM = "enum"  # text in Arrow; a slot contains indexes of ``symbols``
    DATE = "date"
    TIMESTAMP = "timestamp"  # microseconds since 1970, UTC
    LOCAL_TIMESTAMP = "local timestamp"
    DECIMAL = "decimal"
    RECORD = "record"
    LIST = "list"
    MAP = "map"  # a map has one field, a record of key and value


@dataclass(frozen=True, slots=True)
class Shape:
    """The type of a decoded column.

    ``fields`` are the fields of a record. A list has one field, its item. A map has one field, a
    record of key and value.
    """

    kind: ShapeKind
    name: str = ""
    fields: tuple[Shape, ...] = ()
    symbols: tuple[str, ...] = ()
    precision: int = 0
    scale: int = 0

    def named(self, name: str) -> Shape:
        """A copy of the shape with this field name."""
        return replace(self, name=name)


def list_of(item: Shape) -> Shape:
    return Shape(ShapeKind.LIST, fields=(item.named("element"),))


def map_of(value: Shape, key: Shape | None = None) -> Shape:
    """The shape of a map. Keys are text unless ``key`` is given."""
    key = Shape(ShapeKind.STRING) if key is None else key
    entry = Shape(ShapeKind.RECORD, fields=(key.named("key"), value.named("value")))
    return Shape(ShapeKind.MAP, fields=(entry,))


def record_of(fields: Sequence[Shape]) -> Shape:
    return Shape(ShapeKind.RECORD, fields=tuple(fields))


def narrowed(shape: Shape, paths: Sequence[str], where: str) -> Shape:
    """A shape with only the fields in ``paths``, in the order of ``shape``.

    A path is, for example, ``name`` or ``address.city``.

    Raises:
        InvalidConfig: a field does not exist.
    """
    wanted: dict[str, list[str]] = {}
    for path in paths:
        name, _, rest = path.partition(".")
        wanted.setdefault(name, []).append(rest)
    there = [field.name for field in shape.fields] if shape.kind is ShapeKind.RECORD else []
    for name in wanted:
        if name not in there:
            raise InvalidConfig(
                f"columns: there is no field {name} in {where}",
                remedy=f"give one of: {', '.join(there)}"
                if there
                else f"remove the name from columns: {where} is not a record",
            )
    kept = []
    for field in shape.fields:
        rests = wanted.get(field.name)
        if rests is not None:
            whole = "" in rests
            kept.append(field if whole else narrowed(field, rests, f"{where}.{field.name}"))
    return replace(shape, fields=tuple(kept))


def arrow_type(shape: Shape) -> pa.DataType:
    """The Arrow type of a column of this shape."""
    import pyarrow as pa

    if shape.kind is ShapeKind.RECORD:
        return pa.struct([pa.field(each.name, arrow_type(each)) for each in shape.fields])
    if shape.kind is ShapeKind.LIST:
        return pa.list_(pa.field("element", arrow_type(shape.fields[0])))
    if shape.kind is ShapeKind.MAP:
        return pa.map_(*(arrow_type(each) for each in shape.fields[0].fields))
    if shape.kind is ShapeKind.DECIMAL:
        return pa.decimal128(shape.precision, shape.scale)
    plain = {
        ShapeKind.BOOLEAN: pa.bool_(),
        ShapeKind.INT: pa.int32(),
        ShapeKind.LONG: pa.int64(),
        ShapeKind.FLOAT: pa.float32(),
        ShapeKind.DOUBLE: pa.float64(),
        ShapeKind.STRING: pa.string(),
        ShapeKind.BYTES: pa.binary(),
        ShapeKind.ENUM: pa.string(),
        ShapeKind.DATE: pa.date32(),
        ShapeKind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
        ShapeKind.LOCAL_TIMESTAMP: pa.timestamp("us"),
    }
    return plain[shape.kind]


_OF_SPARK = {
    ShapeKind.BOOLEAN: "BOOLEAN",
    ShapeKind.INT: "INT",
    ShapeKind.LONG: "BIGINT",
    ShapeKind.FLOAT: "FLOAT",
    ShapeKind.DOUBLE: "DOUBLE",
    ShapeKind.STRING: "STRING",
    ShapeKind.BYTES: "BINARY",
    ShapeKind.ENUM: "STRING",
    ShapeKind.DATE: "DATE",
    ShapeKind.TIMESTAMP: "TIMESTAMP",
    ShapeKind.LOCAL_TIMESTAMP: "TIMESTAMP_NTZ",
}


def spark_type(shape: Shape) -> str:
    """The type of a column of this shape in Spark's notation."""
    if shape.kind is ShapeKind.RECORD:
        fields = (f"{quoted(each.name)}: {spark_type(each)}" for each in shape.fields)
        return f"STRUCT<{', '.join(fields)}>"
    if shape.kind is ShapeKind.LIST:
        return f"ARRAY<{spark_type(shape.fields[0])}>"
    if shape.kind is ShapeKind.MAP:
        return f"MAP<{', '.join(spark_type(each) for each in shape.fields[0].fields)}>"
    if shape.kind is ShapeKind.DECIMAL:
        return f"DECIMAL({shape.precision},{shape.scale})"
    return _OF_SPARK[shape.kind]


def quoted(name: str) -> str:
    """A column name, quoted for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"
