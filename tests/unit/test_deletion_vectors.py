"""Tests of deletion vectors: their bytes, and tables with them, mainly Delta tables."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
for package in ("deltalake", "pyiceberg", "polars", "pyroaring"):
    pytest.importorskip(package, reason="pip install 'lastwrite[test]'")

import pyarrow as pa  # noqa: E402
from deltalake import DeltaTable as Loaded  # noqa: E402
from deltalake.exceptions import DeltaProtocolError  # noqa: E402
from pyiceberg.table.deletion_vector import (  # noqa: E402
    DeletionVector,
    _extract_vector_payload,
)

import lastwrite  # noqa: E402
from lastwrite.errors import CorruptLog, InvalidConfig, UnsupportedFormat  # noqa: E402
from lastwrite.tables.delta import CHECKPOINT_EVERY, DeltaTable  # noqa: E402
from lastwrite.tables.delta_vectors import vector_path  # noqa: E402
from lastwrite.tables.vectors import decode, encode  # noqa: E402
from tests.support.tables.vectors import KEYS, Topic  # noqa: E402


@pytest.mark.parametrize(
    "positions", [[0], [1, 3, 9], [*range(100_000)], [2, 1 << 16, 1 << 32, (5 << 32) + 7]]
)
def test_vector_is_readable_by_pyiceberg(positions: list[int]) -> None:
    vector = encode(np.array(positions, np.int64))
    assert decode(vector, "here").tolist() == positions
    found = DeletionVector("", DeletionVector._deserialize_bitmap(_extract_vector_payload(vector)))
    assert found.to_vector().to_pylist() == positions


def test_vector_has_the_specified_bytes() -> None:
    # from Delta's protocol: length, magic, one bitmap with key 0, an array container of the value 7
    assert encode(np.array([7], np.int64)).hex() == (
        "00000022" + "d1d33964" + "0100000000000000" + "00000000"
        "3a300000" + "01000000" + "0000" + "0000" + "10000000" + "0700" + "b8e72272"
    )


def test_vector_with_any_changed_byte_is_refused() -> None:
    vector = encode(np.arange(0, 300, 3))
    for at in range(len(vector)):
        harmed = bytearray(vector)
        harmed[at] ^= 1 + at % 255
        with pytest.raises(CorruptLog, match=r"/t/a\.bin"):
            decode(bytes(harmed), "/t/a.bin")
    for cut in (0, 3, 9, len(vector) - 1):
        with pytest.raises(CorruptLog):
            decode(vector[:cut], "/t/a.bin")


@pytest.fixture
def format() -> str:
    return "delta"


each_format = pytest.mark.parametrize("format", ["delta", "iceberg"])


@pytest.fixture
def topic(tmp_path: Path, format: str) -> Topic:
    return Topic(tmp_path, format)


def test_vectors_stay_enabled_on_an_existing_table(topic: Topic) -> None:
    topic.round(buckets=2)
    plain = topic.round()
    assert plain.bytes_written > 4000 and not topic.vectors()
    first = topic.round(vectors=True)
    assert first.written_anew == 0 and len(topic.vectors()) == 1
    topic.check()
    second = topic.round()  # later rounds keep the format without the option
    assert second.written_anew == 0 and len(topic.vectors()) == 2
    topic.check()
    protocol = Loaded(str(topic.to)).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (3, 7)
    assert protocol.reader_features == ["deletionVectors"]
    with pytest.raises(DeltaProtocolError):  # a reader without support reports it
        Loaded(str(topic.to)).to_pyarrow_table()
    topic.round(anew=True)
    topic.round()
    assert len(topic.vectors()) == 3
    topic.check()


def test_vector_that_only_a_checkpoint_names_is_found(topic: Topic) -> None:
    topic.round(buckets=2, vectors=True)
    topic.round(changes=1)
    table = DeltaTable(str(topic.to))
    others = [*range(KEYS)]
    # always in the same bucket, which is rewritten again and again
    for _ in range(CHECKPOINT_EVERY + 2):
        key = b"key-%d" % others.pop()
        topic.log.append([(key, b"later", 4)])
        topic.model[key] = b"later"
        topic.round(changes=0)
    assert table.expire(time.time_ns() // 1_000_000 + 1000) > 0
    topic.check()
    assert topic.vectors() & table.named()
    head = table.head()
    assert head is not None
    for file in head.files:
        assert file.deleted == len(table.deleted(head, file.bucket).get(file.path, ()))
    for path in topic.vectors() - table.named():
        Path(path).unlink()
    topic.check()
    topic.round(changes=150)
    topic.check()


@each_format
def test_file_with_many_deleted_rows_is_rewritten(topic: Topic) -> None:
    topic.round(buckets=1, vectors=True)
    shares = []
    for _ in range(14):
        topic.round(changes=24)
        head = topic.table().head()
        assert head is not None and len(head.files) <= 8
        shares.append(sum(f.deleted for f in head.files) / sum(f.rows for f in head.files))
    assert 0 < max(shares) < 0.3
    topic.check()


@each_format
def test_damaged_or_missing_vector_is_named(topic: Topic) -> None:
    topic.round(buckets=1, vectors=True)
    topic.round()
    (path,) = map(Path, topic.vectors())
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(CorruptLog, match=path.name):
        topic.round()
    path.unlink()
    with pytest.raises(CorruptLog, match=path.name):
        topic.verify()


def test_vacuum_of_another_tool_keeps_vectors(topic: Topic) -> None:
    topic.round(buckets=1, vectors=True)
    topic.round()
    Loaded(str(topic.to)).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert topic.vectors()
    topic.check()


def test_vector_of_another_kind_is_refused(topic: Topic) -> None:
    with pytest.raises(UnsupportedFormat, match="deletion vectors of storage type .*--anew"):
        vector_path("/t", {"storageType": "i", "pathOrInlineDv": "x" * 30})
    with pytest.raises(InvalidConfig, match="leave out --vectors"):
        lastwrite.table_to(str(topic.root), "t", to=str(topic.to), format="parquet", vectors=True)


def test_statistics_of_a_file_survive_its_vector(topic: Topic) -> None:
    topic.round(buckets=1, vectors=True)
    before = pa.table(Loaded(str(topic.to)).get_add_actions(flatten=True)).to_pylist()
    topic.round()
    after = pa.table(Loaded(str(topic.to)).get_add_actions(flatten=True)).to_pylist()
    assert [each for each in after if each["path"] == before[0]["path"]] == before
