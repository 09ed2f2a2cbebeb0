"""Decode Avro values to columns.

The writer's schema is resolved against the reader's schema and compiled to a program for the
kernel.

Fields that the reader's schema lacks are skipped. Fields that the writer's schema lacks get the
reader's default. Numbers are promoted, and names may have aliases. If the reader's schema lacks a
branch of a union or a symbol of an enum, only values with that branch or symbol are bad.

Source: Avro 1.12 specification, "Schema Resolution", "Binary Encoding".
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from lastwrite.decoding import avro_kernels as ops
from lastwrite.decoding.avro_schema import (
    NO_DEFAULT,
    AvroField,
    AvroType,
    merged_branch,
)
from lastwrite.decoding.columns import Program
from lastwrite.decoding.shape import Shape, ShapeKind
from lastwrite.decoding.slots import Slot, Slots
from lastwrite.errors import InvalidConfig
from lastwrite.model.columns import ByteArray, Int64Array

_INT = -(1 << 31), (1 << 31) - 1
_LONG = -(1 << 63), (1 << 63) - 1
# years 1 to 9999, the limits of SQL's and Python's dates and timestamps
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_PROMOTED = {
    "int": ("int", "long", "float", "double"),
    "long": ("long", "float", "double"),
    "float": ("float", "double"),
    "string": ("string", "bytes"),
    "bytes": ("bytes", "string"),
}
_NAMED = ("record", "enum", "fixed")


class AvroProgram(Program):
    """Decodes values of the schema ``writer`` into columns of ``shape``.

    Args:
        shape: ``shape_of(reader)``, or the part of it to decode.

    Raises:
        InvalidConfig: values of the writer's schema cannot be read by the reader's schema.
    """

    def __init__(self, writer: AvroType, reader: AvroType, shape: Shape) -> None:
        slots = Slots(shape)
        compiler = _Compiler()
        compiler.read(writer, reader, slots.top, "schema")
        compiler.emit(ops.DONE)
        super().__init__(slots, compiler.constants)
        self._steps = np.array(compiler.steps, dtype=np.int64)
        self._numbers = np.array([0, *compiler.numbers], dtype=np.int64)[1:]
        self._stack = np.zeros(compiler.depth + 1, np.int64)

    def _run(
        self,
        data: ByteArray,
        starts: Any,
        present: ByteArray,
        table: Int64Array,
        counts: Int64Array,
    ) -> Int64Array:
        faults = np.empty((len(present), 2), np.int64)
        ops.run(
            data.ctypes.data,
            starts.ctypes.data,
            present.ctypes.data,
            len(present),
            self._steps.ctypes.data,
            self._numbers.ctypes.data,
            self.slots.top.end,
            table.ctypes.data,
            counts.ctypes.data,
            self._arena.ctypes.data,
            self._stack,
            faults,
        )
        return faults


class _DecodingFailed(Exception):
    """Raised if a type of the writer's schema cannot be read as the reader's type."""


class _Compiler:
    def __init__(self) -> None:
        self.steps: list[list[int]] = []
        self.numbers: list[int] = []
        self.constants: dict[int, Any] = {}
        self.depth = 0
        self._within = 0
        self._read: set[int] = set()

    def emit(self, op: int, slot: int = -1, a: int = 0, b: int = 0, c: int = 0, d: int = 1) -> int:
        """Append an instruction to the program. Returns the instruction's index."""
        step = [op, slot, a, b, c, d, 0, 0]
        step += [0] * (ops.WORDS - len(step))
        self.steps.append([each - (1 << 64) if each >= 1 << 63 else each for each in step])
        return len(self.steps) - 1

    def read(self, writer: AvroType, reader: AvroType, slot: Slot, where: str) -> None:
        try:
            self._readable(writer, reader, slot, where)
        except _DecodingFailed:
            raise InvalidConfig(
                f"{where}: the reader's schema has {_type_name(reader)}, but the writer's "
                "schema has "
                f"{_type_name(writer)}",
                remedy="change the reader's schema to a type to which the writer's type can be "
                "promoted",
            ) from None

    # ------------------------------------------------------------------ unions

    def _readable(self, writer: AvroType, reader: AvroType, slot: Slot, where: str) -> None:
        if writer.type == "union":
            self._union(writer, reader, slot, where)
            return
        if writer.type == "null":
            if reader.type != "null" and all(each.type != "null" for each in reader.inner):
                raise _DecodingFailed
            self.emit(ops.NULLS, slot.number, slot.end)
            return
        if reader.type != "union":
            self._one(writer, reader, slot, where)
            return
        merged = merged_branch(reader)
        if merged is not None:
            chosen = _chosen(writer, reader.branches)
            self._one(writer, chosen, slot, where, merged)
            return
        chosen = _chosen(writer, reader.branches)
        member = f"member{_place(chosen, reader.branches)}"
        self.emit(ops.PRESENT, slot.number)
        for each in slot.fields:
            if each.shape.name == member:
                self.read(writer, chosen, each, f"{where}.{member}")
            else:
                self.emit(ops.NULLS, each.number, each.end)
        if all(each.shape.name != member for each in slot.fields):
            self._skip(writer)

    def _union(self, writer: AvroType, reader: AvroType, slot: Slot, where: str) -> None:
        at = len(self.numbers)
        self.numbers += [-1] * len(writer.inner)
        self.emit(ops.UNION, -1, at, len(writer.inner))
        ends, before, written = [], dict(self.constants), 0
        for n, branch in enumerate(writer.inner):
            start, numbers, read = len(self.steps), len(self.numbers), set(self._read)
            constants = dict(self.constants)
            try:
                self._readable(branch, reader, slot, where)
            except (_DecodingFailed, InvalidConfig):
                del self.steps[start:], self.numbers[numbers:]
                self.constants, self._read = constants, read
                continue
            self.numbers[at + n] = start
            ends.append(self.emit(ops.JUMP))
            written += branch.type != "null"
        if not written and len(writer.inner) > 0 and not ends:
            raise _DecodingFailed
        for end in ends:
            self.steps[end][2] = len(self.steps)
        new = self.constants.keys() - before.keys()
        if new & self._read or (new and written > 1):
            raise InvalidConfig(
                f"{where}: one branch of a union needs a default where another has a value"
            )

    # ------------------------------------------------------------------ one type

    def _one(
        self,
        writer: AvroType,
        reader: AvroType,
        slot: Slot,
        where: str,
        merged: AvroType | None = None,
    ) -> None:
        """Compile instructions that read a type that is not a union.

        ``merged`` is the type that represents all branches of the reader's union, if there is one.
        """
        if not _matches(writer, reader):
            raise _DecodingFailed
        self._read.add(slot.number)
        kind = slot.shape.kind
        if writer.type == "record":
            self._record(writer, reader, slot, where)
        elif writer.type in ("array", "map"):
            self._items(writer, reader, slot, where)
        elif writer.type == "enum":
            self._enum(writer, reader, slot)
        elif kind is ShapeKind.DECIMAL:
            is_same = not writer.logical or (writer.scale, writer.precision) <= (
                reader.scale,
                reader.precision,
            )
            if writer.logical and writer.scale != reader.scale or not is_same:
                raise _DecodingFailed
            limit = 10**slot.shape.precision
            size = writer.size if writer.type == "fixed" else -1
            self.emit(ops.DECIMAL_BYTES, slot.number, size, limit & (1 << 64) - 1, limit >> 64)
        elif writer.type == "fixed":
            self.emit(ops.FIXED, slot.number, writer.size)
        elif writer.type in ("string", "bytes"):
            self.emit(ops.BYTES, slot.number, int(kind is ShapeKind.STRING))
        elif writer.type == "boolean":
            self.emit(ops.BOOLEAN, slot.number)
        else:
            self._number(writer, reader, slot)

    def _number(self, writer: AvroType, reader: AvroType, slot: Slot) -> None:
        kind = slot.shape.kind
        to = {ShapeKind.FLOAT: ops.AS_FLOAT, ShapeKind.DOUBLE: ops.AS_DOUBLE}.get(kind)
        if writer.type in ("float", "double"):
            op = ops.FLOAT if writer.type == "float" else ops.DOUBLE
            self.emit(op, slot.number, ops.AS_DOUBLE if to is None else to)
            return
        low, high = _INT if writer.type == "int" else _LONG
        factor = 1
        if kind in (ShapeKind.TIMESTAMP, ShapeKind.LOCAL_TIMESTAMP):
            unit = writer.logical if "timestamp" in writer.logical else reader.logical
            factor = 1000 if unit.endswith("millis") else 1
            low, high = -(-_FIRST_US // factor), _LAST_US // factor
        elif kind is ShapeKind.DATE:
            low, high = _FIRST_DAY, _LAST_DAY
        if to is None:
            to = ops.AS_NARROW if kind in (ShapeKind.INT, ShapeKind.DATE) else ops.AS_WIDE
        self.emit(ops.NUMBER, slot.number, to, low, high, factor)

    def _enum(self, writer: AvroType, reader: AvroType, slot: Slot) -> None:
        default = reader.symbols.index(reader.default) if reader.default in reader.symbols else -1
        at = len(self.numbers)
        self.numbers += [
            reader.symbols.index(each) if each in reader.symbols else default
            for each in writer.symbols
        ]
        self.emit(ops.ENUM, slot.number, at, len(writer.symbols))

    def _items(self, writer: AvroType, reader: AvroType, slot: Slot, where: str) -> None:
        item = slot.fields[0]

        def body() -> None:
            inside = writer.inner[0], reader.inner[0]
            if writer.type == "array":
                self.read(*inside, item, f"{where}[]")
                return
            key, value = item.fields
            self.emit(ops.PRESENT, item.number)
            self.emit(ops.BYTES, key.number, 1)
            self.read(*inside, value, f"{where}[]")

        self._loop(slot.number, body)

    def _loop(self, slot: int, body: Any) -> None:
        depth, self._within = self._within, self._within + 1
        self.depth = max(self.depth, self._within)
        start = self.emit(ops.ITEMS, slot, depth)
        body()
        self.emit(ops.NEXT, -1, depth, start)
        self.steps[start][3] = len(self.steps)
        self._within = depth

    def _record(self, writer: AvroType, reader: AvroType, slot: Slot, where: str) -> None:
        self.emit(ops.PRESENT, slot.number)
        places = {each.shape.name: each for each in slot.fields}
        taken: set[str] = set()
        for each in writer.fields:
            found = _field_named(each.name, reader)
            if found is None or found.name not in places or found.name in taken:
                self._skip(each.type)
                continue
            taken.add(found.name)
            self.read(each.type, found.type, places[found.name], f"{where}.{found.name}")
        for missing in reader.fields:
            if missing.name not in places or missing.name in taken:
                continue
            if missing.default is NO_DEFAULT:
                raise InvalidConfig(
                    f"{where}.{missing.name}: the writer's schema does not have this field, and "
                    "the reader's schema has no default for it",
                    remedy="add a default to the reader's schema, or leave the field out of "
                    "columns",
                )
            place = places[missing.name]
            self.constants[place.number] = default_of(missing.type, missing.default, where)

    def _skip(self, writer: AvroType) -> None:
        """Compile instructions that skip a value that is not requested."""
        kind = writer.type
        if kind == "record":
            for each in writer.fields:
                self._skip(each.type)
        elif kind in ("int", "long", "enum"):
            self.emit(ops.SKIP_NUMBER)
        elif kind in ("string", "bytes"):
            self.emit(ops.SKIP_BYTES)
        elif kind in ("boolean", "float", "double", "fixed"):
            sizes = {"boolean": 1, "float": 4, "double": 8, "fixed": writer.size}
            self.emit(ops.SKIP, -1, sizes[kind])
        elif kind == "union":
            at = len(self.numbers)
            self.numbers += [-1] * len(writer.inner)
            self.emit(ops.UNION, -1, at, len(writer.inner))
            ends = []
            for n, branch in enumerate(writer.inner):
                self.numbers[at + n] = len(self.steps)
                self._skip(branch)
                ends.append(self.emit(ops.JUMP))
            for end in ends:
                self.steps[end][2] = len(self.steps)
        elif kind in ("array", "map"):

            def body() -> None:
                if kind == "map":
                    self.emit(ops.SKIP_BYTES)
                self._skip(writer.inner[0])

            self._loop(-1, body)


def _field_named(name: str, reader: AvroType) -> AvroField | None:
    for each in reader.fields:
        if each.name == name:
            return each
    return next((each for each in reader.fields if name in each.aliases), None)


def _matches(writer: AvroType, reader: AvroType) -> bool:
    """Whether ``reader`` can read values of ``writer``. Compares the outermost types only."""
    if writer.type in _NAMED or reader.type in _NAMED:
        is_same = writer.type == reader.type and writer.size == reader.size
        return is_same and (writer.name == reader.name or writer.name in reader.aliases)
    return reader.type in _PROMOTED.get(writer.type, (writer.type,))


def _chosen(writer: AvroType, branches: list[AvroType]) -> AvroType:
    """The branch of the reader's union for values of ``writer``.

    This is the branch of the same type, or else the first branch that can read the values.
    """
    fitting = [each for each in branches if _matches(writer, each)]
    own = [each for each in fitting if each.type == writer.type]
    if not fitting:
        raise _DecodingFailed
    return (own or fitting)[0]


def _place(chosen: AvroType, branches: list[AvroType]) -> int:
    return next(n for n, each in enumerate(branches) if each is chosen)


def _type_name(type: AvroType) -> str:
    if type.type == "union":
        return f"a union of {', '.join(_type_name(each) for each in type.inner)}"
    if type.logical == "decimal":
        return f"decimal({type.precision}, {type.scale})"
    return " ".join(filter(None, (type.type, type.name, type.logical)))


def default_of(type: AvroType, given: Any, where: str) -> Any:
    """The default of a field, converted to a value for Arrow.

    ``given`` is the default's JSON value.

    Raises:
        InvalidConfig: the default does not match the type.
    """
    if type.type == "union":
        # Since Avro 1.12 the default may match any branch. Earlier it had to match the first.
        for branch in type.inner:
            if _is_default_of(branch, given):
                merged = merged_branch(type)
                if branch.type == "null" or merged is not None:
                    return default_of(branch, given, where)
                member = f"member{_place(branch, type.branches)}"
                return {member: default_of(branch, given, where)}
    elif _is_default_of(type, given):
        return _default(type, given, where)
    raise InvalidConfig(f"{where}: {given!r} is not a valid default for {_type_name(type)}")


def _is_default_of(type: AvroType, given: Any) -> bool:
    kinds: Mapping[str, Any] = {
        "null": None.__class__,
        "boolean": bool,
        "int": int,
        "long": int,
        "float": (int, float),
        "double": (int, float),
        "record": dict,
        "map": dict,
        "array": list,
    }
    is_number = type.type in ("int", "long", "float", "double")
    right = isinstance(given, kinds.get(type.type, str))
    return right and not (is_number and isinstance(given, bool))


def _default(type: AvroType, given: Any, where: str) -> Any:
    if type.type == "record":
        found = {}
        for each in type.fields:
            value = given.get(each.name, each.default)
            if value is NO_DEFAULT:
                raise InvalidConfig(f"{where}: the default value has no field {each.name}")
            found[each.name] = default_of(each.type, value, f"{where}.{each.name}")
        return found
    if type.type == "array":
        return [default_of(type.inner[0], each, where) for each in given]
    if type.type == "map":
        return [(key, default_of(type.inner[0], each, where)) for key, each in given.items()]
    if type.type in ("bytes", "fixed"):
        raw = given.encode("latin-1")
        if type.logical != "decimal":
            return raw
        return Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-type.scale)
    if type.logical.endswith("-millis"):
        return given * 1000
    return given
