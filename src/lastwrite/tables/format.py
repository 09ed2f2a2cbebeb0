"""The interface of a table format: its head, paths for data files, and an atomic commit.

    head ──► the core finds the changes since head.state.offsets, writes data files under names
             of its own, and counts ──► commit(head, change) ──► the new head

A table is divided into *buckets*: a row is in bucket ``hash(key) % buckets``, and a file contains
rows of one bucket only. Only the core reads and writes data files. A format names them, and records
which of their rows are deleted. A commit stores everything that later rounds need.
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

PROPERTY: Final = "lastwrite.state"  # the name of the state in a commit, if the format has names
ANEW: Final = "rebuild the table (--anew)"
_VERSION = 1


def not_ours(where: str) -> InvalidConfig:
    """The error for a place with a table that another program made."""
    return InvalidConfig(
        "lastwrite did not make the table that is there, or another program has replaced it; "
        "nothing was changed",
        path=where,
        remedy="give another place with --to",
    )


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of rows of one bucket, sorted by key.

    Attributes:
        path: its full path or address, as ``data_path`` returned it.
        rows, size_bytes: of the file, deleted rows included.
        deleted: the number of its rows that are deleted by position. If only the bucket's number
            is known, the first file of the bucket has it.
        footer: of a new file. None means the file was there before.
    """

    path: str
    bucket: int
    rows: int
    size_bytes: int
    deleted: int = 0
    footer: pq.FileMetaData | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """The source and the contents of a table, stored as JSON in each commit.

    Attributes:
        system, topic: of the log.
        identity: partition to ``RowSystem.identity`` at its offset. Partitions without an identity
            are left out.
        offsets: partition to the first offset that is not in the table.
        settings: the options of the decoding, by their names, and ``headers``.
        buckets: their number, a power of two.
        rows: the number of rows.
        checksum: of all rows, 32 hexadecimal digits; see ``buckets``.
        moved: whether a key occurred in several partitions.
        deletes_ms: partition to the latest timestamp of a delete in it.
        credit_bytes: what later rounds may rewrite beyond their own share; see ``update``.
        unions: path of a column of an Avro union to the names of the union's branches. None means
            they are not known.
        plain_bytes: about how many bytes of memory all rows take. 0 means it is not known.
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
        """The state as a line of JSON."""
        return json.dumps({"version": _VERSION, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str, where: str) -> TableState:
        """Decode a state; ``where`` is the table's place, for the error.

        Raises:
            UnsupportedFormat: another version of lastwrite wrote it.
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
                "another version of lastwrite wrote the table's state",
                path=where,
                remedy=f"use that version, or {ANEW}",
            ) from error

    @classmethod
    def if_readable(cls, text: str | None, where: str) -> TableState | None:
        """``from_json``, or None if there is no text or another version of lastwrite wrote it."""
        try:
            return None if text is None else cls.from_json(text, where)
        except UnsupportedFormat:
            return None


@dataclass(frozen=True, slots=True)
class Head:
    """The current version of a table.

    Attributes:
        token: identifies this head, and is shown to users: a snapshot's id, a version.
        state: None means that nothing was ever written to the table, or that it is to be replaced
            and its state cannot be read.
        schema: of its rows, without a column that only places files (``_bucket``).
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
        removed: paths of files of the head.
        deletes: path of a file of the head that stays, to the positions of *all* its deleted rows,
            ascending: those deleted before and those that this commit deletes.
        state: of the table after the commit.
        schema: of the rows after the commit: the head's, perhaps with more columns. If all files
            of the head are removed, it may be any schema.
        replaces_all: whether nothing of the head stays, including files that were not listed.
    """

    added: Sequence[DataFile]
    removed: Sequence[str]
    deletes: Mapping[str, Int64Array]
    state: TableState
    schema: pa.Schema
    replaces_all: bool = False


class TableFormat(Protocol):
    """One table at one place. Nothing is cached between calls, as other programs may change it."""

    name: str
    address: str  # of the table, for users: a folder, or an address in a bucket
    location: str  # the folder or address that contains its files
    can_rename: bool  # whether columns can get other names: see ``rename``

    def head(self, *, anew: bool = False) -> Head | None:
        """The table's current head. Returns None if there is no table.

        Args:
            anew: whether the whole table is about to be replaced. Then changes by other programs
                are no error, and ``state`` is None if it cannot be read.

        Raises:
            InvalidConfig: lastwrite did not make the table, or cannot identify it.
            UnsupportedFormat: lastwrite cannot update this table.
            CorruptLog, RemoteFailed: the table cannot be read.
        """
        ...

    def data_path(self, bucket: int, name: str) -> str:
        """The path or address for a new file. ``name`` is random and ends in ``.parquet``."""
        ...

    def file_schema(self, head: Head | None, schema: pa.Schema) -> pa.Schema:
        """The schema of a new file: the same columns, perhaps with the format's column ids as
        metadata. Called once before files are written, with the schema of ``TableChange``.
        """
        ...

    def rename(self, head: Head, renamed: Mapping[str, str]) -> Head:
        """Rename columns in a commit of its own: ``renamed`` is new path to old name. Files keep
        their columns, which are found by the ids that ``file_schema`` gave them.

        Raises:
            LogHeld, RemoteFailed: as ``commit``.
        """
        ...

    def deleted(self, head: Head, bucket: int) -> Mapping[str, Int64Array]:
        """Positions of deleted rows, ascending, by the path of each file of this bucket that has
        some. Safe to call from any thread.
        """
        ...

    def commit(self, head: Head | None, change: TableChange) -> Head:
        """Replace ``head`` by the changed table. None means the table is created.

        There is no retry, because the change fits this head only.

        Raises:
            LogHeld: the table has another head, or was created meanwhile. Nothing was changed.
            RemoteFailed: it is not known whether the change was committed. ``head`` returns the
                new head if it was.
        """
        ...

    def expire(self, older_than_ms: int) -> int:
        """Drop heads that were replaced before this time. Returns their number; the last stays."""
        ...

    def named(self) -> set[str]:
        """Paths of all files, data and metadata, that the head or an earlier head still available
        refers to. Other files may be removed as left over.
        """
        ...
