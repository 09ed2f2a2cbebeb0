"""What a system gives so that an archive follows its live cluster, and knows nothing of who asks.

    for each source     open(wanted) -> Followed, once
    for each turn       bring() -> a FollowedLog a partition, in the thread of whoever follows
    at the end          stop(), from any thread; then close()

A system adds one function, ``FollowRequest`` in and ``FollowResult`` out, to ``commands.following``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lastwrite.model.progress import Progress
from lastwrite.model.work import Limits
from lastwrite.reports.following import FollowedLog
from lastwrite.reports.settings import Override
from lastwrite.storage.choice import Topics


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowRequest:
    """What is to be followed.

    ``config``: gives the settings as they are at each turn. ``progress`` is told of bytes as they
    come, and of what is worth a note.
    """

    sources: Sequence[str]  # of one scheme
    to: str  # the archive's address
    topic: Topics
    partition: int | None
    config: Callable[[], Mapping[str, object]]
    overrides: Sequence[Override]
    limits: Limits
    progress: Progress
    sets_aside: bool = False  # what cannot be continued: see ``lastwrite fetch --set-aside``
    accepts_gap: bool = False  # see ``lastwrite fetch --accept-gap``
    is_once: bool = False  # there is one turn: topics that are not there are an error


class FollowResult(Protocol):
    """The topics of a live cluster that an archive follows. Neither ``fetch_batches`` nor ``close`` is
    called by two threads at once.
    """

    def fetch(self) -> Sequence[FollowedLog]:
        """One turn: what is new of every partition that is wanted, topics that have come since the
        last turn included, each committed by itself. What keeps one back is in its report, and
        keeps no other back.

        Raises:
            RemoteFailed: the cluster does not answer at all. The next turn asks again.
            LogError: it was stopped, or can never be done.
        """

    def stop(self) -> None:
        """Let ``fetch_batches`` come to its end soon: what has come since the last commit goes. May be
        called from any thread, and before ``fetch_batches``.
        """

    def close(self) -> None:
        """Give conversations back."""
