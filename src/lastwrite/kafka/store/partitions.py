"""Finds the partitions of a log root, an archive or a tier."""

from __future__ import annotations

import os
from collections.abc import Iterator

from lastwrite.errors import InvalidConfig, LogError, NotALog
from lastwrite.kafka.format.names import (
    METADATA_TOPIC,
    FolderState,
    classify,
    decode_folder_name,
    live_partition,
)
from lastwrite.kafka.store import archived, links, tiered
from lastwrite.model.log import TopicPartition
from lastwrite.storage.choice import Topics, choose
from lastwrite.storage.files import to_log_error
from lastwrite.storage.objects.address import is_address

_DISOWNED = {
    FolderState.DELETED: "the broker is deleting this partition",
    FolderState.FUTURE: "the broker is moving this partition here from another disk",
    FolderState.STRAY: "the partition is no longer assigned to this broker",
}

# The end of a remedy.
OTHERS = "for RocketMQ, give a store; for Pulsar, give an archive that lastwrite fetch created"


def find_partitions(path: str, topic: Topics = None, partition: int | None = None) -> list[str]:
    """The folders of the live partitions at ``path``, by topic and number.

    ``path`` is a log root, a partition's folder, a file in one, an archive, or a broker's tier. For
    symbolic links the real path decides. Folders that Kafka is deleting, moving or no longer uses
    are left out, and so is the cluster's metadata log.

    Raises:
        NotALog: the path has no Kafka log, or none of that topic and partition.
        InvalidConfig: a tier has two topics of this name, because the topic was recreated.
        LogError: the path cannot be read.
    """
    in_archive = archived.find(path, topic)
    if in_archive:
        return choose(sorted(in_archive.items()), topic, partition, path)
    in_tier = tiered.find(path) if is_address(path) or os.path.isdir(path) else []
    if in_tier:
        return _of_one_topic_each(choose(in_tier, topic, partition, path))
    if is_address(path):
        raise NotALog(
            "the path contains no partition of an archive or of a tier",
            path=path,
            remedy="check the address; give the archive, as in fetch --to, or a folder in it; or "
            "give the tier's folder that contains the folders TOPIC-PARTITION-TOPICID",
        )
    path = os.path.abspath(path)
    if os.path.isfile(path):
        if (
            os.path.islink(path)
            and decode_folder_name(os.path.basename(os.path.dirname(path))) is None
        ):
            path = os.path.realpath(path)
        if classify(os.path.basename(path)).is_foreign:
            raise NotALog(
                "the file is not a part of a Kafka log",
                path=path,
                remedy="give a log root, a partition's folder, or a segment, whose name has 20 "
                f"digits; {OTHERS}",
            )
        path = os.path.dirname(path)
    if not os.path.isdir(path):
        raise NotALog("no such file or folder", path=path, remedy="check the path")
    if _has_log_files(path):
        folder = links.home_of(path)
        found = {partition_name(folder): folder}
    else:
        found = _partitions_below(os.path.realpath(path))
    return choose(sorted(found.items()), topic, partition, path)


def of_topic(folder: str) -> list[str]:
    """The folders of all partitions of a topic in one root.

    ``folder`` is the folder of one partition of the topic.
    """
    name, root = partition_name(folder), root_of(folder)
    if tiered.is_tier(folder):
        ids = tiered.topic_id_of(folder)
        return [there for _, there in tiered.find(root) if tiered.topic_id_of(there) == ids]
    return find_partitions(root, name.topic)


def _of_one_topic_each(folders: list[str]) -> list[str]:
    found: dict[TopicPartition, str] = {}
    for folder in folders:
        other = found.setdefault(tiered.name_of(folder), folder)
        if other != folder:
            raise InvalidConfig(
                f"topic {tiered.name_of(folder).topic} was deleted and created again: the tier "
                "has it under two topic ids",
                path=other,
                remedy=f"select one of the two topics: give this folder, or {folder}",
            )
    return folders


def _partitions_below(root: str) -> dict[TopicPartition, str]:
    found = {}
    for entry in scan(root):
        name = live_partition(entry.name)
        if name is not None and entry.is_dir() and _has_log_files(entry.path):
            found[name] = entry.path
    if not found:
        below = log_roots_below(root)
        raise NotALog(
            "the folder contains no Kafka partition",
            path=root,
            remedy=f"give the log root below this folder: {' or '.join(below)}"
            if below
            else "give a log root (a folder that contains <topic>-<partition> folders), a "
            f"<topic>-<partition> folder, or a segment; {OTHERS}",
        )
    return found


def log_roots_below(folder: str) -> list[str]:
    """The log roots one or two levels below a folder, such as a volume's mount point; sorted.

    Users often name a folder above the log root. Strimzi's log root is called ``kafka-log0``.
    """
    found = []
    for entry in _folders_in(folder):
        inner = _folders_in(entry.path)
        found += [each.path for each in (entry, *inner) if _is_log_root(each.path)]
    return sorted(found)


def _folders_in(folder: str) -> list[os.DirEntry[str]]:
    """The subfolders of a folder. Empty if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return [each for each in entries if each.is_dir()]
    except OSError:
        return []


def _is_log_root(folder: str) -> bool:
    try:
        return any(
            live_partition(entry.name) is not None and entry.is_dir() and _has_log_files(entry.path)
            for entry in scan(folder)
        )
    except LogError:
        return False


def scan(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError as error:
        raise to_log_error(error, folder, "list the folder") from error


def _has_log_files(folder: str) -> bool:
    return any(not classify(entry.name).is_foreign for entry in scan(folder))


def partition_name(folder: str) -> TopicPartition:
    """The topic and number of the partition that a folder contains.

    Raises:
        NotALog: the folder's name is not a partition's, or it is the cluster's metadata log.
    """
    if archived.is_archived(folder):
        return archived.name_of(folder)
    if tiered.is_tier(folder):
        return tiered.name_of(folder)
    return name_in_root(os.path.abspath(folder))


def name_in_root(path: str) -> TopicPartition:
    """The topic and number of the partition in a log root's folder, given by absolute path.

    Raises:
        NotALog: the folder is not a partition's.
    """
    name = decode_folder_name(os.path.basename(path))
    if name is None:
        raise NotALog(
            "the folder contains segments, but its name is not that of a partition",
            path=path,
            remedy="rename the folder to <topic>-<partition>, such as orders-0",
        )
    if name.partition.topic == METADATA_TOPIC:
        raise NotALog(
            "the folder is the cluster's metadata log, which brokers compact by snapshots",
            path=path,
            remedy="do not compact this folder; lastwrite dump --topic __cluster_metadata prints "
            "its records",
        )
    return name.partition


def why_disowned(folder: str) -> str | None:
    """The reason why the folder is not a live partition of its log root.

    None if it is live, or if it is in an archive or a tier. A folder that is not live can be read,
    but compaction skips it, and the root's checkpoints do not apply to it.
    """
    name = decode_folder_name(os.path.basename(os.path.abspath(folder)))
    return None if name is None else _DISOWNED.get(name.state)


def root_of(folder: str) -> str:
    """The log root of a partition, with its checkpoints and the broker's lock.

    For an archive it is the folder of Kafka's topics.
    """
    if archived.is_archived(folder):
        return archived.root_of(folder)
    if tiered.is_tier(folder):
        return tiered.root_of(folder)
    return os.path.dirname(os.path.abspath(folder))
