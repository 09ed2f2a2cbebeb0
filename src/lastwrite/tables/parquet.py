"""A table of plain Parquet files, with manifests that list the files of each commit.

    _bucket=3/5e91….parquet          rows of one bucket; written once
    _lastwrite/manifest-7-91c2….json the table after one commit; written once
    _lastwrite/current               the name of the last manifest; replaced by compare-and-swap

A reader of the manifest sees exactly one commit. A glob may return more files: replaced files that
an older manifest still lists, and files of a running or crashed commit.
"""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Iterator, Mapping

import msgspec
import pyarrow as pa

from lastwrite.encoding.json_structs import decode_struct
from lastwrite.errors import CorruptLog, UnsupportedFormat
from lastwrite.model.columns import Int64Array
from lastwrite.storage.objects.store import ObjectInfo
from lastwrite.tables.conditional import lost, was_put
from lastwrite.tables.format import ANEW, DataFile, Head, TableChange, TableState
from lastwrite.tables.place import TablePlace

FOLDER = "_lastwrite"
CURRENT = f"{FOLDER}/current"
_MANIFESTS = f"{FOLDER}/manifest-"
_VERSION = 1


class _File(msgspec.Struct, frozen=True):
    path: str  # path of the data file, relative to the table
    bucket: int
    rows: int
    bytes: int


class _Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest of one commit: the table's files and state."""

    version: int = _VERSION
    number: int  # commits are numbered from 1
    before: str  # name of the manifest that this commit replaced; empty for the first commit
    written_ms: int
    state: msgspec.Raw  # see ``TableState``
    schema: str  # Arrow schema in Arrow's IPC format, as base64
    files: tuple[_File, ...]


