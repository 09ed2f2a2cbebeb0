"""Declare binary layouts as tables that decode and encode.

A class lists its fields with their position and type::

    class Entry(NamedTuple):
        relative_offset: Annotated[int, At(0, I32)]
        position:        Annotated[int, At(4, I32)]

    ENTRY = layout(Entry, byte_order=">", size=8)

On import, ``layout`` checks that the fields have no gaps and that the last field ends at ``size``.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

Buffer = bytes | bytearray | memoryview | npt.NDArray[np.uint8]  # contiguous bytes


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer type on disk. ``code`` is the letter for it in ``struct``."""

    code: str
    size: int
    numpy_kind: str


I8 = Integer("b", 1, "i1")
I16 = Integer("h", 2, "i2")
I32 = Integer("i", 4, "i4")
I64 = Integer("q", 8, "i8")
U8 = Integer("B", 1, "u1")
U16 = Integer("H", 2, "u2")
U32 = Integer("I", 4, "u4")
U64 = Integer("Q", 8, "u8")


@dataclass(frozen=True, slots=True)
class At:
    """Annotation of a field: its first byte in the structure, and its type."""

    offset: int
    type: Integer


class Field(NamedTuple):
    """One field of a binary layout: its name, position and type."""

    name: str
    offset: int
    type: Integer


class Layout:
    """The layout of a structure of fixed size, created by ``layout``."""

    __slots__ = ("_struct", "byte_order", "fields", "size")

    def __init__(self, fields: tuple[Field, ...], byte_order: str, size: int) -> None:
        self.fields = fields
        self.byte_order = byte_order
        self.size = size
        self._struct = struct.Struct(byte_order + "".join(field.type.code for field in fields))

    def unpack_from(self, buffer: Buffer, at: int = 0) -> tuple[int, ...]:
        """Decode the values of the fields at byte ``at``. The caller has checked that ``size``
        bytes follow.
        """
        return self._struct.unpack_from(buffer, at)

    def iter_unpack(self, buffer: Buffer) -> Iterator[tuple[int, ...]]:
        """Decode consecutive structures. The buffer's length must be a multiple of ``size``."""
        return self._struct.iter_unpack(buffer)

    def pack(self, *values: int) -> bytes:
        """Encode the values of all fields, in their order."""
        return self._struct.pack(*values)

    def offset_of(self, name: str) -> int:
        """The position of the first byte of field ``name`` in the structure."""
        return next(field.offset for field in self.fields if field.name == name)

    def dtype_items(self) -> list[tuple[str, str]]:
        """The fields as input for ``numpy.dtype``: unaligned, in the same byte order."""
        return [(field.name, self.byte_order + field.type.numpy_kind) for field in self.fields]


def layout(table: type[Any], *, byte_order: str, size: int) -> Layout:
    """Convert the annotations of ``table`` to a ``Layout``; ``byte_order`` is ">" or "<".

    Raises:
        TypeError: the positions, types and size contradict each other, which is a bug in the source
            code.
    """
    if byte_order not in (">", "<"):
        raise TypeError(f"{table.__name__}: byte order {byte_order!r}")
    hints = get_type_hints(table, vars(sys.modules[table.__module__]), include_extras=True)
    fields: list[Field] = []
    end = 0
    for name, hint in hints.items():
        places = (
            [a for a in get_args(hint)[1:] if isinstance(a, At)]
            if get_origin(hint) is Annotated
            else []
        )
        if len(places) != 1:
            raise TypeError(f"{table.__name__}.{name} has no single At annotation")
        place = places[0]
        if place.offset != end:
            raise TypeError(
                f"{table.__name__}.{name} is at {place.offset}, but the field before it ends at "
                f"{end}"
            )
        fields.append(Field(name, place.offset, place.type))
        end += place.type.size
    if end != size:
        raise TypeError(f"{table.__name__} has {end} bytes, not {size}")
    return Layout(tuple(fields), byte_order, size)
