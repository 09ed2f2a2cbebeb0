"""The Iceberg table format: rows are deleted by position, and an update is one snapshot.

    data files ──┐
    positions ───┤► manifests ──► manifest list ──► snapshot, state ──► catalog's pointer changes,
                 └─ version 2: a file per bucket, with all its         if the head is unchanged
                    deleted rows; version 3: a vector per data
                    file, all vectors of a commit in one file

By default the catalog is a SQLite file in the table's folder. The user may name any other catalog
of pyiceberg. The state is in the summary of lastwrite's snapshots. Other programs may add snapshots
that rewrite files without a change of rows (``rewrite_data_files``): the state is then read from an
older snapshot. After any other snapshot of another program the update stops with an error.

pyiceberg retries commits against a newer head, but positions of rows apply to one head only. All
changes are therefore sent to the catalog in one request, without a retry.

Source: Iceberg's table format, sections Manifests, Snapshots, Position Delete Files.
"""

# mypy: disable-error-code="call-arg"
# pydantic accepts fields by name and by alias; mypy accepts the aliases only.

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa
from pyiceberg.catalog import Catalog, MetastoreCatalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AssertCreate,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSpecUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
    UpgradeFormatVersionUpdate,
    update_table_metadata,
)
from pyiceberg.transforms import BucketTransform
from pyiceberg.typedef import Identifier

from lastwrite.errors import (
    InvalidConfig,
    LogError,
    RemoteFailed,
    TableConflict,
    UnsupportedFormat,
)
from lastwrite.model.columns import Int64Array
from lastwrite.storage import files
from lastwrite.storage.objects.address import is_address, join, real_path
from lastwrite.tables.columns import identity_of
from lastwrite.tables.format import (
    ANEW,
    PROPERTY,
    DataFile,
    Head,
    TableChange,
    TableState,
    foreign_table,
)
from lastwrite.tables.iceberg_deletes import Deletes, positions_of
from lastwrite.tables.iceberg_io import path_of
from lastwrite.tables.iceberg_schema import (
    next_schema,
    numbered,
    plain_schema,
    renamed_schema,
)
from lastwrite.tables.iceberg_snapshot import SnapshotWriter, data_file_of
from lastwrite.tables.iceberg_v3 import (
    Upgrade,
    entries_of,
    key_of,
    manifests_of,
    write_metadata,
)
from lastwrite.tables.layout import CATALOG_FILE, is_table_name, metadata_files
from lastwrite.tables.place import TablePlace

HINT = "version-hint.text"
NAMESPACE = "lastwrite"
_IO = {"py-io-impl": "lastwrite.tables.iceberg_io.StoreIO"}
_BUCKET_FIELD = "key_bucket"
CATALOG: Final = "lastwrite.catalog"  # table property: the catalog that contains the table
_PROPERTIES = {
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.metadata.previous-versions-max": "100",
    "write.parquet.compression-codec": "zstd",
}


