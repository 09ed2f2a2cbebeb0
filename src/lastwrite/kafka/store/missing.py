"""Judges offsets that no segment of a log directory contains, between two segments.

    00000000000000000000.log   offsets 0 to 99
    00000000000000000200.log   offsets 200 to 299     100 to 199 are missing

Only a cleaner removes offsets from the middle of a log. The cleaner records its position in a
checkpoint, but a follower of a compacted log, or a copy without its root, has no such position. If
the topic's present policy lacks ``compact``, only the user can confirm earlier compaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lastwrite.kafka.format.names import KafkaFileKind, segment_file_name
from lastwrite.kafka.format.remedy import RESTORE
from lastwrite.kafka.rules.settings import KafkaTopicConfig
from lastwrite.kafka.rules.topic_settings import POLICY, KafkaTopicSettings, SettingOrigin
from lastwrite.model.log import PartitionLog, Problem, ProblemKind

_POLICY_NAME = "cleanup.policy"


def judge_holes(
    log: PartitionLog,
    holes: Sequence[tuple[int, int]],
    settings: KafkaTopicSettings | None,
    config: Mapping[str, object],
) -> tuple[Problem, ...]:
    """The problems for ``holes``, ranges of offsets that no segment contains.

    Each hole is damage if the topic's policy is known not to compact and no cleaner has worked on
    the log. Otherwise one note covers all holes that a cleaner's position does not explain.

    Args:
        holes: first offset and end offset of each hole.
        settings: the topic's settings. None means that they cannot be read.
        config: the user's settings. A ``cleanup.policy`` with ``compact`` states that the topic was
            compacted, even if its present policy is another.

    Raises:
        InvalidConfig: ``cleanup.policy`` in ``config`` has an unknown value.
    """
    stated = {name: config[name] for name in (_POLICY_NAME,) if name in config}
    was_compacted = bool(stated) and KafkaTopicConfig.from_names(stated).compacts
    cleaned = log.checkpoint
    holes = [hole for hole in holes if hole[1] > (cleaned or 0)]
    if not holes:
        return ()
    if cleaned is None and settings is not None and settings.is_policy_known:
        if not (settings.config.compacts or was_compacted):
            remedy = _remedy(log, settings)
            return tuple(_damage(log, *hole, remedy) for hole in holes)
    first, end = holes[0]
    more = f" (and so are {len(holes) - 1} more ranges)" if len(holes) > 1 else ""
    why = "no cleaner has a position for this log"
    if cleaned is not None:
        why = f"the cleaner's position is {cleaned}"
    message = (
        f"offsets {first} to {end - 1} are in no segment{more}, and {why}: a segment before this "
        "one is missing, unless the log was copied from a compacted log"
    )
    return (Problem(ProblemKind.GAP, message, log.path_of(end)),)


def _remedy(log: PartitionLog, settings: KafkaTopicSettings) -> str:
    """The remedy for a hole, with options that state that the topic was compacted.

    These options do not cause a compaction of the topic.
    """
    topic = log.name.topic
    given = f"--topic {topic} --config {_POLICY_NAME}=compact"
    if settings.source_of(POLICY) == SettingOrigin.CONFIG:
        given += f", and to a round also --topic-config {topic}:{_POLICY_NAME}=delete"
    return (
        f"{RESTORE}; if the topic was compacted under an earlier policy, nothing is missing: give "
        f'{given} (in Spark: .option("{_POLICY_NAME}", "compact"))'
    )


def _damage(log: PartitionLog, first: int, end: int, remedy: str) -> Problem:
    name = segment_file_name(first, KafkaFileKind.LOG)
    return Problem(
        ProblemKind.DAMAGED,
        f"offsets {first} to {end - 1} are in no segment, and no cleaner has compacted the topic: "
        f"the segment {name} or a later one is missing",
        log.path_of(end),
        None,
        remedy,
    )
