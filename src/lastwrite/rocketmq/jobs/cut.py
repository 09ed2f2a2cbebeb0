"""``cut``: truncate a RocketMQ commit log at an earlier address, keep the old files, and undo that.

lastwrite.cut("/root/store", at=163840, dry_run=True).to_dict()
lastwrite.cut("/root/store", at=163840)
lastwrite.cut("/root/store", undo=True)
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from lastwrite.errors import InvalidConfig, NotALog
from lastwrite.model.log import TopicPartition
from lastwrite.rocketmq.reports import CutReport
from lastwrite.rocketmq.rules.dispatch_settings import DispatchConfig
from lastwrite.rocketmq.store import cutting, links, lock, reading
from lastwrite.rocketmq.store.layouts import reject_other_layouts
from lastwrite.rocketmq.store.place import is_store
from lastwrite.rocketmq.store.reading import StoreFolder

# ``dispatch`` uses the same lock, so cuts and dispatches of a store exclude each other.
_ALL = TopicPartition("lastwrite-dispatch", 0)


def cut(
    path: str,
    at: int | None = None,
    *,
    dry_run: bool = False,
    undo: bool = False,
    unclean: bool = False,
    config: Mapping[str, object] | None = None,
) -> CutReport:
    """Truncate the commit log of the store at ``path`` at the physical offset ``at``.

    A broker that starts does the same at a partial record.

    Args:
        path: the store, a broker's ``storePathRootDir``, with its commit log in it.
        at: an address where a record begins, or the last whole record ends. All later data is
            removed.
        dry_run: only report the records that a cut would remove.
        undo: restore the files from before the last cut, byte for byte.
        unclean: continue although the broker was not stopped cleanly.
        config: settings with the broker's names. A commit log outside the store is
            not supported.

    Raises:
        NotALog: the path is not a store.
        InvalidConfig: no record begins or ends at ``at``, or there is nothing to undo.
        LogHeld: a broker or another command has the store, its broker was killed, or the log has
            new records since the cut.
        LogError: nothing was changed, or the message states what to do.
    """
    root = links.home_of(str(path))
    if not is_store(root):
        raise NotALog(
            "the folder is not a RocketMQ store",
            path=root,
            remedy="give the broker's storePathRootDir",
        )
    if (at is None) == (not undo):
        raise InvalidConfig(
            "cut needs either an offset or --undo", remedy="give --at OFFSET or --undo"
        )
    if undo and dry_run:
        raise InvalidConfig("--undo has no dry run", remedy="leave out --dry-run")
    reject_other_layouts(root, "cut", config)
    settings = DispatchConfig.from_names(config or {})
    elsewhere = ",".join(filter(None, (settings.commit_log_folders, settings.read_only_folders)))
    own = os.path.realpath(os.path.join(root, StoreFolder.COMMIT_LOG))
    if any(
        os.path.realpath(folder.strip()) != own for folder in elsewhere.split(",") if folder.strip()
    ):
        raise InvalidConfig(
            f"the commit log is in {elsewhere}, and cut changes only files inside the store; "
            "nothing was changed",
            path=root,
            remedy="copy the store, put the commit log's files into the folder commitlog of the "
            "copy, and run cut on the copy",
        )
    with lock.hold(root, {*reading.list_queues(root, StoreFolder.COMPACTION_LOG), _ALL}):
        if undo:
            return cutting.undo(root)
        lock.reject_unclean(root, goes_on=unclean)
        planned = cutting.plan(root, at or 0)
        return planned.report if dry_run else cutting.make(planned)
