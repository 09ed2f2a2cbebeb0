"""Partitions that the cleaner has quarantined, listed in ``<root>/lastwrite-uncleanable.json``.

Kafka keeps such a list in memory until the broker restarts, and never retries. Lastwrite's list is
a file, and each partition is retried after one minute, then after two, four, and at most a day::

    {"version": 1, "partitions": {"orders-0": {"reason": "…", "since_ms": …, "tries": 2,
    "next_try_ms": …}}}

A broker that starts on the root ignores plain files. ``QuarantineFile`` defines how a system's
partitions are named in the list. An archive has the list as an object, ``ARCHIVE/_lastwrite/
uncleanable-<system>.json``. It is not locked: a writer replaces only the version that it has read.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from lastwrite.errors import CorruptLog, RemoteFailed
from lastwrite.model.log import TopicPartition
from lastwrite.reports.compaction import Quarantined
from lastwrite.storage import files, lock
from lastwrite.storage.file_state import FileState
from lastwrite.storage.objects.address import is_address, store_at
from lastwrite.storage.objects.store import ObjectStore

FILE = "lastwrite-uncleanable.json"

_VERSION = 1
_FIRST_PAUSE_MS = 60_000
_LONGEST_PAUSE_MS = 86_400_000
_TRIES, _WAIT_S = 20, 0.1  # attempts to replace the object, and seconds between two attempts


@dataclass(frozen=True, slots=True)
class QuarantineFile:
    """The list of one system's quarantined partitions: where it is, and how it names partitions."""

    place: lock.LockPlace
    text_of: Callable[[TopicPartition], str]
    # function that parses the name of a partition; returns None for other texts
    name_of: Callable[[str], TopicPartition | None]
    # function that returns the folder of a partition in a root
    folder_of: Callable[[str, TopicPartition], str]
    system: str = ""  # the system's name in archives; empty if it has no archives
    # function that returns whether the partitions of a root belong to an archive
    is_archive: Callable[[str, Collection[TopicPartition]], bool] = lambda root, names: False

    def object_of(self, root: str) -> tuple[ObjectStore, str]:
        """The store and key of an archive's list. ``root`` is the folder of a system's topics."""
        store, prefix = store_at(os.path.dirname(root))
        return store, f"{prefix}/_lastwrite/uncleanable-{self.system}.json".lstrip("/")


def name_of(text: str) -> TopicPartition | None:
    """Parse ``topic-number``. None if ``text`` is not a partition's name."""
    topic, _, number = text.rpartition("-")
    is_one = topic and number.isascii() and number.isdigit() and number == str(int(number))
    return TopicPartition(topic, int(number)) if is_one else None


def pause_ms(tries: int) -> int:
    """The pause in ms before the next try, after ``tries`` failed tries."""
    return min(_FIRST_PAUSE_MS << min(tries - 1, 32), _LONGEST_PAUSE_MS)


def read_quarantine(root: str, notes: QuarantineFile) -> dict[TopicPartition, Quarantined]:
    """The quarantined partitions of ``root``. Empty if there is no list.

    Raises:
        CorruptLog: the list is not one that Lastwrite wrote.
        LogError: the list cannot be read.
    """
    path = os.path.join(root, FILE)
    try:
        if not is_address(root):
            return dict(_read_once(path, notes, FileState.of(os.stat(path))))
    except FileNotFoundError:
        pass
    except OSError as error:
        raise files.to_log_error(error, path, "read the list of partitions set aside") from error
    if not notes.system:
        return {}
    store, key = notes.object_of(root)
    found = store.get(key)
    return {} if found is None else _decode(found[0], notes, f"{store.address}/{key}")


@functools.lru_cache(maxsize=8)
def _read_once(
    path: str, notes: QuarantineFile, state: FileState
) -> dict[TopicPartition, Quarantined]:
    return _read(path, notes)


def _read(path: str, notes: QuarantineFile) -> dict[TopicPartition, Quarantined]:
    with open(path, "rb") as file:
        return _decode(file.read(), notes, path)


def _decode(content: bytes, notes: QuarantineFile, path: str) -> dict[TopicPartition, Quarantined]:
    try:
        document = json.loads(content)
        if document["version"] != _VERSION:
            raise ValueError(f"version {document['version']!r}")
        return {
            _parse_name(notes, text): Quarantined(
                reason=str(entry["reason"]),
                since_ms=int(entry["since_ms"]),
                tries=int(entry["tries"]),
                next_try_ms=int(entry["next_try_ms"]),
            )
            for text, entry in document["partitions"].items()
        }
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise CorruptLog(
            f"the file is not a list of partitions that are set aside: {error}",
            path=path,
            remedy="delete this file: the cleaner then tries every partition again",
        ) from error


