"""Tests of layouts: an inconsistent table fails on import."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
import pytest

from lastwrite.encoding.layout import I8, I16, I32, I64, U16, U32, U64, At, layout


class Mixed(NamedTuple):
    first: Annotated[int, At(0, I8)]
    second: Annotated[int, At(1, U32)]
    third: Annotated[int, At(5, I16)]


class Gap(NamedTuple):
    first: Annotated[int, At(0, I8)]
    second: Annotated[int, At(4, I32)]


class Overlap(NamedTuple):
    first: Annotated[int, At(0, I64)]
    second: Annotated[int, At(4, I32)]


class Unplaced(NamedTuple):
    first: Annotated[int, At(0, I64)]
    second: int


class Little(NamedTuple):
    first: Annotated[int, At(0, U16)]
    second: Annotated[int, At(2, U64)]


def test_layout_packs_without_gaps() -> None:
    table = layout(Mixed, byte_order=">", size=7)
    assert table.pack(-1, 2**32 - 2, -3) == bytes.fromhex("ff fffffffe fffd")
    assert table.unpack_from(b"\0" + table.pack(-1, 2**32 - 2, -3), 1) == (-1, 2**32 - 2, -3)
    assert list(table.iter_unpack(table.pack(1, 2, 3) + table.pack(4, 5, 6))) == [
        (1, 2, 3),
        (4, 5, 6),
    ]
    assert (table.size, table.offset_of("third")) == (7, 5)


def test_numpy_dtype_equals_the_layout() -> None:
    table = layout(Little, byte_order="<", size=10)
    dtype = np.dtype(table.dtype_items())
    assert dtype.itemsize == table.size
    row = np.frombuffer(table.pack(513, 2**64 - 1), dtype)[0]
    assert (int(row["first"]), int(row["second"])) == (513, 2**64 - 1)


@pytest.mark.parametrize(
    ("table", "size"), [(Gap, 8), (Overlap, 12), (Unplaced, 12), (Mixed, 8), (Mixed, 6)]
)
def test_inconsistent_table_is_refused(table: type, size: int) -> None:
    with pytest.raises(TypeError):
        layout(table, byte_order=">", size=size)


def test_byte_order_must_be_explicit() -> None:
    with pytest.raises(TypeError):
        layout(Mixed, byte_order="@", size=7)
