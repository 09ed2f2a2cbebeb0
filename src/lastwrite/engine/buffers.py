"""Arrays that a worker reuses for all units of a task.

The first use of memory causes a page fault per 4 KB. For a partition of 1 MB, these faults take
longer than processing its records.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from lastwrite.engine.system import Format, system_named


class Buffers:
    """Arrays and formats, by name, that the units of one task reuse."""

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray[Any, Any]] = {}
        self._formats: dict[tuple[str, int, int], Format] = {}

    def rows(
        self, name: str, rows: int, dtype: DTypeLike, columns: int | None = None
    ) -> np.ndarray[Any, Any]:
        """The first ``rows`` rows of the array ``name``, uninitialized. Enlarges the array if
        needed.
        """
        shape = (rows,) if columns is None else (rows, columns)
        held = self._arrays.get(name)
        if held is None or len(held) < rows or held.shape[1:] != shape[1:] or held.dtype != dtype:
            held = self._arrays[name] = np.empty(shape, dtype=dtype)
        return held[:rows]

    def format(self, system: str, plain_bytes: int, reading: int = 0) -> Format:
        """The format object of ``system``, shared by all units.

        ``plain_bytes`` limits the bytes that it decompresses at once. ``reading`` encodes the
        system's settings for reading records (``Policy.reading``).
        """
        wanted = (system, plain_bytes, reading)
        if wanted not in self._formats:
            self._formats[wanted] = system_named(system).new_format(plain_bytes, reading)
        return self._formats[wanted]
