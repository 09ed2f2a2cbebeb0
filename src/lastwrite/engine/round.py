"""The engine: five steps over many partitions at once.

    plan ──► scan ──► elect ──► rewrite ──► commit
         └─────────── compact ───────────┘

The driver plans and commits; scan, elect and rewrite are units of work that a runner takes to
workers, or all three are one (``one_stage``). Partitions go in waves, so that what the driver and
the scratch folder hold does not grow with their number, and the driver works while workers do. A
partition that turns out damaged, or fails, leaves the wave; the others go on.
``partition`` has the values that one step gives and the next takes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import chain
from typing import Self

from lastwrite.encoding.kernel_cache import tell_of_compiling
from lastwrite.engine.commit import commit
from lastwrite.engine.context import Context
from lastwrite.engine.one_stage import begin_whole, fits_one_stage, take_steps
from lastwrite.engine.partition import Ended, PartitionPlan, RewrittenPartition
from lastwrite.engine.plan import plan_partition
from lastwrite.errors import LogError
from lastwrite.model.progress import NoProgress
from lastwrite.model.work import Begun
from lastwrite.reports.compaction import STAGES, CompactionReport, PartitionReport
from lastwrite.reports.settings import Outvoted

_WAVE_BYTES = 64 << 30  # at least; a worker is given less than a gigabyte by no wave
_WAVE_PARTITIONS = 4096
_FEW_PARTITIONS = 256  # enough for two workers in one stage, whose start costs 40 ms
_NO_MORE: list[PartitionPlan | Ended] = []


def run_round(context: Context, folders: Sequence[str]) -> CompactionReport:
    """Compact the partitions in ``folders``; the report has them in this order."""
    began = time.perf_counter()
    clock = _StageClock()
    tell_of_compiling(context.progress.note, context.system.scan_kernel)
    notes: dict[tuple[str, str], Outvoted] = {}
    reports = [report for wave in _waves(context, folders, clock, notes) for report in wave]
    return CompactionReport(
        partitions=reports,
        dry_run=context.options.dry_run,
        now_ms=context.options.now_ms,
        seconds=time.perf_counter() - began,
        stage_seconds=clock.seconds,
        notes=list(notes.values()),
    )


def _waves(
    context: Context,
    folders: Sequence[str],
    clock: _StageClock,
    notes: dict[tuple[str, str], Outvoted],
) -> Iterator[list[PartitionReport]]:
    """The reports of one wave after the other. While workers are at a wave that is done in one
    stage, the next is planned, and a thread commits the one before: most of that waits for the
    disk.
    """
    begun: Begun[list[RewrittenPartition | Ended]] | None = None
    quiet = replace(context, progress=NoProgress())  # beside what workers tell of
    with _Commits(clock) as commits:
        try:
            for wave in chain(_planned(context, folders, clock, notes), [_NO_MORE]):
                done: list[RewrittenPartition | Ended] = []
                if begun is not None:
                    with clock.of("compact"):
                        done = begun.result()
                begun = begin_whole(context, wave) if fits_one_stage(context, wave) else None
                yield from commits.ended()
                if done and begun is not None:
                    commits.begin(quiet, done)
                elif done:
                    yield _committed(context, done, clock)
                if wave and begun is None:
                    context.exchange.clear()  # of the wave before
                    yield _committed(context, take_steps(context, wave, clock.of), clock)
            yield from commits.ended()
        finally:
            if begun is not None:
                begun.cancel()


def _committed(
    context: Context, wave: Sequence[RewrittenPartition | Ended], clock: _StageClock
) -> list[PartitionReport]:
    with clock.of("commit"):
        return commit(context, wave)


class _Commits:
    """A thread that commits, one wave at a time. Ctrl-C waits for it: whoever holds the partitions
    lets go of them when this context has ended.
    """

    def __init__(self, clock: _StageClock) -> None:
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lastwrite-commit")
        self._begun: Future[list[PartitionReport]] | None = None

    def begin(self, context: Context, wave: Sequence[RewrittenPartition | Ended]) -> None:
        self._begun = self._thread.submit(commit, context, wave)

    def ended(self) -> Iterator[list[PartitionReport]]:
        """The reports of the wave that was begun, if one was, when it has ended."""
        if self._begun is not None:
            with self._clock.of("commit"):
                reports = self._begun.result()
            self._begun = None
            yield reports

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        interrupted = None
        while self._begun is not None and not self._begun.done():
            try:
                wait([self._begun])
            except KeyboardInterrupt as error:
                interrupted = error
        self._thread.shutdown()
        if interrupted is not None:
            raise interrupted


def _planned(
    context: Context,
    folders: Sequence[str],
    clock: _StageClock,
    notes: dict[tuple[str, str], Outvoted],
) -> Iterator[list[PartitionPlan | Ended]]:
    """Waves; what of the settings that were given does not hold comes into ``notes``, by topic and
    name.
    """
    wave: list[PartitionPlan | Ended] = []
    size = 0
    full = max(_WAVE_BYTES, context.workers << 30)
    few = max(_FEW_PARTITIONS, context.workers * _FEW_PARTITIONS // 2)
    for folder in folders:
        with clock.of("plan"):
            planned = plan_partition(context, folder, len(wave))
            with contextlib.suppress(LogError, OSError):  # the partition's report says so
                for note in context.system.outvoted(folder, context.options.config):
                    notes[note.topic, note.name] = note
        wave.append(planned)
        size += planned.log.size_bytes if isinstance(planned, PartitionPlan) else 0
        if (
            size >= full
            or len(wave) >= _WAVE_PARTITIONS
            or (len(wave) % few == 0 and fits_one_stage(context, wave))
        ):
            yield wave
            wave, size = [], 0
    if wave:
        yield wave


class _StageClock:
    """How many seconds each step took, through all waves."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)

    @contextlib.contextmanager
    def of(self, step: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[step] += time.perf_counter() - began
