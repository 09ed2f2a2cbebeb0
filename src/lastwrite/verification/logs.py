"""Verify logs by rows: read each partition completely, and compare it with its earlier state.

The structure is checked first: the checksum of every batch, every record (also in compressed
batches), ascending offsets, every index entry against the batches, side files and names. The
outcomes of transactions are determined from the markers in the log, and the transaction indexes are
compared with them.

If the earlier log is given, the two logs are compared record by record. The comparison shares no
code with the engine that could hide a fault of the engine. The engine finds superseded records with
a set of fingerprints, in one pass from the log's end. Here every record of both logs becomes a row
of key, offset and content, with another digest and a fresh secret. The rows are sorted and
compared. ``verification.invariants`` has the invariants of records and batches,
``verification.batch_invariants`` those of transactions and producers.

Memory is bounded as for ``compact``: pieces are read in chunks, rows are written to scratch files
by bucket (40 bytes for each record and batch of both logs), and a task judges as many buckets at
once as fit in memory.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from lastwrite.config.keyless import is_over_limit
from lastwrite.engine.pieces import split_by_bytes
from lastwrite.errors import LogError, UnsupportedFormat
from lastwrite.model.columns import Int64Array
from lastwrite.model.log import PartitionLog, Problem, ProblemKind
from lastwrite.model.work import FailedUnit, ScanRange
from lastwrite.reports.verification import (
    Comparison,
    PartitionVerification,
    VerifyStatus,
    Violation,
)
from lastwrite.storage.reading import TRIES
from lastwrite.storage.scratch import make_folder, remove_folder
from lastwrite.verification.contents import compare, first_of_each_kind, read_contents
from lastwrite.verification.decide_transactions import (
    DecidedTransactions,
    DecideUnit,
    LogFacts,
    decide_transactions,
)
from lastwrite.verification.invariants import (
    COUNTS,
    FINDINGS,
    KEYS,
    KEYS_ALIVE,
    NOT_GROWN,
    Finding,
    bucket_bits,
)
from lastwrite.verification.proof import LogProof, Pair, ProofTools, Question
from lastwrite.verification.rows import (
    BY_OFFSET,
    CONTROL_RECORDS,
    EMPTY_BATCHES,
    KEYLESS_RECORDS,
    OLD_BATCHES,
    RECORDS,
    ROW_BYTES,
    SEED_WORDS,
    TALLIES,
    TOMBSTONES,
)
from lastwrite.verification.units import CompareUnit, ContentsUnit, PieceContents, RemovalRules

U = TypeVar("U", ContentsUnit, DecideUnit, CompareUnit)
R = TypeVar("R")

_PIECE_BYTES = 32 << 20
_UNIT_BYTES = 16 << 20
_WAVE_BYTES = 16 << 30  # most bytes of logs that are verified together; limits the scratch files
_WAVE_PARTITIONS = 1024
_FEW_ROWS = 1 << 18
_MOST_TASKS = 512
_MOST_VIOLATIONS = 100  # most violations in a report; further violations are only counted


def check_logs(
    proof: LogProof, pairs: Sequence[Pair], question: Question, means: ProofTools
) -> Iterator[PartitionVerification]:
    """Check each pair of logs; see ``Proof.check``."""
    verifier = _Verifier(proof, question, means)
    for pair, job in zip(pairs, verifier.run(pairs), strict=True):
        tries = 1
        while (moved := _moved(proof, job)) and tries < TRIES:
            (job,) = verifier.run([pair])
            tries += 1
        if moved is not None:  # the log was changed while it was read: discard the results
            name = job.found
            job.found = PartitionVerification(topic=name.topic, partition=name.partition)
            job.fail(moved)
        yield job.found


def _moved(proof: LogProof, job: _PartitionJob) -> LogError | None:
    """The error if a running broker has changed one of the logs since it was listed, or None."""
    try:
        for side in job.sides.values():
            proof.system.check_unmoved(side.log)
    except LogError as error:
        return error
    return None


@dataclass(slots=True)
class _ComparedLog:
    """One of the two logs of a partition."""

    log: PartitionLog
    pieces: list[ScanRange]
    parts: list[PieceContents] = field(default_factory=list)

    @property
    def end_offset(self) -> int:
        """The log's end offset, according to the batches that were read."""
        if not self.log.segments:
            return self.log.log_start
        last = len(self.log.segments) - 1
        ends = [part.next_offset for part in self.parts if part.piece.segment == last]
        return max([*ends, self.log.segments[last].base_offset])

    @property
    def is_whole(self) -> bool:
        """Whether every byte of the log was read."""
        return sum(part.piece.bytes for part in self.parts if part.is_whole) == self.log.size_bytes

    @property
    def facts(self) -> LogFacts:
        return LogFacts(self.log, tuple(block for part in self.parts for block in part.facts))