def _parse_name(notes: QuarantineFile, text: str) -> TopicPartition:
    name = notes.name_of(text)
    if name is None:
        raise ValueError(f"{text!r} is not the name of a partition")
    return name


def record_failures(
    root: str, reasons: dict[TopicPartition, str], now_ms: int, notes: QuarantineFile
) -> None:
    """Record that the compaction of these partitions failed at ``now_ms``.

    Raises:
        LogHeld: a broker holds the root.
        LogError: the file cannot be written.
    """
    if not reasons:
        return

    def note(entries: dict[TopicPartition, Quarantined]) -> None:
        for name, reason in reasons.items():
            before = entries.get(name)
            tries = 1 if before is None else before.tries + 1
            entries[name] = Quarantined(
                reason=reason,
                since_ms=now_ms if before is None else before.since_ms,
                tries=tries,
                next_try_ms=now_ms + pause_ms(tries),
            )

    _change(root, reasons, notes, note)


def release(
    root: str, names: Iterable[TopicPartition], notes: QuarantineFile
) -> dict[TopicPartition, Quarantined]:
    """Remove these partitions from the list, and return the removed entries.

    Raises:
        LogHeld: a broker holds the root.
        LogError: the file cannot be read or written.
    """
    wanted = set(names)
    if not wanted & read_quarantine(root, notes).keys():
        return {}
    released: dict[TopicPartition, Quarantined] = {}

    def forget(entries: dict[TopicPartition, Quarantined]) -> None:
        released.update((name, entries.pop(name)) for name in sorted(wanted & entries.keys()))

    _change(root, wanted, notes, forget)
    return released


def _change(
    root: str,
    names: Collection[TopicPartition],
    notes: QuarantineFile,
    change: Callable[[dict[TopicPartition, Quarantined]], None],
) -> None:
    """Apply ``change`` to the entries of the list, and write the list."""
    if notes.is_archive(root, names):
        _change_object(*notes.object_of(root), notes, change)
        return
    with lock.root_lock(root, notes.place):
        entries = _readable(root, notes)
        change(entries)
        _write(root, entries, notes)


def _change_object(
    store: ObjectStore,
    key: str,
    notes: QuarantineFile,
    change: Callable[[dict[TopicPartition, Quarantined]], None],
) -> None:
    path, written = f"{store.address}/{key}", b""
    for _ in range(_TRIES):
        found = store.get(key)
        # the object is as written: only the response to the write was lost
        if found is not None and found[0] == written:
            return
        try:
            entries = {} if found is None else _decode(found[0], notes, path)
        except CorruptLog:
            entries = {}
        change(entries)
        written = _encode(entries, notes)
        if found is None:
            is_done = store.create(key, written)
        else:
            is_done = store.replace(key, written, found[1].version)
        if is_done is not None:
            return
        time.sleep(_WAIT_S)
    raise RemoteFailed(
        "another process changed the list of partitions set aside at every attempt to write it",
        path=path,
        remedy="check the store, then run the command again",
    )


def _readable(root: str, notes: QuarantineFile) -> dict[TopicPartition, Quarantined]:
    """The entries of the list on disk. Empty if it cannot be decoded."""
    path = os.path.join(root, FILE)
    try:
        return _read(path, notes)
    except (FileNotFoundError, CorruptLog):
        return {}
    except OSError as error:
        raise files.to_log_error(error, path, "read the list of partitions set aside") from error


def _write(root: str, entries: dict[TopicPartition, Quarantined], notes: QuarantineFile) -> None:
    """Write the entries of partitions that still exist. Deletes the file if there are none."""
    path = os.path.join(root, FILE)
    kept = {
        name: entry for name, entry in entries.items() if os.path.isdir(notes.folder_of(root, name))
    }
    if not kept:
        if os.path.exists(path):
            files.unlink(path)
            files.fsync_dir(root)
        return
    like = files.owner_of(path, lock.siblings(root, notes.place)).as_far_as_may()
    files.replace(path, _encode(kept, notes), like=like)
    files.fsync_dir(root)


def _encode(entries: Mapping[TopicPartition, Quarantined], notes: QuarantineFile) -> bytes:
    noted = {notes.text_of(name): entry.to_dict() for name, entry in sorted(entries.items())}
    document = {"version": _VERSION, "partitions": noted}
    return json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n"
