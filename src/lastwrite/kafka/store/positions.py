"""Committed offsets of consumer groups, from ``__consumer_offsets`` in a log root.

The root is a broker's, or the state folder of ``lastwrite serve``. Offsets are cached until a file
of the topic changes.

A root has only the groups whose partition of that topic it contains. Commits above the high
watermark are ignored, because another leader may lack them.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple, TypeAlias

from lastwrite.errors import CorruptLog, LogError, NotALog
from lastwrite.kafka.cluster.commits import Commit, GroupPartition, OffsetCommits, UnreadCommit
from lastwrite.kafka.cluster.group_states import GroupKind, GroupStates
from lastwrite.kafka.cluster.internal_topics import GROUPS_TOPIC
from lastwrite.kafka.format.batch_layout import Batch
from lastwrite.kafka.store import log_dir, tiered
from lastwrite.kafka.store.appended import batches_of
from lastwrite.kafka.store.partitions import find_partitions
from lastwrite.model.log import PartitionLog, Segment, TopicPartition
from lastwrite.reports.groups import UnreadPosition, unread_because
from lastwrite.storage.objects.address import is_address

# Committed offsets in the form of an archive, by partition and group: offset, leader epoch before
# it or -1, the group's metadata. None means deleted.
Brought: TypeAlias = Mapping[TopicPartition, Mapping[str, tuple[int, int, str] | None]]


class GroupPositions(NamedTuple):
    """Committed and deleted offsets of consumer groups, and the records that cannot be read."""

    offsets: Mapping[GroupPartition, Commit]
    deleted: Set[GroupPartition]
    unread: tuple[UnreadPosition, ...] = ()
    # the keys of ``offsets`` that a broker would have removed as expired by now
    expired: Set[GroupPartition] = frozenset()
    kinds: Mapping[str, GroupKind] = {}  # kinds of the groups that have or had members

    def unread_of(self, place: GroupPartition) -> UnreadPosition | None:
        """An unreadable record that may be the newest commit for ``place``, or None.

        ``place`` is a group and a partition.
        All commits of a group are in one partition of the topic, so a damaged partition does not
        affect groups in other partitions.
        """
        for each in self.unread:
            is_elsewhere = each.offset is None and place in self.offsets
            is_groups = not is_elsewhere and each.group in (None, place.group)
            if is_groups and each.topic in (None, place.topic):
                if each.partition in (None, place.partition):
                    return each
        return None


class OffsetRetention(NamedTuple):
    """The present time and the retention, both in ms, by which committed offsets expire."""

    now_ms: int
    retention_ms: int


def positions_in(path: str, retention: OffsetRetention | None = None) -> GroupPositions:
    """All committed offsets in the root or archive at ``path``.

    A damaged partition of ``__consumer_offsets`` is skipped, because a group's newest commit may be
    in its unreadable bytes. The other partitions are read.

    With ``retention``, expired offsets and the kinds of groups are determined too.

    Raises:
        NotALog: the path has no ``__consumer_offsets``.
    """
    known: dict[GroupPartition, Commit] = {}
    removed: set[GroupPartition] = set()
    unread: list[UnreadPosition] = []
    expired: set[GroupPartition] = set()
    kinds: dict[str, GroupKind] = {}
    for folder in find_partitions(path, GROUPS_TOPIC):  # each group is in one of these partitions
        try:
            log = log_dir.read_partition(folder)
            _reject_damaged(log)
            found = _replayed(log.segments, log.high_watermark)
        except (LogError, OSError) as error:
            unread.append(unread_because(error, folder))
            continue
        known |= found.offsets
        removed |= found.deleted
        unread += found.unread
        if retention is not None:
            states = _group_states(log.segments, log.high_watermark)
            rule = states.expiry()
            kinds |= states.kinds()
            expired |= {
                each for each, at in found.offsets.items() if rule.is_expired(each, at, *retention)
            }
    return GroupPositions(known, removed, tuple(unread), expired, kinds)


def _reject_damaged(log: PartitionLog) -> None:
    for problem in log.problems:
        if not problem.is_note:
            raise CorruptLog(problem.message, problem.position, problem.path, problem.remedy)


@lru_cache(maxsize=256)
def _replayed(segments: tuple[Segment, ...], end: int) -> GroupPositions:
    found = OffsetCommits()
    found.take(_batches_before(segments, end))
    unread = sorted(found.unread.values(), key=lambda each: each.offset)
    return GroupPositions(
        found.offsets, found.deleted, tuple(_unread(each, segments) for each in unread)
    )


def _batches_before(segments: tuple[Segment, ...], end: int) -> Iterator[Batch]:
    return takewhile(lambda batch: batch.header.base_offset < end, batches_of(segments))


def _group_states(segments: tuple[Segment, ...], end: int) -> GroupStates:
    states = GroupStates()
    for batch in _batches_before(segments, end):
        if not batch.attributes.control:
            states.take(batch.records)
    return states


def _unread(commit: UnreadCommit, segments: Sequence[Segment]) -> UnreadPosition:
    bases = [segment.base_offset for segment in segments]
    place = commit.partition
    return UnreadPosition(
        source=segments[max(bisect_right(bases, commit.offset) - 1, 0)].path,
        offset=commit.offset,
        group=commit.group,
        topic=None if place is None else place.topic,
        partition=None if place is None else place.partition,
        reason=commit.reason,
    )


def positions_of(roots: Sequence[str]) -> tuple[Brought, tuple[UnreadPosition, ...]]:
    """The committed offsets in all the log roots, and the records that cannot be read.

    Groups whose offsets are stored on other brokers are not included.
    """
    found: dict[TopicPartition, dict[str, tuple[int, int, str] | None]] = {}
    unread: list[UnreadPosition] = []
    for root in roots:
        if not tiered.is_located(root) and (is_address(root) or not os.path.isdir(root)):
            continue
        with suppress(NotALog):
            there = positions_in(root)
            unread += there.unread
            removed = dict.fromkeys(there.deleted)
            at = {place: commit[:3] for place, commit in there.offsets.items()}
            for place, position in {**removed, **at}.items():
                found.setdefault(place.name, {})[place.group] = position
    return found, tuple(unread)
