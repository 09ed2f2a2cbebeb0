"""The smallest job that uses all parts of a compaction: a session, a Python worker, a kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing

from lastwrite.errors import EnvironmentUnfit
from lastwrite.spark.memory import plan_memory
from lastwrite.spark.session import OwnSpark, local_workers

_CHECK_VALUE = 0xE3069283  # CRC-32C of the ASCII digits 1 to 9


def run_trial(master: str, memory: str | int | None) -> str:
    """Start Spark on ``master``, compute a checksum in each worker, and return Spark's version.

    Raises:
        EnvironmentUnfit: something is missing, or a checksum is wrong.
        InvalidConfig: ``master`` or ``memory`` is invalid.
    """
    workers = local_workers(master)
    plan_memory(memory, workers or 1)
    with closing(OwnSpark(master, {})) as spark:
        context = spark.context
        try:
            tasks = workers or context.defaultParallelism
            answers = context.parallelize(range(tasks), tasks).mapPartitions(_check).collect()
        except Exception as error:
            first = str(error).strip().splitlines() or [type(error).__name__]
            raise EnvironmentUnfit(
                f"the trial job failed: {first[0]}",
                remedy="run the command again with LASTWRITE_DEBUG=1 in the environment",
            ) from error
        version = str(context.version)
    if set(answers) != {_CHECK_VALUE}:
        raise EnvironmentUnfit(
            "a kernel on a worker computes wrong checksums",
            remedy="delete the contents of Numba's cache folder, which NUMBA_CACHE_DIR sets",
        )
    return version


def _check(tasks: Iterable[int]) -> Iterator[int]:
    import numpy as np

    from lastwrite.encoding.checksum import crc32c

    digits = np.frombuffer(b"123456789", dtype=np.uint8)
    for _ in tasks:
        yield int(crc32c(digits, 0, len(digits)))
