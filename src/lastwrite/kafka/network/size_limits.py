"""Check a message's sizes and drop its unknown tagged fields before kio decodes it.

kio's reader allocates as many elements as a count requires, so a damaged count could exhaust the
memory. kio also rejects unknown tagged fields, which a receiver must ignore. So this module walks
every message once, guided by the types of kio's classes. Each length and count must fit in the
remaining bytes of the message, and the sum of all counts must not exceed a limit.

=============  ================================  =============================
kind           fixed                             flexible
=============  ================================  =============================
string         i16 length                        unsigned varint, length + 1
bytes          i32 length                        unsigned varint, length + 1
list           i32 count                         unsigned varint, count + 1
structure      its fields                        fields, then tagged fields
=============  ================================  =============================

Null is the length -1, or the varint 0. A nullable structure is preceded by an i8, which is negative
for null.

Source: KIP-482; Kafka 4.4 ``MessageDataGenerator``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import groupby
from types import NoneType
from typing import Any, NamedTuple, get_args, get_origin

from lastwrite.encoding.layout import I8, I16, I32, Buffer
from lastwrite.encoding.varint import encode_unsigned
from lastwrite.errors import CorruptLog
from lastwrite.kafka.cluster.message import MessageReader

MOST_ELEMENTS = 2_000_000  # largest number of elements in all lists of a message
_FIXED = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}


class _Kind(NamedTuple):
    """The type of a field: a number of a fixed size, a string or bytes, or a structure.

    ``size`` is the fixed size in bytes.
    """

    size: int = 0
    lengths: str = ""  # "string" or "bytes" if the field has a length prefix
    struct: Any = None
    is_list: bool = False
    may_miss: bool = False


class _Struct(NamedTuple):
    kinds: tuple[_Kind, ...]
    tagged: Mapping[int, _Kind]
    is_flexible: bool
    steps: tuple[_Kind, ...]  # ``kinds``, with adjacent fields of fixed size merged


def checked(kind: type, data: Buffer, at: int, most: int = MOST_ELEMENTS) -> Buffer:
    """Check a message of kio's class ``kind``, and return its bytes without unknown tagged fields.

    The message begins at byte ``at``. ``most`` limits the number of elements in all lists together.
    Copies nothing if there are no unknown fields.

    Raises:
        CorruptLog: the message ends early, or a length or count is too large.
    """
    walk = _SizeWalk(data, at, most)
    walk.struct(_struct_of(kind))
    return walk.without_unknown_tags(at)


class _SizeWalk:
    def __init__(self, data: Buffer, at: int, most: int) -> None:
        self._most = most
        self._data = memoryview(data)
        self._reader = MessageReader(data, at)
        self._end = len(self._data)
        self._elements = 0
        # byte ranges to replace: (begin, end, replacement), ascending
        self._edits: list[tuple[int, int, bytes]] = []

    def without_unknown_tags(self, at: int) -> Buffer:
        return self._edited(at, self._end, self._edits) if self._edits else self._data[at:]

    def _edited(self, begin: int, end: int, edits: list[tuple[int, int, bytes]]) -> bytes:
        parts: list[Buffer] = []
        for start, stop, replacement in edits:
            parts += [self._data[begin:start], replacement]
            begin = stop
        return b"".join([*parts, self._data[begin:end]])

    def struct(self, struct: _Struct) -> None:
        for kind in struct.steps:
            self._value(kind, struct.is_flexible)
        if struct.is_flexible:
            self._tags(struct.tagged)

    def _value(self, kind: _Kind, flexible: bool) -> None:
        if not kind.is_list:
            self._one(kind, flexible)
            return
        count = self._length(flexible, I32)
        if count < 0 and not kind.may_miss:
            raise CorruptLog("a list is null, which is not allowed", self._reader.position)
        self._elements += max(count, 0)
        if count > self._end - self._reader.position or self._elements > self._most:
            raise CorruptLog(
                f"a list has {count} elements, more than the response can contain",
                self._reader.position,
            )
        if kind.size:
            self._reader.take(kind.size * max(count, 0))
            return
        for _ in range(count):
            self._one(kind, flexible)

    def _one(self, kind: _Kind, flexible: bool) -> None:
        may_miss = kind.may_miss and not kind.is_list
        if kind.struct is not None:
            if not may_miss or self._reader.integer(I8) >= 0:
                self.struct(kind.struct)
        elif kind.lengths:
            length = self._length(flexible, I16 if kind.lengths == "string" else I32)
            if length < 0 and not may_miss:
                raise CorruptLog(
                    f"a value is null, but the type {kind.lengths} does not allow null",
                    self._reader.position,
                )
            self._reader.take(max(length, 0))
        else:
            self._reader.take(kind.size)

    def _length(self, flexible: bool, fixed: Any) -> int:
        return self._reader.unsigned() - 1 if flexible else self._reader.integer(fixed)

    def _tags(self, tagged: Mapping[int, _Kind]) -> None:
        start, outer = self._reader.position, len(self._edits)
        known: list[bytes] = []
        count = self._reader.unsigned()
        for _ in range(count):
            tag, size = self._reader.unsigned(), self._reader.unsigned()
            begin = self._reader.position
            if tag not in tagged:
                self._reader.take(size)
                continue
            inner = len(self._edits)
            self._value(tagged[tag], True)
            if self._reader.position - begin != size:
                raise CorruptLog(
                    f"a tagged field has size {size}, but its content has another size", begin
                )
            content = self._edited(begin, begin + size, self._edits[inner:])
            known.append(encode_unsigned(tag) + encode_unsigned(len(content)) + content)
        if len(known) < count or len(self._edits) > outer:
            section = encode_unsigned(len(known)) + b"".join(known)
            self._edits[outer:] = [(start, self._reader.position, section)]


@cache
def _struct_of(kind: Any) -> _Struct:
    kinds, tagged = [], {}
    for field in fields(kind):
        found = _kind_of(field.type, field.metadata)
        if "tag" in field.metadata:
            tagged[int(field.metadata["tag"])] = found
        else:
            kinds.append(found)
    return _Struct(tuple(kinds), tagged, bool(kind.__flexible__), tuple(_joined(kinds)))


def _joined(kinds: Iterable[_Kind]) -> Iterator[_Kind]:
    for is_fixed, run in groupby(kinds, lambda kind: kind.size > 0 and not kind.is_list):
        if is_fixed:
            yield _Kind(size=sum(kind.size for kind in run))
        else:
            yield from run


def _kind_of(type_: Any, metadata: Mapping[str, Any]) -> _Kind:
    may_miss = False
    if NoneType in get_args(type_) and get_origin(type_) is not tuple:
        (type_,) = [each for each in get_args(type_) if each is not NoneType]
        may_miss = True
    is_list = get_origin(type_) is tuple
    if is_list:
        type_ = next(
            each for each in get_args(type_) if each is not Ellipsis and each is not NoneType
        )
    if is_dataclass(type_):
        nested: Any = type_
        return _Kind(struct=_struct_of(nested), is_list=is_list, may_miss=may_miss)
    name = metadata["kafka_type"]
    if name in _FIXED:
        return _Kind(size=_FIXED[name], is_list=is_list, may_miss=may_miss)
    lengths = "string" if name == "string" else "bytes"
    return _Kind(lengths=lengths, is_list=is_list, may_miss=may_miss)
