"""Set the committed offsets of consumer groups in a running cluster.

A restore sets the offset of a group that has no committed offset in the partition. A later restore
changes an offset only if an earlier restore set it. After the group has read records, or was reset
in the cluster, its offset stays. Therefore each offset is noted before it is set::

    archive 100   note g: 100        group g: 100
    archive 150   note g: 100, 150   group g: 150      changed: it was still 100
    archive 180                      group g: 160      unchanged: the group has read up to 160
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec import structs

from lastwrite.encoding.json_structs import decode_struct
from lastwrite.errors import CorruptLog, LogError
from lastwrite.kafka.jobs.restorable import PREFIX, RestorablePartition, Until
from lastwrite.kafka.network.cluster import KafkaCluster
from lastwrite.kafka.network.coordinator import CommittedOffset, GroupClient, TransactionClient
from lastwrite.kafka.network.live_log import LiveLog
from lastwrite.kafka.network.producer import ProgressRecord
from lastwrite.kafka.restored import GroupGiven, LogGiven
from lastwrite.kafka.rules.live_settings import KafkaClientConfig
from lastwrite.model.log import TopicPartition

# (group, committed offset, leader epoch, metadata), as stored in an archive
Positions: TypeAlias = Iterable[tuple[str, int, int, str]]
OffsetsSet: TypeAlias = tuple[tuple[str, int], ...]  # (group, offset) that earlier runs set
# Maps offsets in the archive to offsets in the cluster, or to the reason why there is none.
Translate: TypeAlias = Callable[[Sequence[int]], Mapping[int, int | str]]


def is_a_users(group: str) -> bool:
    """Whether a consumer group belongs to a user. Lastwrite's own groups store progress notes."""
    return not group.startswith(PREFIX)


def set_groups(
    cluster: KafkaCluster,
    name: TopicPartition,
    positions: Positions,
    offsets_set: OffsetsSet,
    translate: Translate,
    note: Callable[[OffsetsSet], None],
) -> list[GroupGiven]:
    """Set the committed offsets of users' consumer groups in the cluster's partition ``name``.

    Before any offset is set, ``note`` is called to store all of them in the progress note.

    Raises:
        LogError: ``translate`` or ``note`` failed. Errors of single groups are in the reports.
    """
    found: dict[str, GroupGiven] = {}
    there: dict[str, CommittedOffset | None] = {}
    wanted = {each[0]: each for each in positions if is_a_users(each[0])}
    ours = set(offsets_set)
    for group, (_, position, _, _) in wanted.items():
        found[group] = GroupGiven(group=group, position=position)
        try:
            at = there[group] = GroupClient(cluster, group).position(name)
        except LogError as error:
            found[group] = structs.replace(found[group], reason=str(error))
            continue
        if at is not None:
            found[group] = structs.replace(found[group], offset=at.offset)
    movable = {group: at for group, at in there.items() if at is None or (group, at.offset) in ours}
    offsets = translate(sorted({wanted[group][1] for group in movable}))
    targets: dict[str, int] = {}
    for group, at in movable.items():
        target = offsets[wanted[group][1]]
        if isinstance(target, str):
            found[group] = structs.replace(found[group], reason=target)
        elif at is None or target != at.offset:
            targets[group] = target
    if targets:
        kept = {(group, at.offset) for group, at in movable.items() if at is not None}
        note(tuple(sorted(kept | set(targets.items()))))
    for group, target in targets.items():
        try:
            GroupClient(cluster, group).commit(name, target, wanted[group][3])
            found[group] = structs.replace(found[group], offset=target, is_set=True)
        except LogError as error:
            found[group] = structs.replace(found[group], reason=str(error))
    return list(found.values())


class _GroupProgress(msgspec.Struct, frozen=True, array_like=True):
    """The progress note of a partition that was restored at its original offsets.

    ``groups`` has the offsets that were set for consumer groups.
    """

    topic_id: str | None
    groups: OffsetsSet = ()


def set_archived_positions(
    found: RestorablePartition,
    cluster: KafkaCluster,
    client: KafkaClientConfig,
    until: Until | None,
) -> LogGiven:
    """Set groups' committed offsets in a partition that was restored at its original offsets.

    ``until`` is the offset or time at which the earlier restore ended. With it, a committed offset
    beyond the log's end is reduced to the log's end. Without it, such an offset is not set.

    Raises:
        LogError: the cluster has no such partition, or has its records at other offsets.
        RemoteFailed: a request is refused, or not answered within the timeout.
    """
    name, path = found.to, f"kafka://{cluster.address}/{found.to}"
    _reject_other_offsets(cluster, name, path)
    topic_id = cluster.topic(name.topic).id_text
    log = LiveLog(cluster, name, client)
    try:
        bounds = log.bounds()
    finally:
        log.close()
    note = ProgressRecord(cluster, f"{PREFIX}{name.topic}.groups", name)
    transactions = TransactionClient(cluster, f"{PREFIX}{name}")

    def write(groups: OffsetsSet) -> None:
        transactions.begin()
        note.write(msgspec.json.encode(_GroupProgress(topic_id, groups)).decode(), transactions)

    def translate(positions: Sequence[int]) -> Mapping[int, int | str]:
        end = bounds.high_watermark
        beyond = (
            f"the partition ends at offset {end} in the cluster, before the group's committed "
            "offset; restore the records up to that offset first, or repeat the --until of the "
            "earlier restore, which sets the group to the partition's end"
        )
        return {
            each: each if each <= end else end if until is not None else beyond
            for each in positions
        }

    groups = set_groups(
        cluster, name, found.contents.groups, _noted(note, topic_id, path), translate, write
    )
    return LogGiven(
        topic=name.topic,
        partition=name.partition,
        source=found.address,
        folder=path,
        first_offset=bounds.log_start,
        end_offset=bounds.high_watermark,
        source_end=found.contents.end_offset,
        groups=tuple(groups),
        is_groups_alone=True,
    )


def _reject_other_offsets(cluster: KafkaCluster, name: TopicPartition, path: str) -> None:
    """Check that the cluster has the partition, with its original offsets.

    Raises:
        LogError: the cluster lacks the partition, or the records were restored at new offsets.
    """
    if (
        name.topic not in cluster.topics
        or name.partition not in cluster.topic(name.topic).partitions
    ):
        raise LogError(
            f"the cluster has no partition {name}",
            path=path,
            remedy="restore the partition first: with --to LOGROOT of a stopped broker, or to the "
            "running cluster without --groups",
        )
    if ProgressRecord(cluster, f"{PREFIX}{name.topic}", name).read():
        raise LogError(
            "the partition's records were restored at new offsets, so the archive's offsets do "
            "not apply",
            path=path,
            remedy="run without --groups: this sets each group to the record that it would have "
            "read next",
        )


def _noted(note: ProgressRecord, topic_id: str | None, path: str) -> OffsetsSet:
    text = note.read()
    if not text:
        return ()
    try:
        noted = decode_struct(text, _GroupProgress)
    except msgspec.MsgspecError as error:
        raise CorruptLog(
            f"the restore's note of the groups cannot be decoded: {error}", 0, path
        ) from error
    return noted.groups if noted.topic_id == topic_id else ()
