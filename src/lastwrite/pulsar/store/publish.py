"""Replace the compacted ledger of a topic folder by a new one.

Example: the manifest names ledger 13, and a compaction has written the new ledger under a temporary
name::

    5e….aside, 5e….aside-index             written by workers, synced
    9c…-ledger-14-index, 9c…-ledger-14     renamed, the folder synced: not used yet
    compacted.json                         replaced by a rename, the folder synced: only from here
                                           on the new ledger and its horizon are valid
    91…-ledger-13, 91…-ledger-13-index     removed

A crash before the manifest is replaced leaves the old ledger, a later crash the new one.
``recover`` removes each compacted ledger made by Lastwrite that the manifest does not name. An
index is renamed before its data and removed after them, so that each data object has an index that
identifies it. Raw ledgers are never changed.

Source: docs/formats/pulsar.md, "Compacted ledger"; docs/formats/pulsar-compaction.md, "The commit"
and "A round". The order is Lastwrite's own.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from lastwrite.errors import CommitConflict, InvalidConfig, LogError
from lastwrite.model.log import PartitionLog, ProblemKind, any_damaged
from lastwrite.pulsar.format.names import (
    FETCHED,
    INDEX_SUFFIX,
    MANAGED_LEDGER,
    MANAGED_LEDGER_JSON,
    MANIFEST,
    SURVEY_SUFFIX,
    TopicName,
    object_name,
    parse_object_name,
)
from lastwrite.pulsar.format.offload import BLOCK_HEADER_BYTES, IndexObject
from lastwrite.pulsar.format.position import COMPACTED, MAX_LEDGER, Position
from lastwrite.pulsar.store import lock
from lastwrite.pulsar.store.manifest import (
    ASIDE_SUFFIX,
    CompactionManifest,
    read_manifest,
    replace_manifest,
)
from lastwrite.pulsar.store.objects import read_index
from lastwrite.pulsar.store.place import name_of
from lastwrite.pulsar.store.topic import (
    Ledger,
    TopicFolder,
    decode_record_at,
    is_ours,
    list_topic,
    partition_of,
)
from lastwrite.storage import files, preflight
from lastwrite.storage.parallel_sync import Outcome, outcome
from lastwrite.storage.reading import AGAIN, check_segments

_TIDY = "the new compacted ledger is installed; the next run deletes the old one"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLedger:
    """A new compacted ledger with a temporary name, and its values for the manifest."""

    path: str  # path of the data object; the index object has the same name with a suffix
    horizon: Position
    messages: int
    order: str
    retain_null_key: bool
    parts: bool
    read: int  # number of messages read
    ledgers: tuple[int, ...]  # ids of the raw ledgers that were read


# ---------------------------------------------------------------------- the steps


def publish(log: PartitionLog, new: NewLedger) -> Outcome:
    """Make the new ledger the topic's compacted ledger.

    After a crash before ``delete_replaced``, ``recover`` cleans up. The caller has locked the
    topic. Returns the error, if any; the topic is then unchanged.
    """
    return outcome(partial(_publish, log, new))


def _publish(log: PartitionLog, new: NewLedger) -> None:
    check_segments(log)
    topic = list_topic(log.folder)
    if topic.manifest is not None and new.horizon < topic.manifest.horizon:
        raise CommitConflict(
            f"another program moved the compaction horizon to {topic.manifest.horizon} during "
            f"the command, beyond {new.horizon}",
            path=log.folder,
            remedy=AGAIN,
        )
    _install(log.folder, topic.highest_ledger + 1, new)


def _install(folder: str, ledger: int, new: NewLedger) -> None:
    """Rename the ledger's objects, and replace the manifest."""
    if ledger > MAX_LEDGER:
        raise LogError(
            f"the topic has used all ledger ids up to {MAX_LEDGER}",
            path=folder,
            remedy="nothing was changed",
        )
    name = object_name(uuid.uuid4(), ledger)
    path = os.path.join(folder, name)
    manifest = _manifest(name_of(folder), name, ledger, new)
    try:
        files.rename(new.path + INDEX_SUFFIX, path + INDEX_SUFFIX)
        files.rename(new.path, path)
        files.fsync_dir(folder)
        replace_manifest(folder, manifest)
    except (LogError, OSError):
        # Read the manifest: after an error it is unknown whether the rename has happened.
        with suppress(LogError, OSError):
            found = read_manifest(folder)
            if found is None or found.object != name:
                for each in (path, path + INDEX_SUFFIX):
                    _remove(each)
        raise


