"""The engine: five steps over many partitions at once.

    plan ──► scan ──► elect ──► rewrite ──► commit
         └─────────── compact ───────────┘

The driver plans and commits; scan, elect and rewrite are units of work that a runner takes to
workers, or all three are one (``one_stage``). Partitions go in waves, so that what the driver and
the scratch folder hold does not grow with their number. A partition that turns out damaged, or
fails, leaves the wave; the others go on.
``partition`` has the values that one step gives and the next takes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from lastwrite.encoding.kernel_cache import tell_of_compiling
from lastwrite.engine.commit import commit
from lastwrite.engine.context import Context
from lastwrite.engine.one_stage import fits_one_stage, take_steps, take_whole
from lastwrite.engine.partition import Ended, PartitionPlan, advance
from lastwrite.engine.plan import plan_partition
from lastwrite.errors import LogError
from lastwrite.reports.compaction import STAGES, CompactionReport, PartitionReport
from lastwrite.reports.settings import Outvoted

_WAVE_BYTES = 64 << 30  # at least; a worker is given less than a gigabyte by no wave
_WAVE_PARTITIONS = 4096


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
    """The reports of one wave after the other; what of the settings that were given does not hold
    comes into ``notes``, by topic and name.
    """
    wave: list[PartitionPlan | Ended] = []
    size = 0
    full = max(_WAVE_BYTES, context.workers << 30)
    for folder in folders:
        with clock.of("plan"):
            planned = plan_partition(context, folder, len(wave))
            with contextlib.suppress(LogError, OSError):  # the partition's report says so
                for note in context.system.outvoted(folder, context.options.config):
                    notes[note.topic, note.name] = note
        wave.append(planned)
        size += planned.log.size_bytes if isinstance(planned, PartitionPlan) else 0
        if size >= full or len(wave) >= _WAVE_PARTITIONS:
            yield _run_wave(context, wave, clock)
            wave, size = [], 0
    if wave:
        yield _run_wave(context, wave, clock)


def _run_wave(
    context: Context, planned: Sequence[PartitionPlan | Ended], clock: _StageClock
) -> list[PartitionReport]:
    if fits_one_stage(context, planned):
        with clock.of("compact"):
            rewritten = advance(planned, lambda open: take_whole(context, open))
    else:
        rewritten = take_steps(context, planned, clock.of)
    with clock.of("commit"):
        return commit(context, rewritten)


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
