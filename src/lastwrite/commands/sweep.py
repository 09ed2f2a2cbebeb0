"""``sweep``: removes replaced and uncommitted objects from an archive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from lastwrite.archive.layout import partitions_at
from lastwrite.archive.partition_store import ABANDONED_MS, PartitionStore
from lastwrite.config.stores import store_settings
from lastwrite.errors import CommitConflict, CorruptLog, LogError, NotALog
from lastwrite.model.attempts import ATTEMPTS
from lastwrite.reports.sweeping import SweepReport, SweptPartition
from lastwrite.storage.objects import address
from lastwrite.storage.objects.address import store_at

_AT_ONCE = 16  # number of partitions that are swept in parallel, because requests mostly wait


def sweep(
    path: str,
    *,
    older_than_ms: int = ABANDONED_MS,
    everything: bool = False,
    dry_run: bool = False,
    config: Mapping[str, object] | None = None,
) -> SweepReport:
    """Delete objects of rounds that ended without a commit, and objects replaced over an hour ago.

    A *round* is one write transaction on a partition.
    Objects that a manifest lists are never deleted. A partition without a manifest is skipped.

    Args:
        path: the address of an archive, of a partition, or of any folder in between.
        older_than_ms: minimum time since the last activity of a round, by the store's clock. If a
            round still runs after that time, it loses its work, but no data is lost.
        everything: list all objects, to find objects whose round has no journal.
        dry_run: change nothing; report what would be removed.
        config: settings ``storage.*`` of the object store.

    Returns:
        The deleted objects of each partition, as counts. If a partition fails, the report has
            the reason, and the other partitions are swept.

    Raises:
        NotALog: there is no archive at ``path``.
        RemoteFailed: the object store does not answer.
    """
    address.use(store_settings(config))
    found = partitions_at(str(path))
    if not found:
        raise NotALog("the path has no archive", path=str(path), remedy="check the address")
    swept = sweep_partitions(found, older_than_ms, everything=everything, dry_run=dry_run)
    return SweepReport(dry_run=dry_run, partitions=swept)


def sweep_partitions(
    folders: Sequence[str],
    older_than_ms: int = ABANDONED_MS,
    *,
    everything: bool = False,
    dry_run: bool = False,
) -> list[SweptPartition]:
    """Sweep the partitions in ``folders``, as ``sweep`` does."""

    def one(folder: str) -> SweptPartition:
        try:
            swept = PartitionStore(*store_at(folder)).sweep(
                older_than_ms, everything=everything, dry_run=dry_run
            )
        except (LogError, OSError) as error:
            is_damaged = isinstance(error, CorruptLog)
            attempts = ATTEMPTS if isinstance(error, CommitConflict) else 1
            return SweptPartition(
                address=folder, reason=str(error), is_damaged=is_damaged, attempts=attempts
            )
        return SweptPartition(
            address=folder,
            rounds=swept.journals,
            objects=swept.objects,
            bytes=swept.bytes,
            is_waiting=swept.is_waiting,
            attempts=swept.attempts,
        )

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(one, folders))
