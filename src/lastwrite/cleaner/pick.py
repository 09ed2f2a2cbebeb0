"""Order partitions by urgency, and divide them into waves.

For example, the threshold is 0.4, and the dirty ratios of the partitions ``a``, ``b`` and ``c`` are
0.5, 0.9 and 0.1. ``c`` has exceeded ``max.compaction.lag.ms``. All three are due, in the order ``b
a c``: an overdue partition is due, but not more urgent.

Scheduling a task costs more than compacting a small partition. Several partitions, the dirtiest
first, therefore form one *wave*, up to ``WAVE_BYTES``. A large partition is a wave of its own.

Source: Kafka 4.4.0 LogCleanerManager.grabFilthiestCompactedLog; docs/formats/kafka-cleaning.md,
"Which partitions".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from lastwrite.model.log import TopicPartition
from lastwrite.reports.compaction import Quarantined

WAVE_BYTES = 1 << 30
WAVE_PARTITIONS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One partition that may need work, as the daemon last read it."""

    root: str
    folder: str
    name: TopicPartition
    home: str = (
        ""  # folder that contains the partition's lock and the list of quarantined partitions
    )
    size_bytes: int = 0
    compacts: bool = False
    is_due: bool = False  # whether the partition is dirty enough, or overdue
    dirty_ratio: float = 0.0
    cleanable_bytes: int = 0
    overdue_ms: int = 0
    expired_bytes: int = 0  # bytes of the segments that retention deletes
    expired_segments: int = 0
    problem: str | None = None  # why the partition cannot be cleaned
    unmanaged_reason: str | None = None  # why the partition is never cleaned

    @property
    def needs_work(self) -> bool:
        return self.is_due or self.expired_segments > 0 or self.problem is not None


def in_order(
    candidates: Iterable[Candidate],
    busy: Collection[str],
    staged: Mapping[str, Quarantined],
    now_ms: int,
    with_retention: bool,
) -> list[Candidate]:
    """The candidates that need work now, the dirtiest first.

    Args:
        busy: folders of partitions in progress.
        staged: the quarantined partitions by folder. They are skipped until their next attempt.
        with_retention: whether to include partitions that only have expired segments to delete.
    """

    def is_wanted(candidate: Candidate) -> bool:
        if candidate.folder in busy or not candidate.needs_work:
            return False
        waits = staged.get(candidate.folder)
        if waits is not None and now_ms < waits.next_try_ms:
            return False
        return candidate.compacts or with_retention

    chosen = [candidate for candidate in candidates if is_wanted(candidate)]
    return sorted(chosen, key=lambda c: (not c.is_due, -c.dirty_ratio, c.root, c.name))


def in_waves(
    order: Iterable[Candidate],
    threads: int,
    alone: Collection[str] = (),
    wave_bytes: int = WAVE_BYTES,
) -> Iterator[list[Candidate]]:
    """Divide the partitions in ``order`` into waves.

    A wave is a list of partitions that one thread compacts together. It has at most one thread's
    share of the partitions.

    ``alone`` contains folders that get a wave of their own, because an earlier wave failed.
    """
    order = list(order)
    most = min(WAVE_PARTITIONS, -(-len(order) // max(threads, 1)))
    wave: list[Candidate] = []
    size = 0
    for candidate in order:
        is_alone = candidate.folder in alone
        if wave and (is_alone or len(wave) >= most or size + candidate.size_bytes > wave_bytes):
            yield wave
            wave, size = [], 0
        wave.append(candidate)
        size += candidate.size_bytes
        if is_alone:
            yield wave
            wave, size = [], 0
    if wave:
        yield wave
