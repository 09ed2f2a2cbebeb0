"""Operations on staged files that all systems share: fault points, syncs, removal."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial

from lastwrite.model.work import SegmentOutput
from lastwrite.storage import files
from lastwrite.storage.parallel_sync import run_parallel


def changing(operation: str, path: str) -> files.changing:
    """A context for ``operation`` on a new segment, with a fault point.

    Converts errors to LogError.
    """
    return files.changing(operation, path, f"{operation} a new segment")


def sync_staged(outputs: Sequence[SegmentOutput]) -> None:
    """Sync new segments and their side files to disk. An error is stored in its segment."""
    waiting = [
        (result, path)
        for result in outputs
        for new in (result, *result.more_outputs)
        for path in new.paths
    ]
    syncs = [partial(files.fsync_file, path) for _, path in waiting]
    for (result, _), error in zip(waiting, run_parallel(syncs), strict=True):
        if error is not None:
            result.error = error


def remove_staged(paths: Iterable[str]) -> None:
    """Delete staged files that are not needed. Empty names and missing files are skipped."""
    for path in paths:
        if path and os.path.exists(path):
            os.unlink(path)
