"""One setting for the memory of all processes together, divided among them.

What Spark and Python take before the first byte of a log is fixed: the JVM's heap and what surrounds it,
the driver, and in each worker the interpreter with NumPy and compiled kernels. The rest is shared by the
workers, and every buffer's size follows from a worker's share; nothing follows from the log's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lastwrite.errors import InvalidConfig
from lastwrite.model.work import Limits
from lastwrite.pipeline.jvm import HEAP_BYTES
from lastwrite.pipeline.machine import memory_bytes

MIB = 1 << 20
_JVM_BESIDEHEAP_BYTES = 260 * MIB  # code, metaspace, threads, direct buffers: measured, docs/decisions
_DRIVER = 180 * MIB
_WORKER = 190 * MIB
_SHARE = 4  # of the machine's memory, by default one in so many
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The setting, divided."""

    total_bytes: int
    heap_bytes: int
    worker_bytes: int  # a worker's buffers

    def limits(self) -> Limits:
        """Buffer sizes that keep a worker within its share."""
        share = self.worker_bytes
        return Limits(
            chunk_bytes=MIB,
            plain_bytes=max(8 * MIB, share // 4),
            block_entries=min(1 << 20, max(1 << 14, share // 8 // 32)),  # entries and their sorted copy
            slice_bytes=min(48 * MIB, max(1 * MIB, share // 8)),  # and the election's table
        )


def parse_bytes(text: str | int) -> int:
    """``2g``, ``512MiB``, ``1073741824`` as bytes.

    Raises:
        InvalidConfig: anything else.
    """
    if isinstance(text, int):
        return text
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", text.lower())
    if not found:
        raise InvalidConfig(f"memory {text!r} is not a size", remedy="for example 2g or 1500m")
    return int(float(found[1]) * _UNITS[found[2]])


def plan_memory(setting: str | int | None, workers: int) -> MemoryPlan:
    """Divide ``setting`` (None: a quarter of the machine's memory) among the JVM, the driver and ``workers``.

    Raises:
        InvalidConfig: too little for what is fixed.
    """
    total = parse_bytes(setting) if setting is not None else memory_bytes() // _SHARE
    fixed = HEAP_BYTES + _JVM_BESIDEHEAP_BYTES + _DRIVER + workers * _WORKER
    least = fixed + workers * 32 * MIB
    if total < least:
        if setting is None:
            total = least
        else:
            raise InvalidConfig(
                f"memory of {total // MIB} MiB is too little for Spark and {workers} workers",
                remedy=f"at least {least // MIB} MiB, or fewer workers by --master local[1]",
            )
    return MemoryPlan(total, HEAP_BYTES, (total - fixed) // workers)
