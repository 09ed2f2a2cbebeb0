"""Find symbolic links into or out of a store, and the store whose lock must be taken.

A broker locks its ``storePathRootDir``. The user may give another path, with a link::

    /tmp/x -> /data/store                         the same file ``lock``
    /tmp/x -> /data/store/compaction/…/t/0        real path: the store is /data/store
    /a/compaction -> /data/store/compaction       no broker uses /a: the store is /data/store
    /data/store/compaction -> /disk2/compaction   no broker uses /disk2: the store is /data/store
    /a/compaction -> /b/compaction                brokers use both: refused, two locks are needed

A folder is a broker's store if it has one of certain files, which Lastwrite's compaction never
creates.
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
    """Whether a broker has used the folder as its store."""
    return any(os.path.exists(os.path.join(root, name)) for name in _BROKERS)


def others_of(root: str) -> list[str]:
    """The stores of other brokers to which links of this store lead."""
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
    """The store to lock for ``root``: ``root`` itself, or the store that a link leads to."""
    others = others_of(root)
    return others[0] if len(others) == 1 and not _is_brokers_own(root) else root


def reject_others(root: str) -> None:
    """Raise if a part of the store is in another store, whose broker ignores this store's lock.

    Raises:
        InvalidConfig: a link leads into a broker's store.
    """
    others = others_of(root)
    if others:
        raise InvalidConfig(
            f"a symbolic link leads from here into the store {others[0]}, whose broker does not "
            "check this store's lock",
            path=root,
            remedy=f"run the command on {others[0]}, or replace the link by the folder itself",
        )


def _is_brokers_own(root: str) -> bool:
    """Whether a broker has used the folder as its store. Files behind links do not count."""
    own = os.path.realpath(root)
    return any(
        os.path.exists(path) and os.path.realpath(path).startswith(own + os.sep)
        for path in (os.path.join(root, name) for name in _BROKERS)
    )
