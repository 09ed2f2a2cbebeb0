"""Increase the number of buckets of a table in a separate commit, without a change of rows.

A bucket is in memory while it is written, so a growing table needs more buckets. The number at
least quadruples each time. All these commits together therefore copy about a third of the table's
final size. Each bucket is read batch by batch and distributed over the new buckets. Rows, offsets
and checksum stay the same, so a crash before or after the commit loses nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa

from lastwrite.errors import LogError, RemoteFailed
from lastwrite.model.progress import Progress
from lastwrite.tables.bucket_layout import BucketedRows
from lastwrite.tables.buckets import bucket_count
from lastwrite.tables.columns import identity_of
from lastwrite.tables.files import batches_of, remove_files
from lastwrite.tables.format import DataFile, Head, TableChange, TableFormat
from lastwrite.tables.memory import release_memory
from lastwrite.tables.written import fitted, write_bucket

_OUTGROWN = 4  # buckets are added if the table needs at least this multiple of its bucket count


def buckets_after(buckets: int, table_bytes: int, bucket_bytes: int) -> int:
    """The new number of buckets for a table of this size, which has ``buckets`` now."""
    wanted = bucket_count(table_bytes, bucket_bytes)
    return (
        bucket_count(table_bytes, bucket_bytes // 2) if wanted >= _OUTGROWN * buckets else buckets
    )


def rebucket(
    format: TableFormat, base: Head, buckets: int, memory_bytes: int, progress: Progress
) -> Head:
    """Distribute the rows of a table over this number of ``buckets``. Returns the new head.

    Raises:
        LogHeld: another run has changed the table meanwhile.
        CorruptLog: a file of the table cannot be read.
        LogError, RemoteFailed: the files cannot be written.
    """
    assert base.state is not None
    run, written = secrets.token_hex(8), list[str]()
    schema, identity = format.file_schema(base, base.schema), identity_of(base.schema)
    added: list[DataFile] = []
    old = base.in_bucket()
    progress.stage("move", sum(file.size_bytes for file in base.files))
    try:
        for bucket, files in old.items():
            with BucketedRows(identity, memory_bytes // 8) as laid:
                for batch in _current(format, base, bucket, files):
                    laid.add(fitted(pa.table(batch), schema).to_batches()[0], buckets)
                laid.settle()
                release_memory()
                for number in sorted(laid.counts):
                    path = format.data_path(number, f"{number:05d}-{run}.parquet")
                    written.append(path)
                    rows = pa.Table.from_batches(laid.of(number), schema)
                    added.append(write_bucket(path, number, rows, identity))
            progress.advance(sum(file.size_bytes for file in files))
        state = replace(base.state, buckets=buckets)
        removed = [file.path for file in base.files]
        return format.commit(base, TableChange(added, removed, {}, state, base.schema))
    except RemoteFailed:
        raise  # do not remove the files: the commit may have succeeded
    except Exception:
        with suppress(LogError):
            remove_files(written)
        raise


def _current(
    format: TableFormat, base: Head, bucket: int, files: Sequence[DataFile]
) -> Iterator[pa.RecordBatch]:
    """The rows of a bucket that are not deleted."""
    deleted = format.deleted(base, bucket)
    for file in files:
        goes = deleted.get(file.path, np.empty(0, np.int64))
        at = 0
        for batch in batches_of(file.path, file.size_bytes):
            first, end = np.searchsorted(goes, (at, at + len(batch)))
            stays = np.ones(len(batch), np.bool_)
            stays[goes[first:end] - at] = False
            left = batch if stays.all() else batch.filter(pa.array(stays))
            if len(left):
                yield left
            at += len(batch)
