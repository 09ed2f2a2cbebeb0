"""Arrays that a worker uses again, unit after unit.

Fresh memory costs a page fault for every four kilobytes: for a partition of a megabyte more than
its records do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from lastwrite.engine.system import Format, system_named


class Buffers:
    """What the units of one task share, one after the other: named arrays, and a format with its
    own.
    """

    def __init__(self) -> None:
        self._held: dict[str, np.ndarray[Any, Any]] = {}
        self._formats: dict[tuple[str, int, int], Format] = {}

    def room(
        self, name: str, rows: int, dtype: DTypeLike, columns: int | None = None
    ) -> np.ndarray[Any, Any]:
        """``rows`` rows of the array ``name``; what stands in them is of no meaning."""
        shape = (rows,) if columns is None else (rows, columns)
        held = self._held.get(name)
        if held is None or len(held) < rows or held.shape[1:] != shape[1:] or held.dtype != dtype:
            held = self._held[name] = np.empty(shape, dtype=dtype)
        return held[:rows]

    def format(self, system: str, plain_bytes: int, reading: int = 0) -> Format:
        """The system's format; ``reading`` as ``Policy.reading``."""
        wanted = (system, plain_bytes, reading)
        if wanted not in self._formats:
            self._formats[wanted] = system_named(system).new_format(plain_bytes, reading)
        return self._formats[wanted]
