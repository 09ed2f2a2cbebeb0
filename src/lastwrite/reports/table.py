"""Select the last rows of a log, as dictionaries."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

Row = dict[str, Any]

BODY_LIMIT_BYTES = 256 << 20  # largest decompressed message body


def last_of(parts: Iterable[Iterator[Row]], count: int) -> list[Row]:
    """The last ``count`` rows of a log, in order.

    ``parts`` are ordered from the log's end to its start. Each part yields its rows in the order of
    the log. Only as many parts as needed are read.
    """
    kept: list[Row] = []
    for rows in parts:
        kept[:0] = deque(rows, maxlen=count - len(kept))
        if len(kept) == count:
            break
    return kept


def last_of_each(rows: Iterator[Row], count: int, *names: str) -> Iterator[Row]:
    """The last ``count`` rows of a log for each combination of values of the fields ``names``.

    Combinations are in the order of their first occurrence.
    """
    kept: dict[tuple[object, ...], deque[Row]] = {}
    for row in rows:
        kept.setdefault(tuple(row.get(name) for name in names), deque(maxlen=count)).append(row)
    for found in kept.values():
        yield from found
