"""How many distinct keys a partition holds: scan and election, in this process, over all of it.

Memory is that of one worker, whatever the log's size: entries go to scratch files, buckets are counted one
after the other.
"""

from __future__ import annotations

from lastwrite.compaction.election import bucket_bits
from lastwrite.compaction.verdict import Policy
from lastwrite.model.log import PartitionLog
from lastwrite.model.progress import NoProgress
from lastwrite.model.work import Limits, ScanUnit
from lastwrite.pipeline.engine import cut_into_pieces, elect_units, new_secret
from lastwrite.pipeline.exchange import FolderExchange
from lastwrite.pipeline.runner import Failed, InlineRunner
from lastwrite.pipeline.system import System

_NOBODY = NoProgress()


def count_keys(system: System, log: PartitionLog, limits: Limits | None = None) -> int | None:
    """The distinct keys of ``log``, exactly; None where records cannot be read or are not handled yet."""
    limits = limits or Limits()
    exchange = FolderExchange(InlineRunner())
    try:
        bits = bucket_bits(system.estimate_records(log))
        unit = ScanUnit(
            partition=0, system=system.name, pieces=tuple(cut_into_pieces(system, log, log.end_offset)), first_dirty=0,
            bits=bits, exact=False, secret=new_secret(),
            policy=Policy(now_ms=0, tombstone_retention_ms=0).to_tuple(), limits=limits, scratch=exchange.scratch,
        )  # fmt: skip
        (scans,) = exchange.scan([unit], _NOBODY)
        if isinstance(scans, Failed) or any(scan.problem is not None for scan in scans):
            return None
        winners = 0
        for answer in exchange.elect(list(elect_units(0, bits, scans, False, limits, 1)), _NOBODY):
            if isinstance(answer, Failed):
                return None
            winners += answer.winners
        return winners
    finally:
        exchange.close()
