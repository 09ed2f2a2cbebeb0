"""The functions of the codecs' C libraries, for calls from kernels.

A call through Python costs 5 to 15 µs, beside the 10 to 50 µs that a library takes for a small
batch. The Python packages that contain these libraries export their functions: ``lz4`` in its own
module, ``zstandard`` in its cffi module. If a package does not, its words are 0 and the kernels
refuse its data; ``compression`` then processes it batch by batch.

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

# The words of ``Contexts``: the addresses of functions, of their contexts, and of settings.
ZSTD_OPEN = 0  # ZSTD_decompressDCtx
ZSTD_BEGIN = 1  # ZSTD_compressBegin
ZSTD_PACK = 2  # ZSTD_compressContinue
ZSTD_END = 3  # ZSTD_compressEnd
ZSTD_OPENER = 4
ZSTD_PACKER = 5
LZ4_PACK = 6  # LZ4F_compressFrame
LZ4_SETTINGS = 7
_WORDS = 8

# RTLD_DEEPBIND: a library's own functions take precedence over another version's in the process.
_DEEPBIND = 8 if sys.platform == "linux" else 0

_ZSTD = "ZSTD_decompressDCtx", "ZSTD_compressBegin", "ZSTD_compressContinue", "ZSTD_compressEnd"
_ZSTD_MAKE = "ZSTD_createDCtx", "ZSTD_createCCtx"
_ZSTD_FREE = "ZSTD_freeDCtx", "ZSTD_freeCCtx"
_LZ4_PACK = ("LZ4F_compressFrame",)
# LZ4F_preferences_t, 56 bytes: u32 block size (4: 64 KiB), u32 whether blocks are independent. The
# rest is 0: no checksums, no content size, the default level.
_LZ4_SETTINGS = np.array([4 | 1 << 32, *[0] * 6], dtype=np.int64)


class Contexts:
    """A worker's contexts of the libraries; not thread-safe.

    ``words`` is passed to kernels, and valid as long as this object exists.
    """

    def __init__(self) -> None:
        self.words: Int64Array = np.zeros(_WORDS, dtype=np.int64)
        zstd = _library("zstandard._cffi", (*_ZSTD, *_ZSTD_MAKE, *_ZSTD_FREE))
        if zstd is not None:
            contexts = [getattr(zstd, make)() for make in _ZSTD_MAKE]
            for free, context in zip(_ZSTD_FREE, contexts, strict=True):
                finalize(self, getattr(zstd, free), ctypes.c_void_p(context)).atexit = False
            if all(contexts):  # otherwise there was not enough memory
                self.words[: ZSTD_PACKER + 1] = [*_addresses(zstd, _ZSTD), *contexts]
        lz4 = _library("lz4.frame._frame", _LZ4_PACK)
        if lz4 is not None:
            self.words[LZ4_PACK:] = *_addresses(lz4, _LZ4_PACK), _LZ4_SETTINGS.ctypes.data


@cache
def _library(module: str, names: tuple[str, ...]) -> ctypes.CDLL | None:
    """A package's module as a library. None if it is missing or does not export all these
    functions.
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
