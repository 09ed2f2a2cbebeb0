"""The engine: five stages over many partitions at once.

    plan ──► scan ──► elect ──► rewrite ──► commit

The driver plans and commits; scan, elect and rewrite are units of work that a runner takes to workers.
Partitions go in waves, so that what the driver and the scratch folder hold does not grow with their
number. A partition that turns out damaged, or fails, leaves the wave; the others go on.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Protocol, TypeVar

import numpy as np

from lastwrite.compaction.election import ENTRY_BYTES, bucket_bits
from lastwrite.compaction.retention import Retention
from lastwrite.compaction.transactions import Merged, aborted_table, merge, spent_changes
from lastwrite.compaction.untouched import rewritten_runs
from lastwrite.compaction.verdict import Verdict
from lastwrite.errors import LogError, UnsupportedFormat
from lastwrite.formats.fingerprint import SECRET_WORDS
from lastwrite.logstore.throttle import spender
from lastwrite.model.kept import KeepUnit, Kept, KeptScan
from lastwrite.model.log import AbortedTransaction, PartitionLog, Problem, ProblemKind, Segment
from lastwrite.model.policy import Policy, Strategy
from lastwrite.model.progress import Progress
from lastwrite.model.report import CompactionReport, PartitionReport, Status
from lastwrite.model.work import (
    Elected,
    ElectUnit,
    Limits,
    Piece,
    PieceScan,
    RewriteUnit,
    Rewritten,
    ScanUnit,
)
from lastwrite.pipeline import keep as keeping
from lastwrite.pipeline.retain import Replacement, account_retention, after_round, end_without_round
from lastwrite.pipeline.runner import Failed
from lastwrite.pipeline.system import Decision, Renewed, System

_PIECE_BYTES = 32 << 20
_LEAST_PIECE_BYTES = 64 << 10
_WAVE_BYTES = 64 << 30
_WAVE_PARTITIONS = 4096
_LEAST_PART_BYTES = 8 << 20
_SMALL_ELECTION_BYTES = 4 << 20
_SIDE_BY_SIDE = 256

T = TypeVar("T")


def new_secret() -> bytes:
    """The secret of a round, drawn afresh."""
    return secrets.token_bytes(8 * SECRET_WORDS)


class Exchange(Protocol):
    """Runs units of the three middle stages and carries entries and losers between them."""

    @property
    def scratch(self) -> str: ...

    def scan(
        self, units: Sequence[ScanUnit], progress: Progress
    ) -> list[list[PieceScan] | Failed[ScanUnit]]: ...

    def elect(
        self, units: Sequence[ElectUnit], progress: Progress
    ) -> list[Elected | Failed[ElectUnit]]: ...

    def rewrite(
        self, units: Sequence[RewriteUnit], progress: Progress
    ) -> list[Rewritten | Failed[RewriteUnit]]: ...

    def keep(
        self, units: Sequence[KeepUnit], progress: Progress
    ) -> list[Kept | Failed[KeepUnit]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a caller asks of a compaction."""

    config: Mapping[str, object]
    now_ms: int
    exact: bool = False
    include_active: bool = False
    like_broker: bool = False
    dry_run: bool = False
    to: str | None = None
    keep_scans: bool = False  # see ``pipeline.keep``
    check: Callable[[], None] = lambda: (
        None
    )  # raises where the work is to stop: nothing more is begun or swapped


@dataclass(slots=True)
class _Output:
    """A run of segments that becomes one."""

    segments: tuple[int, ...]
    aborted: tuple[AbortedTransaction, ...] = ()  # entries of its transaction index
    parts: list[Rewritten] = field(default_factory=list)