class IcebergFormat:
    """An Iceberg table; implements ``TableFormat``.

    Args:
        to: the table's folder or address; or, with a catalog, ``namespace.table``.
        topic: names the table in the catalog if ``to`` is a folder or address. Empty means that
            the table exists; it is found by ``to``.
        catalog: the URI of a catalog, or the name of a catalog in pyiceberg's configuration. None
            means SQLite in the table's folder.
        vectors: whether the next commit upgrades the table to version 3, which deletes rows by
            vectors. A table that has version 3 is never downgraded.

    Raises:
        InvalidConfig, RemoteFailed: the catalog cannot be used.
    """

    name = "iceberg"
    can_rename = True

    def __init__(
        self, to: str, topic: str, catalog: str | None = None, vectors: bool = False
    ) -> None:
        self._is_named = catalog is not None and is_table_name(to)
        self.address = to if self._is_named or is_address(to) else os.path.abspath(to)
        self._uri = catalog
        self._known: Catalog | None = None
        self._topic = topic
        self._identifier: Identifier = (NAMESPACE, _plain(topic)) if topic else ()
        if self._is_named:
            self._identifier = tuple(to.split("."))
        self._wants_vectors = vectors
        self._deletes = Deletes("", {}, {})
        self._place = ""  # location of a table named in a catalog; empty until it is looked up

    # ------------------------------------------------------------------ catalog

    @property
    def _file(self) -> str:
        return join(self.address, CATALOG_FILE)

    def _catalog(self) -> Catalog:
        if self._known is None:
            if self._uri is None:
                self._known = load_catalog(
                    "lastwrite", type="sql", uri=f"sqlite:///{self._file}", **_IO
                )
            elif ":" in self._uri:
                self._known = load_catalog("lastwrite", uri=self._uri, **_IO)
            else:
                self._known = load_catalog(self._uri, **_IO)
            if isinstance(self._known, MetastoreCatalog):
                vars(self._known)["_write_metadata"] = write_metadata
        return self._known

    def _table(self) -> Table | None:
        if self._uri is None and not os.path.exists(self._file):
            return None
        try:
            return self._catalog().load_table(self._identifier or self._lying_here())
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except LogError:
            raise
        except Exception as error:
            raise RemoteFailed(
                f"the catalog cannot load the table: {error}",
                path=self.address,
                remedy="check the catalog, and run the command again",
            ) from error

    def _lying_here(self) -> Identifier:
        """The name of the table at the address. Used if the caller gave no topic."""
        catalog = self._catalog()
        for name in catalog.list_tables(NAMESPACE):
            if path_of(catalog.load_table(name).location()) == self.address:
                return name
        raise NoSuchTableError(f"the catalog has no table in {NAMESPACE} at this address")

    # ------------------------------------------------------------------ head

    def head(self, *, anew: bool = False) -> Head | None:
        table = self._table()
        if table is None:
            self._check_metadata()
            return None
        self._check_place(table)
        snapshot = table.current_snapshot()
        if snapshot is None:
            return Head("none", None, plain_schema(table.schema()), ())
        if PROPERTY not in table.properties:
            raise foreign_table(self.address)
        if anew:
            state = TableState.if_readable(table.properties[PROPERTY], self.address)
            return Head(str(snapshot.snapshot_id), state, plain_schema(table.schema()), ())
        state = self._state(table, snapshot)
        found: list[DataFile] = []
        deletes: dict[int, list[IcebergFile]] = {}
        locations: dict[str, str] = {}
        if state is not None:
            for manifest in manifests_of(snapshot, table.io):
                self._check(table.metadata, manifest, state)
                for entry in entries_of(manifest, table.io):
                    file = entry.data_file
                    bucket = int(file.partition[0])
                    if file.content is DataFileContent.DATA:
                        path, size = path_of(file.file_path), file.file_size_in_bytes
                        found.append(DataFile(path, bucket, file.record_count, size))
                        locations[path] = file.file_path
                    else:
                        deletes.setdefault(bucket, []).append(file)
        token = str(snapshot.snapshot_id)
        self._deletes = Deletes(token, deletes, locations)
        files_ = self._deletes.counted(found)
        return Head(token, state, plain_schema(table.schema()), files_, by_positions=True)

    def _state(self, table: Table, snapshot: Snapshot) -> TableState | None:
        """The state stored in lastwrite's last snapshot."""
        at: Snapshot | None = snapshot
        while at is not None:
            summary = at.summary
            text = None if summary is None else summary.additional_properties.get(PROPERTY)
            if text is not None:
                return TableState.from_json(text, self.address)
            if summary is None or summary.operation is not Operation.REPLACE:
                before = (
                    "the last snapshot of Lastwrite"
                    if at.parent_snapshot_id is None
                    else f"snapshot {at.parent_snapshot_id}"
                )
                raise UnsupportedFormat(
                    f"another program changed the table's rows with snapshot {at.snapshot_id}; "
                    "nothing was changed",
                    path=self.address,
                    remedy=f"roll the table back to {before}, or {ANEW}",
                )
            parent = at.parent_snapshot_id
            at = None if parent is None else table.metadata.snapshot_by_id(parent)
        text = table.properties.get(PROPERTY)  # lastwrite's last snapshot has expired
        return None if text is None else TableState.from_json(text, self.address)

    def _check(self, metadata: TableMetadata, manifest: ManifestFile, state: TableState) -> None:
        (*fields,) = metadata.specs()[manifest.partition_spec_id].fields
        is_ours = (
            len(fields) == 1
            and isinstance(fields[0].transform, BucketTransform)
            and fields[0].transform.num_buckets == state.buckets
        )
        if not is_ours:
            raise UnsupportedFormat(
                "another program changed the table's partitioning", path=self.address, remedy=ANEW
            )

    def _check_metadata(self) -> None:
        """Check a location at which the catalog has no table.

        The location may contain metadata of a run that crashed before it created this table.

        Raises:
            InvalidConfig: the location contains a table of another topic or catalog.
        """
        place = TablePlace(self.location)
        for name in metadata_files(place):
            content = place.store.get(place.key(name))
            if content is None:
                continue
            try:
                properties = dict(json.loads(content[0])["properties"])
            except (ValueError, KeyError, TypeError):
                properties = {}
            state = TableState.if_readable(properties.get(PROPERTY), self.address)
            if state is None:
                raise foreign_table(self.address)
            if self._topic and state.topic != self._topic:
                raise InvalidConfig(
                    f"the folder has a table of topic {state.topic}; nothing was changed",
                    path=self.address,
                    remedy="give each topic another folder with --to",
                )
            # A table that is named in a catalog is not checked, because the catalog chose the
            # location. The URI in the table's properties may be another address of this catalog.
            if not self._is_named and properties.get(CATALOG) != self._catalog_name:
                raise InvalidConfig(
                    "the address has a table that is in another catalog, "
                    f"{properties.get(CATALOG) or 'another'}; nothing was changed",
                    path=self.address,
                    remedy="give the table's catalog with --catalog, or another address with --to",
                )

    @property
    def _catalog_name(self) -> str:
        """The catalog's name in the table's properties: its URI without password and query."""
        if self._uri is None:
            return CATALOG_FILE
        return re.sub(r"//[^/@]*@", "//", self._uri).partition("?")[0]

    def _check_place(self, table: Table) -> None:
        """Check that this location contains the catalog's table, and no other table.

        Raises:
            InvalidConfig: the catalog's table is elsewhere, or another table is there, too.
        """
        there = path_of(table.location()).rstrip("/")
        if not self._is_named and real_path(there) != real_path(self.address):
            raise InvalidConfig(
                f"the catalog has the table {'.'.join(table.name())} at {there}; nothing was "
                "changed",
                path=self.address,
                remedy=f"give --to {there}. If the Iceberg table was moved or copied, create it "
                "again in an empty folder",
            )
        names = self._catalog().list_tables(NAMESPACE) if self._uri is None else ()
        if len(names) > 1:
            several = ", ".join(sorted(name[-1] for name in names))
            raise InvalidConfig(
                f"the folder has tables of several topics: {several}; nothing was changed",
                path=self.address,
                remedy="create each table in an empty folder of its own",
            )

    def deleted(self, head: Head, bucket: int) -> Mapping[str, Int64Array]:
        if self._deletes.token != head.token:
            raise TableConflict(
                "another program changed the table during the command",
                path=self.address,
                remedy="run the command again",
            )
        return positions_of(self._deletes.in_bucket.get(bucket, ()), self.address)

    # ------------------------------------------------------------------ files

    def data_path(self, bucket: int, name: str) -> str:
        return join(self.location, "data", name)

    @property
    def location(self) -> str:
        if not self._is_named:
            return self.address
        if not self._place:
            table = self._table()
            if table is None:
                self._make_namespace()
            self._place = self._new_place() if table is None else table.location()
        return path_of(self._place)

    def _new_place(self) -> str:
        """The location that the catalog would choose for a new table of this name."""
        catalog: Any = self._catalog()
        try:
            if hasattr(catalog, "_resolve_table_location"):
                return str(catalog._resolve_table_location(None, *self._identifier[-2:]))
            # a REST catalog chooses the location when a creation begins
            begun = catalog.create_table_transaction(self._identifier, Schema())
        except LogError:
            raise
        except Exception as error:
            raise self._unusable(error) from error
        return str(begun._table.location())

    def _make_namespace(self) -> None:
        try:
            with suppress(NamespaceAlreadyExistsError):
                self._catalog().create_namespace(self._identifier[:-1])
        except LogError:
            raise
        except Exception as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> RemoteFailed:
        return RemoteFailed(
            f"the catalog returned an error: {error}",
            path=self.address,
            remedy="check the catalog and the permission to write there, and run the same command "
            "again",
        )

    def file_schema(self, head: Head | None, schema: pa.Schema) -> pa.Schema:
        assert self.location  # look the location up now, before several threads do
        return numbered(schema, next_schema(self._table(), schema))

    # ------------------------------------------------------------------ commit

    def rename(self, head: Head, renamed: Mapping[str, str]) -> Head:
        table = self._table()
        snapshot = None if table is None else table.current_snapshot()
        if table is None or snapshot is None or str(snapshot.snapshot_id) != head.token:
            raise self._moved()
        number = max(each.schema_id for each in table.metadata.schemas) + 1
        schema = renamed_schema(table.schema(), renamed).model_copy(update={"schema_id": number})
        updates = (AddSchemaUpdate(schema=schema), SetCurrentSchemaUpdate(schema_id=-1))
        self._ask(table, _requirements(table), updates)
        found = self.head()
        if found is None or found.token != head.token:
            raise self._moved()
        return found

    def commit(self, head: Head | None, change: TableChange) -> Head:
        table = self._table()
        snapshot = None if table is None else table.current_snapshot()
        token = "none" if snapshot is None else str(snapshot.snapshot_id)
        if token != ("none" if head is None else head.token) or (head is None) != (table is None):
            raise self._moved()
        staged, updates, metadata, is_fresh = self._prepared(table, change)
        location = path_of(metadata.location)
        added = [data_file_of(file, metadata) for file in change.added]
        removed: set[tuple[str, int | None]] = {(path, None) for path in change.removed}
        if head is not None and not is_fresh:
            is_old = metadata.format_version < 3
            replaced = self._deletes.as_positions if is_old else self._deletes.as_vectors
            more, gone = replaced(head, change, join(location, "data"))
            added += more
            removed |= set(map(key_of, gone))
        writer = SnapshotWriter(
            metadata, snapshot, staged.io, lambda name: join(location, "metadata", name)
        )
        state = {PROPERTY: change.state.to_json()}
        made = writer.write(added, removed, state, is_fresh=is_fresh)
        updates += (
            SetPropertiesUpdate(updates=state),
            AddSnapshotUpdate(snapshot=made),
            SetSnapshotRefUpdate(
                ref_name=MAIN_BRANCH, type=SnapshotRefType.BRANCH, snapshot_id=made.snapshot_id
            ),
        )
        self._ask(staged, _requirements(table), updates)
        found = self.head()
        if found is None or found.state != change.state:
            raise self._moved()
        return found

    def _moved(self) -> TableConflict:
        return TableConflict(
            "another program changed the table during the command",
            path=self.address,
            remedy="let only one program write the table, and run the command again",
        )

    def _prepared(
        self, table: Table | None, change: TableChange
    ) -> tuple[Table, tuple[TableUpdate, ...], TableMetadata, bool]:
        """Prepare the commit of a change.

        Returns the table, the metadata updates that precede the snapshot, the metadata after these
        updates, and whether the commit removes all files of the head.
        """
        wants = self._wants_vectors
        schema = next_schema(table, change.schema)
        identity = schema.find_field(identity_of(change.schema)).field_id
        if table is None:
            if self._uri is None:
                files.make_new_folder(self.address)
            self._make_namespace()
            assert self.location
            try:
                begun = self._catalog().create_table_transaction(
                    self._identifier,
                    schema,
                    self._place or self.address,
                    _spec(identity, change.state.buckets),
                    properties=_PROPERTIES
                    | {"format-version": "3" if wants else "2", CATALOG: self._catalog_name},
                )
            except TableAlreadyExistsError as error:
                raise self._moved() from error
            except LogError:
                raise
            except Exception as error:
                raise self._unusable(error) from error
            begun_by = tuple(
                Upgrade(format_version=3)
                if wants and isinstance(each, UpgradeFormatVersionUpdate)
                else each
                for each in begun._updates
            )
            return begun._table, begun_by, begun._table.metadata, False
        metadata = table.metadata
        updates: tuple[TableUpdate, ...] = ()
        if wants and metadata.format_version < 3:
            updates += (Upgrade(format_version=3),)
        if schema != table.schema():
            number = max(each.schema_id for each in metadata.schemas) + 1
            updates += (
                AddSchemaUpdate(schema=schema.model_copy(update={"schema_id": number})),
                SetCurrentSchemaUpdate(schema_id=-1),
            )
        spec = _spec(identity, change.state.buckets)
        has_other_spec = [(each.source_id, each.transform) for each in metadata.spec().fields] != [
            (each.source_id, each.transform) for each in spec.fields
        ]
        if has_other_spec:
            number = max(each.spec_id for each in metadata.partition_specs) + 1
            first = (metadata.last_partition_id or 999) + 1
            updates += (
                AddPartitionSpecUpdate(spec=_spec(identity, change.state.buckets, number, first)),
                SetDefaultSpecUpdate(spec_id=-1),
            )
        is_fresh = has_other_spec or change.replaces_all
        return table, updates, update_table_metadata(metadata, updates), is_fresh

    def _ask(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> None:
        files.faults.reach("commit the table", self.address)
        try:
            answer = self._catalog().commit_table(table, requirements, updates)
        except (CommitFailedException, TableAlreadyExistsError) as error:
            raise self._moved() from error
        except LogError:
            raise
        except NotImplementedError as error:
            raise UnsupportedFormat(
                f"the catalog does not support this table: {error}",
                path=self.address,
                remedy="leave out --vectors, or use another catalog",
            ) from error
        except Exception as error:
            raise RemoteFailed(
                f"Lastwrite cannot determine whether the table was committed: {error}",
                path=self.address,
                remedy="run the command again; it continues from the table's current version",
            ) from error
        files.faults.reach("committed the table", self.address)
        if self._uri is None:  # readers without a catalog find the metadata by this hint
            name = answer.metadata_location.rpartition("/")[2].removesuffix(".metadata.json")
            files.replace(join(self.address, "metadata", HINT), name.encode())

    # ------------------------------------------------------------------ later

    def expire(self, older_than_ms: int) -> int:
        table = self._table()
        if table is None or table.metadata.current_snapshot_id is None:
            return 0
        stays = {each.snapshot_id for each in table.metadata.refs.values()}
        at = table.current_snapshot()
        # Keep lastwrite's last snapshot, which contains the state, and all later snapshots.
        while at is not None and not _has_state(at):
            stays.add(at.snapshot_id)
            at = table.metadata.snapshot_by_id(at.parent_snapshot_id or -1)
        if at is not None:
            stays.add(at.snapshot_id)
        removed = [
            each.snapshot_id
            for each in table.metadata.snapshots
            if each.timestamp_ms < older_than_ms and each.snapshot_id not in stays
        ]
        if removed:
            self._ask(table, _requirements(table), (RemoveSnapshotsUpdate(snapshot_ids=removed),))
        return len(removed)

    def named(self) -> set[str]:
        table = self._table()
        if table is None:
            return set()
        found = {table.metadata_location, join(self.address, "metadata", HINT)}
        found |= {each.metadata_file for each in table.metadata.metadata_log}
        found |= {each.statistics_path for each in table.metadata.statistics}
        found |= {each.statistics_path for each in table.metadata.partition_statistics}
        for snapshot in table.metadata.snapshots:
            found.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                if manifest.manifest_path not in found:
                    found.add(manifest.manifest_path)
                    entries = manifest.fetch_manifest_entry(table.io)
                    found |= {entry.data_file.file_path for entry in entries}
        return set(map(path_of, found))


def _requirements(table: Table | None) -> tuple[TableRequirement, ...]:
    if table is None:
        return (AssertCreate(),)
    return (
        AssertTableUUID(uuid=table.metadata.table_uuid),
        AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=table.metadata.current_snapshot_id),
    )


def _plain(topic: str) -> str:
    """The table name for a topic: each character except letters, digits and _ becomes _."""
    return re.sub(r"\W", "_", topic)


def _has_state(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and PROPERTY in snapshot.summary.additional_properties


def _spec(identity: int, buckets: int, number: int = 0, first: int = 1000) -> PartitionSpec:
    field = PartitionField(
        source_id=identity,
        field_id=first,
        transform=BucketTransform(num_buckets=buckets),
        name=f"{_BUCKET_FIELD}_{number}" if number else _BUCKET_FIELD,
    )
    return PartitionSpec(field, spec_id=number)
