"""Judges offsets that no segment of a log directory contains, between two segments.

    00000000000000000000.log   offsets 0 to 99
    00000000000000000200.log   offsets 200 to 299     100 to 199 are missing

Only a cleaner removes offsets from the middle of a log. It records its position in a checkpoint,
but a follower of a compacted log, or a copy without its root, has no such position.
"""

from __future__ import annotations

from collections.abc import Sequence

from lastwrite.kafka.format.names import KafkaFileKind, segment_file_name
from lastwrite.kafka.format.remedy import RESTORE
from lastwrite.kafka.rules.topic_settings import KafkaTopicSettings
from lastwrite.model.log import PartitionLog, Problem, ProblemKind


def judge_holes(
    log: PartitionLog, holes: Sequence[tuple[int, int]], settings: KafkaTopicSettings | None
) -> tuple[Problem, ...]:
    """Report ``holes`` as problems.

    Each hole is damage if the topic's policy is known not to compact and no cleaner has worked on
    the log. Otherwise one note covers all holes that a cleaner's position does not explain.

    Args:
        holes: first offset and end offset of each hole.
        settings: the topic's settings. None means that they cannot be read.
    """
    cleaned = log.checkpoint
    holes = [hole for hole in holes if hole[1] > (cleaned or 0)]
    if not holes:
        return ()
    if cleaned is None and settings is not None and settings.is_policy_known:
        if not settings.config.compacts:
            return tuple(_damage(log, *hole) for hole in holes)
    first, end = holes[0]
    more = f" (and {len(holes) - 1} more such ranges)" if len(holes) > 1 else ""
    why = "no cleaner has a position for this log"
    if cleaned is not None:
        why = f"the cleaner's position is {cleaned}"
    message = (
        f"offsets {first} to {end - 1} are in no segment{more}, and {why}: unless it was copied from "
        "a compacted log, a segment before this one is missing"
    )
    return (Problem(ProblemKind.GAP, message, log.path_of(end)),)


def _damage(log: PartitionLog, first: int, end: int) -> Problem:
    name = segment_file_name(first, KafkaFileKind.LOG)
    return Problem(
        ProblemKind.DAMAGED,
        f"offsets {first} to {end - 1} are in no segment, and no cleaner has compacted the topic: "
        f"{name}, or a segment after it, is missing",
        log.path_of(end),
        None,
        f"{RESTORE}; if the topic was compacted under an earlier policy, nothing is missing",
    )
