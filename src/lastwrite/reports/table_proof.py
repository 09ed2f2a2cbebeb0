"""The result of comparing a table with its topic, as values that print as JSON."""

from __future__ import annotations

from lastwrite.model.log import Problem
from lastwrite.reports.document import FrozenDocument


class Difference(FrozenDocument, frozen=True, kw_only=True):
    """A key whose row in the table differs from the key's last write in the log.

    The values of ``kind``: ``missing``: the table has no row for the key. ``beyond``: the log does
    not have the key, or deletes it. ``older``: the row is from an older record. ``value``: the row
    is from the last write, but has another value. ``twice``: the key has several rows.
    """

    kind: str
    key: str | None  # null if the key was not found again in the log or the table
    partition: int
    row_offset: int | None = None  # offset of the row's record
    log_offset: int | None = None  # offset of the key's last write


class TableProof(FrozenDocument, frozen=True, kw_only=True):
    """The result of comparing a table with its topic, up to the offsets in the table."""

    path: str  # path of the table
    format: str
    head: str
    topic: str
    offsets: dict[int, int]  # by partition: first offset that is not in the table
    rows: int
    records: int  # records with keys in the log
    proven: int  # rows that are the last write of their key
    # rows that cannot be checked: a later record has the key, and compaction dropped the row's
    # record
    unproven: int
    has_values: bool  # whether values were compared, in addition to the records' offsets
    is_state_right: bool  # whether rows and checksum match the table's commit
    counts: dict[str, int]  # number of differences, by kind
    differences: list[Difference]  # the first differences of each kind
    notes: list[Problem] = []  # gaps in the topic's archive whose loss the user accepted

    @property
    def is_proven(self) -> bool:
        """Whether the table has no difference. The rows in ``unproven`` were not checked."""
        return not self.counts and self.is_state_right
