"""How many distinct keys a partition holds: scan and election over all of it, in this process or on
Spark.

Memory is that of the workers, whatever the log's size: entries go to scratch files, buckets are
counted one after the other.
"""

from __future__ import annotations

from lastwrite.engine.context import Context
from lastwrite.engine.partition import ElectedPartition
from lastwrite.engine.record_states import elect_whole
from lastwrite.engine.system import Decision
from lastwrite.model.log import PartitionLog
from lastwrite.model.policy import Policy


def count_keys(context: Context, log: PartitionLog) -> int | None:
    """The distinct keys of ``log``, exactly; None where records cannot be read.

    Records of aborted transactions have none.
    """
    everything = Decision(
        first_dirty=0,
        end=log.end_offset,
        dirty_ratio=1.0,
        reason=None,
        policy=Policy(now_ms=0, tombstone_retention_ms=0),
    )
    found = elect_whole(context, log, everything, log.end_offset)
    return found.winners if isinstance(found, ElectedPartition) else None
