"""What a table is made of."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

Row = dict[str, Any]

BODY_LIMIT_BYTES = 256 << 20  # of one body, decompressed


def last_of(parts: Iterable[Iterator[Row]], count: int) -> list[Row]:
    """The last ``count`` rows of a log whose ``parts`` come from its end to its begin; each part's
    rows come in order. No part is begun that is not needed.
    """
    kept: list[Row] = []
    for rows in parts:
        kept[:0] = deque(rows, maxlen=count - len(kept))
        if len(kept) == count:
            break
    return kept


def last_of_each(rows: Iterator[Row], count: int, *names: str) -> Iterator[Row]:
    """The last ``count`` rows of each value of the fields ``names``, those first that came first."""
    kept: dict[tuple[object, ...], deque[Row]] = {}
    for row in rows:
        kept.setdefault(tuple(row.get(name) for name in names), deque(maxlen=count)).append(row)
    for found in kept.values():
        yield from found
