"""Where two histories of a log part: what an archive has, and what a log has that was cut by an
election.

Source: KIP-101, KIP-279; Kafka 4.4.0 AbstractFetcherThread.getOffsetTruncationState.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def common_end(
    epochs: Sequence[tuple[int, int]], end: int, end_of_epoch: Callable[[int], tuple[int, int]]
) -> int | None:
    """Up to which offset an archive has what the log has; None: nobody can say.

    Args:
        epochs: leader epochs of the archive and where they begin, oldest first.
        end: of the archive.
        end_of_epoch: asks the log's leader: the last epoch that it has up to one, and where the
            next one begins; -1 where it knows none.
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
