"""A Delta table. deltalake reads its transaction log; lastwrite writes the commits itself.

    _bucket=3/5e91….parquet             rows of one bucket; ``_bucket`` is a partition column
    _vectors/deletion_vector_….bin      the deleted rows of files, if deletion vectors are on
    _delta_log/00000000000000000007.json the commit: created only if no other file has this number

A commit stores the state as a table property (``lastwrite.state``). The state therefore always
belongs to the version whose files it describes, even if the table is restored to an earlier
version. A commit also has one ``txn`` action for each partition with its next offset, for programs
that read the offset there.

Commits by deltalake are not used, because deltalake retries against a newer version and does not
sync files. A change applies to one head only, and a commit must be durable before it is reported
(docs/decisions/delta-commits.md).
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import deltalake
import pyarrow as pa
from deltalake import exceptions

from lastwrite.errors import (
    CorruptLog,
    InvalidConfig,
    RemoteFailed,
    UnsupportedFormat,
)
from lastwrite.model.columns import Int64Array
from lastwrite.storage import files
from lastwrite.storage.objects.address import is_address, join, used
from lastwrite.tables.conditional import lost, was_put
from lastwrite.tables.delta_vectors import (
    FEATURE,
    SWITCH,
    LastAction,
    last_actions,
    read_vector,
    vector_path,
    write_vectors,
)
from lastwrite.tables.format import (
    ANEW,
    PROPERTY,
    DataFile,
    Head,
    TableChange,
    TableState,
    foreign_table,
)
from lastwrite.tables.place import TablePlace

if TYPE_CHECKING:
    import pyarrow.parquet as pq

LOG = "_delta_log"
BUCKET = "_bucket"
CHECKPOINT_EVERY = 10  # commits between checkpoints
_READER_FEATURES = {"timestampNtz", FEATURE}
_OLD_FEATURES = {"appendOnly", "invariants"}  # features that writer version 2 implies
_WRITER_FEATURES = _OLD_FEATURES | _READER_FEATURES
_ODD_NAMES = set(" ,;{}()\n\t=")  # characters that Delta forbids in column names
_LONGEST_TEXT = 64  # most characters of a text bound in statistics
_RESTORE = "restore _delta_log from a copy, or create a table in another folder with --to"


class DeltaTable:
    """A Delta table in a folder, or at an address in a bucket.

    Args:
        vectors: whether rows are deleted by deletion vectors from the next commit on. A table
            that already has the feature keeps it.
    """

    name = "delta"
    can_rename = False

    def __init__(self, address: str, vectors: bool = False) -> None:
        self._place = TablePlace(address)
        self.address = self.location = self._place.address
        self._wants_vectors = vectors
        self._last: tuple[str, Mapping[str, LastAction]] = ("", {})
        self._names: Mapping[str, str] = {}  # full path of a file to its name in the log

    # ------------------------------------------------------------------ reading

    def head(self, *, anew: bool = False) -> Head | None:
        loaded = self._load(None)
        return None if loaded is None else self._head(loaded, anew)

    def _head(self, loaded: deltalake.DeltaTable, anew: bool) -> Head:
        with _read(self.address):
            _check_known(loaded, self.address)
            metadata = loaded.metadata()
            schema = pa.schema(loaded.schema().to_arrow())
            actions = pa.table(loaded.get_add_actions(flatten=True)).to_pylist()
        text = metadata.configuration.get(PROPERTY)
        if text is None:
            raise foreign_table(self.address)
        if anew:
            state = TableState.if_readable(text, self.address)
        else:
            state = TableState.from_json(text, self.address)
            if metadata.partition_columns != [BUCKET]:
                raise UnsupportedFormat(
                    "another program changed the table's partitioning",
                    path=self.address,
                    remedy=ANEW,
                )
        kept = [field for field in schema if field.name != BUCKET]
        token = str(loaded.version())
        self._names = {self._place.path(unquote(each["path"])): each["path"] for each in actions}
        found = _by_path(self._file(action, anew) for action in actions)
        if FEATURE in set(loaded.protocol().reader_features or ()):
            found = tuple(
                replace(file, deleted=last.vector["cardinality"])
                if (last := self._last_of(token, file.path)).vector
                else file
                for file in found
            )
        has_vectors = self._wants_vectors or metadata.configuration.get(SWITCH) == "true"
        head = Head(token, state, pa.schema(kept), found, has_vectors)
        rows = sum(file.rows - file.deleted for file in found)
        if state is not None and rows != state.rows and not anew:
            raise UnsupportedFormat(
                f"the table has {rows} rows, but Lastwrite wrote {state.rows}: another program "
                "changed rows, or restored files without the table's properties",
                path=self.address,
                remedy=f"restore the last version that Lastwrite wrote, or {ANEW}; let no other "
                "program write the table",
            )
        return head

    def _file(self, action: Mapping[str, Any], anew: bool) -> DataFile:
        path = self._place.path(unquote(action["path"]))
        if action["num_records"] is None and not anew:
            raise UnsupportedFormat(
                "the table's log lacks the file's row count, because another program wrote the "
                "file without statistics",
                path=path,
                remedy=ANEW,
            )
        bucket = action.get(f"partition.{BUCKET}")
        return DataFile(
            path,
            -1 if bucket is None else int(bucket),
            action["num_records"] or 0,
            action["size_bytes"],
        )

    def data_path(self, bucket: int, name: str) -> str:
        return self._place.path(f"{BUCKET}={bucket}/{name}")

    def file_schema(self, head: Head | None, schema: pa.Schema) -> pa.Schema:
        _schema_text(schema, self.address)
        return schema

    def rename(self, head: Head, renamed: Mapping[str, str]) -> Head:
        raise NotImplementedError

    def deleted(self, head: Head, bucket: int) -> Mapping[str, Int64Array]:
        found = {}
        for file in head.files:
            if file.bucket == bucket and file.deleted:
                vector = self._last_of(head.token, file.path).vector
                assert vector is not None
                found[file.path] = read_vector(self.address, vector)
        return found

    def _last_of(self, token: str, path: str) -> LastAction:
        """The last ``add`` action in the log for a data file of this version.

        Raises:
            CorruptLog: the log has no action for the file.
        """
        known, last = self._last
        if known != token:
            last = self._last_actions(int(token))
            self._last = token, last
        if path not in last:
            raise CorruptLog(
                "the table's log has no entry that adds this file",
                path=path,
                remedy=_RESTORE,
            )
        return last[path]

    def _last_actions(self, version: int) -> Mapping[str, LastAction]:
        """The last ``add`` action in the log for each data file of this version, by full path."""
        commits, checkpoints = self._log()
        whole = (
            each
            for each, keys in checkpoints.items()
            if _is_complete_checkpoint(keys) and each <= version
        )
        first = max(whole, default=-1)
        contents = []
        for number in range(version, first, -1):
            content = self._place.store.get(self._place.key(f"{LOG}/{number:020}.json"))
            if content is not None:
                contents.append(content[0])
        parts = [self._place.store.get(key) for key in checkpoints.get(first, ())]
        with _read(self.address):
            found = last_actions(contents, [part[0] for part in parts if part is not None])
        return {self._place.path(unquote(path)): last for path, last in found.items()}

    # ------------------------------------------------------------------ writing

    def commit(self, head: Head | None, change: TableChange) -> Head:
        version = 0 if head is None else int(head.token) + 1
        now_ms = time.time_ns() // 1_000_000
        was = None if head is None else self._load(int(head.token))
        if head is not None and was is None:
            raise lost(self.address, f"version {head.token}")
        actions: list[dict[str, Any]] = [
            {
                "commitInfo": {
                    "timestamp": now_ms,
                    "operation": "WRITE",
                    "operationParameters": {"mode": "Append"},
                    "engineInfo": "lastwrite",
                    "txnId": str(uuid.uuid4()),  # random, so that no two commits are equal
                    "lastwrite.offsets": dict(change.state.offsets),
                }
            },
            *_metadata_actions(change, was, now_ms, self.address, self._wants_vectors),
            *_transactions(change.state, now_ms),
            *self._removes(head, change, now_ms),
            *(self._add(file, now_ms) for file in change.added),
            *self._deletes(head, change.deletes),
        ]
        content = "\n".join(json.dumps(each, separators=(",", ":")) for each in actions).encode()
        name = f"{LOG}/{version:020}.json"
        if not was_put(self._place.store, self._place.key(name), content, None):
            raise lost(self.address, "nothing" if head is None else f"version {head.token}")
        removed = set(change.removed)
        kept = () if head is None else (file for file in head.files if file.path not in removed)
        files_ = _by_path(
            [
                *(
                    replace(file, deleted=len(change.deletes[file.path]))
                    if file.path in change.deletes
                    else file
                    for file in kept
                ),
                *change.added,
            ]
        )
        by_positions = self._wants_vectors or (head is not None and head.by_positions)
        return Head(str(version), change.state, change.schema, files_, by_positions)

    def _add(self, file: DataFile, now_ms: int) -> dict[str, Any]:
        return {
            "add": {
                "path": self._relative(file),
                "partitionValues": {BUCKET: str(file.bucket)},
                "size": file.size_bytes,
                "modificationTime": now_ms,
                "dataChange": True,
                "stats": json.dumps(_statistics(file)),
            }
        }

    def _removes(
        self, head: Head | None, change: TableChange, now_ms: int
    ) -> Iterator[dict[str, Any]]:
        by_path = {} if head is None else {file.path: file for file in head.files}
        for path in (*change.removed, *change.deletes):
            file = by_path[path]
            removed: dict[str, Any] = {
                "path": self._relative(file),
                "deletionTimestamp": now_ms,
                "dataChange": True,
                "extendedFileMetadata": True,
                "partitionValues": {BUCKET: None if file.bucket < 0 else str(file.bucket)},
                "size": file.size_bytes,
            }
            if head is not None and file.deleted:  # Delta identifies a file by its path and vector
                removed["deletionVector"] = self._last_of(head.token, path).vector
            yield {"remove": removed}

    def _deletes(
        self, head: Head | None, deletes: Mapping[str, Int64Array]
    ) -> Iterator[dict[str, Any]]:
        """Actions that give new vectors to files that stay.

        The statistics keep the bounds of all rows, including deleted ones.
        """
        vectors = write_vectors(self.address, deletes)
        for file in () if head is None else head.files:
            if head is not None and file.path in vectors:
                last = self._last_of(head.token, file.path)
                stats = {**last.stats, "numRecords": file.rows, "tightBounds": False}
                yield {
                    "add": {
                        "path": self._relative(file),
                        "partitionValues": {BUCKET: str(file.bucket)},
                        "size": file.size_bytes,
                        "modificationTime": last.modified_ms,
                        "dataChange": True,
                        "stats": json.dumps(stats),
                        "deletionVector": vectors[file.path],
                    }
                }

    # ------------------------------------------------------------------ older versions

    def expire(self, older_than_ms: int) -> int:
        """Drop old versions. Writes a checkpoint first if one is due.

        Delta can drop only versions before a checkpoint. See ``TableFormat.expire``.
        """
        commits, checkpoints = self._log()
        if not commits:
            return 0
        last = max(commits)
        if last - max(checkpoints, default=min(commits)) >= CHECKPOINT_EVERY:
            self._checkpoint(last)
            commits, checkpoints = self._log()
        ended = [each for each in checkpoints if commits.get(each, older_than_ms) < older_than_ms]
        first = max(ended, default=0)
        old = sorted(each for each in commits if each < first)
        # Remove the oldest first: after a crash the remaining versions have no gap.
        for version in old:
            self._place.store.remove([self._place.key(f"{LOG}/{version:020}.json")])
        stale = [key for each in sorted(checkpoints) if each < first for key in checkpoints[each]]
        self._place.store.remove(stale)
        return len(old)

    def _checkpoint(self, version: int) -> None:
        loaded = self._load(version)
        if loaded is None:
            return
        files.faults.reach("checkpoint", self.address)
        with _read(self.address):
            loaded.create_checkpoint()
        if not is_address(self.address):
            folder = join(self.address, LOG)
            for name in (f"{version:020}.checkpoint.parquet", "_last_checkpoint"):
                files.fsync_file(join(folder, name))
            files.fsync_dir(folder)

    def named(self) -> set[str]:
        found = {self._place.path(self._place.name(key)) for key in self._log_keys()}
        head = self._load(None)
        if head is not None:
            with _read(self.address):
                paths = pa.table(head.get_add_actions()).column("path").to_pylist()
            found.update(self._place.path(unquote(path)) for path in paths)
            if FEATURE in set(head.protocol().reader_features or ()):
                vectors = (last.vector for last in self._last_actions(head.version()).values())
                found.update(vector_path(self.address, each) for each in vectors if each)
        # A file of an earlier version is in the head, unless a later commit removed it.
        commits, _ = self._log()
        for version in commits:
            content = self._place.store.get(self._place.key(f"{LOG}/{version:020}.json"))
            for line in [] if content is None else content[0].splitlines():
                action = json.loads(line)
                of_file = action.get("remove") or action.get("add")
                if of_file:
                    found.add(self._place.path(unquote(of_file["path"])))
                    vector = of_file.get("deletionVector")
                    if vector and vector["storageType"] == "u":  # the vector is in a file
                        found.add(vector_path(self.address, vector))
        return found

    # ------------------------------------------------------------------ the log

    def _log_keys(self) -> Iterator[str]:
        return (found.key for found in self._place.store.list(self._place.key(f"{LOG}/")))

    def _log(self) -> tuple[dict[int, int], dict[int, list[str]]]:
        """The commit time of each version, and the keys of each version's checkpoint files."""
        commits: dict[int, int] = {}
        checkpoints: dict[int, list[str]] = {}
        for found in self._place.store.list(self._place.key(f"{LOG}/")):
            number, _, kind = found.key.rpartition("/")[2].partition(".")
            if not number.isdigit():
                continue
            if kind == "json":
                commits[int(number)] = found.modified_ms
            elif kind.startswith("checkpoint") and kind.endswith((".parquet", ".json")):
                checkpoints.setdefault(int(number), []).append(found.key)
        return commits, checkpoints

    def _load(self, version: int | None) -> deltalake.DeltaTable | None:
        address = self.address
        try:
            with _read(address):
                if not deltalake.DeltaTable.is_deltatable(address, _options(address)):
                    return None
                return deltalake.DeltaTable(address, version, _options(address))
        except exceptions.TableNotFoundError:
            return None

    def _relative(self, file: DataFile) -> str:
        name = quote(self._place.name_of_path(file.path), safe="/=")
        return self._names.get(file.path, name)