def _manifest(topic: TopicName, name: str, ledger: int, new: NewLedger) -> CompactionManifest:
    index = read_index(new.path)
    entries = (index.metadata.last_entry or 0) + 1 if index.blocks else 0
    first = last = new.horizon
    if entries:
        first, last = _ends_of(new.path, index)
    return CompactionManifest(
        topic=topic.full,
        ledger=ledger,
        object=name,
        from_=first,
        to=last,
        horizon=new.horizon,
        entries=entries,
        size_bytes=index.metadata.length,
        messages=new.messages,
        order=new.order,
        retain_null_key=new.retain_null_key,
        parts=new.parts,
        read=new.read,
        ledgers=new.ledgers,
    )


def _ends_of(path: str, index: IndexObject) -> tuple[Position, Position]:
    """The message ids of the first and the last record of a new compacted ledger."""
    try:
        with open(path, "rb") as file:
            file.seek(index.blocks[0].offset + BLOCK_HEADER_BYTES)
            first = decode_record_at(file, index.data_bytes)
            file.seek(index.blocks[-1].offset + BLOCK_HEADER_BYTES)
            last = first
            while file.tell() < index.data_bytes:
                last = decode_record_at(file, index.data_bytes)
            return first, last
    except OSError as error:
        raise files.to_log_error(error, path, "read the new ledger") from error


def delete_replaced(log: PartitionLog) -> Outcome:
    """Remove the former compacted ledger. ``log`` is the topic as it was before ``publish``.

    Returns the error if a file could not be removed. The file is unused, and the next run removes
    it.
    """

    def remove() -> None:
        former = [each.path for each in log.segments[:1] if each.base_offset == COMPACTED]
        strays = list_topic(log.folder).strays
        _clear([ledger for ledger in strays if ledger.is_ours or ledger.path in former])

    error = outcome(remove)
    if isinstance(error, LogError):
        return type(error)(error.problem, error.at, error.path, _TIDY)
    return error


def reject_unwritable(folder: str) -> None:
    """Check that this process may replace the manifest and remove the former compacted ledger.

    Raises:
        LogError: a permission or the file system prevents it.
    """
    manifest = read_manifest(folder)
    names = [] if manifest is None else [MANIFEST, manifest.object, manifest.object + INDEX_SUFFIX]
    preflight.reject_unwritable(folder, names)


def recover(folder: str) -> None:
    """Remove the remains of a run that crashed on the topic. The caller has locked the topic.

    Removes unfinished files, and compacted ledgers made by Lastwrite that the manifest does not
    name. A ledger that may be the only copy of its messages stays.

    Raises:
        LogError: a file could not be removed.
    """
    waste = sorted(_staged_names(folder))
    topic = list_topic(folder)
    damaged = {problem.path for problem in topic.problems if problem.kind is ProblemKind.DAMAGED}
    strays = [ledger for ledger in topic.strays if ledger.is_ours and ledger.path not in damaged]
    if os.path.join(folder, MANIFEST) in damaged or (
        topic.manifest is not None and topic.compacted is None
    ):
        # keep all ledgers if the manifest's ledger is lost: another ledger may be the only copy
        strays = []
    elif topic.manifest is None and damaged:
        # keep all ledgers: a compacted ledger may be the only copy of the missing entries
        strays = []
    else:
        waste += _orphaned_indexes(folder)
    for name in waste:
        files.unlink(os.path.join(folder, name))
    if strays:
        # Sync the folder before these ledgers are removed. A killed run may have replaced the
        # manifest without a sync. After a power failure, the old manifest would need one of them.
        files.fsync_dir(folder)
    _clear(strays)
    if waste or strays:
        files.fsync_dir(folder)


def _orphaned_indexes(folder: str) -> list[str]:
    """Indexes of compacted ledgers made by Lastwrite whose data objects are gone."""
    names = _names(folder)
    found = []
    for name in sorted(names):
        bare = name.removesuffix(INDEX_SUFFIX)
        if bare == name or bare in names or parse_object_name(bare) is None:
            continue
        with suppress(LogError):
            if is_ours(read_index(os.path.join(folder, bare)).metadata):
                found.append(name)
    return found


def _clear(strays: Sequence[Ledger]) -> None:
    for ledger in strays:
        for path in (ledger.path + SURVEY_SUFFIX, ledger.path, ledger.path + INDEX_SUFFIX):
            _remove(path)


def _remove(path: str) -> None:
    if os.path.lexists(path):
        files.unlink(path)


