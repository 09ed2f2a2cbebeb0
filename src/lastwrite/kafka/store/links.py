"""Symbolic links to partition folders: which root, lock and checkpoints apply.

A broker refers to a partition as ``<its root>/<topic>-<partition>`` and locks its root. Other paths
to the folder do not matter::

    /tmp/x -> /data/kafka/orders-0                  the real path decides: the root is /data/kafka
    /data/kafka/orders-0 -> /disk2/orders-0         /data/kafka is a broker's root, /disk2 is not:
                                                    the root is /data/kafka. Runs also lock
                                                    /disk2, against runs by the other path
    /a/orders-0 -> /b/orders-0                      both are brokers' roots: it is unknown whose
                                                    checkpoints apply

A broker's root is recognised by files that only brokers create.
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
_MOST_LINKS = 40  # Linux's limit of links in a path


def is_brokers(root: str) -> bool:
    """Whether a broker has used the folder as a log root."""
    return any(os.path.exists(os.path.join(root, name)) for name in _BROKERS)


def home_of(folder: str) -> str:
    """The path by which a broker refers to a partition's folder: its root's real path and the name.

    It is the folder's real path if it is not a link, or if no root along the links is a broker's.
    """
    ways = list(ways_to(folder))
    for way in ways:
        if is_brokers(os.path.dirname(way)):
            return way
    named = [way for way in reversed(ways) if decode_folder_name(os.path.basename(way)) is not None]
    return named[0] if named else ways[-1]


def ways_to(folder: str) -> Iterator[str]:
    """The paths of a folder along its symbolic links. The last path is the folder itself."""
    for _ in range(_MOST_LINKS):
        above, name = os.path.split(os.path.abspath(folder))
        folder = os.path.join(os.path.realpath(above), name)
        yield folder
        try:
            target = os.readlink(folder)
        except OSError:  # the path is not a link
            return
        folder = os.path.join(os.path.dirname(folder), target)
