"""Naive Spark: the last record of each key by DataFrame operations, as written in an afternoon.

A row is a record. Python decodes the segments to Arrow batches, ``groupBy`` finds each key's last
offset, a join selects the records, and Spark writes them to Parquet. It handles no batch headers,
indexes or other rules, and its result is a table, not a log. Spark's settings are its defaults,
except for memory.
"""

from __future__ import annotations

import shutil
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

_SCHEMA = "offset bigint, timestamp bigint, key binary, value binary"
_ARROW = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
_ROWS = 50_000


def session(master: str) -> SparkSession:
    """A default session with 4 GiB of memory."""
    from lastwrite.spark.launcher.java import prepare_environment

    prepare_environment()
    built: SparkSession = (
        SparkSession.builder.master(master)
        .appName("naive")
        .config("spark.driver.memory", "4g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    built.sparkContext.setLogLevel("ERROR")
    return built


def compact(spark: SparkSession, request: dict[str, Any]) -> dict[str, Any]:
    """Write the last record of each key of the log at ``path`` to Parquet at ``path``-out."""
    begin = time.perf_counter()
    out = request["path"].rstrip("/") + "-out"
    shutil.rmtree(out, ignore_errors=True)
    paths = sorted(str(p) for p in Path(request["path"]).glob("*.log") if p.stat().st_size)
    files = spark.createDataFrame([(p,) for p in paths], "path string").repartitionByRange(
        len(paths), "path"
    )
    records = files.mapInArrow(_decode_files, _SCHEMA)
    latest = records.groupBy("key").agg(F.max("offset").alias("offset"))
    records.join(latest, ["key", "offset"], "left_semi").write.parquet(out)
    seconds = time.perf_counter() - begin
    left = spark.read.parquet(out).count()
    size = sum(f.stat().st_size for f in Path(out).glob("*.parquet"))
    shutil.rmtree(out, ignore_errors=True)
    return {"seconds": seconds, "records_after": left, "bytes_after": size}


def _decode_files(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for path in batch.column(0).to_pylist():
            with open(path, "rb") as file:
                yield from _decode(file.read())


def _decode(data: bytes) -> Iterator[pa.RecordBatch]:
    """The rows of uncompressed v2 batches. Lengths are not checked."""
    offsets: list[int] = []
    times: list[int] = []
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    at = 0
    while at < len(data):
        base, length = struct.unpack_from(">qi", data, at)
        first_time = struct.unpack_from(">q", data, at + 27)[0]
        count = struct.unpack_from(">i", data, at + 57)[0]
        place = at + 61
        for _ in range(count):
            size, place = _varint(data, place)
            end = place + size
            stamp, place = _varint(data, place + 1)
            delta, place = _varint(data, place)
            key, place = _bytes(data, place)
            value, place = _bytes(data, place)
            offsets.append(base + delta)
            times.append(first_time + stamp)
            keys.append(key)
            values.append(value)
            place = end
        at += length + 12
        if len(offsets) >= _ROWS:
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(offsets),
                    pa.array(times),
                    pa.array(keys, pa.binary()),
                    pa.array(values, pa.binary()),
                ],
                schema=_ARROW,
            )
            offsets, times, keys, values = [], [], [], []
    if offsets:
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(offsets),
                pa.array(times),
                pa.array(keys, pa.binary()),
                pa.array(values, pa.binary()),
            ],
            schema=_ARROW,
        )


def _bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _varint(data, at)
    return (None, at) if length < 0 else (data[at : at + length], at + length)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