@dataclass(slots=True)
class _Job:
    """One partition on its way through the stages."""

    number: int
    folder: str
    report: PartitionReport
    log: PartitionLog | None = None
    decision: Decision | None = None
    pieces: list[Piece] = field(default_factory=list)
    aborted: tuple[AbortedTransaction, ...] = ()
    transactions: Merged = field(default_factory=Merged)
    scans: list[PieceScan] = field(default_factory=list)
    outputs: list[_Output] = field(default_factory=list)
    bits: int = 0
    secret: bytes = field(default_factory=lambda: new_secret())
    winners: int = 0
    started: float = 0.0
    replacements: list[Replacement] = field(default_factory=list)
    after: PartitionLog | None = None  # as the round leaves it
    retention: Retention | None = None  # of that
    new: Renewed | None = None  # what the log, or its copy, shall be
    kept: keeping.KeptLog | None = None  # where scans are kept
    written: list[tuple[KeepUnit, Kept]] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        return self.report.status is Status.CLEANED

    @property
    def rewritten(self) -> set[int]:
        """The places of the segments that new ones replace."""
        return {n for output in self.outputs for n in output.segments}

    @property
    def rests(self) -> bool:
        """It is whole, and by the rules no round is due."""
        return self.decision is not None and self.decision.reason is not None

    def keep_what_the_last_record_lost_to(self) -> None:
        """The log's last record stays though it lost: so must a tombstone that it may have lost to."""
        if not self.is_open or self.decision is None:
            return
        policy = self.decision.policy
        if any(scan.lost_last and scan.next_offset == policy.pinned_offset for scan in self.scans):
            self.decision = replace(self.decision, policy=replace(policy, keep_tombstones=True))

    def end(self, status: Status, reason: str | None = None) -> None:
        self.report.status = status
        self.report.reason = reason

    def fail(self, error: Exception) -> None:
        if self.is_open:
            exit_status = error.exit_status if isinstance(error, LogError) else 1
            self.end(Status.DAMAGED if exit_status == 3 else Status.FAILED, str(error))


