"""Tests of Iceberg tables of version 3: deletion vectors in Puffin files, and row ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

np = pytest.importorskip("numpy")
for package in ("deltalake", "pyiceberg", "polars"):
    pytest.importorskip(package, reason="pip install 'lastwrite[test]'")

from pyiceberg.catalog.sql import SqlCatalog  # noqa: E402
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file  # noqa: E402
from pyiceberg.table.puffin import PuffinFile  # noqa: E402

from lastwrite.errors import UnsupportedFormat  # noqa: E402
from lastwrite.tables import iceberg_snapshot, update  # noqa: E402
from lastwrite.tables.iceberg_v3 import (  # noqa: E402
    blob_of,
    entries_of,
    is_vector,
    manifests_of,
    referenced,
)
from lastwrite.tables.puffin import encode_puffin  # noqa: E402
from tests.support.tables.iceberg import iceberg_table  # noqa: E402
from tests.support.tables.vectors import KEYS, Topic  # noqa: E402

DAY = 86_400_000
FIRST_ROW_ID = 16


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    return Topic(tmp_path, "iceberg")


def files_of(topic: Topic) -> list[Any]:
    table = iceberg_table(topic.to)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifests = manifests_of(snapshot, table.io)
    return [entry.data_file for each in manifests for entry in entries_of(each, table.io)]


def test_puffin_file_is_readable_by_pyiceberg() -> None:
    deleted = {"/t/a.parquet": np.array([1, 7]), "/t/b.parquet": np.array([0, 1 << 20])}
    content, places = encode_puffin(deleted)
    file = PuffinFile(content)
    found = {
        each.referenced_data_file: each.to_vector().to_pylist()
        for each in deletion_vectors_from_puffin_file(file)
    }
    assert found == {name: positions.tolist() for name, positions in deleted.items()}
    blobs = [(blob.offset, blob.length) for blob in file.footer.blobs]
    assert blobs == list(places.values()) and blobs[0][0] == 4
    assert {blob.type for blob in file.footer.blobs} == {"deletion-vector-v1"}


def test_version_2_table_becomes_version_3_in_one_commit(topic: Topic) -> None:
    with mock.patch.object(update, "_SMALL_BYTES", 0):  # prevents the rewrite of buckets
        topic.round(buckets=2)
        topic.round()
        plain = files_of(topic)
        assert iceberg_table(topic.to).format_version == 2 and not topic.vectors()
        topic.round(changes=1, vectors=True)
        first = files_of(topic)
        topic.round()  # later rounds keep the format without the option
    after = files_of(topic)
    assert iceberg_table(topic.to).format_version == 3
    assert not any(map(is_vector, plain)) and len(topic.vectors()) == 2
    for files in (first, after):
        vectors = [file for file in files if file.content.value]
        assert vectors and all(map(is_vector, vectors))  # unchanged buckets have vectors, too
        assert len(set(map(referenced, vectors))) == len(vectors)  # one vector for each data file
        assert set(map(referenced, vectors)) <= {each.file_path for each in files}
        for each in vectors:
            at, size = blob_of(each)
            content = Path(each.file_path).read_bytes()
            assert int.from_bytes(content[at : at + 4], "big") == size - 8
            assert each.file_size_in_bytes == len(content)
    topic.check()
    topic.round(anew=True)
    assert not any(map(is_vector, files_of(topic)))
    topic.check()


def test_row_ids_are_unique_and_stable(topic: Topic) -> None:
    topic.round(buckets=2)
    topic.round()
    known: dict[str, tuple[int, int]] = {}
    with mock.patch.object(iceberg_snapshot, "_MANY_MANIFESTS", 3):  # forces the merge of manifests
        for turn in range(7):
            topic.round(changes=4, vectors=not turn)
            files = [file for file in files_of(topic) if not is_vector(file)]
            found = {each.file_path: (each[FIRST_ROW_ID], each.record_count) for each in files}
            for path, numbers in found.items():
                assert known.setdefault(path, numbers) == numbers
            ranges = sorted(known.values())
            pairs = zip(ranges, ranges[1:], strict=False)
            assert all(first + count <= later for (first, count), (later, _) in pairs)
            (first, count), text = ranges[-1], iceberg_table(topic.to).metadata_location
            metadata = json.loads(Path(text).read_text())
            snapshots = [each for each in metadata["snapshots"] if "first-row-id" in each]
            assert metadata["next-row-id"] >= first + count
            assert sum(each["added-rows"] for each in snapshots) == metadata["next-row-id"]
    assert ranges[0][0] == 0 and len(known) > 7
    topic.check()


def test_summary_counts_the_sizes_of_vectors(topic: Topic) -> None:
    topic.round(buckets=2, vectors=True)
    topic.round()
    snapshot = iceberg_table(topic.to).current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    files = files_of(topic)
    sizes = [blob_of(each)[1] if is_vector(each) else each.file_size_in_bytes for each in files]
    assert int(snapshot.summary["total-files-size"]) == sum(sizes)
    assert int(snapshot.summary["total-position-deletes"]) == sum(
        each.record_count for each in files if is_vector(each)
    )


def test_unreferenced_vectors_are_deleted(topic: Topic) -> None:
    for _ in range(4):
        topic.round(buckets=2, vectors=True)
    assert len(topic.vectors()) == 3
    left = topic.to / "data" / "vectors-0123456789abcdef.puffin"
    left.write_bytes(b"of a run that died")
    now = iceberg_table(topic.to).metadata.last_updated_ms
    topic.round(changes=0, now_ms=now + 2 * DAY)
    assert not left.exists() and len(topic.vectors()) == 3
    topic.round(changes=0, now_ms=now + 6 * DAY)
    needed = {each.file_path for each in files_of(topic) if is_vector(each)}
    assert topic.vectors() == needed and len(needed) < 3
    topic.check()
    topic.round()
    assert len(topic.model) > KEYS // 2
    topic.check()


def test_catalog_without_version_3_is_named(topic: Topic) -> None:
    topic.round(buckets=2)

    def refuses(*_: Any, **__: Any) -> None:
        raise NotImplementedError("Writing V3 is not yet supported")

    with (
        mock.patch.object(SqlCatalog, "commit_table", refuses),
        pytest.raises(UnsupportedFormat, match=r"Writing V3.*leave out --vectors"),
    ):
        topic.round(vectors=True)
    topic.round()
    assert iceberg_table(topic.to).format_version == 2
