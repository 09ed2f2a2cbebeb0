"""The interface of a table format: its head, paths for data files, and an atomic commit.

    head ──► the core reads the changes since head.state.offsets, and writes data files
             under random names ──► commit(head, change) ──► the new head

A table is divided into *buckets*: a row is in bucket ``hash(key) % buckets``, and a file contains
rows of one bucket only. Only the core reads and writes data files. A format chooses their paths,
and stores which of their rows are deleted. A commit stores everything that later updates need.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from lastwrite.errors import InvalidConfig, UnsupportedFormat
from lastwrite.model.columns import Int64Array

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

PROPERTY: Final = "lastwrite.state"  # the property of a commit that contains the state
ANEW: Final = "rebuild the table with --anew"
_VERSION = 1


def foreign_table(where: str) -> InvalidConfig:
    """The error for a table at ``where`` that another program created."""
    return InvalidConfig(
        "Lastwrite did not create this table, or another program has replaced it; nothing was "
        "changed",
        path=where,
        remedy="give another address with --to",
    )


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of rows of one bucket, sorted by key.

    Attributes:
        path: full path or address, as returned by ``data_path``.
        rows: the number of rows in the file, including deleted ones.
        deleted: the number of rows that are deleted by position. If only the sum over the
            files of a bucket is known, the first file has the sum, and the others have 0.
        footer: the Parquet footer of a new file. None if the file is in the head already.
    """

    path: str
    bucket: int
    rows: int
    size_bytes: int
    deleted: int = 0
    footer: pq.FileMetaData | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """The state of a table, stored as JSON in each commit: its source and its contents.

    Attributes:
        system, topic: the system and topic of the log.
        identity: partition to ``RowSystem.identity`` at its offset. Partitions without an identity
            are left out.
        offsets: the first offset that is not in the table, by partition.
        settings: the decoding options by name, and ``headers``.
        buckets: the number of buckets, a power of two.
        rows: the number of rows.
        checksum: the checksum of all rows, 32 hexadecimal digits; see module ``buckets``.
        moved: whether a key occurred in several partitions.
        deletes_ms: the latest timestamp of a delete, by partition.
        credit_bytes: the unspent part of the rewrite budget, which is added to the budget of the
            next update; see module ``update``.
        unions: path of an Avro union's column to the names of the union's branches. None means
            unknown.
        plain_bytes: estimated size of all rows in memory. 0 means unknown.
    """

    system: str
    topic: str
    identity: Mapping[int, str]
    offsets: Mapping[int, int]
    settings: Mapping[str, str]
    buckets: int
    rows: int
    checksum: str
    moved: bool = False
    deletes_ms: Mapping[int, int] = field(default_factory=dict)
    credit_bytes: int = 0
    plain_bytes: int = 0
    unions: Mapping[str, list[str]] | None = None

    def to_json(self) -> str:
        """The state as one line of JSON."""
        return json.dumps({"version": _VERSION, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str, where: str) -> TableState:
        """Decode a state; ``where`` is the table's address, for the error.

        Raises:
            UnsupportedFormat: another version of lastwrite wrote the state.
        """
        try:
            found = json.loads(text)
            if found.pop("version") != _VERSION:
                raise ValueError
            for name in ("identity", "offsets", "deletes_ms"):
                found[name] = {int(partition): each for partition, each in found[name].items()}
            return cls(**found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnsupportedFormat(
                "another version of Lastwrite wrote the table's state",
                path=where,
                remedy=f"use that version of Lastwrite, or {ANEW}",
            ) from error

    @classmethod
    def if_readable(cls, text: str | None, where: str) -> TableState | None:
        """Decode a state.

        None if ``text`` is None or was written by another version of lastwrite.
        """
        try:
            return None if text is None else cls.from_json(text, where)
        except UnsupportedFormat:
            return None


@dataclass(frozen=True, slots=True)
class Head:
    """The current version of a table.

    Attributes:
        token: identifies this head, and is shown to users: a snapshot id or a version.
        state: None means that nothing was ever written to the table, or that the table is to be
            replaced and its state cannot be read.
        schema: the schema of the rows, without a partition column of the format (``_bucket``).
        files: all files that have rows.
        by_positions: whether the next commit deletes rows by position. Otherwise it replaces
            files.
    """

    token: str
    state: TableState | None
    schema: pa.Schema
    files: tuple[DataFile, ...]
    by_positions: bool = False

    def in_bucket(self) -> dict[int, list[DataFile]]:
        """The files by bucket, without empty buckets."""
        found: dict[int, list[DataFile]] = {}
        for file in self.files:
            found.setdefault(file.bucket, []).append(file)
        return found


@dataclass(frozen=True, slots=True)
class TableChange:
    """The content of a commit, which is applied completely or not at all.

    Attributes:
        added: new files, already written, with their footers.
        removed: paths of the head's files that the commit removes.
        deletes: path of a file that stays, to the positions of *all* its deleted rows, ascending,
            including rows that were deleted before.
        state: the table's state after the commit.
        schema: the rows' schema after the commit: the head's, perhaps with more columns. It may be
            any schema if the commit removes all files of the head.
        replaces_all: whether the commit removes all of the head, including files that are not in
            ``removed``.
    """

    added: Sequence[DataFile]
    removed: Sequence[str]
    deletes: Mapping[str, Int64Array]
    state: TableState
    schema: pa.Schema
    replaces_all: bool = False


class TableFormat(Protocol):
    """One table in one format, such as Iceberg.

    Nothing is cached between calls, because other programs may change the table.
    """

    name: str
    address: str  # the table as the user named it: a folder, an address, or a name in a catalog
    location: str  # the folder or address that contains the table's files
    can_rename: bool  # whether ``rename`` is supported

    def head(self, *, anew: bool = False) -> Head | None:
        """The current head of the table. None if there is no table.

        Args:
            anew: whether the caller will replace the entire table. Then changes by other programs
                are no error, and ``Head.state`` is None if the state cannot be read.

        Raises:
            InvalidConfig: lastwrite did not create the table, or cannot identify it.
            UnsupportedFormat: lastwrite cannot update this table.
            CorruptLog, RemoteFailed: the table cannot be read.
        """
        ...

    def data_path(self, bucket: int, name: str) -> str:
        """The path or address for a new file. ``name`` is random and ends in ``.parquet``."""
        ...

    def file_schema(self, head: Head | None, schema: pa.Schema) -> pa.Schema:
        """The schema for a new file: the same columns, with the format's column ids if it has any.

        Called once before files are written, with the schema of ``TableChange``.
        """
        ...

    def rename(self, head: Head, renamed: Mapping[str, str]) -> Head:
        """Rename columns in a separate commit. ``renamed`` maps new paths to old names.

        Files are not rewritten, because readers find columns by the ids from ``file_schema``.

        Raises:
            LogHeld, RemoteFailed: as ``commit``.
        """
        ...

    def deleted(self, head: Head, bucket: int) -> Mapping[str, Int64Array]:
        """By file path: the positions of the bucket's deleted rows in the file, ascending.
        Safe to call from any thread.
        """
        ...

    def commit(self, head: Head | None, change: TableChange) -> Head:
        """Commit ``change`` on top of ``head``. If ``head`` is None, this creates the table.

        A failed commit is not retried, because the change applies to this head only.

        Raises:
            LogHeld: the table has another head, or was created meanwhile. Nothing was changed.
            RemoteFailed: it is unknown whether the change was committed. Call ``head`` to find out.
        """
        ...

    def expire(self, older_than_ms: int) -> int:
        """Drop heads that were replaced before this time. Returns the number of dropped heads."""
        ...

    def named(self) -> set[str]:
        """The paths of the data and metadata files of all heads that have not expired.

        Other files are left over, and may be removed.
        """
        ...
