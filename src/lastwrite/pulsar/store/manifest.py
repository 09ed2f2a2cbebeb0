"""The compacted ledger of a topic folder: ``compacted.json``.

It is the offline version of the cursor ``__compaction``.

::

    {"version": 1, "topic": "persistent://public/default/orders", "ledger": 13,
     "object": "2f…-ledger-13",
     "from": "10:1", "to": "12:7", "horizon": "12:9", "entries": 3, "bytes": 279, "messages": 4,
     "order": "publishing", "retain_null_key": false, "parts": false, "read": 9,
     "ledgers": [10, 12], "checksum": "8a2e10c4"}

Entries up to the horizon are read from this ledger, later entries from the raw ledgers. The file is
replaced by one rename. So it always names a complete ledger, the old or the new one. ``checksum``
is the CRC-32C of the other fields, as JSON with sorted names and no blanks.

Source: docs/formats/pulsar.md, "Compacted ledger"; docs/formats/pulsar-compaction.md, "The commit"
and "A round". The file is Lastwrite's own.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from lastwrite.encoding.checksum import crc32c
from lastwrite.errors import CorruptLog, InvalidConfig, located
from lastwrite.pulsar.format.names import (
    MANAGED_LEDGER,
    MANAGED_LEDGER_JSON,
    MANIFEST,
    parse_object_name,
)
from lastwrite.pulsar.format.position import MAX_ENTRY, MAX_LEDGER, Position
from lastwrite.storage import files
from lastwrite.storage.ownership import Ownership

PUBLISHING, EVENT_TIME = "publishing", "event-time"
# suffix of unfinished files; a process that has locked the topic may remove them
ASIDE_SUFFIX = ".aside"

_VERSION = 1
_MOST_BYTES = 1 << 20
_REMEDY = (
    "restore the manifest from a backup, or fetch the topic into another archive. Only if the "
    "folder has every raw ledger of the topic since its first, move the manifest to another "
    "folder: the next round then compacts the raw ledgers again"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionManifest:
    """A topic's compacted ledger.

    ``from_`` and ``to`` are the ids of its first and last record. Both are the horizon if the
    ledger is empty.
    """

    topic: str  # the topic's full name, with the partition
    ledger: int
    object: str  # name of the data object; the index object has the same name with a suffix
    from_: Position
    to: Position
    horizon: Position  # the last raw entry that the last compaction read
    entries: int
    size_bytes: int  # bytes of the records, without the object's framing
    messages: int
    order: str = PUBLISHING
    retain_null_key: bool = False
    parts: bool = False  # whether the ledger may contain chunked messages
    # messages that the last compaction read, also in the former compacted ledger
    read: int = 0
    ledgers: tuple[int, ...] = ()  # the raw ledgers that the last compaction read

    def to_dict(self) -> dict[str, Any]:
        """The content of the file, without the checksum."""
        return {
            "version": _VERSION,
            "topic": self.topic,
            "ledger": self.ledger,
            "object": self.object,
            "from": str(self.from_),
            "to": str(self.to),
            "horizon": str(self.horizon),
            "entries": self.entries,
            "bytes": self.size_bytes,
            "messages": self.messages,
            "order": self.order,
            "retain_null_key": self.retain_null_key,
            "parts": self.parts,
            "read": self.read,
            "ledgers": list(self.ledgers),
        }

    def encode(self) -> bytes:
        """The bytes of the file."""
        return seal(self.to_dict())

    @classmethod
    def decode(cls, data: bytes) -> CompactionManifest:
        """Decode the bytes of the file.

        Raises:
            CorruptLog: Lastwrite did not write these bytes.
        """
        content = unseal(data, "the manifest", _VERSION, _REMEDY)
        try:
            found = cls(
                topic=_text(content, "topic"),
                ledger=_count(content, "ledger"),
                object=_text(content, "object"),
                from_=_parse_position(content, "from"),
                to=_parse_position(content, "to"),
                horizon=_parse_position(content, "horizon"),
                entries=_count(content, "entries"),
                size_bytes=_count(content, "bytes"),
                messages=_count(content, "messages"),
                order=_text(content, "order"),
                retain_null_key=content["retain_null_key"] is True,
                parts=content.get("parts") is True,
                read=_count(content, "read"),
                ledgers=tuple(int(number) for number in content["ledgers"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError, InvalidConfig) as error:
            raise CorruptLog(
                f"a field of the manifest is missing or wrong: {error}", remedy=_REMEDY
            ) from error
        named = parse_object_name(found.object)
        if named is None or named[1] != found.ledger or found.order not in (PUBLISHING, EVENT_TIME):
            raise CorruptLog("the fields of the manifest contradict each other", remedy=_REMEDY)
        return found


def seal(content: dict[str, Any]) -> bytes:
    """A JSON document with its checksum added, as the bytes of a file."""
    return json.dumps(content | {"checksum": checksum_of(content)}, indent=1).encode() + b"\n"


def unseal(data: bytes, what: str, version: int, remedy: str) -> dict[str, Any]:
    """Decode a file's JSON document, and check and remove its checksum.

    ``what`` names the document in errors.

    Raises:
        CorruptLog: not JSON, another version, or a checksum that does not match the content.
    """
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptLog(f"{what} is not JSON: {error}", remedy=remedy) from error
    if not isinstance(content, dict) or content.get("version") != version:
        raise CorruptLog(f"{what} was written by another release", remedy=remedy)
    told, checksum = content.pop("checksum", None), checksum_of(content)
    if told != checksum:
        words = f"the checksum of {what} is {checksum}, but the stored checksum is {told!r}"
        raise CorruptLog(words, remedy=remedy)
    return content


def read_sealed(path: str, most_bytes: int, remedy: str) -> bytes | None:
    """The bytes of a file that has a checksum. None if the file does not exist.

    Raises:
        CorruptLog: the file exceeds ``most_bytes``.
        LogError: the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(most_bytes + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise files.to_log_error(error, path, "read the file") from error
    if len(data) > most_bytes:
        raise CorruptLog(f"the file has more than {most_bytes} bytes", path=path, remedy=remedy)
    return data


def replace_file(path: str, content: bytes, like: Ownership | None = None) -> None:
    """Write a file atomically and durably. If this raises ``LogError``, the former file remains."""
    files.replace(path, content, suffix=ASIDE_SUFFIX, like=like)
    files.fsync_dir(os.path.dirname(path))


def checksum_of(content: object) -> str:
    """The CRC-32C of a JSON document with sorted names and no blanks, as eight hex digits."""
    plain = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return f"{int(crc32c(np.frombuffer(plain, dtype=np.uint8), 0, len(plain))):08x}"


def _text(content: dict[str, object], name: str) -> str:
    value = content[name]
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r}")
    return value


