"""The result of building or updating a table."""

from __future__ import annotations

from lastwrite.model.log import Problem
from lastwrite.reports.document import FrozenDocument


class RecordTime(FrozenDocument, frozen=True, kw_only=True):
    """A record and its timestamp, as stored in the log."""

    partition: int
    offset: int
    timestamp_ms: int


class TableRound(FrozenDocument, frozen=True, kw_only=True):
    """A table, and the effect of the last update on it.

    The values of ``how``: ``made``: the table is new. ``updated``: the new records of the log were
    added. ``compared``: the whole log was read again, because the new records were not enough.
    ``unchanged``: the log has no new records.
    """

    path: str  # path of the table
    format: str
    head: str  # id of the table's snapshot, or its version
    how: str
    topic: str
    offsets: dict[int, int]  # by partition: first offset that is not in the table
    rows: int
    buckets: int
    added: int = 0  # rows that were added, including those that replace older rows
    removed: int = 0  # rows that were removed, including replaced rows
    files: int = 0  # data files that were written
    bytes_written: int = 0  # bytes of the written data files
    written_anew: int = 0  # number of buckets that were rewritten completely
    tidied: int = 0  # unreferenced files that were removed
    untidy: str | None = None  # why unreferenced files could not be removed
    # rows of this round whose time is null, because it is before the year 1 or after 9999
    odd_times: int = 0
    first_odd_time: RecordTime | None = None
    notes: list[Problem] = []  # gaps in the topic's archive whose loss the user accepted
    attempts: int = 1  # number of attempts; more than 1 if another writer committed first
