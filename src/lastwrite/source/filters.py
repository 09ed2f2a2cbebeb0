"""Use a query's filters to read fewer records: ``option("pushdown", "true")``.

    topic = 'a' and partition in (0, 1) and offset >= 40 and timestamp >= … and key = X'6b31'

The source may still return rows that a supported filter excludes, because Spark applies every
filter to every row again. Unsupported filters have no effect here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lastwrite.commands.systems import KAFKA
from lastwrite.model.log import TopicPartition
from lastwrite.rows.reading import RowUnit

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

# A filter with more keys has no effect here, because the comparison would cost more than it saves.
_MOST_KEYS = 64
_ENDS = -(1 << 62), 1 << 62


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A query's conditions on rows. A field is None if it has no condition."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    keys: frozenset[bytes] | None = None
    first: int = _ENDS[0]  # first offset
    end: int = _ENDS[1]  # exclusive end of offsets
    least_ms: int | None = None  # earliest timestamp

    def span(self, name: TopicPartition, first: int, end: int) -> tuple[int, int]:
        """The part of a partition's range of offsets that meets the conditions. It may be empty."""
        first = max(first, self.first)
        is_asked_for = (self.topics is None or name.topic in self.topics) and (
            self.partitions is None or name.partition in self.partitions
        )
        return first, max(first, min(end, self.end)) if is_asked_for else first

    def of(self, units: Iterable[RowUnit]) -> Iterator[RowUnit]:
        """Yield the units of work that may contain matching rows, limited to matching offsets."""
        for unit in units:
            span = self.span(unit.name, *unit.span)
            if span[0] < span[1]:
                least_ms = self.least_ms if unit.system == KAFKA else None
                yield unit._replace(span=span, keys=self.keys, least_ms=least_ms)

    def with_filter(self, name: str, column: str, value: Any) -> RowFilter:
        """These conditions with an additional filter on ``column``.

        ``name`` is the name of the filter's class in PySpark, and ``value`` its argument.
        """
        if name in ("EqualTo", "EqualNullSafe"):
            name, value = "In", (value,)
        if name == "In" and column in _SETS:
            kind = _SETS[column][1]
            if not all(type(each) is kind for each in value):
                return self
            field = _SETS[column][0]
            had = getattr(self, field)
            asked = frozenset(value)
            if column == "key" and len(asked) > _MOST_KEYS:
                return self
            changed: dict[str, Any] = {field: asked if had is None else had & asked}
            return replace(self, **changed)
        if name == "In" and column in _RANGES and value and None not in value:
            least = self.with_filter("GreaterThanOrEqual", column, min(value))
            return least.with_filter("LessThanOrEqual", column, max(value))
        if column == "offset" and type(value) is int:
            if name.startswith("GreaterThan"):
                return replace(self, first=max(self.first, value + (name == "GreaterThan")))
            if name.startswith("LessThan"):
                return replace(self, end=min(self.end, value + (name == "LessThanOrEqual")))
        if column == "timestamp" and type(value) is datetime and name.startswith("GreaterThan"):
            least_ms = _milliseconds(value)
            return replace(
                self, least_ms=least_ms if self.least_ms is None else max(self.least_ms, least_ms)
            )
        return self


_RANGES = "offset", "timestamp"
_SETS = {"topic": ("topics", str), "partition": ("partitions", int), "key": ("keys", bytes)}


def narrowed_by(filters: Iterable[Filter]) -> RowFilter:
    """The conditions of a query's filters, combined by AND."""
    found = RowFilter()
    for each in filters:
        path: Sequence[str] = getattr(each, "attribute", ())
        value = getattr(each, "value", None)
        if len(path) == 1 and value is not None:
            found = found.with_filter(type(each).__name__, path[0], value)
    return found


def _milliseconds(time: datetime) -> int:
    """A time in milliseconds, the unit of record timestamps, rounded down."""
    since = time.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400_000) + (since.seconds * 1000) + since.microseconds // 1000
