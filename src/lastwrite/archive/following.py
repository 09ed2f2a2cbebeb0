"""The interface through which an archive follows a live cluster of any system.

    at the start        follow(request) -> FollowResult
    for each poll       fetch() -> a FollowedLog per partition, in the caller's thread
    at the end          stop(), from any thread; then close()

A system adds one function from ``FollowRequest`` to ``FollowResult`` to ``commands.following``.
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
    """The topics that an archive follows, and the options.

    ``config`` returns the settings of each poll. ``progress`` receives fetched bytes and notes.
    """

    sources: Sequence[str]  # URLs of the live cluster, all with the same scheme
    to: str  # the archive's address
    topic: Topics
    partition: int | None
    config: Callable[[], Mapping[str, object]]
    overrides: Sequence[Override]
    limits: Limits
    progress: Progress
    sets_aside: bool = False  # see ``lastwrite fetch --set-aside``
    accepts_gap: bool = False  # see ``lastwrite fetch --accept-gap``
    is_once: bool = False  # whether there is only one poll, and missing topics are an error


class FollowResult(Protocol):
    """A poller that adds new records of a live cluster's topics to an archive.

    ``fetch`` and ``close`` must not be called by two threads at once.
    """

    def fetch(self) -> Sequence[FollowedLog]:
        """Poll once: fetch the new records of every selected partition, also of new topics.

        Each partition is committed separately. The report of a partition that cannot be fetched
        has the reason; the other partitions are fetched.

        Raises:
            RemoteFailed: the cluster does not respond. The next poll retries.
            LogError: ``stop`` was called, or no retry can succeed.
        """

    def stop(self) -> None:
        """Make ``fetch`` end soon. Data fetched since the last commit is discarded.

        May be called from any thread, and before ``fetch``.
        """

    def close(self) -> None:
        """Close all connections to the cluster."""
