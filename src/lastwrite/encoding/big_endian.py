"""Kernels that read big-endian integers.

``data`` is an address (``encoding.intrinsics``). The caller has checked the bounds.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import numpy as np

from lastwrite.encoding.intrinsics import load8, load16, load32, load64, swap16, swap32, swap64
from lastwrite.encoding.kernel import njit


@njit(cache=True, nogil=True, inline="always")
def i64(data, at):
    return np.int64(swap64(load64(data, at)))


@njit(cache=True, nogil=True, inline="always")
def i32(data, at):
    return np.int64(np.int32(swap32(load32(data, at))))


@njit(cache=True, nogil=True, inline="always")
def u32(data, at):
    return np.int64(swap32(load32(data, at)))


@njit(cache=True, nogil=True, inline="always")
def i16(data, at):
    return np.int64(np.int16(swap16(load16(data, at))))


@njit(cache=True, nogil=True, inline="always")
def u16(data, at):
    return (np.int64(load8(data, at)) << 8) | np.int64(load8(data, at + 1))
