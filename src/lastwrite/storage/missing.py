"""The error for a file or object that was listed and is missing now."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lastwrite.errors import CommitConflict, CorruptLog, LogError, is_of_archive
from lastwrite.storage.files import DELETED
from lastwrite.storage.objects.address import is_address, store_at

_DATA = "/data/"
_MANIFEST = "manifest.json"


def missing_error(path: str, what: str, remedy: str) -> LogError:
    """The error for a missing object.

    This is ``CorruptLog`` if the archive's manifest still lists the object, else
    ``CommitConflict``.

    ``what`` and ``remedy`` are for the message of the conflict.
    """
    if is_of_archive(path):
        manifest, key = _manifest_of(path)
        if f'"{key}"'.encode() in manifest:
            held = _contents_in(manifest, key)
            wrong = f"the object is missing, but the manifest of its archive lists it{held}"
            # an error for an archive's object replaces this remedy by the remedy for archives
            return CorruptLog(wrong, path=path, remedy=remedy)
    return CommitConflict(f"{DELETED} {what} during the command", path=path, remedy=remedy)


def _contents_in(manifest: bytes, key: str) -> str:
    """The contents of an object according to the manifest, as ``: offsets 20 to 29``."""
    try:
        log = msgspec.json.decode(manifest)["log"]
        parts = [*(log.get("segments") or ()), *(log.get("files") or ())]
        for n, part in enumerate(parts):
            folder = part["folder"]
            if folder and key.startswith(folder) and _base(part) in key:
                following = parts[n + 1]["base_offset"] if n + 1 < len(parts) else log["end_offset"]
                return f": offsets {part['base_offset']} to {following - 1}"
        for part in log.get("ledgers") or ():
            if key.startswith(part["key"]):
                return f": ledger {part['ledger']}, entries 0 to {part['entries'] - 1}"
    except (msgspec.MsgspecError, AttributeError, KeyError, TypeError):
        pass  # another release wrote the manifest; the message then has no offsets
    return ""


def _base(part: Mapping[str, int]) -> str:
    """The start of an object's name: its base offset or, for RocketMQ, its commit log address."""
    return f"/{part.get('address', part['base_offset']):020d}"


def _manifest_of(path: str) -> tuple[bytes, str]:
    """The manifest of the object's archive, empty if unreadable, and the object's key."""
    folder, _, key = path.rpartition(_DATA)
    manifest = f"{folder}/{_MANIFEST}"
    try:
        if is_address(manifest):
            store, name = store_at(manifest)
            found = store.get(name)
            content = b"" if found is None else found[0]
        else:
            with open(manifest, "rb") as file:
                content = file.read()
    except (LogError, OSError):
        content = b""
    return content, f"{_DATA[1:]}{key}"
