"""Symbolic links to partitions' folders: whose root, lock and checkpoints count.

A broker knows a partition as ``<its root>/<topic>-<partition>`` and locks its root; the name under
which somebody else found the folder says nothing::

    /tmp/x -> /data/kafka/orders-0                  the real path decides: the root is /data/kafka
    /data/kafka/orders-0 -> /disk2/orders-0         /data/kafka is a broker's, /disk2 is not: the
                                                    root is /data/kafka,
                                                    and runs that come by the other name are kept
                                                    out by a lock there
    /a/orders-0 -> /b/orders-0                      both are brokers': nobody can tell whose
                                                    checkpoints hold

That a root is a broker's its own files tell, which no run of ours makes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from lastwrite.kafka.format.names import (
    HIGH_WATERMARKS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    decode_folder_name,
)

_BROKERS = (META_PROPERTIES, RECOVERY_POINTS, HIGH_WATERMARKS)
_MOST_LINKS = 40  # as many as Linux follows


def is_brokers(root: str) -> bool:
    """Whether a broker has had the folder for a log root."""
    return any(os.path.exists(os.path.join(root, name)) for name in _BROKERS)


def home_of(folder: str) -> str:
    """A partition's folder as the broker knows it: below its root, which is a real path.

    Where no root on the way is a broker's, or the folder is no link, that is the real path.
    """
    ways = list(ways_to(folder))
    for way in ways:
        if is_brokers(os.path.dirname(way)):
            return way
    named = [way for way in reversed(ways) if decode_folder_name(os.path.basename(way)) is not None]
    return named[0] if named else ways[-1]


def ways_to(folder: str) -> Iterator[str]:
    """The folder by each name that leads to it, each below a real path; the last is its own."""
    for _ in range(_MOST_LINKS):
        above, name = os.path.split(os.path.abspath(folder))
        folder = os.path.join(os.path.realpath(above), name)
        yield folder
        try:
            target = os.readlink(folder)
        except OSError:  # it is no link
            return
        folder = os.path.join(os.path.dirname(folder), target)
