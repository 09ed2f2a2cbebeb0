"""The input of one Spark task."""

from __future__ import annotations

from pyspark.sql.datasource import InputPartition

from lastwrite.rows.reading import RowUnit


class SourcePartition(InputPartition):
    """The unit of work that one task reads, in the form that Spark pickles."""

    def __init__(self, unit: RowUnit) -> None:
        super().__init__(None)
        self.unit = unit
