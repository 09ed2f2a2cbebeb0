"""Retention of old heads and files: each run drops old heads, and removes files left over.

A replaced head can be read for five days, as in Iceberg. A file that no readable head refers to
belongs to a crashed run or a dropped head. Such a file is removed when it is a day old, and only if
its name has the form that lastwrite generates.
"""

from __future__ import annotations

import re
from typing import Final

from lastwrite.storage.objects.address import is_address, join, store_at
from lastwrite.tables.format import TableFormat

_DAY_MS: Final = 86_400_000
PAST_MS: Final = 5 * _DAY_MS
_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
OURS: Final = re.compile(  # the names, relative to the table, that lastwrite generates for files
    r"(?:(?:data|_bucket=\d+)/\d{5,}-[0-9a-f]{16}(?:-deletes)?\.parquet"
    r"|data/vectors-[0-9a-f]{16}\.puffin"
    r"|_lastwrite/manifest-\d+-[0-9a-f]{32}\.json"
    rf"|_vectors/deletion_vector_{_UUID}\.bin"
    rf"|metadata/{_UUID}-m\d+\.avro|metadata/snap-\d+-\d+-{_UUID}\.avro"
    rf"|metadata/\d{{5,}}-{_UUID}\.metadata\.json)$"
)


def tidy(format: TableFormat, now_ms: int, past_ms: int = PAST_MS) -> int:
    """Drop heads that were replaced at least ``past_ms`` ago, and remove unused files.

    Returns the number of removed files.

    Raises:
        LogHeld, RemoteFailed: the table could not be read. No needed file was removed.
    """
    format.expire(now_ms - past_ms)
    address = format.location
    store, prefix = store_at(address)
    below = f"{prefix}/" if prefix else ""
    store.remove_unfinished(below, _DAY_MS)
    old = [
        found.key
        for found in store.list(below)
        if OURS.match(found.key[len(below) :]) and found.modified_ms < now_ms - _DAY_MS
    ]
    if not old:
        return 0
    named = format.named()
    root = address[: len(address) - len(prefix)] if is_address(address) else address
    left = [key for key in old if join(root, key) not in named]
    store.remove(left)
    return len(left)
