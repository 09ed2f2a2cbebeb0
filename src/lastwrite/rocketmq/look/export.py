"""``dump --to``: all messages of a RocketMQ store or topic as a folder of Parquet or JSON lines.

A record is in one file, so one file of the log is one task. The task walks the file like ``dump``,
skips damage, and writes parts whose names are their first addresses. Parts sorted by name are in
log order. A small log is exported in this process, a larger one on Spark. The folder ``to`` is
created when all parts are complete.

A Parquet column has the name of a field of ``dump``. ``stored_body`` is null if the body is not
compressed, because it would equal ``body``.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from lastwrite.errors import InvalidConfig, LogError, missing_extra
from lastwrite.model.columns import ByteArray, Int64Array
from lastwrite.model.log import Problem, any_damaged
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.model.work import FailedUnit
from lastwrite.reports.document import Document
from lastwrite.reports.table import BODY_LIMIT_BYTES
from lastwrite.rocketmq.format import record
from lastwrite.rocketmq.format.gather import with_bodies
from lastwrite.rocketmq.format.java_hash import decode
from lastwrite.rocketmq.format.kernels import MessageTable
from lastwrite.rocketmq.format.names import file_name
from lastwrite.rocketmq.format.property_columns import property_items
from lastwrite.rocketmq.look.rows import TRANSACTIONS, message_rows
from lastwrite.rocketmq.look.walk import LogWalk, RecordWindow
from lastwrite.rocketmq.store import layouts, lock
from lastwrite.rocketmq.store.live_files import up_to_dispatched
from lastwrite.rocketmq.store.missing import missing_files
from lastwrite.rocketmq.store.place import find_place
from lastwrite.rocketmq.store.reading import (
    MappedFile,
    MappedLog,
    RocketmqFileKind,
    StoreFolder,
    read_commit_log,
    read_files,
    read_one_file,
)
from lastwrite.spark.inline import Inline, choose_spark
from lastwrite.spark.use import runner_for
from lastwrite.spark.worker_check import check_workers
from lastwrite.storage import files
from lastwrite.storage.exports import new_folder, reject_inside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS = ("parquet", "json")
SPARK_FROM_BYTES = 256 << 20  # smallest log that is exported on Spark
PART_BYTES = 128 << 20  # bytes of records after which a part ends


class ExportReport(Document, kw_only=True):
    """The result of an export: its counts and problems."""

    path: str
    to: str
    format: str
    messages: int = 0
    parts: int = 0
    bytes: int = 0
    problems: list[Problem] = []

    @property
    def exit_status(self) -> int:
        return 3 if any_damaged(self.problems) else 0


@dataclass(frozen=True, slots=True)
class _ExportJob:
    """The arguments that all tasks of an export share."""

    log: MappedLog
    folder: str
    format: str
    topic: str | None
    queue: int | None


def export(  # one parameter for each option of the command line
    path: str,
    to: str,
    *,
    format: str = "parquet",
    topic: str | None = None,
    partition: int | None = None,
    config: Mapping[str, object] | None = None,
    memory: str | int | None = None,
    spark: SparkSession | Inline | None = None,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Write the messages of the commit log at ``path`` to the new folder ``to``.

    Args:
        path: a RocketMQ store, its commit log folder, or one file of it.
        to: a folder that does not exist yet.
        format: ``parquet`` or ``json``, one message per line.
        topic, partition: export only this topic, and only this queue of each topic.
        config: settings for the folders of the commit log, as for ``dump``.
        spark: the session to use. None means this process for a small log, else a new session.
        memory, master, conf, progress: as for ``compact``.

    Raises:
        NotALog, InvalidConfig, LogHeld: nothing was written.
        EnvironmentUnfit: pyarrow, Java or Spark is missing.
        LogError: a file could not be read or written. ``to`` was not created.

    Damage does not raise. It is in the report, and all whole messages were written.
    """
    if format not in FORMATS:
        raise InvalidConfig(
            f"unknown format {format!r}", remedy=f"give one of: {', '.join(FORMATS)}"
        )
    if format == "parquet" and find_spec("pyarrow") is None:
        raise missing_extra("the format parquet", "pyarrow", "frames", "give --format json")
    log = _find_log(path, config)
    is_file = os.path.isfile(path)
    folders = [] if is_file else [os.path.dirname(file.path) for file in log.files]
    reject_inside(to, [path, find_place(path).root or path, *folders])
    report = ExportReport(path=str(path), to=to, format=format)
    root = find_place(path).root
    report.problems = [
        *log.problems,
        *missing_files(None if is_file else root, log, ", ".join(dict.fromkeys(folders)) or path),
        *([] if root is None else layouts.unsupported(root)),
    ]
    where = choose_spark(spark, log.size_bytes, SPARK_FROM_BYTES)
    tell = progress or NoProgress()
    with (
        new_folder(to) as folder,
        runner_for(where, master, memory, conf or {}, tell) as (runner, _),
    ):
        check_workers(runner, [*(file.path for file in log.files[:1]), folder], tell)
        job = _ExportJob(log, folder, format, topic, partition)
        weights = [file.size_bytes for file in log.files]
        for done in runner.run("export", partial(_write_file, job), list(log.files), weights, tell):
            if isinstance(done, FailedUnit):
                raise done.error
            report.messages += done.messages
            report.parts += done.parts
            report.bytes += done.bytes
            report.problems += done.problems
    return report


