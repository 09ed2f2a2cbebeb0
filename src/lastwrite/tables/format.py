"""What a format of tables owes: its head, a place for files of data, and a commit that replaces the
head in one step or not at all.

    head ──► the core finds what has changed since head.state.offsets, writes files of data under
             names of its own, and counts ──► commit(head, change) ──► the new head

A table lies in *buckets*: a row is in that of its key, ``hash(key) % buckets``, and no file has
rows of two. The core alone reads and writes files of data; a format names them, and says which
rows of them are deleted. Whatever is to be known of the table later lies in its own commit.
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

PROPERTY: Final = "lastwrite.state"  # under which a commit has it, where the format has names
ANEW: Final = "make the table anew (--anew)"
_VERSION = 1


def not_ours(where: str) -> InvalidConfig:
    """The error of a place with a table that another program made."""
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
        path: its full path or address, as ``data_path`` gave it.
        rows, size_bytes: of the file, deleted rows included.
        deleted: how many of its rows are deleted by their positions; where only the number of all
            files of the bucket is known, the first of them has it.
        footer: of a file that is new; None: it was there.
    """

    path: str
    bucket: int
    rows: int
    size_bytes: int
    deleted: int = 0
    footer: pq.FileMetaData | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """What a table is of; JSON in its commit.

    Attributes:
        system, topic: of whose log.
        identity: partition to ``RowSystem.identity`` at its offset; partitions without one are left
            out.
        offsets: partition to the first offset that is not in the table.
        settings: how it was made, by the options' names: what is decoded, ``headers``.
        buckets: how many, a power of two.
        rows: that the table has.
        checksum: of all rows, 32 hexadecimal digits; see ``checksum``.
        moved: whether a key was met in several partitions.
        deletes_ms: partition to the latest timestamp of a delete that was met there.
        credit_bytes: what later rounds may rewrite beyond their own share; see ``update``.
        unions: the names of the branches of Avro's unions, by the path of the union's column; None:
            not known.
        plain_bytes: about how many bytes of memory all rows take; 0: not known.
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
        """As a line of JSON."""
        return json.dumps({"version": _VERSION, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str, where: str) -> TableState:
        """``where``: of the table, for the error.

        Raises:
            UnsupportedFormat: it is of another version of ours.
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
                "what the table says of its topic is of another version of lastwrite",
                path=where,
                remedy=f"use that version, or {ANEW}",
            ) from error

    @classmethod
    def if_readable(cls, text: str | None, where: str) -> TableState | None:
        """``from_json``; None: there is no text, or it is of another version of lastwrite."""
        try:
            return None if text is None else cls.from_json(text, where)
        except UnsupportedFormat:
            return None


@dataclass(frozen=True, slots=True)
class Head:
    """The table as a reader gets it now.

    Attributes:
        token: what tells this head from any other, as a person would name it: a snapshot's id, a
            version.
        state: None: nothing was ever written to it, or it is to be replaced and cannot be read.
        schema: of its rows, without a column that only places files (``_bucket``).
        files: all that have rows.
        by_positions: whether the next commit deletes rows by their positions; else it replaces
            files.
    """

    token: str
    state: TableState | None
    schema: pa.Schema
    files: tuple[DataFile, ...]
    by_positions: bool = False

    def in_bucket(self) -> dict[int, list[DataFile]]:
        """The files of each bucket that has some."""
        found: dict[int, list[DataFile]] = {}
        for file in self.files:
            found.setdefault(file.bucket, []).append(file)
        return found


@dataclass(frozen=True, slots=True)
class TableChange:
    """What a commit does, all of it or nothing.

    Attributes:
        added: files that lie there already, with their footers.
        removed: paths of files of the head.
        deletes: path of a file of the head that stays, to the positions of *all* rows of it that
            are deleted then, ascending: those that were, and those that are new.
        state: what holds afterwards.
        schema: of the rows afterwards: that of the head, and perhaps columns more; unless all files
            of the head are removed, then it may be any.
        replaces_all: whether nothing of the head stays, known or not.
    """

    added: Sequence[DataFile]
    removed: Sequence[str]
    deletes: Mapping[str, Int64Array]
    state: TableState
    schema: pa.Schema
    replaces_all: bool = False


class TableFormat(Protocol):
    """One table, at one place. Nothing is kept between calls: others may change it."""

    name: str
    address: str  # of the table, for people: a folder, or an address in a bucket
    location: str  # below which its files lie
    can_rename: bool  # whether columns can have other names: see ``rename``

    def head(self, *, anew: bool = False) -> Head | None:
        """The table now; None: there is none.

        Args:
            anew: all of the table is about to be replaced. Changes by other programs are no error
                then, and ``state`` is None where it cannot be read.

        Raises:
            InvalidConfig: lastwrite did not make it, or it cannot be told from another.
            UnsupportedFormat: there is one that we cannot go on with.
            CorruptLog, RemoteFailed: it cannot be read.
        """
        ...

    def data_path(self, bucket: int, name: str) -> str:
        """Where a new file of this name is to lie, as a path or an address; ``name`` is drawn, and
        ends in ``.parquet``.
        """
        ...

    def file_schema(self, head: Head | None, schema: pa.Schema) -> pa.Schema:
        """The schema as a new file has it: the same columns, perhaps with the format's numbers of
        them as metadata. Called once before files are written, with that of ``TableChange``.
        """
        ...

    def rename(self, head: Head, renamed: Mapping[str, str]) -> Head:
        """Give columns other names, in a commit of its own: from the new path of each to its old
        name. Files keep the columns as they are, by the numbers that ``file_schema`` gave them.

        Raises:
            LogHeld, RemoteFailed: as ``commit``.
        """
        ...

    def deleted(self, head: Head, bucket: int) -> Mapping[str, Int64Array]:
        """Positions of rows that are deleted, ascending, by the path of each file of this bucket
        that has some. From any thread.
        """
        ...

    def commit(self, head: Head | None, change: TableChange) -> Head:
        """Replace ``head`` by what it becomes; None: make the table. It is tried once:
        the change is of this head alone.

        Raises:
            LogHeld: the head is not the table's any more, or a table has come: nothing was changed.
            RemoteFailed: it is not known whether it was committed; whoever asks for the head sees.
        """
        ...

    def expire(self, older_than_ms: int) -> int:
        """Forget heads that others replaced before this time; how many. The last stays always."""
        ...

    def named(self) -> set[str]:
        """Paths of all files, of data and the format's own, that the head or one before it that is
        not forgotten names: no others are removed as left over.
        """
        ...
