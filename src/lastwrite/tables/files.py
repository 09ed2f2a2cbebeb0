"""Read and write Parquet files of rows, sorted by key, in a folder or a bucket.

Row groups are small and have statistics of the key, so a lookup of one key reads one row group.
Pages have checksums, so damage causes an error with the file's path, never a wrong row.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lastwrite.errors import CommitConflict, CorruptLog
from lastwrite.model.columns import ByteArray
from lastwrite.storage.objects.address import is_address, store_at
from lastwrite.storage.objects.store import ObjectStore, Writer
from lastwrite.tables.columns import OFFSET, PARTITION, identity_of
from lastwrite.tables.format import ANEW

ROW_GROUP = 131_072
_REMEDY = f"restore the file from a copy, or {ANEW}"


class WrittenFile(NamedTuple):
    """The size and footer of a new file."""

    size_bytes: int
    footer: pq.FileMetaData


def locate(path: str) -> tuple[ObjectStore, str]:
    """The store that contains a file, and the file's key in that store."""
    if is_address(path):
        return store_at(path)
    folder, name = os.path.split(path)
    return store_at(folder)[0], name


class _Sink(io.RawIOBase):
    """A stream for pyarrow that writes a new object."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._at = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._writer.write(data)
        self._at += len(data)
        return len(data)


class _Source(io.RawIOBase):
    """A stream for pyarrow that reads an existing object."""

    def __init__(self, path: str, size_bytes: int) -> None:
        self._store, self._key = locate(path)
        self._size = size_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._at)
        target: ByteArray = np.empty(left if size < 0 else min(size, left), np.uint8)
        if len(target):
            self._store.read_into(self._key, target, self._at)
            self._at += len(target)
        return target.tobytes()


def write_file(path: str, rows: pa.Table) -> WrittenFile:
    """Write sorted rows to a file. Readers cannot see the file before it is complete.

    Raises:
        LogError, RemoteFailed: the file cannot be written.
    """
    store, key = locate(path)
    names = rows.schema.names
    writer = store.writer(key)
    try:
        sink = _Sink(writer)
        with pq.ParquetWriter(
            sink,
            rows.schema,
            compression="zstd",
            compression_level=1,
            write_statistics=[each.name for each in rows.schema if _is_flat(each.type)],
            use_dictionary=[name for name in names if name == PARTITION],
            write_page_checksum=True,
            store_schema=False,
        ) as file:
            file.write_table(rows, row_group_size=ROW_GROUP)
        size = sink.tell()
        footer = file.writer.metadata
        writer.close()
    except BaseException:
        writer.abandon()
        raise
    return WrittenFile(size, footer)


def _is_flat(kind: pa.DataType) -> bool:
    return not pa.types.is_nested(kind)


def read_file(path: str, size_bytes: int, columns: Sequence[str] | None = None) -> pa.Table:
    """Read columns of a file in the order of its rows. By default all columns.

    Raises:
        CorruptLog: the file is missing or damaged.
    """
    with _whole(path):
        source = pa.PythonFile(_Source(path, size_bytes), "r")
        with pq.ParquetFile(source, page_checksum_verification=True) as file:
            return file.read(columns=columns, use_threads=False)


def batches_of(path: str, size_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in order, at most one row group at a time.

    Raises:
        CorruptLog: the file is missing or damaged.
    """
    with _whole(path):
        source = pa.PythonFile(_Source(path, size_bytes), "r")
        with pq.ParquetFile(source, page_checksum_verification=True) as file:
            yield from file.iter_batches(batch_size=ROW_GROUP, use_threads=False)


def remove_files(paths: Iterable[str]) -> None:
    """Remove files. A missing file is no error."""
    for path in paths:
        store, key = locate(path)
        store.remove([key])


def read_keys(path: str, size_bytes: int, schema: pa.Schema) -> pa.Table:
    """Read the key, partition and offset of each row of a file."""
    return read_file(path, size_bytes, [identity_of(schema), PARTITION, OFFSET])


@contextlib.contextmanager
def _whole(path: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, KeyError, CommitConflict) as error:
        raise CorruptLog(
            f"a file of the table cannot be read: {_reason(error)}", path=path, remedy=_REMEDY
        ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, CommitConflict):  # the file is not the one that the head lists
        return "the file is missing, or another file has its name"
    return str(error)
