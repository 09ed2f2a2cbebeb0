"""Where consumer groups are, as a log root has it in ``__consumer_offsets``: a broker's, or the
state of ``lastwrite serve``. It is read anew when anything of it has changed.

A root has the groups whose partition of that topic lies in it, and knows nothing of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias

from lastwrite.errors import CorruptLog
from lastwrite.kafka.cluster.commits import Commit, Place, Positions
from lastwrite.kafka.cluster.internal_topics import GROUPS_TOPIC
from lastwrite.kafka.store import log_dir
from lastwrite.kafka.store.appended import batches_of
from lastwrite.kafka.store.partitions import find_partitions
from lastwrite.model.log import PartitionLog, Segment

Known: TypeAlias = Mapping[Place, Commit]


def positions_in(path: str) -> Known:
    """All positions in the root, or the archive, at ``path``.

    Raises:
        NotALog: it has no ``__consumer_offsets``.
        CorruptLog: that is damaged.
        LogError: it cannot be read.
    """
    found: dict[Place, Commit] = {}
    for folder in find_partitions(path, GROUPS_TOPIC):
        log = log_dir.read_partition(folder)
        _refuse_damaged(log)
        found |= _known(log.segments, log.end_offset)
    return found


def _refuse_damaged(log: PartitionLog) -> None:
    for problem in log.problems:
        if not problem.is_note:
            raise CorruptLog(problem.message, problem.position, problem.path, problem.remedy)


@lru_cache(maxsize=256)
def _known(segments: tuple[Segment, ...], end_offset: int) -> Known:
    found = Positions()
    found.take(batches_of(segments))
    return found.known
