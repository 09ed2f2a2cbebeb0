"""The offset at which an archive and a log diverge, after an election truncated the log.
Source: KIP-101, KIP-279; Kafka 4.4.0 AbstractFetcherThread.getOffsetTruncationState.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def common_end(
    epochs: Sequence[tuple[int, int]], end: int, end_of_epoch: Callable[[int], tuple[int, int]]
) -> int | None:
    """The offset up to which archive and log have the same records. None if unknown.

    Args:
        epochs: leader epochs of the archive with their first offsets, oldest first.
        end: the end offset of the archive.
        end_of_epoch: returns the last epoch of the log up to the given epoch, and the start offset
            of the epoch after it. Each call is a request to the leader. -1 means that there is no
            such epoch.
    """
    left = list(epochs)
    while left:
        found, found_end = end_of_epoch(left[-1][0])
        if found_end < 0 or found < 0:
            return None
        while left and left[-1][0] > found:
            end = min(end, left.pop()[1])
        if left and left[-1][0] == found:
            return min(end, found_end)
    return None
