"""The result of comparing a table with its topic, as values that print as JSON."""

from __future__ import annotations

from lastwrite.model.log import Problem
from lastwrite.reports.document import FrozenDocument


class Difference(FrozenDocument, frozen=True, kw_only=True):
    """A key whose row in the table differs from the log.

    The values of ``kind``: ``missing``: the table has no row; ``beyond``: the log has no such key,
    or it is deleted; ``older``: the row is of another record; ``value``: of that record, with
    another value; ``twice``: there are several rows.
    """

    kind: str
    key: str | None  # null if no other record or row has the key any more
    partition: int
    row_offset: int | None = None  # of the row's record
    log_offset: int | None = None  # of the last write


class TableProof(FrozenDocument, frozen=True, kw_only=True):
    """A table compared with its topic, up to the offsets in the table."""

    path: str  # of the table
    format: str
    head: str
    topic: str
    offsets: dict[int, int]  # partition to the first offset that is not in the table
    rows: int
    records: int  # of the log, with keys
    proven: int  # rows that are the last write of their key
    # rows that this log cannot prove: their keys were written again later, and a round dropped the
    # earlier records
    unproven: int
    has_values: bool  # whether values were compared, or only the records that rows come from
    is_state_right: bool  # whether rows and checksum match the table's commit
    counts: dict[str, int]  # of differences, by kind
    differences: list[Difference]  # the first ones
    notes: list[Problem] = []  # gaps of the topic's archive that were accepted as lost

    @property
    def is_proven(self) -> bool:
        """Whether nothing contradicts the table; rows in ``unproven`` remain undecided."""
        return not self.counts and self.is_state_right