@dataclass(slots=True)
class _PartitionJob:
    """The state of one partition's verification."""

    number: int
    found: PartitionVerification
    before_folder: str | None
    # the compared logs: the present log has the key True, the earlier log has the key False
    sides: dict[bool, _ComparedLog] = field(default_factory=dict)
    seed: bytes | None = None
    rules: RemovalRules | None = None  # None if there is no earlier log
    bits: int = 0
    counts: Int64Array = field(default_factory=lambda: np.zeros(COUNTS, dtype=np.int64))
    broken: list[tuple[int, int, bool]] = field(default_factory=list)
    settled: DecidedTransactions | None = None
    first_keyless: int = -1  # the lowest offset of a missing record without a key

    @property
    def can_settle(self) -> bool:
        """Whether the present log, and the earlier log if there is one, were read completely."""
        return len(self.sides) == 1 + (self.seed is not None) and all(
            side.is_whole for side in self.sides.values()
        )

    @property
    def has_grown(self) -> bool:
        """Whether records were appended since the earlier log was copied."""
        return len(self.sides) == 2 and self.sides[True].end_offset > self.sides[False].end_offset

    @property
    def is_compared(self) -> bool:
        return (
            self.seed is not None
            and self.settled is not None
            and self.found.status is VerifyStatus.VERIFIED
        )

    def problem(self, problem: Problem) -> None:
        """Add a problem, unless a problem for the same file and position was added before.

        Damage is also added if the earlier problem is only a note.
        """
        is_damage = problem.kind is ProblemKind.DAMAGED
        if any(
            (known.path, known.position) == (problem.path, problem.position)
            and (known.kind is ProblemKind.DAMAGED or not is_damage)
            for known in self.found.problems
        ):
            return
        self.found.problems.append(problem)
        if is_damage:
            self.found.raise_status(VerifyStatus.DAMAGED, str(problem))

    def fail(self, error: Exception) -> None:
        damaged = isinstance(error, LogError) and error.exit_status == 3
        self.found.raise_status(
            VerifyStatus.DAMAGED if damaged else VerifyStatus.FAILED,
            str(error) or type(error).__name__,
        )

    def break_promise(self, *violations: Violation) -> None:
        if self.found.comparison is None:
            self.found.comparison = Comparison(folder=self.before_folder or "")
        self.found.comparison.violation_count += len(violations)
        self.found.comparison.violations += violations[
            : _MOST_VIOLATIONS - len(self.found.comparison.violations)
        ]
        if violations:
            self.found.raise_status(VerifyStatus.BROKEN, str(violations[0]))