def _find_log(path: str, config: Mapping[str, object] | None) -> MappedLog:
    """The commit log at ``path``. Raises the errors of ``export``."""
    place = find_place(path)
    if place.root is not None:
        lock.reject_if_locked(place.root)
    if place.file is RocketmqFileKind.COMMIT_LOG:
        return up_to_dispatched(place.root, lambda: read_one_file(path))
    if place.file is None and place.part is StoreFolder.COMMIT_LOG:
        return up_to_dispatched(place.root, lambda: read_files(path, is_copy=place.root is None))
    if place.file is None and place.part is None and place.root is not None:
        root = place.root
        return up_to_dispatched(root, lambda: read_commit_log(root, config))
    raise InvalidConfig(
        "--to exports only a commit log",
        path=path,
        remedy="give the path of the store, or leave out --to",
    )


# ---------------------------------------------------------------------- one file of the log


def _write_file(job: _ExportJob, file: MappedFile) -> ExportReport:
    """Export one file of the log as parts. Returns its counts and problems."""
    done = ExportReport(path=file.path, to=job.folder, format=job.format)
    walk = LogWalk(job.log, done.problems.append, checks_crc=True)
    held: list[Any] = []
    held_bytes = start = 0

    def put() -> None:
        done.bytes += _put(job, start, held)
        done.parts += 1
        held.clear()

    for chunk in walk.chunks(file.start, file.end):
        rows = chunk.rows_of(job.topic, job.queue)
        if not len(rows):
            continue
        if not held:
            start, held_bytes = chunk.file.start + chunk.position(int(rows[0])), 0
        bad = {
            problem.position - 8 - chunk.base
            for problem in done.problems
            if problem.position is not None
        }
        some = _batches(chunk, rows, bad) if job.format == "parquet" else [_lines(chunk, rows)]
        held += [batch for batch, _ in some]
        done.messages += sum(count for _, count in some)
        held_bytes += int(chunk.table["size"][rows].sum())
        if held_bytes >= PART_BYTES:
            put()
    if held:
        put()
    return done


def _put(job: _ExportJob, start: int, held: list[Any]) -> int:
    if job.format == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_batches(held, _schema()), sink, compression="zstd")
        content = sink.getvalue().to_pybytes()
    else:
        content = b"".join(held)
    ending = "parquet" if job.format == "parquet" else "jsonl"
    files.write(f"{job.folder}/part-{file_name(start)}.{ending}", content)
    return len(content)


