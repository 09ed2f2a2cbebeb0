"""The parts of Iceberg's version 3 that pyiceberg 0.12 does not write.

These are manifests and manifest lists with row ids, files of deletion vectors, and metadata.

A row's id is the ``first_row_id`` of its file plus the row's position in the file. New files
inherit their ``first_row_id`` from their manifest, which gets it in the manifest list. For example:

    table: next-row-id 50
    snapshot: first-row-id 50      list: m1, first id 0       its files keep their ids
                                         m2, new, id 50       a (10 rows): 50, b (5 rows): 60
    table: next-row-id 65

Entries in rewritten manifests contain the id of their file. Files of version 2 have no ids: they
get them in the first commit of version 3, like new files.

Source: Iceberg's table format, sections Row Lineage, Manifests, Manifest Lists, Deletion Vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyiceberg.avro.file import AvroFile, AvroOutputFile
from pyiceberg.io import FileIO, OutputFile
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestListWriterV2,
    ManifestWriterV2,
    PartitionFieldSummary,
    _inherit_from_manifest,
)
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil, TableMetadataV3
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import UpgradeFormatVersionUpdate, _apply_table_update
from pyiceberg.typedef import IcebergBaseModel, Record, TableVersion

from lastwrite.model.columns import Int64Array
from lastwrite.tables.iceberg_io import path_of
from lastwrite.tables.puffin import encode_puffin

# Positions of fields for which pyiceberg has no names: one field of a manifest's description, then
# four fields of a data file's description.
_FIRST_OF_MANIFEST: Final = 15
_FIRST_ROW_ID, _REFERENCED, _OFFSET, _LENGTH = 16, 17, 18, 19


def is_vector(file: IcebergFile) -> bool:
    """Whether a delete file is a deletion vector, which is one blob of a Puffin file."""
    return file.file_format is FileFormat.PUFFIN


def referenced(vector: IcebergFile) -> str:
    """The path of the data file whose rows a deletion vector deletes."""
    return path_of(vector[_REFERENCED])


def blob_of(vector: IcebergFile) -> tuple[int, int]:
    """The offset and length of a deletion vector in its file."""
    return vector[_OFFSET], vector[_LENGTH]


def key_of(file: IcebergFile) -> tuple[str, int | None]:
    """A key that identifies a file: its path and, for a vector, the vector's offset."""
    return path_of(file.file_path), file[_OFFSET] if is_vector(file) else None


def sized(file: IcebergFile) -> IcebergFile:
    """The description of a file; for a deletion vector, a copy with the size of its blob.

    The original description of a vector has the size of the Puffin file, which has several blobs.
    """
    if not is_vector(file):
        return file
    alike = IcebergFile(*file._data)
    alike._data[5] = file[_LENGTH]
    alike.spec_id = getattr(file, "_spec_id", 0)
    return alike


def vector_files(
    path: str, io: FileIO, deleted: Mapping[str, Int64Array], bucket_of: Mapping[str, int]
) -> list[IcebergFile]:
    """Write the vectors of data files to one Puffin file. Keys are locations of data files."""
    content, places = encode_puffin(deleted)
    with io.new_output(path).create() as file:
        file.write(content)
    return [
        IcebergFile.from_args(
            _table_format_version=3,
            content=DataFileContent.POSITION_DELETES,
            file_path=path,
            file_format=FileFormat.PUFFIN,
            partition=Record(bucket_of[location]),
            record_count=len(deleted[location]),
            file_size_in_bytes=len(content),
            referenced_data_file=location,
            content_offset=offset,
            content_size_in_bytes=length,
        )
        for location, (offset, length) in places.items()
    ]


# ---------------------------------------------------------------------- manifests


def manifests_of(snapshot: Snapshot, io: FileIO) -> list[ManifestFile]:
    """The manifests of a snapshot, with their first row ids."""
    with AvroFile[ManifestFile](
        io.new_input(snapshot.manifest_list),
        MANIFEST_LIST_FILE_SCHEMAS[3],
        read_types={-1: ManifestFile, 508: PartitionFieldSummary},
        read_enums={517: ManifestContent},
    ) as reader:
        return list(reader)


