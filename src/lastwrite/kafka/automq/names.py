"""Keys of objects in an AutoMQ bucket.

    05000000/_kafka_CLUSTER/80                                       object 80 (hex 50)
    C4CA4238…849B/_kafka_CLUSTER/1/1795827305756/wal/START-END       write-ahead log of node 1

The first part spreads the keys: the reversed hex digits of an object's id, or the MD5 of a node's
id. It adds no information to the rest of the key.

Source: AutoMQ f1ce98ec ``ObjectUtils``, ``WALUtil``, ``ObjectReservationService``.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

NAMESPACE_PREFIX = "_kafka_"
# Part of a remedy. In this order, a record that is uploaded during the copy is in the copy.
COPY_AGAIN = (
    "copy the bucket and the metadata log again: first the write-ahead objects, then "
    "__cluster_metadata-0, then the other objects"
)

# the node may be followed by ``_`` and the type of the write-ahead log
_WAL_KEY = re.compile(
    r"[0-9A-F]{32}/[^/]+/([0-9]{1,9})(?:_[^/]*)?/([0-9]{1,19})/wal/([0-9]{1,19})(?:-([0-9]{1,19}))?"
)


class WalKey(NamedTuple):
    """The contents of the key of a write-ahead object."""

    node: int
    epoch: int  # of the node
    start_offset: int  # position in the node's write-ahead log
    end_offset: int | None  # None in old keys: start plus the bytes after the header


def namespace_of(cluster_id: str) -> str:
    """The namespace of a cluster: the second part of all its keys."""
    return f"{NAMESPACE_PREFIX}{cluster_id}"


def object_key(namespace: str, object_id: int) -> str:
    """The key of an object that the metadata log describes."""
    return f"{f'{object_id:08x}'[::-1]}/{namespace}/{object_id}"


def wal_prefix(namespace: str, node: int) -> str:
    """The prefix of the keys of a node's write-ahead objects.

    Keys of another node have the same prefix if its id begins with this node's id.
    """
    spread = hashlib.md5(str(node).encode(), usedforsecurity=False).hexdigest().upper()
    return f"{spread}/{namespace}/{node}"


def decode_wal_key(key: str) -> WalKey | None:
    """Decode the key of a write-ahead object. None for other keys."""
    found = _WAL_KEY.fullmatch(key)
    if found is None:
        return None
    node, epoch, start, end = found.groups()
    return WalKey(int(node), int(epoch), int(start), None if end is None else int(end))
