"""Parse Avro schemas: resolve names, and reject types that no column can represent.

Source: Avro 1.12 specification, "Schema Declaration", "Logical Types".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lastwrite.decoding.shape import MOST_DEPTH, Shape, ShapeKind, list_of, map_of, record_of
from lastwrite.errors import InvalidConfig

PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_PLAIN = {
    "boolean": ShapeKind.BOOLEAN,
    "int": ShapeKind.INT,
    "long": ShapeKind.LONG,
    "float": ShapeKind.FLOAT,
    "double": ShapeKind.DOUBLE,
    "bytes": ShapeKind.BYTES,
    "string": ShapeKind.STRING,
    "fixed": ShapeKind.BYTES,
}
_LOGICAL = {
    ("int", "date"): ShapeKind.DATE,
    ("long", "timestamp-millis"): ShapeKind.TIMESTAMP,
    ("long", "timestamp-micros"): ShapeKind.TIMESTAMP,
    ("long", "local-timestamp-millis"): ShapeKind.LOCAL_TIMESTAMP,
    ("long", "local-timestamp-micros"): ShapeKind.LOCAL_TIMESTAMP,
}
_MOST_PRECISION = 38
NO_DEFAULT: Final = object()


@dataclass(slots=True)
class AvroField:
    """A field of an Avro record."""

    name: str
    type: AvroType
    aliases: tuple[str, ...]
    default: Any = NO_DEFAULT  # JSON value of the field's default


@dataclass(slots=True)
class AvroType:
    """An Avro type. ``type`` is a primitive, record, enum, fixed, array, map or union."""

    type: str
    name: str = ""  # name without namespace; empty unless the type is named
    aliases: tuple[str, ...] = ()
    fields: tuple[AvroField, ...] = ()
    symbols: tuple[str, ...] = ()
    default: str | None = None  # default symbol of an enum
    size: int = 0  # bytes of a fixed
    inner: tuple[AvroType, ...] = ()  # an array's item, a map's value, a union's branches
    logical: str = ""  # logical type; empty if there is none
    precision: int = 0
    scale: int = 0
    full_names: tuple[str, ...] = ()  # full name, then full aliases; empty unless named

    @property
    def branch_names(self) -> tuple[str, ...]:
        """The names of a union's branch that has this type: the current name, then its aliases."""
        return self.full_names or (self.logical or self.type,)

    @property
    def branches(self) -> list[AvroType]:
        """The branches of a union, except null."""
        return [each for each in self.inner if each.type != "null"]

    @property
    def least_bytes(self) -> int:
        """The least number of bytes of an encoded value."""
        if self.type == "record":
            return sum(each.type.least_bytes for each in self.fields)
        return {"null": 0, "fixed": self.size, "float": 4, "double": 8}.get(self.type, 1)


def parse_avro(text: str, references: Iterator[str] | tuple[str, ...] = ()) -> AvroType:
    """Parse a schema.

    ``references`` are the schemas that ``text`` refers to, directly or indirectly, in an order in
    which each schema refers only to earlier ones.

    Raises:
        InvalidConfig: the text is no Avro schema, or has a type that no column can represent. The
            message contains the field's path.
    """
    parser = _Parser()
    for reference in references:
        parser.parse(_json(reference), "schema", "")
    return parser.parse(_json(text), "schema", "")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if text.strip() in PRIMITIVES:
            return text.strip()
        raise InvalidConfig(
            f"the schema is not JSON: {error}", remedy="give an Avro schema (.avsc)"
        ) from None