def entries_of(manifest: ManifestFile, io: FileIO) -> list[ManifestEntry]:
    """The entries of a manifest for files that exist, with the fields inherited from the
    manifest.
    """
    with AvroFile[ManifestEntry](
        io.new_input(manifest.manifest_path),
        MANIFEST_ENTRY_SCHEMAS[3],
        read_types={-1: ManifestEntry, 2: IcebergFile},
        read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    ) as reader:
        found = [
            _inherit_from_manifest(entry, manifest)
            for entry in reader
            if entry.status is not ManifestEntryStatus.DELETED
        ]
    number = manifest[_FIRST_OF_MANIFEST]
    for file in (entry.data_file for entry in found):
        if number is not None and file[_FIRST_ROW_ID] is None:
            file[_FIRST_ROW_ID] = number
            number += file.record_count
    return found


class ManifestWriter(ManifestWriterV2):
    """Writes a manifest for data files or delete files in format version 2 or 3."""

    def __init__(self, version: TableVersion, content: ManifestContent, *given: Any) -> None:
        super().__init__(*given)
        self._version, self._content = version, content

    def content(self) -> ManifestContent:
        return self._content

    @property
    def version(self) -> TableVersion:
        return self._version

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": self._content.name.lower()}

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        return AvroOutputFile[ManifestEntry](
            output_file=self._output_file,
            file_schema=self._with_partition(self._version),
            record_schema=self._with_partition(3),
            schema_name="manifest_entry",
            metadata=self._meta,
        )

    def to_manifest_file(self) -> ManifestFile:
        return ManifestFile(*super().to_manifest_file()._data, None)


class ListWriter(ManifestListWriterV2):
    """Writes a manifest list of version 3.

    Data manifests without a first row id get one.
    """

    def __init__(
        self, output: OutputFile, snapshot: int, parent: int | None, sequence: int, first: int
    ) -> None:
        super().__init__(output, snapshot, parent, sequence, "deflate")
        self._meta |= {"format-version": "3", "first-row-id": str(first)}
        self.next_row_id = first

    def __enter__(self) -> ListWriter:
        self._writer = AvroOutputFile[ManifestFile](
            self._output_file, MANIFEST_LIST_FILE_SCHEMAS[3], "manifest_file", metadata=self._meta
        )
        self._writer.__enter__()
        return self

    def prepare_manifest(self, manifest_file: ManifestFile) -> ManifestFile:
        made = super().prepare_manifest(manifest_file)
        if made.content is ManifestContent.DATA and made[_FIRST_OF_MANIFEST] is None:
            made[_FIRST_OF_MANIFEST] = self.next_row_id
            self.next_row_id += (made.existing_rows_count or 0) + (made.added_rows_count or 0)
        return made


# ---------------------------------------------------------------------- metadata


class Upgrade(UpgradeFormatVersionUpdate):
    """The metadata update to version 3. pyiceberg's own class does not support this version."""


@_apply_table_update.register(Upgrade)
def _(update: Upgrade, base_metadata: TableMetadata, context: Any) -> TableMetadata:
    if base_metadata.format_version >= update.format_version:
        return base_metadata
    context.add_update(update)
    changed = {"format_version": update.format_version, "next_row_id": 0}
    return TableMetadataUtil._construct_without_validation(base_metadata.model_copy(update=changed))


class _Written(TableMetadataV3):
    """Version 3 metadata that can be written as JSON, unlike an object of pyiceberg's own class."""

    model_dump_json = IcebergBaseModel.model_dump_json


def write_metadata(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
    """Write table metadata of any version.

    Replaces pyiceberg's function, which does not support version 3.
    """
    if isinstance(metadata, TableMetadataV3):
        metadata = _Written.model_construct(**dict(metadata))
    ToOutputFile.table_metadata(metadata, io.new_output(metadata_path))
