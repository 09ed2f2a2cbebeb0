"""Convert Protobuf messages from a set of file descriptors to shapes.

Protobuf's library resolves names.

Source: Protocol Buffers, ``descriptor.proto``, "Field Presence", "Well-Known Types".
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from lastwrite.decoding.shape import MOST_DEPTH, Shape, ShapeKind, list_of, map_of, record_of
from lastwrite.errors import InvalidConfig, missing_extra

TIMESTAMP: Final = "google.protobuf.Timestamp"
# The numbers of FieldDescriptorProto.Type.
(
    DOUBLE,
    FLOAT,
    INT64,
    UINT64,
    INT32,
    FIXED64,
    FIXED32,
    BOOL,
    STRING,
    GROUP,
    MESSAGE,
    BYTES,
    UINT32,
    ENUM,
    SFIXED32,
    SFIXED64,
    SINT32,
    SINT64,
) = range(1, 19)
_UNSIGNED = Shape(ShapeKind.DECIMAL, precision=20)
_PLAIN = {
    DOUBLE: Shape(ShapeKind.DOUBLE),
    FLOAT: Shape(ShapeKind.FLOAT),
    **dict.fromkeys((INT64, SFIXED64, SINT64, UINT32, FIXED32), Shape(ShapeKind.LONG)),
    **dict.fromkeys((INT32, SFIXED32, SINT32), Shape(ShapeKind.INT)),
    **dict.fromkeys((UINT64, FIXED64), _UNSIGNED),
    BOOL: Shape(ShapeKind.BOOLEAN),
    STRING: Shape(ShapeKind.STRING),
    BYTES: Shape(ShapeKind.BYTES),
}
_MOST_FIELDS = 10_000
_BUNDLED = "any duration empty field_mask struct timestamp wrappers".split()


class ProtobufFile:
    """The last file of a set of descriptors as written by ``protoc --include_imports``.

    Raises:
        EnvironmentUnfit: Protobuf's library is not installed.
        InvalidConfig: the bytes are no set of descriptors, or an imported file is missing.
    """

    def __init__(self, data: bytes) -> None:
        try:
            from google.protobuf import descriptor_pb2, descriptor_pool
            from google.protobuf.message import DecodeError
        except ImportError as error:
            raise missing_extra("decoding Protobuf", "protobuf", "protobuf") from error
        try:
            found = descriptor_pb2.FileDescriptorSet.FromString(data)
        except DecodeError as error:
            raise InvalidConfig(
                f"the schema is not a set of descriptors: {error}",
                remedy="create the file with protoc --include_imports "
                "--descriptor_set_out=order.desc order.proto",
            ) from error
        if not found.file:
            raise InvalidConfig("the set of descriptors is empty")
        names = {each.name for each in found.file}
        pool = descriptor_pool.DescriptorPool()
        for name in _BUNDLED:
            if f"google/protobuf/{name}.proto" not in names:
                bundled = import_module(f"google.protobuf.{name}_pb2")
                pool.AddSerializedFile(bundled.DESCRIPTOR.serialized_pb)
        try:
            for each in found.file:
                pool.Add(each)
            self._file = pool.FindFileByName(found.file[-1].name)
        except (TypeError, KeyError) as error:
            raise InvalidConfig(
                f"the set of descriptors is not complete: {error}",
                remedy="create the file with protoc --include_imports "
                "--descriptor_set_out=order.desc order.proto",
            ) from error
        self._pool = pool

    def message(self, name: str) -> Any:
        """The descriptor of a message. ``name`` is a full name, or the name of a top-level message
        of this file. ``""`` means the only message of the file.

        Raises:
            InvalidConfig: there is no such message, or the file has several and ``name`` is empty.
        """
        own = self._file.message_types_by_name
        if not name and len(own) == 1:
            return next(iter(own.values()))
        if name in own:
            return own[name]
        if name:
            try:
                return self._pool.FindMessageTypeByName(name)
            except KeyError:
                pass
        there = ", ".join(own) or "none"
        text = f"there is no message {name}" if name else f"the schema has {len(own)} messages"
        raise InvalidConfig(
            f"{self._file.name}: {text}",
            remedy=f"name one with key_message or value_message: {there}",
        )

    def message_at(self, places: list[int]) -> Any | None:
        """The message that a Confluent frame's message indexes select, or None."""
        found: Any = None
        inner = list(self._file.message_types_by_name.values())
        for place in places:
            if not 0 <= place < len(inner):
                return None
            found = inner[place]
            inner = list(found.nested_types)
        return found


def is_map(field: Any) -> bool:
    """Whether a field is a map. In a descriptor a map is a repeated message of entries."""
    inner = field.message_type
    return inner is not None and field.is_repeated and inner.GetOptions().map_entry


def shape_of(message: Any) -> Shape:
    """The shape of a column of this message.

    If a message contains itself, the inner message is not decoded: its column has bytes.

    Raises:
        InvalidConfig: no column can represent the message.
    """
    return _Shapes().of(message)


class _Shapes:
    def __init__(self) -> None:
        self._open: list[str] = []
        self._fields = 0

    def of(self, message: Any) -> Shape:
        name = message.full_name
        if name == TIMESTAMP:
            return Shape(ShapeKind.TIMESTAMP)
        if name in self._open:
            return Shape(ShapeKind.BYTES)
        if len(self._open) == MOST_DEPTH:
            raise InvalidConfig(f"{name}: messages are nested more than {MOST_DEPTH} deep")
        self._open.append(name)
        fields = [self._field(each).named(each.name) for each in message.fields]
        self._open.pop()
        return record_of(fields)

    def _field(self, field: Any) -> Shape:
        self._fields += 1
        if self._fields > _MOST_FIELDS:
            raise InvalidConfig(f"{field.full_name}: more than {_MOST_FIELDS} fields in all")
        if is_map(field):
            entry = field.message_type.fields_by_name
            return map_of(self._field(entry["value"]), self._field(entry["key"]))
        if field.type in (MESSAGE, GROUP):
            found = self.of(field.message_type)
            if found.kind is ShapeKind.BYTES and field.type == GROUP:
                raise InvalidConfig(f"{field.full_name}: a group contains itself")
        elif field.type == ENUM:
            found = Shape(ShapeKind.ENUM, symbols=tuple(symbols_of(field.enum_type).values()))
        else:
            found = _PLAIN[field.type]
        return list_of(found) if field.is_repeated else found


def symbols_of(enum: Any) -> dict[int, str]:
    """The symbols of an enum by number, in declared order.

    If several symbols have the same number, the first is used.
    """
    found: dict[int, str] = {}
    for each in enum.values:
        found.setdefault(each.number, each.name)
    return found
