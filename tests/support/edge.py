"""A buffer in front of an unreadable page: an access beyond its end kills the process."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import numpy.typing as npt


class Edge:
    """A buffer that ends at a page without access rights.

    ``size`` is a multiple of the page size.
    """

    def __init__(self, size: int = 1 << 14) -> None:
        self.size = size
        # Private, so that a forked child does not write into another child's input.
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
        """Copy the bytes to the very end of the buffer.

        The array is valid until the next call. More than ``size`` bytes get a buffer of their own,
        without the unreadable page.
        """
        if len(data) > self.size:
            return np.frombuffer(bytearray(data), np.uint8)
        at = self.size - len(data)
        self._pages[at : self.size] = data
        return self._whole[at:]

    def room(self, size: int) -> npt.NDArray[np.uint8]:
        """``size`` zero bytes at the very end of the buffer. See ``put``."""
        return self.put(bytes(size))
