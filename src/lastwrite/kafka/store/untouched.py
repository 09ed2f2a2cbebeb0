"""The files of a log root that compaction or restore does not change, or that a copy lacks.

Source: Kafka 4.4 ``LogManager``, ``CleanShutdownFileHandler``, ``RemoteIndexCache``,
``BootstrapDirectory``.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from lastwrite.kafka.format.names import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOCK,
    LOG_STARTS,
    META_PROPERTIES,
    METADATA_TOPIC,
    RECOVERY_POINTS,
    REMOTE_INDEX_CACHE,
    FolderState,
    KafkaFileKind,
    classify,
    decode_folder_name,
    live_partition,
)
from lastwrite.kafka.store.partitions import root_of
from lastwrite.reports.untouched import UNKNOWN, UntouchedFile
from lastwrite.storage.files import list_names

_ALWAYS: Final = {
    LOCK: "the log root's lock file, which Lastwrite locks during a command",
    META_PROPERTIES: "the ids of the broker and of its cluster",
    CLEAN_SHUTDOWN: "a marker of the broker's clean shutdown",
    RECOVERY_POINTS: "the logs' recovery points, which a round does not change",
    HIGH_WATERMARKS: "the high watermarks, which a round does not change",
    REMOTE_INDEX_CACHE: "the indexes of remote segments, which a broker fetches again",
    "bootstrap.checkpoint": "the metadata for the first start of a cluster",
}
_NOT_COPIED: Final = {
    META_PROPERTIES: "a broker on the copy needs its own ids: kafka-storage.sh format writes them",
    CLEAN_SHUTDOWN: "without this file, a broker checks the copied logs when it starts",
    RECOVERY_POINTS: "without this file, a broker checks the copied logs when it starts",
}
_FOLDERS: Final = {
    FolderState.LIVE: "the cluster's metadata log, which is not compacted",
    FolderState.DELETED: "a partition that its broker is deleting",
    FolderState.FUTURE: "a replica that its broker is filling from another disk",
    FolderState.STRAY: "a partition that is not assigned to this broker",
}
_WRITTEN_BY_ROUNDS: Final = (CLEANER_OFFSETS, LOG_STARTS)
_WRITTEN_BY_COPIES: Final = (CLEANER_OFFSETS, LOG_STARTS, HIGH_WATERMARKS, LOCK)
WRITTEN_BY_RESTORES: Final = (CLEANER_OFFSETS, LOG_STARTS, HIGH_WATERMARKS, RECOVERY_POINTS)


def untouched_by_round(folders: Sequence[str], *, is_copy: bool) -> list[UntouchedFile]:
    """The files that compaction does not change, in the log roots of the partitions ``folders``.

    Args:
        is_copy: list the files that a copy lacks, not the files that compaction leaves unchanged.

    Raises:
        LogError: a folder cannot be listed.
    """
    roots = {root_of(folder): None for folder in folders}
    written = _WRITTEN_BY_COPIES if is_copy else _WRITTEN_BY_ROUNDS
    reasons = {**_ALWAYS, **_NOT_COPIED} if is_copy else _ALWAYS
    found = [each for root in roots for each in list_untouched(root, written, reasons)]
    for folder in folders:
        names = (
            name for name in list_names(folder) if classify(name).kind is KafkaFileKind.FOREIGN
        )
        found += [UntouchedFile(os.path.join(folder, name), UNKNOWN) for name in names]
    return found


def list_untouched(
    root: str, written: Collection[str], reasons: Mapping[str, str] = _ALWAYS
) -> list[UntouchedFile]:
    """The files and folders of a log root, except live partitions and the names in ``written``.

    Raises:
        LogError: the folder cannot be listed.
    """
    return [
        UntouchedFile(os.path.join(root, name), _reason(name, reasons))
        for name in list_names(root)
        if name not in written and live_partition(name) is None
    ]


def _reason(name: str, reasons: Mapping[str, str]) -> str:
    if name.startswith("lastwrite-"):
        return "written by Lastwrite"
    folder = decode_folder_name(name)
    if folder is not None and (
        folder.state is not FolderState.LIVE or folder.partition.topic == METADATA_TOPIC
    ):
        return _FOLDERS[folder.state]
    return reasons.get(name, UNKNOWN)
