"""The partitions of an archive of Kafka topics that ``restore`` selects, for any target."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from threading import Lock

from lastwrite.archive.partition_store import read_versioned_manifest
from lastwrite.errors import InvalidConfig, LogError, NotALog
from lastwrite.kafka.cluster.internal_topics import SHARES_TOPIC, TRANSACTIONS_TOPIC
from lastwrite.kafka.rules.settings import KafkaTopicConfig
from lastwrite.kafka.rules.topic_settings import TopicMetadata, resolve
from lastwrite.kafka.store import archived, restoring
from lastwrite.kafka.store.archived import ArchivedLog
from lastwrite.model.log import TopicPartition
from lastwrite.model.progress import Progress
from lastwrite.model.work import Limits
from lastwrite.storage.choice import Topics, choose
from lastwrite.storage.machine import core_count
from lastwrite.storage.objects.address import is_address

_MOST_AT_ONCE = 4  # partitions at once, as for ``fetch``
# Topics with the state of a cluster's coordinators and tiers, which is invalid in another cluster.
OF_COORDINATORS = (TRANSACTIONS_TOPIC, SHARES_TOPIC, "__remote_log_metadata")
# Prefix of the restore's transactional ids, and of the groups that store its notes.
PREFIX = "lastwrite-restore-"

Until = int | datetime


@dataclass(frozen=True, slots=True)
class RestorablePartition:
    """An archived partition to restore, and its name in the target."""

    address: str
    name: TopicPartition
    contents: ArchivedLog
    partitions: int  # partition count of the topic in the archive
    to: TopicPartition  # the partition's name in the target

    @property
    def bytes(self) -> int:
        return sum(segment.bytes for segment in self.contents.segments)

    @property
    def notes(self) -> list[str]:
        """A sentence for each gap in the archived partition's offsets."""
        gaps = archived.gaps_of(self.contents, str(self.name))
        return [f"{gap.path}: {gap.message}" for gap in gaps]

    @property
    def settings(self) -> KafkaTopicConfig | None:
        """The topic's settings when it was fetched. None if they are unknown."""
        known = self.contents.known
        return settings_of(self.name.topic, None if known is None else known.to_topic_metadata())


def settings_of(topic: str, metadata: TopicMetadata | None) -> KafkaTopicConfig | None:
    """The topic's effective settings. None if ``metadata`` is None."""
    return None if metadata is None else resolve(topic, (), metadata, {}, False).config


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRequest:
    """The selection and options of a restore, for any target."""

    topic: Topics = None
    partitions: Sequence[int] | None = None  # None means all partitions
    name: str | None = None
    until: Until | None = None
    drop_open: bool = False
    # restore no records, but set the committed offsets in a running cluster, whose records have the
    # same offsets as in the archive
    groups: bool = False


def in_archive(path: str, request: RestoreRequest) -> list[RestorablePartition]:
    """The archived partitions that a restore selects, sorted by name.

    Raises:
        NotALog: there is no archive or topic.
        InvalidConfig: several topics would get the same name.
    """
    everything = archived.find(path)
    if not everything:
        words, remedy = (
            "the path contains no archive of Kafka topics",
            "check the archive's address",
        )
        if not is_address(path) and os.path.isdir(path):
            remedy = (
                "to restore a log directory, copy it into an archive first: lastwrite fetch DIR "
                "--to ARCHIVE"
            )
        raise NotALog(words, path=path, remedy=remedy)
    ends: dict[str, int] = {}
    for name in everything:
        ends[name.topic] = max(ends.get(name.topic, 0), name.partition + 1)
    listed = sorted(everything.items())
    numbers: Sequence[int | None] = [None] if request.partitions is None else request.partitions
    folders = dict.fromkeys(
        each for number in numbers for each in choose(listed, request.topic, number, path)
    )

    def read(folder: str) -> RestorablePartition:
        contents = archived.contents_of(read_versioned_manifest(folder).manifest, folder)
        name = archived.name_of(folder)
        return RestorablePartition(folder, name, contents, ends[name.topic], name)

    with ThreadPoolExecutor(16) as pool:  # in parallel, because requests mostly wait
        found = list(pool.map(read, folders))
    if request.name is None:
        return found
    topics = {each.name.topic for each in found}
    if len(topics) > 1:
        raise InvalidConfig(
            f"--as gives one name to {len(topics)} topics: {', '.join(sorted(topics))}",
            remedy="select one of them with --topic",
        )
    return [replace(each, to=TopicPartition(request.name, each.name.partition)) for each in found]


def until_of(found: RestorablePartition, until: Until | None, limits: Limits) -> int | None:
    """The end offset of the records to restore. None if all records are restored.

    Raises:
        LogError: the archive is compacted beyond ``until``, so records below it may be missing.
    """
    if isinstance(until, datetime):
        ms = int(until.timestamp() * 1000)
        until = restoring.first_offset_since(found.address, ms, limits)
    cleaned = found.contents.checkpoint
    if until is not None and cleaned is not None and cleaned > until:
        raise LogError(
            f"the archive is compacted up to offset {cleaned}, beyond --until {until}: for keys "
            "written again between the two offsets, the earlier values are removed",
            path=found.address,
            remedy="restore without --until, or restore from an archive that was not compacted",
        )
    return until


def max_parallel() -> int:
    """The number of partitions to restore at once."""
    return min(_MOST_AT_ONCE, core_count())


def locked_advance(progress: Progress) -> Callable[[int], None]:
    """A function that advances the progress display, and can be called by several threads."""
    turn = Lock()

    def advance(done_bytes: int) -> None:
        with turn:
            progress.advance(done_bytes)

    return advance
