"""What one task of Spark reads."""

from __future__ import annotations

from pyspark.sql.datasource import InputPartition

from lastwrite.rows.reading import RowUnit


class SourcePartition(InputPartition):
    """It travels by pickle."""

    def __init__(self, unit: RowUnit) -> None:
        super().__init__(None)
        self.unit = unit