class _Verifier:
    """Verifies the logs of one system."""

    def __init__(self, proof: LogProof, question: Question, means: ProofTools) -> None:
        self._system = proof.system
        self._proof = proof
        self._runner = means.runner
        self._limits = means.limits
        self._config = question.config
        self._now_ms = question.now_ms
        now_ms = question.now_ms
        self._clock_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        self._scratch = means.scratch
        self._progress = means.progress
        # The most rows that a task has in memory. With their sorted copy, order and carried rows
        # they take three times their size.
        self._most_rows = max(4096, means.limits.slice_bytes // ROW_BYTES)

    def run(self, pairs: Sequence[Pair]) -> Iterator[_PartitionJob]:
        """Verify the pairs of folders in groups (*waves*), which limits the scratch files' size."""
        wave: list[_PartitionJob] = []
        size = 0
        for after, before in pairs:
            job = self._plan(after, before, len(wave))
            wave.append(job)
            size += sum(side.log.size_bytes for side in job.sides.values())
            if size >= _WAVE_BYTES or len(wave) >= _WAVE_PARTITIONS:
                yield from self._run_wave(wave)
                wave, size = [], 0
        yield from self._run_wave(wave)

    def _run_wave(self, wave: list[_PartitionJob]) -> list[_PartitionJob]:
        scratch = None if self._scratch is None else make_folder(self._scratch or None)
        folder = None if scratch is None else str(scratch)
        try:
            self._read(wave, folder)
            for job in wave:
                for is_after, side in job.sides.items():
                    self._judge_structure(job, side, is_after)
            for job in wave:
                # The verification of a log that was not read completely must never succeed.
                if not job.can_settle and job.found.status is not VerifyStatus.UNSUPPORTED:
                    job.found.raise_status(
                        VerifyStatus.FAILED, "the log could not be read to its end"
                    )
            self._settle([job for job in wave if job.can_settle], folder)
            self._compare([job for job in wave if job.is_compared])
        finally:
            if scratch is not None:
                remove_folder(scratch)
        return wave

    # ------------------------------------------------------------------ plan

    def _plan(self, after: str | None, before: str | None, number: int) -> _PartitionJob:
        name = self._system.name_of(after or before or "")
        job = _PartitionJob(
            number, PartitionVerification(topic=name.topic, partition=name.partition), before
        )
        if after is None:
            message = f"the {self._proof.noun} is missing, although it existed before"
            job.break_promise(Violation("partition", message, None, before))
            return job
        self._open(job, True, after)
        if before is not None:
            self._open(job, False, before)
            if False in job.sides:
                job.rules = self._proof.rules(job.sides[False].log, self._config)
            job.seed = secrets.token_bytes(8 * SEED_WORDS)
            rows = sum(self._estimate(side.log) for side in job.sides.values())
            job.bits = bucket_bits(rows, min(self._most_rows, _FEW_ROWS) // 4)
        return job

    def _estimate(self, log: PartitionLog) -> int:
        try:
            return self._system.estimate_records(log)
        except (LogError, OSError):
            return log.size_bytes // 64  # an estimate; the error is reported when the log is read

    def _open(self, job: _PartitionJob, is_after: bool, folder: str) -> None:
        """List one log and divide it into pieces."""
        try:
            log = self._system.read(folder)
            copy = job.sides.get(True)
            if log.open_as is not None and copy is not None:
                # Ignore records that were written after the copy was made.
                log = self._system.read_below(folder, copy.log.end_offset)
        except UnsupportedFormat as error:
            job.found.raise_status(VerifyStatus.UNSUPPORTED, str(error))
            return
        except (LogError, OSError) as error:
            job.fail(error)
            return
        for problem in log.problems:
            job.problem(problem)
        pieces: list[ScanRange] = []
        for n, segment in enumerate(log.segments):
            try:
                cuts = self._system.cut(log, n, _PIECE_BYTES)
            except LogError:  # the damaged index is reported when the segment is read
                cuts = [0, segment.size_bytes]
            pieces += _pieces(log, n, cuts, len(pieces))
        job.sides[is_after] = _ComparedLog(log, pieces)
        if is_after:
            job.found.segments = len(log.segments)
            job.found.bytes = log.size_bytes
            job.found.log_start_offset = log.log_start

    # ------------------------------------------------------------------ read

    def _read(self, wave: Sequence[_PartitionJob], scratch: str | None) -> None:
        units = [
            self._unit(job, is_after, pieces, scratch)
            for job in wave
            for is_after, side in job.sides.items()
            for pieces in split_by_bytes(side.pieces, _UNIT_BYTES)
        ]
        self._run_reads(wave, "check", units)
        # A wrong index divides its segment at wrong positions. Read such a segment again in one
        # piece, to find the damage.
        again = []
        for job in wave:
            for is_after, side in job.sides.items():
                for n in {part.piece.segment for part in side.parts if not part.is_whole}:
                    pieces = [piece for piece in side.pieces if piece.segment == n]
                    if len(pieces) > 1:
                        side.parts = [part for part in side.parts if part.piece.segment != n]
                        whole = _pieces(side.log, n, [0, pieces[-1].end], pieces[0].number)
                        again.append(self._unit(job, is_after, whole, scratch))
        if again:
            self._run_reads(wave, "check again", again)

    def _unit(
        self, job: _PartitionJob, is_after: bool, pieces: Sequence[ScanRange], scratch: str | None
    ) -> ContentsUnit:
        return ContentsUnit(
            partition=job.number,
            is_after=is_after,
            system=self._system.name,
            pieces=tuple(pieces),
            bits=job.bits,
            seed=job.seed,
            now_ms=self._now_ms,
            rules=job.rules,
            config=self._config,
            limits=self._limits,
            scratch=scratch,
        )

    def _run_reads(
        self, wave: Sequence[_PartitionJob], name: str, units: Sequence[ContentsUnit]
    ) -> None:
        weights = [sum(piece.bytes for piece in unit.pieces) for unit in units]
        for job, answer in self._answers(name, read_contents, units, weights, wave):
            for part in answer:
                job.sides[part.is_after].parts.append(part)

    def _answers(
        self,
        name: str,
        work: Callable[[U], R],
        units: Sequence[U],
        weights: Sequence[int],
        wave: Sequence[_PartitionJob],
    ) -> Iterator[tuple[_PartitionJob, R]]:
        """Yield the results of the units, each with its job.

        A job fails if one of its units failed.
        """
        if not units:
            return
        by_number = {job.number: job for job in wave}
        answers = self._runner.run(name, work, units, weights, self._progress)
        for unit, answer in zip(units, answers, strict=True):
            if isinstance(answer, FailedUnit):
                by_number[unit.partition].fail(answer.error)
            else:
                yield by_number[unit.partition], answer

    def _judge_structure(self, job: _PartitionJob, side: _ComparedLog, is_after: bool) -> None:
        """Check the structure of a log by the results of all its pieces.

        The counts in the report are of the present log only.
        """
        side.parts.sort(key=lambda part: part.piece.number)
        by_segment: dict[int, list[PieceContents]] = {}
        for part in side.parts:
            by_segment.setdefault(part.piece.segment, []).append(part)
            for problem in part.problems:
                if problem.kind is ProblemKind.UNSUPPORTED:
                    job.found.raise_status(VerifyStatus.UNSUPPORTED, str(problem))
                job.problem(problem)
        for n, segment in enumerate(side.log.segments):
            parts = by_segment.get(n, [])
            if sum(part.piece.bytes for part in parts if part.is_whole) != segment.size_bytes:
                continue
            self._judge_order(job, parts)
            is_closed = n + 1 < len(side.log.segments)
            try:
                problems, advice = self._proof.judge_segment(
                    segment, parts, is_closed, self._config
                )
            except (LogError, OSError) as error:
                job.fail(error)
                continue
            for problem in problems:
                job.problem(problem)
            job.found.advice += advice if is_after else []
        if is_after:
            self._judge_holes(job, side, by_segment)
            _count(job.found, side)

    def _judge_holes(
        self,
        job: _PartitionJob,
        side: _ComparedLog,
        by_segment: Mapping[int, Sequence[PieceContents]],
    ) -> None:
        """Report offsets missing between two segments that were read completely."""
        holes: list[tuple[int, int]] = []
        for n, segment in enumerate(side.log.segments[1:], 1):
            parts = by_segment.get(n - 1, [])
            whole = sum(part.piece.bytes for part in parts if part.is_whole)
            end = max((part.next_offset for part in parts), default=segment.base_offset)
            if whole == side.log.segments[n - 1].size_bytes and 0 <= end < segment.base_offset:
                holes.append((end, segment.base_offset))
        try:
            found = self._proof.judge_holes(side.log, holes, self._config) if holes else ()
        except (LogError, OSError) as error:
            job.fail(error)
            return
        for problem in found:
            if problem.is_note:
                job.found.advice.append(str(problem))
            else:
                job.problem(problem)

    def _judge_order(self, job: _PartitionJob, parts: Sequence[PieceContents]) -> None:
        for earlier, later in zip(parts, parts[1:], strict=False):
            if later.first_offset < earlier.next_offset:
                wrong = f"{later.first_offset} after {earlier.next_offset - 1}"
                message = f"the offsets do not increase: {wrong}"
                place = later.piece.path, later.piece.start
                remedy = self._system.damage_remedy
                job.problem(Problem(ProblemKind.DAMAGED, message, *place, remedy))

    # ------------------------------------------------------------------ settle

    def _settle(self, jobs: Sequence[_PartitionJob], scratch: str | None) -> None:
        units = [
            DecideUnit(
                partition=job.number,
                system=self._system.name,
                before=job.sides[False].facts if False in job.sides else None,
                after=job.sides[True].facts,
                clock_ms=self._clock_ms,
                producer_expiration_ms=0 if job.rules is None else job.rules.producer_expiration_ms,
                grown_from=job.sides[False].end_offset if job.has_grown else None,
                scratch=scratch,
            )
            for job in jobs
        ]
        weights = [sum(side.log.size_bytes for side in job.sides.values()) for job in jobs]
        for job, answer in self._answers("settle", decide_transactions, units, weights, jobs):
            job.settled = answer
            job.found.transactions = answer.transactions
            for problem in answer.problems:
                job.problem(problem)

    # ------------------------------------------------------------------ compare

    def _compare(self, jobs: Sequence[_PartitionJob]) -> None:
        units = [unit for job in jobs for unit in self._compare_units(job)]
        weights = [unit.bytes for unit in units]
        for job, answer in self._answers("compare", compare, units, weights, jobs):
            job.counts += answer.counts
            job.broken += answer.broken
            known = [each for each in (job.first_keyless, answer.first_keyless) if each >= 0]
            job.first_keyless = min(known, default=-1)
        for job in jobs:
            if job.found.status is VerifyStatus.VERIFIED:
                self._account(job)

    def _compare_units(self, job: _PartitionJob) -> Iterator[CompareUnit]:
        was, now, settled = job.sides[False], job.sides[True], job.settled
        assert settled is not None  # only jobs whose transactions were decided are compared
        blocks = {
            is_after: [b for part in side.parts for b in part.blocks]
            for is_after, side in job.sides.items()
        }
        rows = sum(block.count for side in blocks.values() for block in side)
        if not rows:
            return
        buckets = 1 << job.bits
        # Few rows per task sort faster. The number of tasks is limited, because each opens every
        # block.
        tasks = -(-rows // min(self._most_rows, max(_FEW_ROWS, rows // _MOST_TASKS)))
        if rows > _FEW_ROWS // 2:
            tasks = max(tasks, 2 * self._runner.workers)
        tasks = min(tasks, buckets)
        for n in range(tasks):
            yield CompareUnit(
                partition=job.number,
                bits=job.bits,
                first_bucket=buckets * n // tasks,
                end_bucket=buckets * (n + 1) // tasks,
                before=tuple(blocks[False]),
                after=tuple(blocks[True]),
                log_start=self._proof.bounds(was.log, now.log).start,
                limit=settled.limit,
                lookups=settled.lookups,
                by_version=job.rules is not None and job.rules.order != BY_OFFSET,
                last_offset=-1 if job.has_grown else was.end_offset - 1,
                appended=(
                    (was.end_offset, self._proof.bounds(now.log, now.log).end)
                    if job.has_grown
                    else NOT_GROWN
                ),
                most_rows=self._most_rows,
            )

    def _account(self, job: _PartitionJob) -> None:
        """Add the figures of the comparison to the report, and describe the violations."""
        comparison = job.found.comparison = _figures(job)
        violations = [
            Violation(
                Finding(finding).label,
                self._proof.words.get(Finding(finding), Finding(finding).sentence),
                offset,
                job.sides[is_after].log.path_of(offset),
            )
            for finding, offset, is_after in first_of_each_kind(job.broken)
        ]
        job.break_promise(*violations[:_MOST_VIOLATIONS])
        counts = job.counts
        broken = [*counts[Finding.LOST : FINDINGS], *counts[FINDINGS + Finding.LOST : KEYS]]
        comparison.violation_count = int(sum(broken))
        self._account_keyless(job, comparison)
        if job.settled is not None:
            job.break_promise(*job.settled.violations)
            comparison.violation_count += job.settled.violation_count - len(job.settled.violations)
        self._account_ends(job)

    def _account_keyless(self, job: _PartitionJob, comparison: Comparison) -> None:
        most = 1.0 if job.rules is None else job.rules.max_keyless_ratio
        if is_over_limit(comparison.keyless, comparison.records_before, most):
            message = (
                f"{comparison.keyless:,} records without a key are missing, but no option "
                "allows their removal"
            )
            folder = job.sides[False].log.folder
            job.break_promise(
                Violation("keyless", message, comparison.first_keyless_offset, folder)
            )
            comparison.violation_count += comparison.keyless - 1

    def _account_ends(self, job: _PartitionJob) -> None:
        """Compare the logs' ends and starts, and their side files."""
        was, now = job.sides[False], job.sides[True]
        if job.has_grown:
            job.found.advice.append(
                f"the log has grown: it ended at offset {was.end_offset}, and now ends at "
                f"{now.end_offset}; verify cannot compare the appended records"
            )
        elif now.end_offset != was.end_offset:
            message = f"the log ended at offset {was.end_offset}, and now ends at {now.end_offset}"
            job.break_promise(
                Violation("log_end", message, now.end_offset, now.log.path_of(now.end_offset))
            )
        with contextlib.suppress(OSError):
            job.break_promise(*self._proof.differences(was.log, now.log))
        before, after = was.log.log_start, now.log.log_start
        if before == after or not self._proof.has_start:
            return
        message = f"the log started at offset {before}, and now starts at {after}"
        if job.rules is not None and job.rules.keeps_start and before < after:
            job.break_promise(Violation("log_start", message, after, now.log.folder))
        else:
            job.found.advice.append(message)


def _count(found: PartitionVerification, side: _ComparedLog) -> None:
    """Add the counts of the present log to the report."""
    columns = zip((0,) * TALLIES, *(part.tally for part in side.parts), strict=True)
    sums = [sum(column) for column in columns]
    found.batches = sum(part.batches for part in side.parts)
    found.records = sums[RECORDS]
    found.tombstones = sums[TOMBSTONES]
    found.keyless_records = sums[KEYLESS_RECORDS]
    found.control_records = sums[CONTROL_RECORDS]
    found.empty_batches = sums[EMPTY_BATCHES]
    found.old_batches = sums[OLD_BATCHES]
    found.end_offset = side.end_offset


def _figures(job: _PartitionJob) -> Comparison:
    counts = job.counts
    return Comparison(
        folder=job.before_folder or "",
        records_before=_records(job.sides[False]),
        records_after=_records(job.sides[True]),
        superseded=int(counts[Finding.SUPERSEDED]),
        expired=int(counts[Finding.EXPIRED]),
        keyless=int(counts[Finding.KEYLESS]),
        first_keyless_offset=None if job.first_keyless < 0 else job.first_keyless,
        aborted=int(counts[Finding.ABORTED]),
        markers=int(counts[Finding.MARKER_SPENT]),
        below_start=int(counts[Finding.BELOW_START]),
        keys=int(counts[KEYS]),
        keys_alive=int(counts[KEYS_ALIVE]),
    )


def _records(side: _ComparedLog) -> int:
    return sum(part.tally[RECORDS] for part in side.parts)


def _pieces(log: PartitionLog, n: int, cuts: Sequence[int], number: int) -> list[ScanRange]:
    """Divide segment ``n`` into pieces at positions ``cuts``. The first piece gets ``number``."""
    segment = log.segments[n]
    # The active segment is the last one, so its offsets have no limit.
    end_offset = log.segment_end(n) if n + 1 < len(log.segments) else (1 << 63) - 1
    return [
        ScanRange.of(
            segment,
            number=number + k,
            place=n,
            start=start,
            end=end,
            end_offset=end_offset,
            keyed=True,
        )
        for k, (start, end) in enumerate(zip(cuts, cuts[1:], strict=False))
        if end > start
    ]
