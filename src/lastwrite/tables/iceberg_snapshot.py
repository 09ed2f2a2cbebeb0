"""Write a snapshot of an Iceberg table.

Manifests of the parent that list removed files are rewritten. A new manifest lists the new files.

pyiceberg's snapshot producers cannot add delete files, so this module uses the classes below them.
"""

# mypy: disable-error-code="call-arg"
# pydantic accepts fields by name and by alias; mypy accepts the aliases only.

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import (
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest_list,
)
from pyiceberg.table.metadata import TableMetadata, TableMetadataV3
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)
from pyiceberg.typedef import Record

from lastwrite.model.columns import Int64Array
from lastwrite.tables.files import write_file
from lastwrite.tables.format import DataFile
from lastwrite.tables.iceberg_v3 import (
    ListWriter,
    ManifestWriter,
    entries_of,
    key_of,
    manifests_of,
    sized,
)

_DELETED = ManifestEntryStatus.DELETED
_MANY_MANIFESTS = 16  # number of manifests of a content type at which they are merged into one
_PATH, _POSITION = 2147483546, 2147483545  # reserved column ids of position delete files
_POSITIONS = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": str(_PATH)}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": str(_POSITION)}),
    ]
)


def data_file_of(file: DataFile, metadata: TableMetadata) -> IcebergFile:
    """A new data file as a manifest describes it, with statistics."""
    schema = metadata.schema()
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=file.footer,
        stats_columns=compute_statistics_plan(schema, metadata.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    )
    return IcebergFile.from_args(
        _table_format_version=3,
        content=DataFileContent.DATA,
        file_path=file.path,
        file_format=FileFormat.PARQUET,
        partition=Record(file.bucket),
        file_size_in_bytes=file.size_bytes,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def positions_file(path: str, bucket: int, deleted: Mapping[str, Int64Array]) -> IcebergFile:
    """Write a position delete file for one bucket. ``deleted`` maps data files to positions."""
    names = sorted(deleted)
    counts = [len(deleted[name]) for name in names]
    paths = np.repeat(np.arange(len(names), dtype=np.int32), counts)
    positions = np.concatenate([deleted[name] for name in names])
    rows = pa.Table.from_arrays(
        [pa.array(names, pa.string()).take(pa.array(paths)), pa.array(positions, pa.int64())],
        schema=_POSITIONS,
    )
    written = write_file(path, rows)
    return IcebergFile.from_args(
        _table_format_version=3,
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(bucket),
        record_count=len(rows),
        file_size_in_bytes=written.size_bytes,
        column_sizes=None,
        value_counts={_PATH: len(rows), _POSITION: len(rows)},
        null_value_counts={_PATH: 0, _POSITION: 0},
        nan_value_counts=None,
        # Bounds are not truncated, so that readers can compare a data file's path with them.
        lower_bounds={_PATH: names[0].encode(), _POSITION: _long(positions.min())},
        upper_bounds={_PATH: names[-1].encode(), _POSITION: _long(positions.max())},
        key_metadata=None,
        split_offsets=None,
        equality_ids=None,
        sort_order_id=None,
    )


def _long(number: Any) -> bytes:
    return int(number).to_bytes(8, "little", signed=True)


class SnapshotWriter:
    """Writes the manifests of one snapshot.

    Args:
        metadata: the table's metadata, with the new schema and partitioning.
        parent: the snapshot to change. None means that the table has no snapshot.
        metadata_path: returns the path for the name of a metadata object.
    """

    def __init__(
        self,
        metadata: TableMetadata,
        parent: Snapshot | None,
        io: FileIO,
        metadata_path: Callable[[str], str],
    ) -> None:
        self._metadata, self._parent, self._io, self._path = metadata, parent, io, metadata_path
        self._id = metadata.new_snapshot_id()
        self._mark = uuid.uuid4()
        self._count = 0

    def write(
        self,
        added: Sequence[IcebergFile],
        removed: set[tuple[str, int | None]],
        properties: Mapping[str, str],
        *,
        is_fresh: bool,
    ) -> Snapshot:
        """Write a snapshot with the parent's files, except ``removed``, and with ``added``.

        Args:
            added: data files and delete files.
            removed: ``key_of`` data files and delete files.
            is_fresh: whether the snapshot has no file of the parent, and lists none as removed.
        """
        manifests, gone = [], []
        known = [] if is_fresh or self._parent is None else manifests_of(self._parent, self._io)
        for content in (ManifestContent.DATA, ManifestContent.DELETES):
            is_data = content is ManifestContent.DATA
            come = [each for each in added if (each.content is DataFileContent.DATA) is is_data]
            of_kind = [each for each in known if each.content == content]
            found, lost = self._of_kind(content, of_kind, come, removed)
            manifests += found
            gone += lost
        summary = self._summary(added, gone, properties, is_fresh)
        name = self._path(f"snap-{self._id}-0-{self._mark}.avro")
        number = self._metadata.next_sequence_number()
        parent = self._parent.snapshot_id if self._parent is not None else None
        lineage: Any = {}
        output = self._io.new_output(name)
        if isinstance(self._metadata, TableMetadataV3):
            first = self._metadata.next_row_id or 0
            with ListWriter(output, self._id, parent, number, first) as rows:
                rows.add_manifests(manifests)
            lineage = {"first_row_id": first, "added_rows": rows.next_row_id - first}
        else:
            with write_manifest_list(2, output, self._id, parent, number, "deflate") as writer:
                writer.add_manifests(manifests)
        return Snapshot(
            snapshot_id=self._id,
            parent_snapshot_id=parent,
            manifest_list=name,
            sequence_number=number,
            summary=summary,
            schema_id=self._metadata.current_schema_id,
            **lineage,
        )

    def _of_kind(
        self,
        content: ManifestContent,
        known: Sequence[ManifestFile],
        added: Sequence[IcebergFile],
        removed: set[tuple[str, int | None]],
    ) -> tuple[list[ManifestFile], list[IcebergFile]]:
        """Write the manifests for data files or for delete files.

        Returns all the manifests of this kind, and the removed files.
        """
        kept: list[ManifestFile] = []
        gone: list[IcebergFile] = []
        moved: list[ManifestEntry] = []  # entries of merged manifests, for the new manifest
        merges = len(known) >= _MANY_MANIFESTS
        for manifest in known:
            entries = entries_of(manifest, self._io)
            goes = [each for each in entries if key_of(each.data_file) in removed]
            gone += [each.data_file for each in goes]
            is_ours = manifest.partition_spec_id == self._metadata.default_spec_id
            if not goes and not (merges and is_ours):
                kept += [manifest] if entries else []
                continue
            stay = [each for each in entries if key_of(each.data_file) not in removed]
            rewritten = [
                *(_as(ManifestEntryStatus.EXISTING, each, each.snapshot_id) for each in stay),
                *(_as(_DELETED, each, self._id) for each in goes),
            ]
            if is_ours:
                moved += rewritten
            else:
                kept.append(self._manifest(content, rewritten, manifest.partition_spec_id))
        fresh = [
            ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=self._id,
                sequence_number=None,
                file_sequence_number=None,
                data_file=each,
            )
            for each in added
        ]
        if moved or fresh:
            kept.append(self._manifest(content, moved + fresh, self._metadata.default_spec_id))
        return kept, gone

    def _manifest(
        self, content: ManifestContent, entries: Iterable[ManifestEntry], spec_id: int
    ) -> ManifestFile:
        self._count += 1
        output = self._io.new_output(self._path(f"{self._mark}-m{self._count}.avro"))
        metadata, spec = self._metadata, self._metadata.specs()[spec_id]
        with ManifestWriter(
            metadata.format_version, content, spec, metadata.schema(), output, self._id, "deflate"
        ) as writer:
            # removed files are last, because they get no row ids
            for entry in sorted(entries, key=lambda each: each.status is _DELETED):
                writer.add_entry(entry)
        return writer.to_manifest_file()

    def _summary(
        self,
        added: Sequence[IcebergFile],
        gone: Sequence[IcebergFile],
        properties: Mapping[str, str],
        is_fresh: bool,
    ) -> Summary:
        schema, specs = self._metadata.schema(), self._metadata.specs()
        collector = SnapshotSummaryCollector()
        for file in added:
            collector.add_file(sized(file), schema, self._metadata.spec())
        for file in gone:
            collector.remove_file(sized(file), schema, specs[file.spec_id])
        has_deletes = any(file.content is not DataFileContent.DATA for file in added)
        operation = Operation.OVERWRITE if gone or has_deletes or is_fresh else Operation.APPEND
        before = self._parent.summary if self._parent is not None and not is_fresh else None
        made = Summary(operation, **collector.build(), **properties)
        return update_snapshot_summaries(made, before)


def _as(status: ManifestEntryStatus, entry: ManifestEntry, snapshot: int | None) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=snapshot,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=entry.data_file,
    )
