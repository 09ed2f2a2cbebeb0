"""``cut``: end a RocketMQ commit log at an earlier place, keep what is removed, and undo that.

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

# The lock of dispatch, so that two such commands exclude each other.
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
    """End the commit log of the store at ``path`` at the physical offset ``at``.

    The result is that of a broker's start that finds no whole record there.

    Args:
        path: the store, a broker's ``storePathRootDir``, with its commit log in it.
        at: where a record begins, or the last whole one ends; everything from there on is removed.
        dry_run: only report what would be removed.
        undo: restore what the last cut removed, byte for byte.
        unclean: continue although the broker was not stopped cleanly.
        config: settings under the broker's names; a commit log outside of the store is refused.

    Raises:
        NotALog: the path is not a store.
        InvalidConfig: no record begins or ends at ``at``, or there is nothing to undo.
        LogHeld: a broker or another command has the store, its broker was killed, or the log has
            new records since the cut.
        LogError: nothing was changed, or the message has the next step.
    """
    root = links.home_of(str(path))
    if not is_store(root):
        raise NotALog("no RocketMQ store", path=root, remedy="give a broker's storePathRootDir")
    if (at is None) == (not undo):
        raise InvalidConfig(
            "give either a place for a cut, or an undo", remedy="give --at OFFSET or --undo"
        )
    if undo and dry_run:
        raise InvalidConfig("an undo has no dry run", remedy="leave out --dry-run")
    reject_other_layouts(root, "cut", config)
    settings = DispatchConfig.from_names(config or {})
    elsewhere = ",".join(filter(None, (settings.commit_log_folders, settings.read_only_folders)))
    own = os.path.realpath(os.path.join(root, StoreFolder.COMMIT_LOG))
    if any(
        os.path.realpath(folder.strip()) != own for folder in elsewhere.split(",") if folder.strip()
    ):
        raise InvalidConfig(
            f"the commit log is in {elsewhere}, and a cut changes only files of the store",
            path=root,
            remedy="on a copy of the store, put the log's files into its folder commitlog, and "
            "cut there",
        )
    with lock.hold(root, {*reading.list_queues(root, StoreFolder.COMPACTION_LOG), _ALL}):
        if undo:
            return cutting.undo(root)
        lock.reject_unclean(root, goes_on=unclean)
        planned = cutting.plan(root, at or 0)
        return planned.report if dry_run else cutting.make(planned)
