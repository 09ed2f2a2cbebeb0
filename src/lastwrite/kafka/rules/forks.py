"""The offset at which an archive and a log diverge, after an election truncated the log.
Source: KIP-101, KIP-279; Kafka 4.4.0 AbstractFetcherThread.getOffsetTruncationState.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def common_end(
    epochs: Sequence[tuple[int, int]], end: int, end_of_epoch: Callable[[int], tuple[int, int]]
) -> int | None:
    """The offset up to which archive and log are the same. None if it cannot be determined.

    Args:
        epochs: leader epochs of the archive with their first offsets, oldest first.
        end: the end of the archive.
        end_of_epoch: asks the log's leader for its last epoch up to the given one and the start of
            the next. The leader answers -1 if it has no such epoch.
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
