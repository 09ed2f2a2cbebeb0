"""Step one, plan: decide whether a partition is cleaned.

The decision needs only file names, batch headers and checkpoints.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace

from msgspec import structs

from lastwrite.encoding.fingerprint import SECRET_WORDS
from lastwrite.engine.context import Context
from lastwrite.engine.partition import FinishedPartition, PartitionPlan, failed
from lastwrite.engine.pieces import cut_into_pieces, piece_bytes_of, shared_piece_bytes
from lastwrite.engine.rules.election import bucket_bits
from lastwrite.engine.system import Decision
from lastwrite.errors import LogError, UnsupportedFormat
from lastwrite.model.log import PartitionLog, ProblemKind
from lastwrite.reports.compaction import PartitionReport, Status
from lastwrite.storage.throttle import spender

_ENDING_PROBLEMS = (
    (ProblemKind.DAMAGED, Status.DAMAGED),
    (ProblemKind.UNSUPPORTED, Status.SKIPPED),
)


def new_secret() -> bytes:
    """A random secret for a round's fingerprints."""
    return secrets.token_bytes(8 * SECRET_WORDS)


def plan_partition(context: Context, folder: str, number: int) -> PartitionPlan | FinishedPartition:
    """Read the partition's bounds and decide whether it is cleaned.

    ``number`` is unique among the partitions that are processed together.
    """
    started = time.perf_counter()
    name = context.system.name_of(folder)
    report = PartitionReport(topic=name.topic, partition=name.partition, status=Status.CLEANED)
    log: PartitionLog | None = None
    decision: Decision | None = None
    try:
        context.options.check()
        report.settings = context.system.settings_of(folder, context.options.config)
        log = _read(context, folder)
        report = _with_log(report, log)
        if report.status is Status.CLEANED:
            decision = _decide(context, log)
            report = _with_decision(report, decision)
    except (LogError, OSError) as error:
        report = failed(report, error)
        if isinstance(error, UnsupportedFormat) and log is not None:
            report = structs.replace(report, status=Status.SKIPPED)
    if log is not None and decision is not None and report.status is Status.CLEANED:
        try:
            return _plan(context, log, decision, report, (number, started))
        except (LogError, OSError) as error:
            return FinishedPartition(started=started, report=failed(report, error), log=log)
    return FinishedPartition(started=started, report=report, log=log, resting=decision)


def _read(context: Context, folder: str) -> PartitionLog:
    system, config = context.system, context.options.config
    if context.is_in_place and system.why_unmanaged(folder, config) is None:
        system.recover(folder)
    log = system.judged(system.read(folder, spender(context.limits.reading)), config)
    if log.open_as is not None and context.options.to is not None:
        # If a broker has the log open, the copy ends before open transactions, because the copy
        # would never get the markers that end them.
        return system.read_below(folder, log.last_stable_offset)
    return log


def _with_log(report: PartitionReport, log: PartitionLog) -> PartitionReport:
    """The report with the log's figures, and with another status if the log cannot be cleaned."""
    count = len(log.segments)
    report = structs.replace(
        report,
        segments_before=count,
        segments_after=count,
        segments_untouched=count,
        bytes_before=log.size_bytes,
        bytes_after=log.size_bytes,
        problems=list(log.problems),
    )
    for kind, status in _ENDING_PROBLEMS:
        problem = next((problem for problem in log.problems if problem.kind is kind), None)
        if problem is not None:
            return structs.replace(report, status=status, reason=str(problem))
    if not count:
        return structs.replace(report, status=Status.SKIPPED, reason="the log has no segment")
    return report


def _decide(context: Context, log: PartitionLog) -> Decision:
    options = context.options
    include_active = options.include_active and not log.is_torn
    decision = context.system.decide(
        log, options.config, options.now_ms, include_active, options.like_broker
    )
    if options.drop_expired_deletes:
        # Compare the keys of all records, not only of records after the checkpoint. Otherwise an
        # expired delete could be dropped before the older records of its key.
        reason = None if decision.is_at_rest else decision.reason
        decision = replace(decision, reason=reason, elect_from=0)
    return decision


def _with_decision(report: PartitionReport, decision: Decision) -> PartitionReport:
    """The report with the round's range, and with the status SKIPPED if no round is due."""
    report = structs.replace(
        report,
        first_dirty_offset=decision.first_dirty,
        first_uncleanable_offset=decision.end,
        dirty_ratio=decision.dirty_ratio,
        held_for=list(decision.held_for),
    )
    if decision.reason is None:
        return report
    reason = "; ".join(filter(None, (decision.reason, decision.remedy)))
    return structs.replace(report, status=Status.SKIPPED, reason=reason, remedy=decision.remedy)


def _plan(
    context: Context,
    log: PartitionLog,
    decision: Decision,
    report: PartitionReport,
    place: tuple[int, float],
) -> PartitionPlan:
    """Plan a partition: split its log into pieces.

    ``place`` has the partition's number in the wave, and the ``perf_counter`` time in seconds at
    which its planning began.
    """
    system = context.system
    if context.is_in_place:
        system.check_writable(log, decision.end)
    records = system.estimate_records(log)
    bits, cache = bucket_bits(records), context.scan_cache
    cached = None if cache is None else cache.open(context, place[0], log, decision, bits)
    piece_bytes = min(
        piece_bytes_of(context.limits, log.size_bytes, records),
        shared_piece_bytes(log.size_bytes, context.workers),
    )
    pieces = cut_into_pieces(system, log, decision.end, cached, piece_bytes)
    return PartitionPlan(
        number=place[0],
        started=place[1],
        report=report,
        log=log,
        decision=decision,
        pieces=pieces,
        aborted=log.aborted,
        bits=bits if cached is None else cached.bits,
        secret=new_secret() if cached is None else cached.secret,
    )


def plan_full_read(
    context: Context, log: PartitionLog, decision: Decision, end: int
) -> PartitionPlan:
    """A plan that reads all records of ``log`` below offset ``end``, whether a round is due or
    not.
    """
    name = log.name
    pieces = cut_into_pieces(context.system, log, end)
    return PartitionPlan(
        number=0,
        started=time.perf_counter(),
        report=PartitionReport(topic=name.topic, partition=name.partition, status=Status.CLEANED),
        log=log,
        decision=decision,
        pieces=pieces,
        aborted=log.aborted,
        bits=bucket_bits(context.system.estimate_records(log)),
        secret=new_secret(),
    )
