"""CRC-32C and CRC-32 for use in kernels, about as fast as memory can be read.

*CRC-32C*: the processor's instruction needs three cycles for 8 bytes, but an instruction can start
in each cycle. Three lanes therefore process neighbouring ranges in parallel. CRC is linear, so
tables that append zero bytes to a checksum combine the three results. *CRC-32*: the processor has
no instruction for it. Carry-less products fold each 64 bytes onto the next 64, until 16 bytes are
left. If the processor lacks these instructions, eight tables process 8 bytes per step. Outside
kernels, use ``google_crc32c`` and ``zlib``. Each kernel is compared with its library once per
process.

Source: Kafka record batches, docs/formats/kafka.md, "Record batch", check value E3069283; CRC-32
(IEEE) for message formats v0 and v1.
"""
# mypy: disable-error-code="untyped-decorator, no-any-return, return-value"

from __future__ import annotations

import zlib
from functools import cache

import google_crc32c
import numpy as np
import numpy.typing as npt

from lastwrite.encoding.intrinsics import (
    address,
    crc32_fold,
    crc32c_step,
    has_crc32_fold,
    has_crc32c_step,
    load8,
    load32,
    load64,
)
from lastwrite.encoding.kernel import njit
from lastwrite.model.columns import ByteArray

_CASTAGNOLI = 0x82F63B78
_IEEE = 0xEDB88320
_LONG = 2048  # bytes per lane
_SHORT = 128

_U32 = npt.NDArray[np.uint32]


def _byte_tables(polynomial: int) -> _U32:
    """Eight tables: table k has the checksum of each byte followed by k zero bytes."""
    tables = np.zeros((8, 256), dtype=np.uint32)
    value = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        value = np.where(value & 1, (value >> 1) ^ np.uint32(polynomial), value >> 1)
    tables[0] = value
    for k in range(1, 8):
        tables[k] = (tables[k - 1] >> 8) ^ tables[0][tables[k - 1] & 255]
    return tables


def _push(tables: _U32, crc: _U32) -> _U32:
    pushed: _U32 = (
        tables[0][crc & 255]
        ^ tables[1][crc >> 8 & 255]
        ^ tables[2][crc >> 16 & 255]
        ^ tables[3][crc >> 24]
    )
    return pushed


def _zero_tables(count: int) -> _U32:
    """Four tables that append ``count`` zero bytes to a checksum. ``count`` is a power of two."""
    byte = np.arange(256, dtype=np.uint32)
    tables = np.stack([byte << np.uint32(8 * k) for k in range(4)])
    tables = (tables >> 8) ^ _TABLES[0][tables & 255]
    for _ in range(count.bit_length() - 1):
        tables = _push(tables, tables)
    return tables


_TABLES = _byte_tables(_CASTAGNOLI)
_IEEE_TABLES = _byte_tables(_IEEE)
_LONG_ZEROS = _zero_tables(_LONG)
_SHORT_ZEROS = _zero_tables(_SHORT)


@njit(cache=True, nogil=True, inline="always")
def _shift(tables, crc):  # type: ignore[no-untyped-def]
    return np.uint64(
        tables[0, crc & np.uint64(255)]
        ^ tables[1, (crc >> np.uint64(8)) & np.uint64(255)]
        ^ tables[2, (crc >> np.uint64(16)) & np.uint64(255)]
        ^ tables[3, (crc >> np.uint64(24)) & np.uint64(255)]
    )


@njit(cache=True, nogil=True, inline="always")
def _step(tables, word, count):  # type: ignore[no-untyped-def]
    """Update a checksum by the ``count`` low bytes of ``word``.

    The caller has combined ``word`` with the previous checksum by xor.
    """
    crc = np.uint64(0)
    for k in range(count):
        crc ^= np.uint64(tables[count - 1 - k, (word >> np.uint64(8 * k)) & np.uint64(255)])
    return crc


@njit(cache=True, nogil=True)
def _by_tables(tables, data, start, end, crc):  # type: ignore[no-untyped-def]
    """Continue the checksum ``crc`` over ``data[start:end]``, eight bytes per step."""
    at = np.int64(start)
    while end - at >= 8:
        crc = _step(tables, load64(data, at) ^ crc, 8)
        at += 8
    if end - at >= 4:
        crc = _step(tables, load32(data, at) ^ crc, 4)
        at += 4
    while at < end:
        crc = np.uint64(tables[0, (crc ^ load8(data, at)) & np.uint64(255)]) ^ (crc >> np.uint64(8))
        at += 1
    return crc ^ np.uint64(0xFFFFFFFF)


@njit(cache=True, nogil=True)
def crc32(data: ByteArray, start: int, end: int) -> int:
    """The CRC-32 of ``data[start:end]``, as in zlib and Ethernet, as a uint64 below 2**32."""
    crc = np.uint64(0xFFFFFFFF)
    if has_crc32_fold() and end - start >= 64:
        whole = start + (end - start & -16)
        first, last = crc32_fold(address(data) + start, address(data) + whole, crc)
        crc = _step(_IEEE_TABLES, last ^ _step(_IEEE_TABLES, first, 8), 8)
        start = whole
    return _by_tables(_IEEE_TABLES, data, start, end, crc)


@njit(cache=True, nogil=True)
def crc32c(data: ByteArray, start: int, end: int) -> int:
    """The CRC-32C of ``data[start:end]``, as a uint64 below 2**32."""
    if not has_crc32c_step():
        return _by_tables(_TABLES, data, start, end, np.uint64(0xFFFFFFFF))
    crc = np.uint64(0xFFFFFFFF)
    at = np.int64(start)
    for lane, tables in ((_LONG, _LONG_ZEROS), (_SHORT, _SHORT_ZEROS)):
        while end - at >= 3 * lane:
            second = np.uint64(0)
            third = np.uint64(0)
            for i in range(at, at + lane, 8):
                crc = crc32c_step(crc, load64(data, i))
                second = crc32c_step(second, load64(data, i + lane))
                third = crc32c_step(third, load64(data, i + 2 * lane))
            crc = _shift(tables, _shift(tables, crc) ^ second) ^ third
            at += 3 * lane
    while end - at >= 8:
        crc = crc32c_step(crc, load64(data, at))
        at += 8
    return _by_tables(_TABLES, data, at, end, crc)


@cache
def check_against_library() -> None:
    """Compare the CRC-32C kernel with ``google_crc32c``, once per process.

    The compared lengths include lengths around each lane size.

    Raises:
        AssertionError: the results differ, because of the processor or the compiler.
    """
    data = np.frombuffer(bytes(i * 37 % 251 for i in range(3 * _LONG * 2 + 777)), dtype=np.uint8)
    for end in (0, 1, 7, 8, 9, 3 * _SHORT - 1, 3 * _SHORT, 3 * _LONG + 5, len(data)):
        if int(crc32c(data, 0, end)) != google_crc32c.value(data[:end].tobytes()):
            raise AssertionError(
                "the CRC-32C kernel and the library compute different checksums on this processor"
            )


@cache
def check_crc32_against_library() -> None:
    """Compare the CRC-32 kernel with ``zlib``, once per process.

    Raises:
        AssertionError: the results differ, because of the processor or the compiler.
    """
    data = np.frombuffer(bytes(i * 37 % 251 for i in range(777)), dtype=np.uint8)
    for end in (0, 1, 7, 8, 9, 63, 64, 80, 143, 144, len(data)):
        if int(crc32(data, 0, end)) != zlib.crc32(data[:end].tobytes()):
            raise AssertionError(
                "the CRC-32 kernel and the library compute different checksums on this processor"
            )
