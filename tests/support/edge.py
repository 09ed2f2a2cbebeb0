"""Memory that ends at a page which nobody may read: what goes beyond it ends the process."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import numpy.typing as npt


class Edge:
    """Memory whose last byte is the last that may be read or written; ``size`` is a multiple of a
    page.
    """

    def __init__(self, size: int = 1 << 14) -> None:
        self.size = size
        # Private: a forked child must not write into its sibling's input.
        self._pages = mmap.mmap(
            -1, size + mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
        self._place = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        library = ctypes.CDLL(None, use_errno=True)
        if library.mprotect(ctypes.c_void_p(self._place + size), ctypes.c_size_t(mmap.PAGESIZE), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
        kind = ctypes.c_uint8 * size
        self._whole = np.frombuffer(kind.from_address(self._place), np.uint8)

    def put(self, data: bytes) -> npt.NDArray[np.uint8]:
        """The bytes, at the very end; valid until the next call. More than ``size`` get memory of
        their own.
        """
        if len(data) > self.size:
            return np.frombuffer(bytearray(data), np.uint8)
        at = self.size - len(data)
        self._pages[at : self.size] = data
        return self._whole[at:]

    def room(self, size: int) -> npt.NDArray[np.uint8]:
        """So many bytes of zeros, at the very end; as ``put``."""
        return self.put(bytes(size))
