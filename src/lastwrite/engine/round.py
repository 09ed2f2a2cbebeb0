"""The compaction of many partitions in five steps.

    plan ──► scan ──► elect ──► rewrite ──► commit
         └─────────── compact ───────────┘

The driver plans and commits. Workers run the units of scan, elect and rewrite; ``one_stage``
combines these three for small partitions. Partitions are processed in waves. Waves limit the memory
of the driver and the size of the scratch folder, and let the driver plan and commit while workers
run. A partition that is damaged or fails leaves the wave; the others continue. ``partition``
defines the values between the steps.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import chain
from typing import Self

from lastwrite.encoding.kernel_cache import report_if_compiling
from lastwrite.engine.commit import commit
from lastwrite.engine.context import Context
from lastwrite.engine.one_stage import begin_one_stage, fits_one_stage, take_steps
from lastwrite.engine.partition import FinishedPartition, PartitionPlan, RewrittenPartition
from lastwrite.engine.plan import plan_partition
from lastwrite.errors import LogError
from lastwrite.model.progress import NoProgress
from lastwrite.model.work import PendingResult
from lastwrite.reports.compaction import STAGES, CompactionReport, PartitionReport
from lastwrite.reports.settings import OverriddenSetting

# bytes of logs in a full wave; with more than 64 workers, a wave has 1 GiB per worker
_WAVE_BYTES = 64 << 30
_WAVE_PARTITIONS = 4096
# minimum number of partitions in a wave per two workers, because starting a stage takes 40 ms
_FEW_PARTITIONS = 256
_NO_MORE: list[PartitionPlan | FinishedPartition] = []


def run_round(context: Context, folders: Sequence[str]) -> CompactionReport:
    """Compact the partitions in ``folders``. The reports are in the same order."""
    began = time.perf_counter()
    clock = _StageClock()
    report_if_compiling(context.progress.note, context.system.scan_kernel)
    notes: dict[tuple[str, str], OverriddenSetting] = {}
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
    notes: dict[tuple[str, str], OverriddenSetting],
) -> Iterator[list[PartitionReport]]:
    """Compact the partitions wave by wave, and yield the reports of each wave.

    While workers process a wave in one stage, the driver plans the next. A thread commits the
    previous wave, since most of a commit waits for the disk.
    """
    begun: PendingResult[list[RewrittenPartition | FinishedPartition]] | None = None
    # commits report no progress, because workers report the progress of scans at the same time
    quiet = replace(context, progress=NoProgress())
    with _Commits(clock) as commits:
        try:
            for wave in chain(_planned(context, folders, clock, notes), [_NO_MORE]):
                done: list[RewrittenPartition | FinishedPartition] = []
                if begun is not None:
                    with clock.of("compact"):
                        done = begun.result()
                begun = begin_one_stage(context, wave) if fits_one_stage(context, wave) else None
                yield from commits.ended()
                if done and begun is not None:
                    commits.begin(quiet, done)
                elif done:
                    yield _committed(context, done, clock)
                if wave and begun is None:
                    context.exchange.clear()  # deletes the previous wave's scratch data
                    yield _committed(context, take_steps(context, wave, clock.of), clock)
            yield from commits.ended()
        finally:
            if begun is not None:
                begun.cancel()


def _committed(
    context: Context, wave: Sequence[RewrittenPartition | FinishedPartition], clock: _StageClock
) -> list[PartitionReport]:
    with clock.of("commit"):
        return commit(context, wave)


class _Commits:
    """Commits waves of partitions in a thread, one wave at a time.

    Ctrl-C waits for a running commit, because the locks on the partitions are released when this
    context ends.
    """

    def __init__(self, clock: _StageClock) -> None:
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lastwrite-commit")
        self._pending: Future[list[PartitionReport]] | None = None

    def begin(
        self, context: Context, wave: Sequence[RewrittenPartition | FinishedPartition]
    ) -> None:
        self._pending = self._thread.submit(commit, context, wave)

    def ended(self) -> Iterator[list[PartitionReport]]:
        """Wait for the running commit, if any. Yields its reports."""
        if self._pending is not None:
            with self._clock.of("commit"):
                reports = self._pending.result()
            self._pending = None
            yield reports

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        interrupted = None
        while self._pending is not None and not self._pending.done():
            try:
                wait([self._pending])
            except KeyboardInterrupt as error:
                interrupted = error
        self._thread.shutdown()
        if interrupted is not None:
            raise interrupted


def _planned(
    context: Context,
    folders: Sequence[str],
    clock: _StageClock,
    notes: dict[tuple[str, str], OverriddenSetting],
) -> Iterator[list[PartitionPlan | FinishedPartition]]:
    """Yield waves, lists of planned partitions that are processed together.

    Adds each user default that a topic overrides to ``notes``, by topic and setting.
    """
    wave: list[PartitionPlan | FinishedPartition] = []
    size = 0
    full = max(_WAVE_BYTES, context.workers << 30)
    few = max(_FEW_PARTITIONS, context.workers * _FEW_PARTITIONS // 2)
    for folder in folders:
        with clock.of("plan"):
            planned = plan_partition(context, folder, len(wave))
            # the error is ignored here, because the partition's report contains it
            with contextlib.suppress(LogError, OSError):
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
    """Measures the seconds that each step took, summed over all waves."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)

    @contextlib.contextmanager
    def of(self, step: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[step] += time.perf_counter() - began
