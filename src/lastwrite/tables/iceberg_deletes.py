"""Read the deleted rows of an Iceberg table, and write the delete files of the next commit.

    version 2: a position delete file for each bucket, with all its deleted rows; a commit that
               deletes rows of the bucket, or removes its files, replaces the delete file
    version 3: a vector for each data file; a commit writes the changed vectors to one file

The commit that upgrades a table to version 3 converts all positions to vectors. Version 3 forbids
new position delete files, and readers ignore the existing ones of a data file that has a vector.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyiceberg.io.pyarrow import _read_deletes
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent

from lastwrite.errors import CorruptLog, UnsupportedFormat
from lastwrite.model.columns import Int64Array
from lastwrite.storage.objects.address import join
from lastwrite.tables.format import ANEW, DataFile, Head, TableChange
from lastwrite.tables.iceberg_io import StoreIO, path_of
from lastwrite.tables.iceberg_snapshot import positions_file
from lastwrite.tables.iceberg_v3 import blob_of, is_vector, referenced, vector_files
from lastwrite.tables.vectors import read


class Deletes(NamedTuple):
    """The delete files of one head of a table.

    Attributes:
        token: the head's token.
        in_bucket: the delete files, by bucket.
        locations: the locations of data files as written in manifests, by path.
    """

    token: str
    in_bucket: Mapping[int, list[IcebergFile]]
    locations: Mapping[str, str]

    def counted(self, found: Iterable[DataFile]) -> tuple[DataFile, ...]:
        """The data files of the head, with their numbers of deleted rows.

        Rows in a bucket's position delete files are counted at the first data file of the bucket.
        """
        of_bucket: dict[int, int] = {}
        of_file: dict[str, int] = {}
        for bucket, some in self.in_bucket.items():
            for each in some:
                if is_vector(each):
                    of_file[referenced(each)] = each.record_count
                else:
                    of_bucket[bucket] = of_bucket.get(bucket, 0) + each.record_count
        return tuple(
            replace(file, deleted=of_file.get(file.path, 0) + of_bucket.pop(file.bucket, 0))
            for file in found
        )

    def as_positions(
        self, head: Head, change: TableChange, folder: str
    ) -> tuple[list[IcebergFile], list[IcebergFile]]:
        """Write a position delete file for each bucket with new deletes or a removed data file.
        Returns the new files, and the delete files that they replace.
        """
        removed = set(change.removed)
        touched = {
            file.bucket
            for file in head.files
            if file.path in removed or file.path in change.deletes
        }
        bucket_of = {file.path: file.bucket for file in head.files}
        made: list[IcebergFile] = []
        gone: list[IcebergFile] = []
        for bucket in sorted(touched):
            old = self.in_bucket.get(bucket, [])
            positions = {
                path: at for path, at in positions_of(old, folder).items() if path not in removed
            }
            positions |= {
                path: at for path, at in change.deletes.items() if bucket_of[path] == bucket
            }
            gone += old
            positions = {path: at for path, at in positions.items() if path in bucket_of}
            if positions:
                name = f"{bucket:05d}-{secrets.token_hex(8)}-deletes.parquet"
                made.append(positions_file(join(folder, name), bucket, positions))
        return made, gone

    def as_vectors(
        self, head: Head, change: TableChange, folder: str
    ) -> tuple[list[IcebergFile], list[IcebergFile]]:
        """Write the changed deletion vectors.

        Returns the vectors, and the delete files that they replace, which include all position
        delete files.
        """
        known = [file for some in self.in_bucket.values() for file in some]
        removed = set(change.removed)
        bucket_of = {file.path: file.bucket for file in head.files if file.path not in removed}
        old = {} if all(map(is_vector, known)) else positions_of(known, folder)
        deleted = {path: at for path, at in old.items() if path in bucket_of} | dict(change.deletes)
        stays = bucket_of.keys() - deleted.keys()
        gone = [file for file in known if not is_vector(file) or referenced(file) not in stays]
        if not deleted:
            return [], gone
        made = vector_files(
            join(folder, f"vectors-{secrets.token_hex(8)}.puffin"),
            StoreIO(),
            {self.locations[path]: deleted[path] for path in sorted(deleted)},
            {self.locations[path]: bucket_of[path] for path in deleted},
        )
        return made, gone


def positions_of(some: Iterable[IcebergFile], where: str) -> dict[str, Int64Array]:
    """The deleted positions by data file path. ``where`` is the table's address, for errors.

    Raises:
        CorruptLog: a delete file is missing or damaged.
        UnsupportedFormat: a delete file contains equality deletes.
    """
    found: dict[str, list[Int64Array]] = {}
    for file in some:
        if file.content is not DataFileContent.POSITION_DELETES:
            raise UnsupportedFormat(
                "another program wrote equality deletes, which Lastwrite does not support",
                path=where,
                remedy=ANEW,
            )
        path = path_of(file.file_path)
        if is_vector(file):
            positions = read(path, *blob_of(file), file.record_count)
            found.setdefault(referenced(file), []).append(positions)
            continue
        try:
            for name, some_ in _read_deletes(StoreIO(), file).items():
                found.setdefault(path_of(name), []).append(np.asarray(some_, np.int64))
        except (OSError, pa.ArrowException, ValueError) as error:
            raise CorruptLog(
                f"the delete file cannot be read: {error}", path=path, remedy=ANEW
            ) from error
    return {path: np.unique(np.concatenate(parts)) for path, parts in found.items()}
