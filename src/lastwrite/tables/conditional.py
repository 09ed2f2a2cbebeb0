"""Conditional writes of a small object: how a table without a catalog gets a new head."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from lastwrite.errors import RemoteFailed, TableConflict
from lastwrite.storage.objects.store import ObjectStore, Version


def was_put(store: ObjectStore, key: str, content: bytes, seen: Version | None) -> bool:
    """Write an object in place of the version that was seen. None means there was no object.

    ``content`` must be unique to this write. A store may answer with an error although it has
    written the object, and the content shows whether it has.

    Returns:
        Whether the object was written. False means another writer's object is there, or was.

    Raises:
        RemoteFailed: the store refuses, or it is not known whether the object was written.
    """
    for wait_s in _waits():
        refused: RemoteFailed | None = None
        try:
            if seen is None:
                made = store.create(key, content)
            else:
                made = store.replace(key, content, seen)
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
            if (None if found is None else found[1].version) != seen:
                return False
            if refused is not None:
                raise refused
        time.sleep(wait_s)
    raise RemoteFailed(
        "it is not known whether the new head of the table was written",
        path=f"{store.address}/{key}",
        remedy="run again when the store answers: the run continues from the head that is there",
    )


def lost(path: str, seen: str) -> TableConflict:
    """The error for a writer that another writer overtook."""
    return TableConflict(
        f"another program has written the table since {seen} was read",
        path=path,
        remedy="nothing was changed: let one writer keep the table, and run again",
    )


def _waits() -> Iterator[float]:
    """The waits before each next try: at most 31 s in all, with jitter."""
    for wait_s in (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, *[5.0] * 5):
        yield wait_s * random.uniform(0.5, 1.0)
