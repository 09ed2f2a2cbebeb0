"""``sweep``: remove from an archive what counts no more, and what never counted."""

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

_AT_ONCE = 16  # requests wait for the store, not for us


def sweep(
    path: str,
    *,
    older_than_ms: int = ABANDONED_MS,
    everything: bool = False,
    dry_run: bool = False,
    config: Mapping[str, object] | None = None,
) -> SweepReport:
    """Remove what rounds left that ended without a commit, and what was replaced more than an hour
    ago. What a manifest names is never removed; a partition without a manifest is left alone.

    Args:
        path: the address of an archive, of a partition, or of any folder between.
        older_than_ms: how long ago, by the store's clock, a round was last heard of. One that still
            runs loses its work if it is younger than that, never data.
        everything: look at all objects, also those of which no journal is left.
        dry_run: change nothing; say what would be removed.
        config: ``storage.*``, how the store is reached.

    Returns:
        Of each partition what was removed; where one fails, why, and the others go on.

    Raises:
        NotALog: no archive lies there.
        RemoteFailed: the store does not answer.
    """
    address.use(store_settings(config))
    found = partitions_at(str(path))
    if not found:
        raise NotALog("no archive lies there", path=str(path), remedy="check the address")
    swept = sweep_partitions(found, older_than_ms, everything=everything, dry_run=dry_run)
    return SweepReport(dry_run=dry_run, partitions=swept)


def sweep_partitions(
    folders: Sequence[str],
    older_than_ms: int = ABANDONED_MS,
    *,
    everything: bool = False,
    dry_run: bool = False,
) -> list[SweptPartition]:
    """As ``sweep``, of these partitions."""

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