def _staged_names(folder: str) -> set[str]:
    """The temporary files of this run and of killed runs in the folder."""
    suffixes = (ASIDE_SUFFIX, ASIDE_SUFFIX + INDEX_SUFFIX)
    return {name for name in _names(folder) if name.endswith(suffixes)}


def _names(folder: str) -> set[str]:
    try:
        return set(os.listdir(folder))
    except OSError as error:
        raise files.to_log_error(error, folder, "list the folder") from error


# ---------------------------------------------------------------------- copies


def copy_folder(log: PartitionLog, to: str) -> str:
    """The path of a topic's copy in the archive ``to``."""
    return copy_at(log.folder, to)


def copy_at(folder: str, to: str) -> str:
    """The path of the copy of the topic at ``folder`` in the archive ``to``."""
    return os.path.join(os.path.abspath(to), *name_of(folder).managed_ledger.split("/"))


def copy_staging_folder(log: PartitionLog, to: str) -> str:
    """The folder where a copy's new ledger is written. Created if missing.

    Raises:
        InvalidConfig: the topic exists already.
        LogError: the folder cannot be created.
    """
    folder = copy_folder(log, to)
    _reject_topic(folder)
    _make_copy_folder(log, folder)
    return folder


def _make_copy_folder(log: PartitionLog, folder: str) -> None:
    """Create the folder, and its parents up to the archive, with the topic's owner."""
    if not os.path.isdir(folder):
        files.make_folder(folder, files.owner_of(log.folder).as_far_as_may())


def _reject_topic(folder: str) -> None:
    known = (MANIFEST, MANAGED_LEDGER, MANAGED_LEDGER_JSON, FETCHED)
    names = _names(folder) if os.path.isdir(folder) else ()
    if any(name in known or parse_object_name(name) for name in names):
        remedy = "give another folder as --to"
        raise InvalidConfig("the folder already contains a topic", path=folder, remedy=remedy)


def publish_copy(log: PartitionLog, new: NewLedger | None, to: str) -> Outcome:
    """Create a copy of the topic below ``to``.

    It has the metadata, the compacted ledger, and the ledgers beyond the horizon.

    ``new`` is the copy's compacted ledger under a temporary name; None copies the topic's compacted
    ledger. A damaged topic is copied unchanged.
    """
    return outcome(partial(_publish_copy, log, new, copy_folder(log, to)))


def _publish_copy(log: PartitionLog, new: NewLedger | None, folder: str) -> None:
    _reject_topic(folder)
    _make_copy_folder(log, folder)
    with lock.hold(folder, [partition_of(name_of(folder))]):
        check_segments(log)
        own = "" if new is None else os.path.basename(new.path)
        mine = {own, own + INDEX_SUFFIX}
        for name in sorted(_staged_names(folder) - mine):  # files of a killed run
            files.unlink(os.path.join(folder, name))
        topic = list_topic(log.folder)
        if new is None and any_damaged(topic.problems):
            _copy_all(log.folder, folder)
            return
        for name in (FETCHED, MANAGED_LEDGER, MANAGED_LEDGER_JSON):
            if os.path.exists(os.path.join(log.folder, name)):
                files.copy(os.path.join(log.folder, name), os.path.join(folder, name))
        copied = _copied(topic, None if new is None else new.horizon)
        if new is None and topic.compacted is not None:
            copied += topic.compacted
        for ledger in copied:
            for suffix in (INDEX_SUFFIX, ""):
                target = os.path.join(folder, os.path.basename(ledger.path)) + suffix
                files.copy(ledger.path + suffix, target)
        if new is not None:
            _install(folder, topic.highest_ledger + 1, new)
            return
        if topic.manifest is not None:
            replace_manifest(folder, topic.manifest)
        files.fsync_dir(folder)


def _copy_all(source: str, folder: str) -> None:
    """Copy all files of a damaged topic without reading them, the manifest last."""
    side = (FETCHED, MANAGED_LEDGER, MANAGED_LEDGER_JSON, MANIFEST)
    names = sorted(_names(source), key=lambda n: (n == MANIFEST, not n.endswith(INDEX_SUFFIX), n))
    for name in names:
        if name in side or parse_object_name(name.removesuffix(INDEX_SUFFIX)):
            files.copy(os.path.join(source, name), os.path.join(folder, name))
    files.fsync_dir(folder)


def _copied(topic: TopicFolder, horizon: Position | None) -> list[Ledger]:
    """The raw ledgers that a copy of the topic needs."""
    horizon = horizon or topic.horizon
    if horizon is None:
        return list(topic.ledgers)
    return [ledger for ledger in topic.ledgers if Position(ledger.id, ledger.entries - 1) > horizon]
