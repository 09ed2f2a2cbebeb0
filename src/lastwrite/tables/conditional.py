"""A small object that is written on a condition, whatever the store answers: the step by which a
table without a catalog gets a new head.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from lastwrite.errors import RemoteFailed, TableConflict
from lastwrite.storage.objects.store import ObjectStore, Version


def was_put(store: ObjectStore, key: str, content: bytes, seen: Version | None) -> bool:
    """Write an object in the place of the version that was seen; None: where there is none.

    ``content`` is like no other that anybody writes, so that it is known again: a store may say no
    to a write that it has made, or say nothing.

    Returns:
        Whether it lies there; no: another does, or lay there on top of it.

    Raises:
        RemoteFailed: the store refuses, or nobody can say whether it was written.
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
        "nobody can say whether the new head of the table was written",
        path=f"{store.address}/{key}",
        remedy="run again when the store answers: it begins with what lies there",
    )


def lost(path: str, seen: str) -> TableConflict:
    """The error of a writer who was not the first."""
    return TableConflict(
        f"somebody else has written the table since {seen} was read",
        path=path,
        remedy="nothing was changed: let one writer keep the table, and run again",
    )


def _waits() -> Iterator[float]:
    """How long to wait before each next try: half a minute in all at most, never in step."""
    for wait_s in (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, *[5.0] * 5):
        yield wait_s * random.uniform(0.5, 1.0)
