"""Partitions that the cleaner has set aside, remembered in ``<root>/lastwrite-uncleanable.json``.

Kafka remembers them in memory, until the broker restarts, and never tries again. Here the list
outlives the process, anybody can read it, and each partition is tried again after a minute, then
two, four, up to a day::

    {"version": 1, "partitions": {"orders-0": {"reason": "…", "since_ms": …, "tries": 2,
    "next_try_ms": …}}}

A broker that starts on the root passes plain files by. How a system names its partitions there,
``QuarantineFile`` says.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lastwrite.errors import CorruptLog
from lastwrite.model.log import TopicPartition
from lastwrite.reports.compaction import Quarantined
from lastwrite.storage import files, lock

FILE = "lastwrite-uncleanable.json"

_VERSION = 1
_FIRST_PAUSE_MS = 60_000
_LONGEST_PAUSE_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class QuarantineFile:
    """How partitions of a system are noted."""

    place: lock.LockPlace
    text_of: Callable[[TopicPartition], str]
    name_of: Callable[[str], TopicPartition | None]  # None: no partition's
    folder_of: Callable[[str, TopicPartition], str]  # by root


def name_of(text: str) -> TopicPartition | None:
    """The partition that ``str`` of its name gave; None: no partition's."""
    topic, _, number = text.rpartition("-")
    is_one = topic and number.isascii() and number.isdigit() and number == str(int(number))
    return TopicPartition(topic, int(number)) if is_one else None


def pause_ms(tries: int) -> int:
    """How long after so many failed tries the next one comes."""
    return min(_FIRST_PAUSE_MS << min(tries - 1, 32), _LONGEST_PAUSE_MS)


def read_quarantine(root: str, notes: QuarantineFile) -> dict[TopicPartition, Quarantined]:
    """The partitions of ``root`` that are set aside; none where there is no file.

    Raises:
        CorruptLog: the file is not what we wrote.
        LogError: it cannot be read.
    """
    path = os.path.join(root, FILE)
    try:
        seen = os.stat(path)
        return dict(_read_once(path, notes, seen.st_mtime_ns, seen.st_size, seen.st_ino))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise files.to_log_error(error, path, "read what is set aside") from error


@functools.lru_cache(maxsize=8)
def _read_once(
    path: str, notes: QuarantineFile, mtime_ns: int, size_bytes: int, inode: int
) -> dict[TopicPartition, Quarantined]:
    return _read(path, notes)


def _read(path: str, notes: QuarantineFile) -> dict[TopicPartition, Quarantined]:
    with open(path, "rb") as file:
        content = file.read()
    try:
        document = json.loads(content)
        if document["version"] != _VERSION:
            raise ValueError(f"version {document['version']!r}")
        return {
            _known(notes, text): Quarantined(
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
            f"not a list of partitions that are set aside: {error}",
            path=path,
            remedy="delete it: every partition is then tried again",
        ) from error


def _known(notes: QuarantineFile, text: str) -> TopicPartition:
    name = notes.name_of(text)
    if name is None:
        raise ValueError(f"{text!r} is no partition")
    return name


def set_aside(
    root: str, reasons: dict[TopicPartition, str], now_ms: int, notes: QuarantineFile
) -> None:
    """Note that a round of these partitions failed at ``now_ms``.

    Raises:
        LogHeld: a broker holds the root.
        LogError: the file cannot be written.
    """
    if not reasons:
        return
    with lock.root_turn(root, notes.place):
        entries = _readable(root, notes)
        for name, reason in reasons.items():
            before = entries.get(name)
            tries = 1 if before is None else before.tries + 1
            entries[name] = Quarantined(
                reason=reason,
                since_ms=now_ms if before is None else before.since_ms,
                tries=tries,
                next_try_ms=now_ms + pause_ms(tries),
            )
        _write(root, entries, notes)


def release(
    root: str, names: Iterable[TopicPartition], notes: QuarantineFile
) -> dict[TopicPartition, Quarantined]:
    """Forget that these partitions failed, and say of which of them it was known.

    Raises:
        LogHeld: a broker holds the root.
        LogError: the file cannot be read or written.
    """
    wanted = set(names)
    if not wanted & read_quarantine(root, notes).keys():
        return {}
    with lock.root_turn(root, notes.place):
        entries = _readable(root, notes)
        released = {name: entries.pop(name) for name in sorted(wanted & entries.keys())}
        _write(root, entries, notes)
    return released


def _readable(root: str, notes: QuarantineFile) -> dict[TopicPartition, Quarantined]:
    """What is on disk now; nothing where it cannot be understood."""
    path = os.path.join(root, FILE)
    try:
        return _read(path, notes)
    except (FileNotFoundError, CorruptLog):
        return {}
    except OSError as error:
        raise files.to_log_error(error, path, "read what is set aside") from error


def _write(root: str, entries: dict[TopicPartition, Quarantined], notes: QuarantineFile) -> None:
    """Write the entries of all partitions that are still there; without any there is no file."""
    path = os.path.join(root, FILE)
    kept = {
        notes.text_of(name): entry.to_dict()
        for name, entry in sorted(entries.items())
        if os.path.isdir(notes.folder_of(root, name))
    }
    if not kept:
        if os.path.exists(path):
            files.unlink(path)
            files.fsync_dir(root)
        return
    document = {"version": _VERSION, "partitions": kept}
    content = json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n"
    like = files.owner_of(path, lock.siblings(root, notes.place)).as_far_as_may()
    files.replace(path, content, like=like)
    files.fsync_dir(root)