class Engine:
    """Compacts partitions of one system; see ``compact``."""

    def __init__(
        self,
        system: System,
        exchange: Exchange,
        workers: int,
        limits: Limits,
        options: Options,
        progress: Progress,
    ) -> None:
        self._system = system
        self._exchange = exchange
        self._workers = workers
        self._limits = limits
        self._spend = spender(limits.reading)
        self._options = options
        self._progress = progress
        self._stage_seconds = dict.fromkeys(("plan", "scan", "elect", "rewrite", "commit"), 0.0)

    def compact(self, folders: Sequence[str]) -> CompactionReport:
        """Run the five stages over the partitions in ``folders``; the report has them in this order."""
        begin = time.perf_counter()
        reports = []
        for wave in self._waves(folders):
            reports += [job.report for job in wave]
        return CompactionReport(
            partitions=reports,
            dry_run=self._options.dry_run,
            now_ms=self._options.now_ms,
            seconds=time.perf_counter() - begin,
            stage_seconds=self._stage_seconds,
        )

    def _waves(self, folders: Sequence[str]) -> Iterator[list[_Job]]:
        wave: list[_Job] = []
        size = 0
        for folder in folders:
            job = self._timed("plan", self._plan, folder, len(wave))
            wave.append(job)
            size += job.report.bytes_before if job.is_open else 0
            if size >= _WAVE_BYTES or len(wave) >= _WAVE_PARTITIONS:
                self._run_wave(wave)
                yield wave
                wave, size = [], 0
        if wave:
            self._run_wave(wave)
            yield wave

    def _run_wave(self, wave: list[_Job]) -> None:
        for name, stage in (
            ("scan", self._scan),
            ("elect", self._elect),
            ("rewrite", self._rewrite),
        ):
            self._timed(name, stage, [job for job in wave if job.is_open])
        self._timed("commit", self._commit, wave)

    def _timed(self, name: str, stage, *args):  # type: ignore[no-untyped-def]
        begin = time.perf_counter()
        try:
            return stage(*args)
        finally:
            self._stage_seconds[name] += time.perf_counter() - begin

    # ------------------------------------------------------------------ plan

    def _plan(self, folder: str, number: int) -> _Job:
        """Read the partition's bounds and decide, from headers and checkpoints, whether it is cleaned."""
        name = self._system.name_of(folder)
        report = PartitionReport(topic=name.topic, partition=name.partition, status=Status.CLEANED)
        job = _Job(number, folder, report, started=time.perf_counter())
        try:
            self._options.check()
            if not self._options.dry_run and self._options.to is None:
                self._system.recover(folder)
            log = self._system.read(folder, self._spend)
        except UnsupportedFormat as error:
            job.end(Status.SKIPPED, str(error))
            return job
        except (LogError, OSError) as error:
            job.fail(error)
            return job
        job.log = log
        report.segments_before = report.segments_after = report.segments_untouched = len(
            log.segments
        )
        report.bytes_before = report.bytes_after = log.size_bytes
        report.problems = list(log.problems)
        damage = [p for p in log.problems if p.kind is ProblemKind.DAMAGED]
        if damage:
            job.end(Status.DAMAGED, str(damage[0]))
            return job
        unsupported = [p for p in log.problems if p.kind is ProblemKind.UNSUPPORTED]
        if unsupported:
            job.end(Status.SKIPPED, str(unsupported[0]))
            return job
        if not log.segments:
            job.end(Status.SKIPPED, "the log has no segment")
            return job
        try:
            include_active = self._options.include_active and not log.is_torn
            decision = self._system.decide(
                log,
                self._options.config,
                self._options.now_ms,
                include_active,
                self._options.like_broker,
            )
        except UnsupportedFormat as error:
            job.end(Status.SKIPPED, str(error))
            return job
        except LogError as error:
            job.fail(error)
            return job
        job.decision = decision
        job.aborted = log.aborted
        report.first_dirty_offset = decision.first_dirty
        report.first_uncleanable_offset = decision.end
        report.dirty_ratio = decision.dirty_ratio
        if decision.reason is not None:
            job.end(Status.SKIPPED, decision.reason)
            return job
        try:
            records = self._system.estimate_records(log)
            job.bits = bucket_bits(records)
            self._find_kept(job, log, decision)
            job.pieces = cut_into_pieces(
                self._system,
                log,
                decision.end,
                job.kept,
                piece_bytes_of(self._limits, log.size_bytes, records),
            )
        except (LogError, OSError) as error:
            job.fail(error)
        return job

    @property
    def _is_in_place(self) -> bool:
        return not self._options.dry_run and self._options.to is None

    @property
    def _keeps_scans(self) -> bool:
        # Without a scratch folder no worker sees another's entries.
        return (
            self._options.keep_scans
            and self._is_in_place
            and not self._options.exact
            and bool(self._exchange.scratch)
        )

    def _find_kept(self, job: _Job, log: PartitionLog, decision: Decision) -> None:
        """See what earlier rounds kept, and take their secret if there is anything."""
        if self._keeps_scans and decision.policy.strategy is Strategy.OFFSET:
            job.kept = keeping.begin(log, decision.end, job.bits, job.secret)
            if job.kept is not None:
                job.secret, job.bits = job.kept.secret, job.kept.bits

    # ------------------------------------------------------------------ scan

    def _scan(self, jobs: list[_Job]) -> None:
        self._scan_once(jobs)
        lies = [job for job in jobs if job.is_open and self._merge(job) is not None]
        if lies:
            # A transaction index contradicts its log. The log is right: scan again by what it says.
            for job in lies:
                assert job.log is not None
                try:
                    job.aborted = self._system.aborted_by_log(job.log)
                except (LogError, OSError) as error:
                    job.fail(error)
            again = [job for job in jobs if job.is_open]
            for job in again:
                job.scans = []
            self._scan_once(again)
            for job in again:
                lie = self._merge(job) if job.is_open else None
                if lie is not None:
                    job.end(
                        Status.DAMAGED,
                        f"the transaction that ends at offset {lie} is aborted and not aborted",
                    )
        for job in jobs:
            if job.is_open:
                job.report.records_before = job.report.records_after = sum(
                    scan.records for scan in job.scans
                )

    @staticmethod
    def _merge(job: _Job) -> int | None:
        """Settle what single pieces cannot tell of transactions; the offset of a marker that contradicts the index."""
        job.transactions = merge([scan.transactions for scan in job.scans])
        return job.transactions.lie

    def _scan_once(self, jobs: list[_Job]) -> None:
        weights = [self._scan_weights(job) for job in jobs]
        target = max(8 << 20, sum(map(sum, weights)) // (2 * self._workers))
        units: list[ScanUnit] = []
        owners: list[_Job] = []
        for job, sizes in zip(jobs, weights, strict=True):
            for pieces in split_by_bytes(job.pieces, target, sizes):
                units.append(self._scan_unit(job, pieces))
                owners.append(job)
        for job, answer in zip(owners, self._exchange.scan(units, self._progress), strict=True):
            if isinstance(answer, Failed):
                job.fail(answer.error)
            else:
                job.scans += answer
        for job in jobs:
            job.scans.sort(key=lambda scan: scan.piece)
            problems = [*_falling_offsets(job.pieces, job.scans)]
            problems += [scan.problem for scan in job.scans if scan.problem is not None]
            damage = [p for p in problems if p.kind is ProblemKind.DAMAGED]
            job.report.problems += damage or problems[:1]
            if damage:
                job.end(Status.DAMAGED, str(damage[0]))
            elif problems and job.is_open:
                job.end(Status.SKIPPED, str(problems[0]))

    @staticmethod
    def _kept_scans(job: _Job, pieces: Sequence[Piece]) -> tuple[KeptScan | None, ...]:
        if job.kept is None or job.decision is None:
            return (None,) * len(pieces)
        return job.kept.scans(pieces, job.decision.elect_from)

    def _scan_weights(self, job: _Job) -> list[int]:
        return list(map(keeping.scan_weight, job.pieces, self._kept_scans(job, job.pieces)))

    def _scan_unit(self, job: _Job, pieces: Sequence[Piece]) -> ScanUnit:
        assert job.decision is not None
        return ScanUnit(
            partition=job.number,
            system=self._system.name,
            pieces=tuple(pieces),
            first_dirty=job.decision.elect_from,
            bits=job.bits,
            exact=self._options.exact,
            secret=job.secret,
            policy=_policy_of(job.decision.policy, pieces),
            aborted=aborted_table(job.aborted, pieces[0].lowest_offset, pieces[-1].end_offset),
            limits=self._limits,
            scratch=self._exchange.scratch,
            kept=self._kept_scans(job, pieces),
            keeps=job.kept is not None,
        )

    # ------------------------------------------------------------------ elect

    def _elect(self, jobs: list[_Job]) -> None:
        units: list[ElectUnit] = []
        for job in jobs:
            assert job.decision is not None
            units += elect_units(
                job.number,
                job.bits,
                job.scans,
                self._options.exact,
                self._limits,
                self._workers,
                job.decision.policy.strategy,
            )
        by_number = {job.number: job for job in jobs}
        for answer in self._exchange.elect(units, self._progress):
            if isinstance(answer, Failed):
                by_number[answer.unit.partition].fail(answer.error)
                continue
            job = by_number[answer.partition]
            job.winners += answer.winners
            for piece, losers in answer.losers.items():
                job.scans[piece].losers += losers
            for piece in answer.lost_last:
                job.scans[piece].lost_last = True
        for job in jobs:
            job.keep_what_the_last_record_lost_to()

    # ------------------------------------------------------------------ rewrite

    def _rewrite(self, jobs: list[_Job]) -> None:
        for job in jobs:
            self._choose_outputs(job)
        costs = [
            [rewrite_cost(*each) for each in zip(job.pieces, job.scans, strict=True)]
            for job in jobs
        ]
        total = 0
        for job, by_piece in zip(jobs, costs, strict=True):
            rewritten = job.rewritten
            total += sum(
                cost
                for piece, cost in zip(job.pieces, by_piece, strict=True)
                if piece.segment in rewritten
            )
        shares = Shares(total, self._workers)
        units: list[RewriteUnit] = []
        for job, by_piece in zip(jobs, costs, strict=True):
            for n, output in enumerate(job.outputs):
                try:
                    units += self._rewrite_units(job, n, output, by_piece, shares)
                except (LogError, OSError) as error:
                    job.fail(error)
                    break
        by_number = {job.number: job for job in jobs}
        units = [unit for unit in units if by_number[unit.partition].is_open]
        for answer in self._exchange.rewrite(units, self._progress):
            if isinstance(answer, Failed):
                by_number[answer.unit.partition].fail(answer.error)
                continue
            job = by_number[answer.partition]
            if answer.problem is not None:
                job.report.problems.append(answer.problem)
                job.end(Status.DAMAGED, str(answer.problem))
            elif answer.error is not None:
                job.fail(answer.error)
            job.outputs[answer.group].parts.append(answer)
        for job in jobs:
            for output in job.outputs:
                output.parts.sort(key=lambda part: part.part)

    def _choose_outputs(self, job: _Job) -> None:
        """Which segments are rewritten, and which of them together."""
        assert job.log is not None and job.decision is not None
        segments = job.log.segments
        records, lost, changes = [0] * len(segments), [0] * len(segments), [0] * len(segments)
        for piece, scan in zip(job.pieces, job.scans, strict=True):
            records[piece.segment] += scan.records
            lost[piece.segment] += scan.losers
            changes[piece.segment] += scan.losers + scan.changed_batches
        for piece, spent in zip(job.pieces, job.transactions.spent, strict=True):
            changes[piece.segment] += sum(
                spent_changes(marker, self._options.now_ms) for marker in spent
            )
        # Where log and index disagree the index is made anew.
        told, known = (
            {entry.last_offset for entry in some} for some in (job.log.aborted, job.aborted)
        )
        for offset in (told - known) | (known & job.transactions.aborting) - told:
            changes[
                bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
            ] += 1
        like_broker = self._options.like_broker
        for group in self._system.group(
            job.log, job.decision.end, self._options.config, like_broker
        ):
            sizes = [segments[n].size_bytes for n in group]
            kept = [
                size * (records[n] - lost[n]) // max(1, records[n])
                for n, size in zip(group, sizes, strict=True)
            ]
            changed = [bool(changes[n]) for n in group]
            is_whole = like_broker or self._system.makes_one_segment
            runs = [(0, len(group))] if is_whole else rewritten_runs(sizes, kept, changed)
            job.outputs += [_Output(tuple(group[first:end])) for first, end in runs]

    @staticmethod
    def _output_bytes(job: _Job, output: _Output) -> int:
        assert job.log is not None
        return sum(job.log.segments[n].size_bytes for n in output.segments)

    def _rewrite_units(
        self, job: _Job, number: int, output: _Output, costs: Sequence[int], shares: Shares
    ) -> Iterator[RewriteUnit]:
        assert job.log is not None and job.decision is not None
        pieces = [piece for piece in job.pieces if piece.segment in output.segments]
        base_offset = job.log.segments[output.segments[0]].base_offset
        end_offset = max(
            (job.scans[piece.number].next_offset for piece in pieces), default=base_offset
        )
        fits = end_offset - 1 - base_offset <= self._system.offset_span
        may_cut = fits and self._system.joins_parts
        parts = shares.take(pieces, [costs[piece.number] for piece in pieces], may_cut=may_cut)
        bases = [job.log.segments[n].base_offset for n in output.segments]
        output.aborted = tuple(
            entry
            for entry in job.aborted
            if bases[0] <= entry.last_offset < job.log.segment_end(output.segments[-1])
            and entry.last_offset in job.transactions.aborting
        )
        folder = None
        if not self._options.dry_run:
            folder = self._system.output_folder(job.log, self._options.to)
        for n, part in enumerate(parts):
            scans = [job.scans[piece.number] for piece in part]
            yield RewriteUnit(
                partition=job.number,
                system=self._system.name,
                group=number,
                part=n,
                parts=len(parts),
                base_offset=base_offset,
                pieces=tuple(part),
                states=tuple((scan.states, scan.states_at, scan.records) for scan in scans),
                spent=tuple(
                    tuple(marker.ordinal for marker in job.transactions.spent[piece.number])
                    for piece in part
                ),
                policy=_policy_of(job.decision.policy, part),
                index_interval_bytes=job.decision.index_interval_bytes,
                limits=self._limits,
                folder=folder,
                mtime_ns=job.log.segments[output.segments[-1]].mtime_ns,
                aborted=output.aborted,
                keeps=job.kept is not None,
                cost=sum(costs[piece.number] for piece in part),
                like_broker=self._options.like_broker,
            )

    # ------------------------------------------------------------------ commit

    def _commit(self, wave: list[_Job]) -> None:
        """Swap every partition first, then write each root's checkpoint once, and only then clear away."""
        weights = [
            sum(part.bytes_written for output in job.outputs for part in output.parts)
            for job in wave
        ]
        self._progress.stage("commit", sum(weights))
        for first in range(0, len(wave), _SIDE_BY_SIDE):
            jobs = wave[first : first + _SIDE_BY_SIDE]
            self._publish(jobs)
            self._progress.advance(sum(weights[first : first + _SIDE_BY_SIDE]))
        if self._is_in_place:
            self._record([job for job in wave if job.is_open])
        self._keep(wave)  # before the old segments' kept files may go
        if self._is_in_place:
            self._tidy([job for job in wave if job.is_open])
            self._retain(wave)
        self._settle_kept(wave)
        for job in wave:
            if job.retention is not None:
                self._account(job, job.retention)
            job.report.seconds = time.perf_counter() - job.started

    def _publish(self, jobs: Sequence[_Job]) -> None:
        """Swap new segments in, the old ones staying until the checkpoint is written; or make copies."""
        for job in jobs:
            with self._failing(job):
                if job.is_open:
                    self._options.check()
                    self._judge_retention(job)
                    if not self._options.dry_run:
                        self._renew(job)
                elif job.rests:
                    self._judge_retention(job)
                    job.new = (
                        Renewed(job.log, retention=job.retention) if job.log is not None else None
                    )
                else:
                    self._discard(job)
                    job.new = Renewed(job.log) if job.log is not None else None
        if self._is_in_place:
            self._each(
                self._system.swap,
                [(job, job.new) for job in jobs if job.is_open and job.new is not None],
            )
        elif self._options.to is not None:
            publish = partial(self._system.publish_copies, to=self._options.to)
            self._each(publish, [(job, job.new) for job in jobs if job.new is not None])

    def _each(
        self, work: Callable[[list[T]], Sequence[Exception | None]], jobs: Sequence[tuple[_Job, T]]
    ) -> None:
        """Do the work for all jobs together; whose part of it fails has failed."""
        for (job, _), error in zip(jobs, work([each for _, each in jobs]), strict=True):
            if error is not None:
                self._fail(job, error)

    @contextlib.contextmanager
    def _failing(self, job: _Job) -> Iterator[None]:
        """One partition's trouble is its own."""
        try:
            yield
        except (LogError, OSError) as error:
            self._fail(job, error)

    def _fail(self, job: _Job, error: Exception) -> None:
        job.report.status = Status.CLEANED
        job.fail(error)
        job.retention = None
        job.new = None
        self._discard(job)

    def _judge_retention(self, job: _Job) -> None:
        """What will have expired of the log as the round leaves it."""
        assert job.log is not None
        job.replacements = [
            Replacement(output.segments, tuple(output.parts)) for output in job.outputs
        ]
        job.after = after_round(self._system, job.log, job.replacements)
        job.retention = self._system.expired(job.after, self._options.config, self._options.now_ms)

    def _record(self, jobs: Sequence[_Job]) -> None:
        """The checkpoint comes after the swap of all: the other way round it would hide dirty records."""
        by_root: dict[str, list[_Job]] = {}
        for job in jobs:
            by_root.setdefault(self._system.root_of(job.folder), []).append(job)
        for root, inside in by_root.items():
            try:
                self._system.record(
                    root,
                    {job.log.name: job.decision.end for job in inside if job.log and job.decision},
                )
            except (LogError, OSError) as error:
                for job in inside:
                    self._fail(job, error)

    def _tidy(self, jobs: Sequence[_Job]) -> None:
        """What is left of the swaps goes."""
        self._each(
            self._system.tidy,
            [(job, job.log) for job in jobs if job.outputs and job.log is not None],
        )

    def _keep(self, wave: Sequence[_Job]) -> None:
        """Write aside what later rounds need not scan again. Its trouble is no round's."""
        units: list[KeepUnit] = []
        for job in wave:
            if job.is_open and job.kept is not None:
                made = [
                    keeping.NewSegment(
                        self._system.segment_path(job.kept.log, output.parts[0].base_offset),
                        job.kept.log.segments[output.segments[0]].base_offset,
                        output.parts,
                    )
                    for output in job.outputs
                ]
                units += keeping.units_of(
                    job.number, job.kept, job.pieces, job.scans, job.rewritten, made
                )
        if not units:
            return
        jobs = {job.number: job for job in wave}
        try:
            answers = self._exchange.keep(units, self._progress)
        except LogError as error:
            self._progress.note(f"no scan was kept: {error}")
            return
        for unit, answer in zip(units, answers, strict=True):
            done = Kept(problem=str(answer.error)) if isinstance(answer, Failed) else answer
            jobs[unit.partition].written.append((unit, done))

    def _settle_kept(self, wave: Sequence[_Job]) -> None:
        """What was kept gets its place, what is stale goes; nothing renames or links a segment after this."""
        for job in wave:
            if not job.is_open or job.log is None or not self._is_in_place:
                continue
            if job.kept is None:
                problems = keeping.forget(job.log, job.rewritten)
            else:
                problems = keeping.finish(job.kept, job.rewritten, job.written)
            for problem in problems:
                self._progress.note(f"{job.log.name}: a scan was not kept: {problem}")

    def _retain(self, wave: Sequence[_Job]) -> None:
        """Take out what has expired, of all partitions together: they share the checkpoint of log starts."""
        judged = [
            (job, (job.after, job.retention))
            for job in wave
            if job.after is not None and job.retention is not None
        ]
        self._each(self._system.retain, judged)

    def _renew(self, job: _Job) -> None:
        """Join what is in parts, and say what the log shall be."""
        assert job.log is not None and job.decision is not None
        finished: list[tuple[tuple[Segment, ...], Rewritten]] = []
        for output in job.outputs:
            sources = tuple(job.log.segments[n] for n in output.segments)
            finished.append(
                (
                    sources,
                    self._system.join_parts(
                        job.log,
                        sources[0].base_offset,
                        output.parts,
                        self._system.output_folder(job.log, self._options.to),
                        job.decision.index_interval_bytes,
                        self._limits,
                        output.aborted,
                        sources[-1].mtime_ns,
                    ),
                )
            )
            finished += [((), further) for further in finished[-1][1].further]
        job.new = Renewed(
            job.log,
            [s for s, _ in finished],
            [f for _, f in finished],
            job.decision.end,
            job.retention,
            job.decision.policy,
        )

    def _discard(self, job: _Job) -> None:
        for output in job.outputs:
            for part in output.parts:
                self._system.discard(part)

    def _account(self, job: _Job, retention: Retention) -> None:
        assert job.log is not None and job.decision is not None
        horizon = job.decision.end if job.is_open else job.decision.first_dirty
        with contextlib.suppress(
            LogError, OSError
        ):  # whoever changed the log since is none of the round's concern
            job.report.backlog = self._system.backlog(
                job.log, horizon, self._options.config, self._options.now_ms
            )
        if job.rests:
            account_retention(job.report, job.log, retention)
            end_without_round(job.report, retention, job.decision.compacts, job.decision.reason)
            return
        self._account_round(job)
        records = [0] * len(job.log.segments)
        for piece, scan in zip(job.pieces, job.scans, strict=True):
            records[piece.segment] += scan.records
        account_retention(job.report, job.log, retention, job.replacements, records)

    def _account_round(self, job: _Job) -> None:
        """The report's figures, from the verdicts."""
        report = job.report
        counts = [0] * len(Verdict)
        made = len(job.outputs)
        report.bytes_read = sum(
            piece.bytes
            for piece, scan in zip(job.pieces, job.scans, strict=True)
            if not scan.is_kept
        )
        for output in job.outputs:
            for part in output.parts:
                counts = [a + b for a, b in zip(counts, part.counts, strict=True)]
                report.bytes_read += part.bytes_read
                report.bytes_written += part.bytes_written + sum(
                    further.bytes_written for further in part.further
                )
                made += len(part.further) - part.is_gone
        sources = sum(self._output_bytes(job, output) for output in job.outputs)
        rewritten = sum(len(output.segments) for output in job.outputs)
        dropped = sum(counts) - counts[Verdict.KEEP]
        report.segments_after = report.segments_before - rewritten + made
        report.segments_untouched = report.segments_before - rewritten
        report.records_after = (report.records_before or 0) - dropped
        report.bytes_after = report.bytes_before - sources + report.bytes_written
        report.tombstones_dropped = counts[Verdict.EXPIRED]
        report.verdicts = {verdict.label: counts[verdict] for verdict in Verdict}
        report.verdicts[Verdict.KEEP.label] = report.records_after
        report.keys = job.winners
        if not job.outputs:
            job.end(Status.UNCHANGED, "every record stays")
        if self._options.dry_run:
            report.bytes_written = 0


def piece_bytes_of(limits: Limits, log_bytes: int, records: int) -> int:
    """How many bytes of a log of about so many records may be one piece: of well compressed ones fewer."""
    return max(
        _LEAST_PIECE_BYTES,
        min(limits.piece_bytes, log_bytes * limits.piece_records // max(1, records)),
    )


def cut_into_pieces(
    system: System,
    log: PartitionLog,
    end: int,
    kept: keeping.KeptLog | None = None,
    piece_bytes: int = _PIECE_BYTES,
) -> list[Piece]:
    """Cut every segment at batch borders; the pieces of those that begin at or above ``end`` are only checked."""
    pieces: list[Piece] = []
    for n, segment in enumerate(log.segments):
        cuts = None if kept is None else kept.cuts(n)
        for start, stop in pairwise(
            system.cut(log, n, min(_PIECE_BYTES, piece_bytes)) if cuts is None else cuts
        ):
            pieces.append(
                Piece(
                    number=len(pieces),
                    segment=n,
                    path=segment.path,
                    start=start,
                    end=stop,
                    size_bytes=segment.file_bytes,
                    mtime_ns=segment.mtime_ns,
                    lowest_offset=segment.base_offset,
                    end_offset=log.segment_end(n),
                    keyed=segment.base_offset < end,
                    is_indexed=segment.is_indexed,
                )
            )
    return pieces


def elect_units(
    partition: int,
    bits: int,
    scans: Sequence[PieceScan],
    exact: bool,
    limits: Limits,
    workers: int,
    strategy: Strategy = Strategy.OFFSET,
) -> Iterator[ElectUnit]:
    """Cut a partition's buckets into slices that fit memory, and where there is much to do, all workers."""
    blocks = [(scan, block) for scan in scans for block in scan.blocks]
    if not blocks:
        return
    buckets = 1 << bits
    size = sum(
        ENTRY_BYTES * block.columns // 2 * block.count + 2 * block.key_bytes for _, block in blocks
    )
    size += 8 * buckets * len(blocks)  # where each bucket ends in each block, twice
    slices = -(-size // limits.slice_bytes)
    if size > _SMALL_ELECTION_BYTES:
        slices = max(slices, 2 * workers)
    slices = min(slices, buckets)
    # All units have the same tuples: in a task they are pickled once, however many of its units there are.
    every = tuple(block for _, block in blocks)
    dirty_from = tuple(scan.dirty_from for scan, _ in blocks)
    last_records = tuple(scan.records - 1 for scan, _ in blocks)
    states = tuple((scan.states, scan.states_at) for scan, _ in blocks)
    for n in range(slices):
        yield ElectUnit(
            partition=partition,
            bits=bits,
            first_bucket=buckets * n // slices,
            end_bucket=buckets * (n + 1) // slices,
            blocks=every,
            dirty_from=dirty_from,
            last_records=last_records,
            states=states,
            exact=exact,
            limits=limits,
            strategy=strategy,
        )


def rewrite_cost(piece: Piece, scan: PieceScan) -> int:
    """What rewriting a piece costs, in bytes read: a byte that stays costs two and a half more than one that goes.

    It is compressed or written, and a batch of which nothing stays is not even decompressed. Later segments keep more.
    """
    left = scan.records - scan.losers
    return piece.bytes + piece.bytes * 5 * left // (2 * max(1, scan.records))


class Shares:
    """Equal shares of what rewriting costs, one a worker: filled one after the other, so that few segments are cut.

    A segment that lies across the end of a share is cut there, at the next piece: of two workers' seven segments one.
    The parts of a cut segment have to be joined; those of all others are whole.
    """

    def __init__(self, total: int, workers: int) -> None:
        self._share = max(1.0, total / workers)
        self._filled = 0.0  # of the share that is being filled

    def take(
        self, pieces: Sequence[Piece], costs: Sequence[int], may_cut: bool
    ) -> list[list[Piece]]:
        """The pieces of the next new segment, in one list a part."""
        parts: list[list[Piece]] = [[]]
        left = sum(piece.bytes for piece in pieces)
        part = 0
        for piece, cost in zip(pieces, costs, strict=True):
            over = self._filled + cost / 2 > self._share
            if over and may_cut and min(part, left) >= _LEAST_PART_BYTES:
                parts.append([])
                part = 0
            if over:
                self._filled -= self._share
            parts[-1].append(piece)
            self._filled += cost
            part += piece.bytes
            left -= piece.bytes
        return parts


def _policy_of(policy: Policy, pieces: Sequence[Piece]) -> Policy:
    """The policy as far as it concerns ``pieces``: of many producers most wrote their last batch elsewhere."""
    if not pieces:  # a group of empty segments
        return policy
    low, high = np.searchsorted(
        policy.last_offsets, (pieces[0].lowest_offset, pieces[-1].end_offset)
    )
    return replace(policy, last_offsets=policy.last_offsets[low:high])


def _falling_offsets(pieces: Sequence[Piece], scans: Sequence[PieceScan]) -> Iterator[Problem]:
    """Pieces whose offsets do not begin behind those of the piece before: no single scan sees that."""
    for (piece, scan), (following, later) in pairwise(zip(pieces, scans, strict=False)):
        if piece.segment == following.segment and 0 <= later.first_offset < scan.next_offset:
            yield Problem(
                ProblemKind.DAMAGED,
                f"offset {later.first_offset} comes after {scan.next_offset - 1}",
                following.path,
                following.start,
                "nothing was changed; restore this file from a replica or a backup",
            )


def split_by_bytes(
    pieces: Sequence[Piece], target: int, sizes: Sequence[int] | None = None
) -> Iterator[list[Piece]]:
    """Neighbouring pieces in lists of about ``target`` bytes; ``sizes``: by piece, if not those of the pieces."""
    held: list[Piece] = []
    size = 0
    for piece, bytes in zip(pieces, sizes or [piece.bytes for piece in pieces], strict=True):
        if held and size + bytes // 2 > target:
            yield held
            held, size = [], 0
        held.append(piece)
        size += bytes
    if held:
        yield held


__all__ = ["Engine", "Exchange", "Options"]
