"""One setting for the memory of all processes together, divided among them.

What Spark and Python take before the first byte of a log is fixed: the JVM, the driver, and in each
worker the interpreter with NumPy and compiled kernels. The rest is shared by the workers, and every
buffer's size follows from a worker's share; nothing follows from the log's. On a cluster the
setting is that of one executor's Python, whose workers share it. What is fixed is
measured, with a margin: docs/decisions/memory.md has the figures, and what each buffer takes of a
share.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lastwrite.errors import InvalidConfig
from lastwrite.model.work import Limits
from lastwrite.storage.machine import memory_bytes
from lastwrite.storage.objects import address

MIB = 1 << 20
HEAP_BYTES = 480 * MIB  # of a JVM that is ours; Spark asks for 450 MiB at least
LEAST_SHARE_BYTES = 12 * MIB  # a worker's buffers
# more hardly makes a worker faster: what is above is mostly for scratch files
_AMPLE_SHARE_BYTES = 512 * MIB
# Started our way: a JVM that only schedules, workers forked from a fork server that has loaded
# everything.
_JVM_BYTES = 256 * MIB
# with the fork server, Spark's daemon and all libraries, which every process shares
_DRIVER_BYTES = 200 * MIB
_WORKER_BYTES = 32 * MIB
# Started by Spark, or by whoever passed us a session: a JVM of its own manner, workers that load
# for themselves.
_SPARKS_JVM_BYTES = HEAP_BYTES + 260 * MIB
_SPARKS_DRIVER_BYTES = 180 * MIB
_SPARKS_WORKER_BYTES = 190 * MIB
# of an executor's Python, a worker, where nobody says more: Spark gives it as much at least
_EXECUTOR_WORKER_BYTES = 384 * MIB
_SHARE = 4  # of the machine's memory, by default one in so many
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The setting, divided."""

    total_bytes: int
    worker_bytes: int  # a worker's buffers
    scratch_bytes: int = 0  # of scratch files that are memory

    def limits(self) -> Limits:
        """Buffer sizes that keep a worker within its share, whatever stage it is in."""
        share = self.worker_bytes
        return Limits(
            # and twelve for a record, once rebuilt
            chunk_bytes=min(4 * MIB, max(MIB >> 2, share // 24)),
            plain_bytes=max(2 * MIB, share // 4),  # and as much again thinned, and packed
            # 32 bytes each; where a key repeats, 100
            block_entries=min(1 << 20, max(1 << 14, share // 128)),
            # and what the system maps around them
            slice_bytes=min(16 * MIB, max(1 * MIB, share * 3 // 8)),
            piece_bytes=min(32 * MIB, max(4 * MIB, share * 3 // 4)),
            # a byte each, and more where they turn out to be more than estimated
            piece_records=share // 6,
            ahead_bytes=min(8 * MIB, max(MIB >> 2, share // 32)),
            stores=address.used(),
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


def fixed_bytes(workers: int, *, lean: bool = True) -> int:
    """What all processes take beside the buffers of ``workers``. ``lean``: JVM and workers are of
    our making.
    """
    if lean:
        return _JVM_BYTES + _DRIVER_BYTES + workers * _WORKER_BYTES
    return _SPARKS_JVM_BYTES + _SPARKS_DRIVER_BYTES + workers * _SPARKS_WORKER_BYTES


def plan_memory(setting: str | int | None, workers: int, *, lean: bool = True) -> MemoryPlan:
    """Divide ``setting`` (None: a quarter of the machine's memory) among what is fixed and
    ``workers``.

    Raises:
        InvalidConfig: too little for what is fixed and the least share of each worker.
    """
    total = parse_bytes(setting) if setting is not None else memory_bytes() // _SHARE
    fixed = fixed_bytes(workers, lean=lean)
    least = fixed + workers * LEAST_SHARE_BYTES
    if total < least:
        if setting is None:
            total = least
        else:
            raise InvalidConfig(
                f"memory of {total // MIB} MiB is too little for Spark and {workers} workers",
                remedy=f"at least {least // MIB} MiB, or fewer workers by --master local[1]",
            )
    share = (total - fixed) // workers
    spare = max(0, share - _AMPLE_SHARE_BYTES) * 3 // 4
    return MemoryPlan(total, share - spare, workers * spare)


def plan_executor_memory(
    setting: str | int | None, workers: int, python_memory: str | None = None
) -> MemoryPlan:
    """Divide ``setting`` among the ``workers`` of one executor of a cluster, whose JVM and driver
    have settings of Spark's own. None: ``python_memory``, as ``spark.executor.pyspark.memory`` says
    it (MiB without a unit); without that 384 MiB a worker.

    Raises:
        InvalidConfig: too little for what is fixed and the least share of each worker.
    """
    if setting is None and python_memory is not None:
        setting = python_memory + ("m" if python_memory.isdigit() else "")
    total = parse_bytes(workers * _EXECUTOR_WORKER_BYTES if setting is None else setting)
    fixed = workers * _SPARKS_WORKER_BYTES
    least = fixed + workers * LEAST_SHARE_BYTES
    if total < least:
        raise InvalidConfig(
            f"memory of {total // MIB} MiB is too little for the {workers} workers of an executor",
            remedy=f"at least {least // MIB} MiB an executor, or fewer spark.executor.cores",
        )
    share = (total - fixed) // workers
    # What is above hardly makes a worker faster, and other programs are on that machine.
    return MemoryPlan(total, share - max(0, share - _AMPLE_SHARE_BYTES) * 3 // 4)
