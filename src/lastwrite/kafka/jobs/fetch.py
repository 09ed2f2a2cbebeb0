"""``fetch`` of Kafka's log directories: several partitions at once, by ``store.fetching``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from lastwrite.archive.ingest import (
    Advance,
    fetch_all,
    fetch_with_retry,
    max_parallel,
    rejected_report,
)
from lastwrite.archive.layout import partition_address
from lastwrite.errors import LogError
from lastwrite.kafka.store import fetching, tiered
from lastwrite.kafka.store.archived import SYSTEM, ArchivedLog, ArchivedMetadata
from lastwrite.kafka.store.divergence import fetch_or_set_aside, set_aside
from lastwrite.kafka.store.positions import Brought, positions_of
from lastwrite.kafka.system import KafkaSystem
from lastwrite.model.log import PartitionLog, ProblemKind
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.model.work import Limits
from lastwrite.reports.fetching import FetchedLog, HoldReason, LogsFetched
from lastwrite.scan_cache.secret import partition_secret, secret_or_none
from lastwrite.spark.memory import plan_memory
from lastwrite.storage.objects.promises import reject_if_broken


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """The options of a fetch from log directories."""

    include_active: bool = False
    copies: bool = False  # copy a tier's segments, instead of referencing them
    sets_aside: bool = False  # set diverging records of the archive aside, instead of failing
    accepts_gap: bool = False  # accept a gap between the archive's end and the log's start
    keep_scans: bool = False  # also store scans of the segments, with the archive's secret


def fetch_logs(
    system: KafkaSystem,
    folders: Sequence[str],
    to: str,
    config: Mapping[str, object],
    request: FetchRequest,
    memory: str | int | None,
    progress: Progress | None,
) -> LogsFetched:
    """Fetch the partitions in ``folders`` into the archive ``to``.

    A partition that is damaged, or does not continue the archived log, is skipped; the others are
    fetched.

    Raises:
        LogHeld: a process other than a broker has locked a partition.
    """
    system.check_config(config)
    reject_if_broken(to)
    for folder in folders:
        system.reject_if_locked(system.root_of(folder), [system.name_of(folder)])
    progress = progress or NoProgress()
    secret = secret_or_none(to, progress) if request.keep_scans else None
    # Read the committed offsets before the end of any log, so no offset is beyond that end.
    groups, unread = positions_of(system.roots)
    limits = plan_memory(memory, max_parallel()).limits()
    one = _KafkaFetch(system, to, config, request, limits, secret, groups, progress)
    progress.stage("fetch", sum(map(one.bytes_of, folders)))
    fetched = fetch_all(folders, to, one.fetch, progress)
    return structs.replace(fetched, unread_positions=unread)


class _KafkaFetch:
    """The parameters of one fetch, which all its partitions share."""

    def __init__(
        self,
        system: KafkaSystem,
        to: str,
        config: Mapping[str, object],
        request: FetchRequest,
        limits: Limits,
        secret: bytes | None,
        groups: Brought,
        progress: Progress,
    ) -> None:
        self._system = system
        self._to = to
        self._config = config
        self._request = request
        self._limits = limits
        self._secret = secret
        self._groups = groups
        self._progress = progress

    def bytes_of(self, folder: str) -> int:
        """Upper bound of the bytes to copy for a partition, for the progress display.

        0 for a tier whose segments are only referenced, because listing it is slow.
        """
        if tiered.is_tier(folder) and not self._request.copies:
            return 0
        try:
            log = self._system.read(folder)
        except (LogError, OSError):  # the partition's report will have the error
            return 0
        is_whole = self._request.include_active or log.is_closed
        return sum(segment.size_bytes for segment in log.segments[: None if is_whole else -1])

    def fetch(self, folder: str, advance: Advance) -> FetchedLog:
        """Fetch one partition into the archive."""
        name = self._system.name_of(folder)
        found = FetchedLog(
            topic=name.topic,
            partition=name.partition,
            source=folder,
            folder=partition_address(self._to, SYSTEM, name.topic, name.partition),
        )
        asides: list[str] = []

        # List the log only now: fetching earlier partitions may have taken hours.
        def fetch() -> FetchedLog:
            log = self._system.judged(self._system.read(folder), self._config)
            return self._fetch(log, found, advance)

        def aside(before: ArchivedLog, reason: HoldReason) -> str:
            begin = fetching.begin_of(self._system.read(folder))
            return set_aside(self._to, found.folder, None, begin)

        def fetch_once() -> FetchedLog:
            return fetch_or_set_aside(found.folder, fetch, aside, asides)

        done = fetch_with_retry(found, fetch_once if self._request.sets_aside else fetch)
        return structs.replace(done, aside=asides[-1]) if asides else done

    def _fetch(self, log: PartitionLog, found: FetchedLog, advance: Advance) -> FetchedLog:
        wrong = rejected_report(found, log)
        if wrong is not None:
            return wrong
        for problem in log.problems:
            # Only a log directory has holes. Gaps of an archive are copied with its manifest.
            if problem.kind is ProblemKind.GAP and log.holes:
                self._progress.note(str(problem))
        system, folder, name = self._system, log.folder, log.name
        known = system.topic_metadata(folder)
        settings = system.settings(folder, self._config).config
        done = fetching.fetch(
            log,
            found.folder,
            known=None if known is None else ArchivedMetadata.of(known),
            config=settings,
            include_active=self._request.include_active,
            limits=self._limits,
            advance=advance,
            copies=self._request.copies,
            secret=self._secret and partition_secret(self._secret, SYSTEM, name),
            groups=self._groups.get(name),
            accepts_gap=self._request.accepts_gap,
        )
        end = tiered.cached_tier(folder).bucket_end if tiered.is_tier(folder) else None
        return structs.replace(done.of(found), objects=end)