def _is_complete_checkpoint(keys: Sequence[str]) -> bool:
    """Whether a checkpoint has all its files (``<version>.checkpoint.<n>.<of>.parquet``)."""
    parts = keys[0].rpartition("/")[2].split(".")
    return len(keys) == (int(parts[3]) if len(parts) > 4 else 1)


def _by_path(files: Iterable[DataFile]) -> tuple[DataFile, ...]:
    return tuple(sorted(files, key=lambda file: file.path))


# ---------------------------------------------------------------------- actions


def _metadata_actions(
    change: TableChange,
    was: deltalake.DeltaTable | None,
    now_ms: int,
    address: str,
    wants_vectors: bool,
) -> Iterator[dict[str, Any]]:
    """The protocol and metadata actions of a commit."""
    text = _schema_text(change.schema, address)
    has = set() if was is None else set(was.protocol().reader_features or ())
    wanted = has | ({"timestampNtz"} if '"timestamp_ntz"' in text else set())
    wanted |= {FEATURE} if wants_vectors else set()
    if wanted != has:
        yield {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": sorted(wanted),
                "writerFeatures": sorted(_OLD_FEATURES | wanted),
            }
        }
    elif was is None:
        yield {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    before = None if was is None else was.metadata()
    metadata: dict[str, Any] = {
        "id": str(uuid.uuid4()) if before is None else str(before.id),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": text,
        "partitionColumns": [BUCKET],
        "configuration": ({} if before is None else dict(before.configuration))
        | ({SWITCH: "true"} if wants_vectors else {})
        | {PROPERTY: change.state.to_json()},
        "createdTime": now_ms if before is None else before.created_time,
    }
    if before is not None and before.name:
        metadata["name"] = before.name
    if before is not None and before.description:
        metadata["description"] = before.description
    yield {"metaData": metadata}


def _transactions(state: TableState, now_ms: int) -> Iterator[dict[str, Any]]:
    for partition, offset in sorted(state.offsets.items()):
        of = state.identity.get(partition, state.system)
        yield {
            "txn": {
                "appId": f"lastwrite:{of}:{state.topic}-{partition}",
                "version": offset,
                "lastUpdated": now_ms,
            }
        }


def _schema_text(schema: pa.Schema, address: str) -> str:
    """The table's schema as the JSON of Delta's log, with the partition column.

    Raises:
        InvalidConfig: Delta lacks a column's type, or forbids its name.
    """
    for field in schema:
        odd = sorted(_ODD_NAMES & set(field.name))
        if odd or field.name == BUCKET:
            raise InvalidConfig(
                f"a Delta table cannot have a column named {field.name!r}",
                path=address,
                remedy="rename the column in the reader's schema, or create an Iceberg table with "
                "--as iceberg",
            )
    plain = [pa.field(f.name, f.type, f.nullable) for f in schema]
    try:
        return str(deltalake.Schema.from_arrow(pa.schema([*plain, (BUCKET, pa.int32())])).to_json())
    except Exception as error:
        raise InvalidConfig(
            f"a Delta table cannot have columns of these types: {error}",
            path=address,
            remedy="change the types in the reader's schema, or create an Iceberg table with --as "
            "iceberg",
        ) from error


def _statistics(file: DataFile) -> dict[str, Any]:
    """The statistics of a new file: the number of rows, and the bounds of its columns."""
    assert file.footer is not None, "a new file has its footer"
    found: dict[str, Any] = {"numRecords": file.rows}
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    for column in range(file.footer.num_columns):
        name = file.footer.schema.column(column).path
        bounds = None if "." in name else _bounds(file.footer, column)
        if bounds is not None:
            lows[name], highs[name] = bounds
    return found | {"minValues": lows, "maxValues": highs}


def _bounds(footer: pq.FileMetaData, column: int) -> tuple[int, int] | tuple[str, str] | None:
    """The least and the largest value of a column of integers or short texts.

    None for any other.
    """
    lows: list[Any] = []
    highs: list[Any] = []
    for group in range(footer.num_row_groups):
        known = footer.row_group(group).column(column).statistics
        if known is None or not known.has_min_max:
            return None
        lows.append(known.min)
        highs.append(known.max)
    kinds = {type(each) for each in (*lows, *highs)}
    if kinds not in ({int}, {str}):
        return None
    low, high = min(lows), max(highs)
    if isinstance(low, str) and max(len(low), len(high)) > _LONGEST_TEXT:
        return None
    return low, high


# ---------------------------------------------------------------------- deltalake


@contextmanager
def _read(address: str) -> Iterator[None]:
    """Convert deltalake's errors in this context, except ``TableNotFoundError``."""
    try:
        yield
    except exceptions.TableNotFoundError:
        raise
    except exceptions.DeltaProtocolError as error:
        raise UnsupportedFormat(
            f"deltalake cannot read the table: {error}",
            path=address,
            remedy="pip install -U deltalake, or create a table in another folder with --to",
        ) from error
    except exceptions.DeltaError as error:
        raise CorruptLog(
            f"the table's log is damaged: {error}",
            path=address,
            remedy=_RESTORE,
        ) from error
    except OSError as error:
        raise RemoteFailed(
            f"the table's log cannot be read: {error}",
            path=address,
            remedy="check the store and the permission to read it, and run the command again",
        ) from error


def _options(address: str) -> dict[str, str] | None:
    """deltalake's options for a bucket, from the settings ``storage.*``.

    deltalake finds credentials itself.
    """
    if not is_address(address):
        return None
    settings = used()
    endpoints = {"s3": "aws_endpoint", "gs": "google_base_url", "az": "azure_storage_endpoint"}
    told = {
        endpoints[address.partition(":")[0]]: settings.endpoint,
        "aws_region": settings.region,
        "allow_http": "true" if settings.allows_http else "",
        "aws_virtual_hosted_style_request": "" if settings.is_path_style else "true",
        "timeout": f"{settings.timeout_ms}ms",
    }
    return {name: value for name, value in told.items() if value}


def _check_known(loaded: deltalake.DeltaTable, address: str) -> None:
    """Check that lastwrite supports all features that the table requires from writers.

    Raises:
        UnsupportedFormat: the table requires its writers to support features that lastwrite lacks.
    """
    protocol = loaded.protocol()
    odd = set(protocol.reader_features or ()) - _READER_FEATURES
    odd |= set(protocol.writer_features or ()) - _WRITER_FEATURES
    if odd or (protocol.min_writer_version > 2 and not protocol.writer_features):
        wanted = ", ".join(sorted(odd)) or f"writers of version {protocol.min_writer_version}"
        raise UnsupportedFormat(
            f"another program upgraded the table: it requires {wanted}, which Lastwrite does "
            "not support",
            path=address,
            remedy="create a table in another folder with --to",
        )
    if loaded.metadata().configuration.get("delta.appendOnly") == "true":
        raise UnsupportedFormat(
            "the table's property delta.appendOnly is true, but Lastwrite also removes rows",
            path=address,
            remedy="unset delta.appendOnly, or create a table in another folder with --to",
        )