@dataclass(slots=True)
class _Parser:
    _named: dict[str, AvroType] = field(default_factory=dict)
    _open: set[str] = field(default_factory=set)
    _depth: int = 0

    def parse(self, given: Any, where: str, namespace: str) -> AvroType:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise InvalidConfig(f"{where}: types are nested more than {MOST_DEPTH} deep")
        try:
            return self._parsed(given, where, namespace)
        finally:
            self._depth -= 1

    def _parsed(self, given: Any, where: str, namespace: str) -> AvroType:
        if isinstance(given, list):
            inner = tuple(
                self.parse(each, f"{where}, branch {n}", namespace) for n, each in enumerate(given)
            )
            if not inner or any(each.type == "union" for each in inner):
                raise InvalidConfig(f"{where}: a union has no types, or contains a union")
            return AvroType("union", inner=inner)
        if isinstance(given, str):
            return self._reference(given, where, namespace)
        kind = given.get("type") if isinstance(given, Mapping) else None
        if isinstance(kind, list | dict):
            return self.parse(kind, where, namespace)
        if not isinstance(kind, str):
            raise InvalidConfig(f"{where}: {json.dumps(given)[:80]} is not a type")
        if kind in ("record", "error", "enum", "fixed"):
            return self._definition(kind, given, where, namespace)
        if kind in ("array", "map"):
            inside = self.parse(
                given.get("items" if kind == "array" else "values"), f"{where}[]", namespace
            )
            if kind == "array" and inside.least_bytes == 0:
                raise InvalidConfig(f"{where}: items that occupy no bytes are not supported")
            return AvroType(kind, inner=(inside,))
        found = self._reference(kind, where, namespace)
        return self._with_logical(found, given, where) if kind in PRIMITIVES else found

    def _reference(self, name: str, where: str, namespace: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        full = full if full in self._named or full in self._open else name
        if full in self._open:
            raise InvalidConfig(
                f"{where}: {name} contains itself, which no column can represent",
                remedy="read the column as raw; or, if the writer's schema does not have the "
                "field either, give a reader's schema without it",
            )
        if full not in self._named:
            raise InvalidConfig(f"{where}: type {name} is not defined")
        return self._named[full]

    def _definition(
        self, kind: str, given: Mapping[str, Any], where: str, namespace: str
    ) -> AvroType:
        name = given.get("name")
        if not isinstance(name, str) or not name:
            raise InvalidConfig(f"{where}: a {kind} has no name")
        space, _, short = name.rpartition(".")
        space = space or str(given.get("namespace") or "") or namespace
        full = f"{space}.{short}" if space else short
        named = _texts(given.get("aliases") or [], f"{where}: aliases")
        aliases = tuple(each.rpartition(".")[2] for each in named)
        found = AvroType("record" if kind == "error" else kind, short, aliases)
        found.full_names = (
            full,
            *(f"{space}.{each}" if space and "." not in each else each for each in named),
        )
        if kind == "enum":
            found.symbols = _texts(given.get("symbols"), f"{where}: symbols")
            default = given.get("default")
            found.default = default if isinstance(default, str) else None
        elif kind == "fixed":
            size = given.get("size")
            if not isinstance(size, int) or not 0 <= size < 1 << 31:
                raise InvalidConfig(f"{where}: a fixed type has the invalid size {size!r}")
            found.size = size
            found = self._with_logical(found, given, where)
        else:
            self._open.add(full)
            fields = given.get("fields")
            if not isinstance(fields, list):
                raise InvalidConfig(f"{where}: a record's fields are not a list")
            found.fields = tuple(self._field(each, where, space) for each in fields)
            self._open.discard(full)
        self._named[full] = found
        return found

    def _field(self, given: Any, where: str, namespace: str) -> AvroField:
        if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
            raise InvalidConfig(f"{where}: a field has no name")
        type = self.parse(given.get("type"), f"{where}.{given['name']}", namespace)
        aliases = _texts(given.get("aliases") or [], f"{where}: aliases")
        return AvroField(given["name"], type, aliases, given.get("default", NO_DEFAULT))

    def _with_logical(self, found: AvroType, given: Mapping[str, Any], where: str) -> AvroType:
        """Set the logical type. An unknown or invalid logical type is ignored, as Avro requires."""
        logical = given.get("logicalType")
        if (found.type, logical) in _LOGICAL:
            found.logical = str(logical)
        elif logical == "decimal" and found.type in ("bytes", "fixed"):
            precision, scale = given.get("precision"), given.get("scale", 0)
            if not isinstance(precision, int) or not isinstance(scale, int):
                return found
            if 0 < precision <= _MOST_PRECISION and 0 <= scale <= precision:
                found.logical, found.precision, found.scale = "decimal", precision, scale
            elif precision > _MOST_PRECISION:
                raise InvalidConfig(
                    f"{where}: decimals of more than {_MOST_PRECISION} digits are not supported"
                )
        return found


def _texts(given: Any, where: str) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise InvalidConfig(f"{where}: the value is not a list of strings")
    return tuple(given)


def shape_of(type: AvroType, where: str = "schema") -> Shape:
    """The shape of a column of this type.

    A union of null and one type has the shape of that type. A union of int and long is a long, and
    a union of float and double a double. Any other union is a record with a field for each branch
    except null, ``member0`` and so on, as in Spark.

    Raises:
        InvalidConfig: no column can represent the type.
    """
    if type.type == "record":
        fields = [shape_of(each.type, f"{where}.{each.name}") for each in type.fields]
        names = [each.name for each in type.fields]
        if not fields:
            raise InvalidConfig(f"{where}: a record has no fields")
        return record_of([each.named(name) for each, name in zip(fields, names, strict=True)])
    if type.type == "array":
        return list_of(shape_of(type.inner[0], f"{where}[]"))
    if type.type == "map":
        return map_of(shape_of(type.inner[0], f"{where}[]"))
    if type.type == "union":
        branches = type.branches
        merged = merged_branch(type)
        if merged is not None:
            return shape_of(merged, where)
        return record_of(
            [
                shape_of(each, f"{where}.member{n}").named(f"member{n}")
                for n, each in enumerate(branches)
            ]
        )
    if type.type == "enum":
        return Shape(ShapeKind.ENUM, symbols=type.symbols)
    if type.logical == "decimal":
        return Shape(ShapeKind.DECIMAL, precision=type.precision, scale=type.scale)
    if type.type == "null":
        raise InvalidConfig(f"{where}: a type that is only null cannot become a column")
    return Shape(_LOGICAL.get((type.type, type.logical), _PLAIN.get(type.type, ShapeKind.BYTES)))


def aliases_of(type: AvroType, where: str) -> dict[str, tuple[str, ...]]:
    """The aliases of each field of a type, by the path of the field's column.

    ``where`` is the path of ``type`` itself.
    """
    found = {}
    for path, inner in _inner(type, where):
        if isinstance(inner, AvroField):
            if inner.aliases:
                found[path] = inner.aliases
            inner = inner.type
        found |= aliases_of(inner, path)
    return found


def unions_of(type: AvroType, where: str) -> dict[str, list[tuple[str, ...]]]:
    """The names of each union's branches, by the path of the union's column.

    Only unions that become a record (``member0`` and so on) are included.
    """
    found = {}
    if type.type == "union" and merged_branch(type) is None:
        found[where] = [each.branch_names for each in type.branches]
    for path, inner in _inner(type, where):
        found |= unions_of(inner.type if isinstance(inner, AvroField) else inner, path)
    return found


def _inner(type: AvroType, where: str) -> Iterator[tuple[str, AvroField | AvroType]]:
    """Yield the types directly inside a type, each with the path of its column."""
    if type.type == "record":
        yield from ((f"{where}.{each.name}", each) for each in type.fields)
    elif type.type in ("array", "map"):
        yield f"{where}.{'element' if type.type == 'array' else 'value'}", type.inner[0]
    elif type.type == "union":
        merged = merged_branch(type)
        if merged is not None:
            yield where, merged
        else:
            yield from ((f"{where}.member{n}", each) for n, each in enumerate(type.branches))


def merged_branch(union: AvroType) -> AvroType | None:
    """The single type that can represent all branches of a union, or None."""
    branches = union.branches
    if len(branches) == 1:
        return branches[0]
    kinds = [each.type for each in branches if not each.logical]
    if len(kinds) == len(branches) == 2:
        for small, large in (("int", "long"), ("float", "double")):
            if {small, large} == set(kinds):
                return next(each for each in branches if each.type == large)
    return None
