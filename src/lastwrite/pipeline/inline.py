"""The same engine without Spark, in this process: ``compact(..., spark=INLINE)``.

For tests, and for commands whose work is smaller than Spark's start.
"""

from __future__ import annotations


class Inline:
    """Stands where a Spark session is asked for and says: none."""

    def __repr__(self) -> str:
        return "INLINE"


INLINE = Inline()