def _lines(chunk: RecordWindow, rows: Int64Array) -> tuple[bytes, int]:
    """The rows as JSON lines like those of ``dump --json``, and the number of lines."""
    encode = json.JSONEncoder(separators=(", ", ": "), check_circular=False).encode
    lines = [encode(row) for row in _rows(chunk, rows)]
    return ("\n".join(lines) + "\n").encode(), len(lines)


def _rows(chunk: RecordWindow, rows: Int64Array) -> Iterator[dict[str, Any]]:
    for row in rows.tolist():
        yield from message_rows(
            chunk.message(row), chunk.file.path, chunk.position(row), "commit log"
        )


# ---------------------------------------------------------------------- Arrow columns


def _schema() -> Any:
    import pyarrow as pa

    text, small, large = pa.string(), pa.int32(), pa.int64()
    return pa.schema(
        [
            ("topic", text),
            ("queue_id", small),
            ("queue_offset", large),
            ("physical_offset", large),
            ("size", small),
            ("magic", small),
            ("body_crc", small),
            ("flag", small),
            ("sys_flag", small),
            ("born_timestamp", large),
            ("born_host", text),
            ("store_timestamp", large),
            ("store_host", text),
            ("reconsume_times", small),
            ("prepared_transaction_offset", large),
            ("properties", pa.map_(text, text)),
            ("body", pa.binary()),
            ("stored_body", pa.binary()),
            ("compression", text),
            ("file", text),
            ("position", large),
            ("message_id", text),
            ("transaction", text),
            ("batch_index", small),
            ("problem", text),
        ]
    )


def _batches(chunk: RecordWindow, rows: Int64Array, bad: set[int]) -> list[tuple[Any, int]]:
    """The rows as Arrow record batches, in order, each with its number of rows.

    Inner batches, records whose body does not decompress, and records with a wrong checksum (their
    positions are in ``bad``) are converted one by one.
    """
    table = chunk.table[rows]
    is_bad = np.isin(table["position"], np.fromiter(bad, np.int64, len(bad)))
    odd = chunk.is_inner_batch(rows) | is_bad
    compressed = ((table["sys_flag"] & record.COMPRESSED) != 0) & (table["body_length"] > 0)
    bodies: dict[int, bytes] = {}
    for n in np.flatnonzero(compressed).tolist():
        row = table[n]
        stored = chunk.bytes_at(int(row["body_at"]), int(row["body_length"]))
        try:
            bodies[n] = record.decompress_body(stored, int(row["sys_flag"]), 0, BODY_LIMIT_BYTES)
        except LogError:
            odd[n] = True
    cuts = np.flatnonzero(np.diff(odd)) + 1
    out = []
    for part in np.split(np.arange(len(rows)), cuts):
        if odd[part[0]]:
            slow = list(_rows(chunk, rows[part]))
            out.append((_from_rows(slow), len(slow)))
        else:
            first = int(part[0])
            inside = {n - first: body for n, body in bodies.items() if first <= n <= part[-1]}
            out.append((_from_columns(chunk, table[part], inside), len(part)))
    return out


