"""Readers of tables by other makers: the value of each key that each of them reads."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

# Polars has no Iceberg planner of its own here
os.environ.setdefault("POLARS_ICEBERG_PLANNER", "pyiceberg")

Rows = dict[bytes, bytes]


def readings(format: str, to: Path) -> Iterator[tuple[str, Rows]]:
    """The rows that each reader of this format gets, with the reader's name.

    Raises:
        AssertionError: A reader gets a key twice.
    """
    for name, read in _READERS[format].items():
        found = read(to)
        rows = dict(found)
        assert len(rows) == len(found), f"{name} finds a key twice"
        yield name, rows


def _pairs(table: pa.Table) -> list[tuple[bytes, bytes]]:
    return list(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))


def _polars(frame: polars.DataFrame) -> list[tuple[bytes, bytes]]:
    return list(frame.select("key", "value").iter_rows())


def _duckdb(files: list[str]) -> list[tuple[bytes, bytes]]:
    if not files:
        return []
    return duckdb.execute("select key, value from read_parquet($1)", [files]).fetchall()


def parquet_files(to: Path) -> list[str]:
    """The files in the manifest, found as the guide describes."""
    manifest = json.loads((to / (to / "_lastwrite/current").read_text()).read_text())
    return [str(to / file["path"]) for file in manifest["files"]]


def _parquet_polars(to: Path) -> list[tuple[bytes, bytes]]:
    files = parquet_files(to)
    return _polars(polars.read_parquet(files, missing_columns="insert")) if files else []


def _parquet_pyarrow(to: Path) -> list[tuple[bytes, bytes]]:
    return [pair for path in parquet_files(to) for pair in _pairs(pq.ParquetFile(path).read())]


def _iceberg_duckdb(to: Path) -> list[tuple[bytes, bytes]]:
    """Read the data files and position deletes with SQL."""
    tasks = list(iceberg_table(to).scan().plan_files())
    files = [_local(task.file.file_path) for task in tasks]
    deletes = sorted({_local(each.file_path) for task in tasks for each in task.delete_files})
    if not deletes:
        return _duckdb(files)
    return duckdb.execute(
        "select d.key, d.value from read_parquet($1, filename = true, file_row_number = true) d"
        " anti join read_parquet($2) p"
        " on d.filename = replace(p.file_path, 'file://', '') and d.file_row_number = p.pos",
        [files, deletes],
    ).fetchall()


def iceberg_table(to: Path) -> Any:
    catalog = load_catalog("lastwrite", type="sql", uri=f"sqlite:///{to}/catalog.db")
    # named after the topic, in Pulsar with its namespace
    (name,) = catalog.list_tables("lastwrite")
    return catalog.load_table(name)


def _local(path: str) -> str:
    return path.removeprefix("file://")


_READERS: dict[str, dict[str, Callable[[Path], Any]]] = {
    "parquet": {
        "duckdb": lambda to: _duckdb(parquet_files(to)),
        "polars": _parquet_polars,
        "pyarrow": _parquet_pyarrow,
    },
    "delta": {
        "delta-rs": lambda to: _pairs(
            DeltaTable(str(to)).to_pyarrow_table(columns=["key", "value"])
        ),
        "polars": lambda to: _polars(polars.read_delta(str(to))),
        "duckdb": lambda to: _duckdb(DeltaTable(str(to)).file_uris()),
    },
    "delta-vectors": {
        "delta-rs": lambda to: _pairs(pa.table(DeltaTable(str(to)).scan(["key", "value"]))),
        "polars": lambda to: _polars(polars.read_delta(str(to))),
    },
    "iceberg": {
        "pyiceberg": lambda to: _pairs(iceberg_table(to).scan().to_arrow()),
        "polars": lambda to: _polars(polars.scan_iceberg(iceberg_table(to)).collect()),
        "duckdb": _iceberg_duckdb,
    },
    "iceberg-vectors": {
        "pyiceberg": lambda to: _pairs(iceberg_table(to).scan().to_arrow()),
        "polars": lambda to: _polars(polars.scan_iceberg(iceberg_table(to)).collect()),
    },
}
