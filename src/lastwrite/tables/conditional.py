"""Conditional writes of a small object, which commit a new head of a table without a catalog."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from lastwrite.errors import RemoteFailed, TableConflict
from lastwrite.storage.objects.store import ObjectStore, Version


def was_put(store: ObjectStore, key: str, content: bytes, version: Version | None) -> bool:
    """Replace an object if its version is still ``seen``. None creates it if it does not exist.

    ``content`` must be unique to this write. A store may return an error although it has written
    the object. The object's content then shows whether it was written.

    Returns:
        Whether the object was written. False means that another writer wrote the object first.

    Raises:
        RemoteFailed: the write failed, or it is unknown whether the object was written.
    """
    for wait_s in _waits():
        refused: RemoteFailed | None = None
        try:
            if version is None:
                made = store.create(key, content)
            else:
                made = store.replace(key, content, version)
        except RemoteFailed as error:
            made, refused = None, error
        if made is not None:
            return True
        try:
            found = store.get(key)
        except RemoteFailed as error:
            refused, found = refused or error, None
        else:
            if found is not None and found[0] == content:
                return True
            if (None if found is None else found[1].version) != version:
                return False
            if refused is not None:
                raise refused
        time.sleep(wait_s)
    raise RemoteFailed(
        "Lastwrite cannot determine whether the new version of the table was written",
        path=f"{store.address}/{key}",
        remedy="run the command again when the store answers; it continues from the table's "
        "current version",
    )


def lost(path: str, seen: str) -> TableConflict:
    """The error for a write that failed because another program wrote first."""
    return TableConflict(
        f"another program changed the table during the command, after {seen} was read",
        path=path,
        remedy="nothing was changed; let only one program write the table, and run the same "
        "command again",
    )


def _waits() -> Iterator[float]:
    """The delay in seconds before each retry, with jitter: in total at most 29 s."""
    for wait_s in (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, *[5.0] * 5):
        yield wait_s * random.uniform(0.5, 1.0)
