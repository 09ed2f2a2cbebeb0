"""Set up a Python worker in a session that Lastwrite did not start.

After each task, a worker collects garbage (PySpark 4.x, ``daemon.manager``). The collection visits
all objects that Numba and Arrow have loaded. This takes 0.08 s per task, longer than many tasks.
"""

from __future__ import annotations

import gc

_is_settled = False


def settle() -> None:
    """Exclude all objects that exist now from later garbage collections.

    Call it at the end of a task, when all modules are loaded. Only the first call has an effect, so
    that garbage of later tasks is still collected.
    """
    global _is_settled
    if not _is_settled:
        _is_settled = True
        gc.collect()
        gc.freeze()
