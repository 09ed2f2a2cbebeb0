"""Divide the memory setting among all processes.

A part of the memory is needed before the first byte of a log is read: for the JVM, for the driver,
and in each worker for the interpreter with NumPy and compiled kernels. This part is fixed. The
workers share the remaining memory. The size of every buffer depends on a worker's share, never on
the log. On a cluster the setting is for the Python workers of one executor. The fixed part was
measured and has a margin: docs/decisions/memory.md has the figures, and the parts of a share.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lastwrite.errors import InvalidConfig
from lastwrite.model.work import Limits
from lastwrite.storage.machine import memory_bytes
from lastwrite.storage.objects import address

MIB = 1 << 20
HEAP_BYTES = 480 * MIB  # heap of a JVM that Lastwrite starts; Spark requires at least 450 MiB
LEAST_SHARE_BYTES = 12 * MIB  # minimum memory for a worker's buffers
# A larger share hardly speeds up a worker, so most of the memory beyond it is for scratch files.
_AMPLE_SHARE_BYTES = 512 * MIB
# The memory of processes if Lastwrite starts Spark: the JVM only schedules, and workers are forked
# from a server that has loaded all modules.
_JVM_BYTES = 256 * MIB
# the driver, the fork server, Spark's daemon, and the libraries that all processes share
_DRIVER_BYTES = 200 * MIB
_WORKER_BYTES = 32 * MIB
# The memory of processes if PySpark's launcher is used or the caller passes a session: the JVM has
# other options, and each worker loads all modules.
_SPARKS_JVM_BYTES = HEAP_BYTES + 260 * MIB
_SPARKS_DRIVER_BYTES = 180 * MIB
_SPARKS_WORKER_BYTES = 190 * MIB
# default memory of each Python worker on an executor; Spark reserves at least as much
_EXECUTOR_WORKER_BYTES = 384 * MIB
_SHARE = 4  # by default, 1/4 of the machine's memory is used
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory setting, and the parts of it for each worker's buffers and for scratch files."""

    total_bytes: int
    worker_bytes: int  # bytes for one worker's buffers
    scratch_bytes: int = 0  # bytes for all scratch files in memory

    def limits(self) -> Limits:
        """The buffer sizes with which a worker stays within its share in every stage."""
        share = self.worker_bytes
        return Limits(
            # memory used: the buffer, and twelve times the size of a record that is rebuilt
            chunk_bytes=min(4 * MIB, max(MIB >> 2, share // 24)),
            # memory used: three times these bytes, because records are removed and compressed in
            # copies
            plain_bytes=max(2 * MIB, share // 4),
            # memory used: 32 bytes per entry; 100 if keys repeat
            block_entries=min(1 << 20, max(1 << 14, share // 128)),
            # memory used: the entries, and the pages that the system maps around their ranges
            slice_bytes=min(16 * MIB, max(1 * MIB, share * 3 // 8)),
            piece_bytes=min(32 * MIB, max(4 * MIB, share * 3 // 4)),
            # memory used: a byte per record, more if the number of records was estimated too low
            piece_records=share // 6,
            ahead_bytes=min(8 * MIB, max(MIB >> 2, share // 32)),
            stores=address.used(),
        )


def parse_bytes(text: str | int) -> int:
    """The number of bytes in a text such as ``2g``, ``512MiB`` or ``1073741824``.

    Raises:
        InvalidConfig: the text has another form.
    """
    if isinstance(text, int):
        return text
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", text.lower())
    if not found:
        raise InvalidConfig(
            f"the memory setting {text!r} is not a size",
            remedy="give a size, for example 2g or 1500m",
        )
    return int(float(found[1]) * _UNITS[found[2]])


def fixed_bytes(workers: int, *, lean: bool = True) -> int:
    """The memory of all processes except the buffers of ``workers``.

    ``lean`` means that Lastwrite starts the JVM and the workers.
    """
    if lean:
        return _JVM_BYTES + _DRIVER_BYTES + workers * _WORKER_BYTES
    return _SPARKS_JVM_BYTES + _SPARKS_DRIVER_BYTES + workers * _SPARKS_WORKER_BYTES


def plan_memory(setting: str | int | None, workers: int, *, lean: bool = True) -> MemoryPlan:
    """Divide the memory ``setting`` into the fixed part and equal shares of ``workers``.

    None means a quarter of the machine's memory.

    Raises:
        InvalidConfig: the memory is too small for the fixed part and each worker's least share.
    """
    total = parse_bytes(setting) if setting is not None else memory_bytes() // _SHARE
    fixed = fixed_bytes(workers, lean=lean)
    least = fixed + workers * LEAST_SHARE_BYTES
    if total < least:
        if setting is None:
            total = least
        else:
            raise InvalidConfig(
                f"{total // MIB} MiB of memory are too little for Spark and {workers} workers",
                remedy=f"give at least {least // MIB} MiB with --memory, or use fewer workers: "
                "--master local[1]",
            )
    share = (total - fixed) // workers
    spare = max(0, share - _AMPLE_SHARE_BYTES) * 3 // 4
    return MemoryPlan(total, share - spare, workers * spare)


def plan_executor_memory(
    setting: str | int | None, workers: int, python_memory: str | None = None
) -> MemoryPlan:
    """Divide the memory ``setting`` among the ``workers`` of one executor of a cluster.

    Spark's own settings control the executor's JVM and the driver. None means ``python_memory``,
    the value of ``spark.executor.pyspark.memory`` (MiB if it has no unit), or else 384 MiB per
    worker.

    Raises:
        InvalidConfig: the memory is too small for the fixed part and each worker's least share.
    """
    if setting is None and python_memory is not None:
        setting = python_memory + ("m" if python_memory.isdigit() else "")
    total = parse_bytes(workers * _EXECUTOR_WORKER_BYTES if setting is None else setting)
    fixed = workers * _SPARKS_WORKER_BYTES
    least = fixed + workers * LEAST_SHARE_BYTES
    if total < least:
        raise InvalidConfig(
            f"{total // MIB} MiB of memory are too little for the {workers} workers of an executor",
            remedy=f"give at least {least // MIB} MiB per executor, or lower spark.executor.cores",
        )
    share = (total - fixed) // workers
    # More memory hardly speeds up a worker, and other programs need memory too.
    return MemoryPlan(total, share - max(0, share - _AMPLE_SHARE_BYTES) * 3 // 4)
