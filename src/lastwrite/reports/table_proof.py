"""What holding a table against its topic has found, as values that print as JSON."""

from __future__ import annotations

from lastwrite.model.log import Problem
from lastwrite.reports.document import FrozenDocument


class Difference(FrozenDocument, frozen=True, kw_only=True):
    """A key of which the table does not have what the log has.

    ``kind``: ``missing``: the table has no row; ``beyond``: the log has no such key, or it is
    deleted; ``older``: the row is of another record; ``value``: of that one, with another value;
    ``twice``: there are several rows.
    """

    kind: str
    key: str | None  # None: no other record or row has it any more
    partition: int
    row_offset: int | None = None  # of the record that the row is of
    log_offset: int | None = None  # of the last write


class TableProof(FrozenDocument, frozen=True, kw_only=True):
    """A table beside its topic, up to the offsets that the table says."""

    path: str  # of the table
    format: str
    head: str
    topic: str
    offsets: dict[int, int]  # partition to the first offset that is not in the table
    rows: int
    records: int  # of the log, with keys
    proven: int  # rows that are the last write of their key
    # rows that this log cannot prove: their keys were written again later, and a round took what
    # was before
    unproven: int
    has_values: bool  # whether values were compared, or else where rows are from alone
    is_state_right: bool  # whether rows and checksum are those that the table's commit says
    counts: dict[str, int]  # of differences, by kind
    differences: list[Difference]  # the first
    notes: list[Problem] = []  # gaps of the topic's archive that were accepted as lost

    @property
    def is_proven(self) -> bool:
        """Whether nothing contradicts the table; rows of ``unproven`` are left open."""
        return not self.counts and self.is_state_right
