"""The result of a table's round, as a value."""

from __future__ import annotations

from lastwrite.model.log import Problem
from lastwrite.reports.document import FrozenDocument


class RecordTime(FrozenDocument, frozen=True, kw_only=True):
    """A record and its time in the log."""

    partition: int
    offset: int
    timestamp_ms: int


class TableRound(FrozenDocument, frozen=True, kw_only=True):
    """A table, and what the last round did to it.

    The values of ``how``: ``made``; ``updated``: with the records written since; ``compared``: with
    all of the log, which was necessary; ``unchanged``.
    """

    path: str  # of the table
    format: str
    head: str  # a snapshot's id, a version
    how: str
    topic: str
    offsets: dict[int, int]  # partition to the first offset that is not in the table
    rows: int
    buckets: int
    added: int = 0  # rows that were added, including those that replace older ones
    removed: int = 0  # rows that were removed, including the replaced ones
    files: int = 0  # written
    bytes_written: int = 0  # in them
    written_anew: int = 0  # buckets
    tidied: int = 0  # unreferenced files that were removed
    untidy: str | None = None  # why none could be removed
    # rows of this round whose time is before the year 1 or after 9999, and so is null
    odd_times: int = 0
    first_odd_time: RecordTime | None = None
    notes: list[Problem] = []  # gaps of the topic's archive that were accepted as lost
    attempts: int = 1  # more than one if another writer changed the table first
