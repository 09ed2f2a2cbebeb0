"""What a Python worker of a session that is not ours does once.

After each task Spark's daemon has the worker collect garbage (PySpark 4.x, ``daemon.manager``):
a walk over all that Numba and Arrow have loaded, 0.08 s a task here, more than many tasks take.
"""

from __future__ import annotations

import gc

_is_settled = False


def settle() -> None:
    """Spare what this process has loaded from being walked over again. To be called at the end of a
    task's work, when all that it needs is loaded; only the first call does something, so that
    garbage of later tasks goes.
    """
    global _is_settled
    if not _is_settled:
        _is_settled = True
        gc.collect()
        gc.freeze()
