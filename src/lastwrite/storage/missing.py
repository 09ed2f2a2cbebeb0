"""The error for a file or an object that was listed and is not there any more."""

from __future__ import annotations

from lastwrite.errors import CommitConflict, CorruptLog, LogError, is_of_archive
from lastwrite.storage.objects.address import is_address, store_at

_DATA = "/data/"
_MANIFEST = "manifest.json"


def missing_error(path: str, what: str, remedy: str) -> LogError:
    """Damage where the archive's manifest still names the object; else a conflict with whoever
    removed it. ``what`` and ``remedy`` are the words of the conflict.
    """
    if is_of_archive(path) and _is_named(path):
        wrong = "the object is missing, and the manifest of its archive names it"
        return CorruptLog(wrong, path=path, remedy=remedy)  # an archive has a remedy of its own
    return CommitConflict(f"{what} vanished while we worked", path=path, remedy=remedy)


def _is_named(path: str) -> bool:
    """Whether the manifest beside the folder ``data`` names the object now."""
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
        return False
    return f'"{_DATA[1:]}{key}"'.encode() in content