def _count(content: dict[str, object], name: str) -> int:
    value = content[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise ValueError(f"{name} is {value!r}")
    return value


def _parse_position(content: dict[str, object], name: str) -> Position:
    place = Position.parse(_text(content, name))
    if not (0 <= place.ledger <= MAX_LEDGER and -1 <= place.entry <= MAX_ENTRY):
        raise ValueError(f"{name} is {place}")
    return place


def read_manifest(folder: str) -> CompactionManifest | None:
    """The manifest of a topic folder. None if the topic was never compacted there.

    Raises:
        CorruptLog: Lastwrite did not write this content.
        LogError: the file cannot be read.
    """
    path = os.path.join(folder, MANIFEST)
    data = read_sealed(path, _MOST_BYTES, _REMEDY)
    with located(path):
        return None if data is None else CompactionManifest.decode(data)


def replace_manifest(folder: str, manifest: CompactionManifest) -> None:
    """Write the manifest, atomically and durably.

    The ledger that the manifest names is valid from this moment on.

    Raises:
        LogError: the file cannot be written; the former file remains.
    """
    path = os.path.join(folder, MANIFEST)
    siblings = [
        os.path.join(folder, name)
        for name in (MANAGED_LEDGER, MANAGED_LEDGER_JSON, manifest.object)
    ]
    replace_file(path, manifest.encode(), files.owner_of(path, siblings).as_far_as_may())
