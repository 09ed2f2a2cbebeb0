"""Reads Lastwrite's Iceberg tables with pyiceberg."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from lastwrite.tables.buckets import checksum_of, summed
from lastwrite.tables.columns import OFFSET, PARTITION, as_bytes, identity_of


class Row(NamedTuple):
    value: Any
    partition: int
    offset: int


def iceberg_table(folder: Path | str, topic: str = "t") -> Table:
    """The table, opened by pyiceberg."""
    catalog = load_catalog("lastwrite", type="sql", uri=f"sqlite:///{folder}/catalog.db")
    return catalog.load_table(("lastwrite", topic))


def rows_of(found: Any) -> dict[Any, Row]:
    """The rows of an Arrow table by key. Fails if a key occurs twice."""
    rows = found.to_pylist()
    by_key = {row["key"]: Row(row["value"], row[PARTITION], row[OFFSET]) for row in rows}
    assert len(by_key) == len(rows)
    return by_key


def checksum(found: Any) -> str:
    """The checksum of all rows, as in a table's state."""
    keys = as_bytes(found.column(identity_of(found.schema)).cast("binary"))
    sum_ = checksum_of(keys, found.column(PARTITION), found.column(OFFSET))
    return summed("", sum_)
