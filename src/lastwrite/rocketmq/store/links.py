"""Symbolic links to a store, or out of one: whose lock counts.

A broker locks its ``storePathRootDir``. The name under which a part of it was found says nothing::

    /tmp/x -> /data/store                         the same file ``lock``: nothing to decide
    /tmp/x -> /data/store/compaction/…/t/0        the real path decides: the store is /data/store
    /a/compaction -> /data/store/compaction       /a is no broker's: the store is /data/store
    /data/store/compaction -> /disk2/compaction   /disk2 is no broker's: the store is /data/store
    /a/compaction -> /b/compaction                both are brokers': refused, nobody holds both

That a folder is a broker's store its own files tell, which no round of ours makes.
"""

from __future__ import annotations

import os

from lastwrite.errors import InvalidConfig
from lastwrite.rocketmq.format import names

TREES = (
    names.COMMIT_LOG,
    names.CONSUME_QUEUES,
    names.BATCH_CONSUME_QUEUES,
    names.INDEX,
    names.CONFIG,
    names.COMPACTION,
    os.path.join(names.COMPACTION, names.COMPACTION_LOGS),
    os.path.join(names.COMPACTION, names.COMPACTION_QUEUES),
)
_BROKERS = (
    names.ABORT,
    names.CHECKPOINT,
    names.COMMIT_LOG,
    os.path.join(names.CONFIG, names.TOPICS),
)


def is_brokers(root: str) -> bool:
    """Whether a broker has had the folder for its store."""
    return any(os.path.exists(os.path.join(root, name)) for name in _BROKERS)


def others_of(root: str) -> list[str]:
    """Other brokers' stores that trees of this one lie in, by links."""
    own = os.path.realpath(root)
    real = {
        _above(os.path.realpath(os.path.join(root, tree)), len(tree.split(os.sep)))
        for tree in TREES
    }
    return sorted(folder for folder in real if folder != own and is_brokers(folder))


def _above(path: str, steps: int) -> str:
    for _ in range(steps):
        path = os.path.dirname(path)
    return path


def home_of(root: str) -> str:
    """The store whose lock counts for ``root``: another's, where a link leads there."""
    others = others_of(root)
    return others[0] if len(others) == 1 and not _is_brokers_own(root) else root


def refuse_others(root: str) -> None:
    """Refuse a store a part of which is another one's: a lock here keeps no broker away from there.

    Raises:
        InvalidConfig: a link leads into a broker's store.
    """
    others = others_of(root)
    if others:
        raise InvalidConfig(
            f"a link leads from here into another store, {others[0]}, whose broker does not see this one's lock",
            path=root,
            remedy=f"work on {others[0]}, or put the folder itself here",
        )


def _is_brokers_own(root: str) -> bool:
    """Whether a broker has had it for its store, by files that lie in it and not behind a link."""
    own = os.path.realpath(root)
    return any(
        os.path.exists(path) and os.path.realpath(path).startswith(own + os.sep)
        for path in (os.path.join(root, name) for name in _BROKERS)
    )
