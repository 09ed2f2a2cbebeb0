"""Cached scans of fetched segments, for ``fetch --keep-scans``.

They have the form of a compaction's cached scans, so even the first compaction need not scan these
segments.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from itertools import pairwise

from lastwrite.archive.partition_store import WriteTransaction
from lastwrite.engine.pieces import piece_bytes_of
from lastwrite.engine.rules.election import bucket_bits
from lastwrite.engine.rules.transactions import aborted_table
from lastwrite.errors import LogError
from lastwrite.kafka.store import archived
from lastwrite.kafka.store.archived import ArchivedLog, StoredScan
from lastwrite.kafka.store.pieces import cuts_of, estimate_records
from lastwrite.model.log import PartitionLog
from lastwrite.model.policy import Policy
from lastwrite.model.work import Limits, ScanRange, ScanUnit
from lastwrite.scan_cache import cache
from lastwrite.scan_cache.objects import object_name
from lastwrite.scan_cache.task import scan_into_object
from lastwrite.storage.objects.address import is_address

# ``keep(segment number, first byte, end byte, base offset)`` caches a scan of the fetched part of a
# segment of the source.
Keep = Callable[[int, int, int, int], StoredScan | None]


def keeper(
    log: PartitionLog,
    before: ArchivedLog,
    target: tuple[str, WriteTransaction],
    secret: bytes,
    limits: Limits,
) -> Keep:
    """Create a function that scans a fetched part of a segment and caches the scan result.

    Args:
        log: the source of the fetch.
        before: the archive's contents before the fetch.
        target: the partition's address in the archive, and the write transaction of the fetch.
        secret: the partition's secret for cached scans.
        limits: the memory to use.
    """
    folder, begun = target
    known = sum(each.records or 0 for each in before.segments)
    records = estimate_records(log)
    bits = bucket_bits(known + records)
    piece_bytes = piece_bytes_of(limits, log.size_bytes, records)

    def keep(number: int, start: int, end: int, base: int) -> StoredScan | None:
        segment = log.segments[number]
        # A segment in a bucket gets no cached scan: to scan the segment, the fetch would read it a
        # second time, which costs as much as the cached scan would save.
        if end - start < cache.LEAST_SEGMENT_BYTES or is_address(segment.path):
            return None
        cuts = (cut for cut in cuts_of(log, number, piece_bytes) if start < cut < end)
        pieces = tuple(
            ScanRange.of(
                segment,
                number=n,
                place=number,
                start=first,
                end=last,
                end_offset=log.segment_end(number),
                keyed=True,
            )
            for n, (first, last) in enumerate(pairwise((start, *cuts, end)))
        )
        unit = ScanUnit(
            partition=0,
            system=archived.SYSTEM,
            pieces=pieces,
            first_dirty=0,
            bits=bits,
            exact=False,
            secret=secret,
            policy=Policy(now_ms=0, tombstone_retention_ms=0),
            aborted=aborted_table(log.aborted, segment.base_offset, log.segment_end(number)),
            limits=limits,
            scratch="",
            thins=False,
        )
        address = object_name(f"{folder}/{begun.prefix}", uuid.uuid4().hex[:12], base)
        found = None
        with contextlib.suppress(LogError, OSError):  # without a cached scan, compaction scans
            found = scan_into_object(unit, address, base)
        return None if found is None else StoredScan.of(found, folder)

    return keep