class ParquetTable:
    """A table of Parquet files in a folder, or at an address in a bucket."""

    name = "parquet"
    can_rename = False

    def __init__(self, address: str) -> None:
        self._place = TablePlace(address)
        self.address = self.location = self._place.address

    # ------------------------------------------------------------------ reading

    def head(self, *, anew: bool = False) -> Head | None:
        found = self._current(is_checked=not anew)
        if found is None:
            return None
        name = found[0]
        if anew:
            try:
                made = self._manifest(name) if _number(name) else None
            except CorruptLog:
                made = None
            if made is None:  # no manifest lists the files, so ``upkeep`` later removes them
                return Head(name, None, pa.schema([]), ())
            return self._head(name, made, anew=True)
        made = self._manifest(name)
        if made is None:
            raise CorruptLog(
                "the table's manifest is missing",
                path=self._place.path(name),
                remedy=f"restore the manifest from a copy, or {ANEW}",
            )
        return self._head(name, made)

    def _head(self, name: str, manifest: _Manifest, anew: bool = False) -> Head:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(manifest.schema)))
        read = TableState.if_readable if anew else TableState.from_json
        state = read(bytes(manifest.state).decode(), self.address)
        files = [DataFile(self._place.path(f.path), *_of(f)) for f in manifest.files]
        return Head(name, state, schema, tuple(files))

    def data_path(self, bucket: int, name: str) -> str:
        return self._place.path(f"_bucket={bucket}/{name}")

    def file_schema(self, head: Head | None, schema: pa.Schema) -> pa.Schema:
        return schema

    def rename(self, head: Head, renamed: Mapping[str, str]) -> Head:
        raise NotImplementedError

    def deleted(self, head: Head, bucket: int) -> Mapping[str, Int64Array]:
        return {}

    # ------------------------------------------------------------------ writing

    def commit(self, head: Head | None, change: TableChange) -> Head:
        assert not change.deletes, "files of this format are rewritten"
        found = self._current(is_checked=not change.replaces_all)
        if (None if found is None else found[0]) != (None if head is None else head.token):
            raise lost(self.address, "nothing" if head is None else head.token)
        removed = set(change.removed)
        kept = [] if head is None else [file for file in head.files if file.path not in removed]
        number = 1 if head is None else self._next_number(head.token)
        made = _Manifest(
            number=number,
            before="" if head is None else head.token,
            written_ms=time.time_ns() // 1_000_000,
            state=msgspec.Raw(change.state.to_json().encode()),
            schema=base64.b64encode(change.schema.serialize()).decode(),
            files=tuple(
                _File(
                    self._place.name_of_path(file.path),
                    file.bucket,
                    file.rows,
                    file.size_bytes,
                )
                for file in (*kept, *change.added)
            ),
        )
        name = f"{_MANIFESTS}{number}-{uuid.uuid4().hex}.json"
        if not was_put(self._place.store, self._place.key(name), msgspec.json.encode(made), None):
            raise lost(self.address, name)
        seen = None if found is None else found[1].version
        if not was_put(self._place.store, self._place.key(CURRENT), name.encode(), seen):
            # The store may have written the name, and another program may have replaced it since.
            if not any(each == name for each, _ in self._chain()):
                raise lost(self.address, "nothing" if head is None else head.token)
        return self._head(name, made)

    # ------------------------------------------------------------------ older manifests

    def expire(self, older_than_ms: int) -> int:
        times_ms = {
            self._place.name(found.key): found.modified_ms
            for found in self._place.store.list(self._place.key(_MANIFESTS))
        }
        chain = [name for name, _ in self._chain()]
        ended = (n for n, name in enumerate(chain) if times_ms.get(name, 0) < older_than_ms)
        # the manifests that were replaced before ``older_than_ms``
        old = chain[next(ended, len(chain)) + 1 :]
        # Remove the oldest first: after a crash the remaining manifests are still a chain.
        for name in reversed(old):
            self._place.store.remove([self._place.key(name)])
        return len(old)

    def named(self) -> set[str]:
        names = {self._place.path(CURRENT)}
        for name, made in self._chain():
            names.add(self._place.path(name))
            names.update(self._place.path(file.path) for file in made.files)
        return names

    def _chain(self) -> Iterator[tuple[str, _Manifest]]:
        """The names and contents of the existing manifests, from the current one backwards."""
        found = self._current()
        name = "" if found is None else found[0]
        while name and (made := self._manifest(name)) is not None:
            yield name, made
            name = made.before

    # ------------------------------------------------------------------ objects

    def _next_number(self, before: str) -> int:
        """The next commit's number.

        If the name ``before`` is damaged, this is one more than the highest number of a manifest.
        """
        numbers = [_number(before)]
        if not numbers[0]:
            listed = self._place.store.list(self._place.key(_MANIFESTS))
            numbers += [_number(self._place.name(found.key)) for found in listed]
        return max(numbers) + 1

    def _current(self, *, is_checked: bool = True) -> tuple[str, ObjectInfo] | None:
        found = self._place.store.get(self._place.key(CURRENT))
        if found is None:
            return None
        name = found[0].decode("utf-8", "replace")
        if is_checked and not _number(name):
            raise CorruptLog(
                f"{name[:80]!r} is not the name of a manifest",
                0,
                self._place.path(CURRENT),
                f"write the name of the last manifest into this file, or {ANEW}",
            )
        return name, found[1]

    def _manifest(self, name: str) -> _Manifest | None:
        found = self._place.store.get(self._place.key(name))
        if found is None:
            return None
        where = self._place.path(name)
        try:
            made = decode_struct(found[0], _Manifest)
        except msgspec.MsgspecError as error:
            raise CorruptLog(
                f"the table's manifest is damaged: {error}",
                0,
                where,
                f"restore the manifest from a copy, or {ANEW}",
            ) from error
        if made.version != _VERSION:
            raise UnsupportedFormat(
                f"the manifest has version {made.version}, which this release does not support",
                path=where,
                remedy="use the later release of Lastwrite that wrote the manifest",
            )
        return made


def _number(name: str) -> int:
    """The commit number in a manifest's name. Returns 0 for any other name."""
    if not name.startswith(_MANIFESTS):
        return 0
    text = name.removeprefix(_MANIFESTS).partition("-")[0]
    return int(text) if text.isascii() and text.isdigit() else 0


def _of(file: _File) -> tuple[int, int, int]:
    return file.bucket, file.rows, file.bytes
