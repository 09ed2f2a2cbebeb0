"""Read the partitions of log roots, each only if it has changed."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, replace

from lastwrite.cleaner.pick import Candidate
from lastwrite.engine.system import System
from lastwrite.errors import LogError, NotALog, RemoteFailed
from lastwrite.kafka.store.watching import is_as_read
from lastwrite.model.log import PartitionLog
from lastwrite.storage.layout import PartitionSnapshot


@dataclass(frozen=True, slots=True)
class _WatchedFolder:
    """The result of the last read of a partition, and the state of its folder at that time."""

    state: Hashable | None
    log: PartitionLog | None
    problem: str | None

    def is_current(self, state: Hashable | None) -> bool:
        if self.state is None or self.state != state:
            return False
        return self.log is None or not self.log.segments or is_as_read(self.log.segments[-1])


class Watch:
    """Watches the partitions of some log roots of one system."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._folders: dict[str, dict[str, _WatchedFolder]] = {}

    def scan(
        self, root: str, config: Mapping[str, object], now_ms: int, busy: Collection[str]
    ) -> list[Candidate]:
        """The current state of every partition of ``root``, except the folders in ``busy``.

        Raises:
            LogError: the root cannot be listed.
            RemoteFailed: its store does not answer.
        """
        before = self._folders.get(root, {})
        known: dict[str, _WatchedFolder] = {}
        found = []
        for seen in self._system.scan_root(root):
            last = before.get(seen.folder)
            if seen.folder in busy:
                if last is not None:
                    known[seen.folder] = last
                continue
            if last is None or not last.is_current(seen.state):
                last = self._read(seen)
            known[seen.folder] = last
            found.append(self._candidate(root, seen, last, config, now_ms))
        self._folders[root] = known
        return found

    def state_of(self, root: str, folder: str) -> object:
        """The state of the partition when it was last read. Equal states mean no change."""
        known = self._folders.get(root, {}).get(folder)
        return None if known is None else (known.state, known.log)

    def has_changed(self, root: str, folder: str) -> bool:
        """Whether another process has changed the partition since it was last read.

        Lastwrite's own unfinished files are ignored.

        Raises:
            RemoteFailed: its store does not answer.
        """
        known = self._folders.get(root, {}).get(folder)
        if known is None:
            return True
        try:
            is_other = self._system.read(folder) != known.log
        except RemoteFailed:
            raise
        except LogError as error:
            is_other = known.problem != str(error)
        # forget the partition, because ``scan`` would not detect the change of a closed segment
        if is_other:
            del self._folders[root][folder]
        return is_other

    def _candidate(
        self,
        root: str,
        snapshot: PartitionSnapshot,
        known: _WatchedFolder,
        config: Mapping[str, object],
        now_ms: int,
    ) -> Candidate:
        log, trouble = known.log, known.problem
        bare = Candidate(
            root=root,
            folder=snapshot.folder,
            name=snapshot.name,
            home=self._system.root_of(snapshot.folder),
        )
        try:
            alone = self._system.why_unmanaged(snapshot.folder, config)
        except RemoteFailed:
            raise
        except LogError as error:  # an error means that the archive's manifest is damaged
            alone, trouble = None, trouble or str(error)
        if alone is not None:
            return replace(bare, unmanaged_reason=str(alone))
        if trouble is not None and not snapshot.rests:
            return bare  # no problem yet: another process may be writing to the partition
        bare = replace(bare, compacts=trouble is not None, problem=trouble)
        if (
            log is None
            or not log.segments
            or not self._system.is_policy_known(snapshot.folder, config)
        ):
            return bare
        try:
            decision = self._system.decide(log, config, now_ms, False)
            retention = self._system.expired(log, config, now_ms)
        except RemoteFailed:
            raise
        except LogError as error:
            return replace(bare, compacts=True, problem=trouble or str(error))
        found = replace(
            bare,
            size_bytes=log.size_bytes,
            compacts=decision.compacts,
            dirty_ratio=decision.dirty_ratio,
            cleanable_bytes=decision.cleanable_bytes,
            overdue_ms=decision.overdue_ms,
        )
        if trouble is not None:
            return found
        return replace(
            found,
            is_due=decision.reason is None and decision.waits is None,
            expired_bytes=retention.size_bytes,
            expired_segments=len(retention.segments),
        )

    def _read(self, snapshot: PartitionSnapshot) -> _WatchedFolder:
        try:
            log = self._system.read(snapshot.folder)
        except NotALog:
            return _WatchedFolder(snapshot.state, None, None)
        except RemoteFailed:
            raise
        except LogError as error:
            return _WatchedFolder(snapshot.state, None, str(error))
        wrong = [problem for problem in log.problems if not problem.is_note]
        return _WatchedFolder(snapshot.state, log, str(wrong[0]) if wrong else None)
