"""Cheap checks of an archive for the daemon, and the quarantine notes in topic folders.

An object never changes under its name: all writers use a temporary name and rename the file. So the
modification time of the folder alone shows whether a file changed.
"""

from __future__ import annotations

import os
import time

from lastwrite.archive.layout import manifests_at
from lastwrite.errors import InvalidConfig, NotALog
from lastwrite.model.log import TopicPartition
from lastwrite.pulsar.format.names import TopicName
from lastwrite.pulsar.store import lock
from lastwrite.pulsar.store.archived import SYSTEM, address_in
from lastwrite.pulsar.store.place import name_of
from lastwrite.pulsar.store.topic import find_topics, partition_of
from lastwrite.storage.files import to_log_error
from lastwrite.storage.layout import PartitionSnapshot
from lastwrite.storage.quarantine import QuarantineFile
from lastwrite.storage.reading import RESTS_NS, SETTLED_NS


def scan_root(archive: str) -> list[PartitionSnapshot]:
    """A snapshot of every topic folder of an archive, sorted by topic name. Empty without topics.

    Raises:
        LogError: the archive cannot be listed.
    """
    try:
        folders = find_topics(archive)
    except NotALog:
        if os.path.isdir(archive):
            return []
        raise
    now_ns = time.time_ns()
    found = []
    for folder in folders:
        try:
            seen = os.stat(folder)
        except FileNotFoundError:
            continue  # skip a folder that was deleted after the listing
        except OSError as error:
            raise to_log_error(error, folder, "read the state of the topic folder") from error
        age_ns = now_ns - seen.st_mtime_ns
        state = (seen.st_ino, seen.st_mtime_ns) if age_ns > SETTLED_NS else None
        found.append(
            PartitionSnapshot(partition_of(name_of(folder)), folder, state, age_ns > RESTS_NS)
        )
    return sorted(found, key=lambda glance: glance.name)


def _text_of(name: TopicPartition) -> str:
    return TopicName.parse(name.topic).with_partition(name.partition).full


def _name_of(text: str) -> TopicPartition | None:
    try:
        return partition_of(TopicName.parse(text))
    except InvalidConfig:
        return None


# The quarantine lists of Pulsar. Each topic folder counts as a root, with its own list.
NOTES = QuarantineFile(lock.PLACE, _text_of, _name_of, lambda folder, name: folder)


# ---------------------------------------------------------------------- archives


def scan_archive(archive: str) -> list[PartitionSnapshot]:
    """The topics of an archive, with the versions of their manifests. Sends one request per topic.

    Raises:
        RemoteFailed: the store does not answer.
    """
    found = manifests_at(archive, SYSTEM)
    return sorted(
        PartitionSnapshot(partition_of(name_of(folder)), folder, seen.version, True)
        for folder, seen in found
    )


def folder_in(archive: str, name: TopicPartition) -> str:
    """The address of a topic in an archive."""
    return address_in(archive, TopicName.parse(name.topic).with_partition(name.partition))


ARCHIVE_NOTES = QuarantineFile(
    lock.PLACE,
    _text_of,
    _name_of,
    lambda root, name: folder_in(os.path.dirname(root), name),
    SYSTEM,
    lambda root, names: True,
)
