"""Which partitions come next, and which of them together.

Of ``a`` (half of its bytes dirty), ``b`` (nine tenths) and ``c`` (a tenth, but waiting for longer
than ``max.compaction.lag.ms``) with a threshold of 0.4 all three are due, and the order is ``b a
c``: an overdue partition counts as eligible, not as more urgent.

A small partition costs less than the scheduling of a task, so several of them make one *wave*, the
dirtiest first, up to some bytes; a large one is a wave of its own.

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
    """One partition as the last look found it."""

    root: str
    folder: str
    name: TopicPartition
    home: str = ""  # the folder that its lock lies in, and the note where it is set aside
    size_bytes: int = 0
    compacts: bool = False
    is_due: bool = False  # dirty enough, or overdue
    dirty_ratio: float = 0.0
    cleanable_bytes: int = 0
    overdue_ms: int = 0
    expired_bytes: int = 0  # of whole segments that retention takes
    expired_segments: int = 0
    trouble: str | None = None  # why it cannot be cleaned at all
    alone: str | None = None  # why nothing is done to it, whatever it looks like

    @property
    def needs_work(self) -> bool:
        return self.is_due or self.expired_segments > 0 or self.trouble is not None


def in_order(
    candidates: Iterable[Candidate],
    busy: Collection[str],
    staged: Mapping[str, Quarantined],
    now_ms: int,
    with_retention: bool,
) -> list[Candidate]:
    """Those that ask for work now, the dirtiest first.

    ``busy`` and ``aside`` are folders: of partitions in progress, and of those that were set aside,
    which come back when their next try is due. ``with_retention``: also those that are not
    compacted, for their expired segments.
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
    """Cut ``order`` into waves. No wave takes more than its share where several ``threads`` are
    free.

    ``run_steps_serially``: folders that go by themselves, because a wave with them has failed.
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
