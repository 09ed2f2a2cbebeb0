"""Where consumer groups are, as a log root has it in ``__consumer_offsets``: a broker's, or the
state of ``lastwrite serve``. It is read anew when anything of it has changed.

A root has the groups whose partition of that topic lies in it, and knows nothing of others. What is
not replicated yet does not count: another leader may never have had it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple, TypeAlias

from lastwrite.errors import CorruptLog, NotALog
from lastwrite.kafka.cluster.commits import Commit, Place, Positions
from lastwrite.kafka.cluster.internal_topics import GROUPS_TOPIC
from lastwrite.kafka.store import log_dir
from lastwrite.kafka.store.appended import batches_of
from lastwrite.kafka.store.partitions import find_partitions
from lastwrite.model.log import PartitionLog, Segment, TopicPartition
from lastwrite.storage.objects.address import is_address

# As an archive has them, by partition and group: position, leader epoch before it or -1, the
# group's own word; None: gone.
Brought: TypeAlias = Mapping[TopicPartition, Mapping[str, tuple[int, int, str] | None]]


class Told(NamedTuple):
    """As ``Positions``."""

    known: Mapping[Place, Commit]
    gone: Set[Place]


def positions_in(path: str) -> Told:
    """All positions in the root, or the archive, at ``path``.

    Raises:
        NotALog: it has no ``__consumer_offsets``.
        CorruptLog: that is damaged.
        LogError: it cannot be read.
    """
    known: dict[Place, Commit] = {}
    gone: set[Place] = set()
    for folder in find_partitions(path, GROUPS_TOPIC):  # a group is in one of them
        log = log_dir.read_partition(folder)
        _refuse_damaged(log)
        told = _told(log.segments, log.high_watermark)
        known |= told.known
        gone |= told.gone
    return Told(known, gone)


def _refuse_damaged(log: PartitionLog) -> None:
    for problem in log.problems:
        if not problem.is_note:
            raise CorruptLog(problem.message, problem.position, problem.path, problem.remedy)


@lru_cache(maxsize=256)
def _told(segments: tuple[Segment, ...], end: int) -> Told:
    found = Positions()
    found.take(takewhile(lambda batch: batch.header.base_offset < end, batches_of(segments)))
    return Told(found.known, found.gone)


def positions_of(roots: Sequence[str]) -> Brought:
    """The positions that log roots know of; of groups that other brokers coordinate, none.

    Raises:
        LogError: some of them cannot be read.
    """
    found: dict[TopicPartition, dict[str, tuple[int, int, str] | None]] = {}
    for root in roots:
        if is_address(root) or not os.path.isdir(root):
            continue
        with suppress(NotALog):
            told = positions_in(root)
            gone = dict.fromkeys(told.gone)
            at = {place: commit[:3] for place, commit in told.known.items()}
            for place, position in {**gone, **at}.items():
                found.setdefault(place.name, {})[place.group] = position
    return found
