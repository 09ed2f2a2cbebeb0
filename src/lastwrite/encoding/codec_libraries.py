"""Functions of the codecs' C libraries that kernels can call.

A call through Python costs 5 to 15 µs, in addition to the 10 to 50 µs that a library needs for a
small batch. The extension modules of the packages ``lz4`` and ``zstandard`` export the functions of
these libraries. If a package does not export the functions of its codec, their addresses in
``Contexts.words`` are 0, and the codec's kernels return REFUSED for all data. ``compression`` then
processes each batch separately.

Source: zstd 1.5 ``zstd.h``; lz4 1.9 ``lz4frame.h``.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from weakref import finalize

import numpy as np

from lastwrite.model.columns import Int64Array

# Indexes into ``Contexts.words``, which has addresses of functions, contexts and settings.
ZSTD_OPEN = 0  # ZSTD_decompressDCtx
ZSTD_BEGIN = 1  # ZSTD_compressBegin
ZSTD_PACK = 2  # ZSTD_compressContinue
ZSTD_END = 3  # ZSTD_compressEnd
ZSTD_OPENER = 4
ZSTD_PACKER = 5
LZ4_PACK = 6  # LZ4F_compressFrame
LZ4_SETTINGS = 7
_WORDS = 8

# RTLD_DEEPBIND: a library uses its own functions, even if the process has loaded another version.
_DEEPBIND = 8 if sys.platform == "linux" else 0

_ZSTD = "ZSTD_decompressDCtx", "ZSTD_compressBegin", "ZSTD_compressContinue", "ZSTD_compressEnd"
_ZSTD_MAKE = "ZSTD_createDCtx", "ZSTD_createCCtx"
_ZSTD_FREE = "ZSTD_freeDCtx", "ZSTD_freeCCtx"
_LZ4_PACK = ("LZ4F_compressFrame",)
# LZ4F_preferences_t, 56 bytes: u32 block size (4: 64 KiB), u32 block mode (1: independent). The
# other fields are 0: no checksums, no content size, the default level.
_LZ4_SETTINGS = np.array([4 | 1 << 32, *[0] * 6], dtype=np.int64)


class Contexts:
    """The library contexts of one worker. Not thread-safe.

    Kernels get ``words``, which is valid as long as this object exists.
    """

    def __init__(self) -> None:
        self.words: Int64Array = np.zeros(_WORDS, dtype=np.int64)
        zstd = _library("zstandard._cffi", (*_ZSTD, *_ZSTD_MAKE, *_ZSTD_FREE))
        if zstd is not None:
            contexts = [getattr(zstd, make)() for make in _ZSTD_MAKE]
            for free, context in zip(_ZSTD_FREE, contexts, strict=True):
                finalize(self, getattr(zstd, free), ctypes.c_void_p(context)).atexit = False
            if all(contexts):  # a null context means that memory is short
                self.words[: ZSTD_PACKER + 1] = [*_addresses(zstd, _ZSTD), *contexts]
        lz4 = _library("lz4.frame._frame", _LZ4_PACK)
        if lz4 is not None:
            self.words[LZ4_PACK:] = *_addresses(lz4, _LZ4_PACK), _LZ4_SETTINGS.ctypes.data


@cache
def _library(module: str, names: tuple[str, ...]) -> ctypes.CDLL | None:
    """The extension ``module`` as a C library. None if it is missing or does not export all
    ``names``.
    """
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return None
    try:
        library = ctypes.CDLL(spec.origin, mode=_DEEPBIND)
        for name in names:
            getattr(library, name).restype = ctypes.c_void_p
    except (OSError, AttributeError):
        return None
    return library


def _addresses(library: ctypes.CDLL, names: Sequence[str]) -> list[int]:
    return [ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in names]