def _from_rows(rows: list[dict[str, Any]]) -> Any:
    import pyarrow as pa

    schema = _schema()
    for row in rows:
        for name in ("body", "stored_body"):
            row[name] = None if row[name] is None else base64.b64decode(row[name])
        if row["compression"] == "none":
            row["stored_body"] = None
        row["properties"] = list(row["properties"].items())
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _from_columns(chunk: RecordWindow, table: MessageTable, bodies: Mapping[int, bytes]) -> Any:
    import pyarrow as pa

    from lastwrite.rows.arrow import bytes_column, text_column

    data, count = chunk.buffer, len(table)
    small = {
        name: pa.array(table[name].astype(np.int32))
        for name in ("queue_id", "size", "magic", "body_crc", "flag", "sys_flag", "reconsume_times")
    }
    plain, compressed = np.asarray(table["body_length"]), sorted(bodies)
    stored: list[bytes | None] = [None] * count
    for n in compressed:
        stored[n] = chunk.bytes_at(int(table["body_at"][n]), int(plain[n]))
    transactions = table["sys_flag"] & record.TRANSACTION_MASK
    columns = {
        "topic": text_column(data, (table["topic_at"], table["topic_length"]), decode),
        **small,
        "queue_offset": pa.array(table["queue_offset"]),
        "physical_offset": pa.array(table["physical_offset"]),
        "born_timestamp": pa.array(table["born_time"]),
        "born_host": _hosts(chunk, table, "born_host_at", record.BORN_V6),
        "store_timestamp": pa.array(table["store_time"]),
        "store_host": _hosts(chunk, table, "store_host_at", record.STORE_V6),
        "prepared_transaction_offset": pa.array(table["prepared_offset"]),
        "properties": _property_maps(data, table),
        "body": bytes_column(*with_bodies(data, (table["body_at"], plain), bodies)),
        "stored_body": pa.array(stored, pa.binary()),
        "compression": pa.array(
            [_compression(flag) for flag in table["sys_flag"].tolist()], pa.string()
        ),
        "file": pa.array([chunk.file.path] * count, pa.string()),
        "position": pa.array(table["position"] + chunk.base),
        "message_id": _message_ids(chunk, table),
        "transaction": pa.array(
            [TRANSACTIONS.get(kind) for kind in transactions.tolist()], pa.string()
        ),
        "batch_index": pa.nulls(count, pa.int32()),
        "problem": pa.nulls(count, pa.string()),
    }
    schema = _schema()
    return pa.RecordBatch.from_arrays([columns[field.name] for field in schema], schema=schema)


def _property_maps(data: ByteArray, table: MessageTable) -> Any:
    import pyarrow as pa

    from lastwrite.rows.arrow import text_column

    items = property_items(data, table["properties_at"], table["properties_length"])
    return pa.MapArray.from_arrays(
        pa.array(items.offsets, pa.int32()),
        text_column(data, (items.name_at, items.name_length), decode),
        text_column(data, (items.value_at, items.value_length), decode),
    )


def _compression(sys_flag: int) -> str:
    return str(record.compression_of(sys_flag)) if sys_flag & record.COMPRESSED else "none"


def _hosts(chunk: RecordWindow, table: MessageTable, at: str, bit: int) -> Any:
    """Hosts as text. Each distinct host is formatted once."""
    import pyarrow as pa

    out = np.empty(len(table), dtype=object)
    for rows, raw in _raw_hosts(chunk, table, at, bit):
        distinct = np.ascontiguousarray(raw).view(np.dtype((np.void, raw.shape[1]))).ravel()
        hosts, which = np.unique(distinct, return_inverse=True)
        words = [
            str(record.Host(host[:-4], int.from_bytes(host[-4:], "big", signed=True)))
            for host in map(bytes, hosts)
        ]
        out[rows] = np.array(words, dtype=object)[which.ravel()]
    return pa.array(out.tolist(), pa.string())


def _raw_hosts(
    chunk: RecordWindow, table: MessageTable, at: str, bit: int
) -> Iterator[tuple[Int64Array, ByteArray]]:
    """Row numbers and host bytes of the records: first for IPv4 hosts, then for IPv6 hosts."""
    wide = (table["sys_flag"] & bit) != 0
    for size, where in ((8, ~wide), (20, wide)):
        rows = np.flatnonzero(where)
        if len(rows):
            yield rows, chunk.buffer[table[at][rows][:, None] + np.arange(size)]


def _message_ids(chunk: RecordWindow, table: MessageTable) -> Any:
    """Offset message ids: host and address in hexadecimal digits."""
    import pyarrow as pa

    out = np.empty(len(table), dtype=object)
    for rows, hosts in _raw_hosts(chunk, table, "store_host_at", record.STORE_V6):
        places = table["physical_offset"][rows].astype(">i8").view(np.uint8).reshape(-1, 8)
        raw = np.concatenate([hosts, places], axis=1)
        digits = raw.tobytes().hex().upper()
        step = 2 * raw.shape[1]
        out[rows] = [digits[n : n + step] for n in range(0, len(digits), step)]
    return pa.array(out.tolist(), pa.string())
