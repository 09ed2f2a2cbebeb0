"""Tests that one path has one table.

They cover existing tables, changes by other programs, and the effect of remedies.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyiceberg", reason="pip install 'lastwrite[tables]'")
pytest.importorskip("deltalake", reason="pip install 'lastwrite[tables]'")

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import StringType

import lastwrite
from lastwrite.errors import CorruptLog, InvalidConfig, LogError, UnsupportedFormat
from lastwrite.reports.table_round import TableRound
from lastwrite.tables.buckets import buckets_of
from lastwrite.tables.columns import as_bytes
from tests.support.kafka.growing import GrowingLog
from tests.support.tables.judges import iceberg_table, parquet_files, readings

T = 1_700_000_000_000
DAY = 86_400_000
FORMATS = ("iceberg", "delta", "parquet")
ROWS = {b"a": b"1", b"b": b"2", b"c": b"3"}
each_format = pytest.mark.parametrize("format", FORMATS)


@pytest.fixture(autouse=True)
def bucketing(monkeypatch: pytest.MonkeyPatch) -> None:
    """pyiceberg writes buckets only with its Rust package. Some other program may have it."""

    def transform(self: BucketTransform[Any], source: object) -> Callable[[pa.Array], pa.Array]:
        return lambda keys: pa.array(buckets_of(as_bytes(keys), self.num_buckets))

    monkeypatch.setattr(BucketTransform, "pyarrow_transform", transform)


@pytest.fixture
def log(tmp_path: Path) -> GrowingLog:
    (tmp_path / "log").mkdir()
    log = GrowingLog(tmp_path / "log")
    log.append([(key, value, T) for key, value in ROWS.items()])
    return log


def made(log: GrowingLog, to: Path | str, **options: Any) -> TableRound:
    return lastwrite.table_to(str(log.root), log.name.topic, to=str(to), **options)


def files_of(folder: Path) -> dict[str, bytes]:
    """All files except those of SQLite, which also writes when it reads."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix not in (".db", ".lock")
    }


# ---------------------------------------------------------------------- one table in one place


@each_format
def test_run_without_a_format_updates_the_existing_table(
    log: GrowingLog, tmp_path: Path, format: str
) -> None:
    to = tmp_path / "table"
    made(log, to, format=format)
    log.append([(b"a", None, T)])
    report = made(log, to)
    assert (report.format, report.how) == (format, "updated")
    assert lastwrite.verify_table(str(log.root), str(to)).is_proven
    for name, rows in readings(format, to):
        assert rows == {b"b": b"2", b"c": b"3"}, name


@each_format
def test_other_format_in_the_same_folder_is_refused(
    log: GrowingLog, tmp_path: Path, format: str
) -> None:
    to = tmp_path / "table"
    made(log, to, format=format)
    before = files_of(to)
    for other in {*FORMATS} - {format}:
        for anew in (False, True):
            with pytest.raises(InvalidConfig, match=f"--as {format}.*--to") as caught:
                made(log, to, format=other, anew=anew)
            assert caught.value.exit_status == 2
    assert files_of(to) == before
    assert made(log, to, format=format).how == "unchanged", "the remedy"


def test_two_formats_in_one_folder_are_named(log: GrowingLog, tmp_path: Path) -> None:
    to, other = tmp_path / "table", tmp_path / "other"
    made(log, to, format="delta")
    made(log, other, format="parquet")
    shutil.copytree(other, to, dirs_exist_ok=True)
    for format in (None, "delta"):
        with pytest.raises(
            InvalidConfig, match=r"several formats.*move _delta_log or _lastwrite out"
        ):
            made(log, to, format=format)
    shutil.move(to / "_lastwrite", tmp_path / "aside")
    assert made(log, to).format == "delta", "the remedy"


@each_format
def test_second_topic_in_the_folder_is_refused(
    log: GrowingLog, tmp_path: Path, format: str
) -> None:
    to = tmp_path / "table"
    made(log, to, format=format)
    (tmp_path / "other").mkdir()
    other = GrowingLog(tmp_path / "other", topic="u")
    other.append([(b"x", b"y", T)])
    before = files_of(to)
    for anew in (False, True):
        with pytest.raises(InvalidConfig, match=r"topic t[ ;].*--to"):
            made(other, to, format=format, anew=anew)
    assert files_of(to) == before
    assert made(other, tmp_path / "another", format=format).how == "made", "the remedy"


def test_catalog_separates_topics_by_name_but_not_in_one_path(
    log: GrowingLog, tmp_path: Path
) -> None:
    catalog = f"sqlite:///{tmp_path}/shared.db"
    place = tmp_path / "place"
    made(log, place, catalog=catalog)
    (tmp_path / "other").mkdir()
    other = GrowingLog(tmp_path / "other", topic="u")
    other.append([(b"x", b"y", T)])
    with pytest.raises(InvalidConfig, match="has a table of topic t;"):
        made(other, place, catalog=catalog)
    with pytest.raises(InvalidConfig, match=f"lastwrite.t at {place};.*--to {place}"):
        made(log, tmp_path / "elsewhere", catalog=catalog)
    with pytest.raises(InvalidConfig, match="shared.db.*--catalog"):
        made(log, place)
    assert made(other, tmp_path / "elsewhere", catalog=catalog).how == "made"
    assert made(log, place, catalog=catalog).how == "unchanged"


def test_copy_of_an_iceberg_table_is_refused(log: GrowingLog, tmp_path: Path) -> None:
    to, copy = tmp_path / "table", tmp_path / "copy"
    made(log, to)
    shutil.copytree(to, copy)
    before = files_of(to)
    log.append([(b"a", b"9", T)])
    with pytest.raises(InvalidConfig, match=f"lastwrite.t at {to};"):
        made(log, copy)
    assert files_of(to) == before


@each_format
def test_folder_with_other_files_is_refused(log: GrowingLog, tmp_path: Path, format: str) -> None:
    to = tmp_path / "lake"
    to.mkdir()
    (to / ".DS_Store").touch()
    pq.write_table(pa.table({"mine": [1]}), to / "part-0.parquet")
    with pytest.raises(InvalidConfig, match="part-0.parquet"):
        made(log, to, format=format)
    assert [path.name for path in to.iterdir() if path.name[0] != "."] == ["part-0.parquet"]
    (to / "part-0.parquet").unlink()
    assert made(log, to, format=format).how == "made", "the remedy"
    with pytest.raises(InvalidConfig, match=f"inside the {format} table {to}"):
        made(log, to / "inner", format=format)
    with pytest.raises(InvalidConfig, match="other files"):
        made(log, tmp_path, format=format)


def test_table_of_another_program_is_not_replaced(log: GrowingLog, tmp_path: Path) -> None:
    to = tmp_path / "mine"
    write_deltalake(str(to), pa.table({"mine": [1, 2]}))
    for options in ({}, {"anew": True}, {"format": "delta", "anew": True}):
        with pytest.raises(InvalidConfig, match="did not create"):
            made(log, to, **options)
    assert DeltaTable(str(to)).to_pyarrow_table().num_rows == 2


def test_unfinished_first_run_is_continued(log: GrowingLog, tmp_path: Path) -> None:
    to = tmp_path / "table"
    made(log, to)
    # as if the run had been killed before it added the table to the catalog
    (to / "catalog.db").unlink()
    assert made(log, to).how == "made"
    assert dict(readings("iceberg", to))["pyiceberg"] == ROWS


def test_old_files_of_a_nested_table_are_kept(log: GrowingLog, tmp_path: Path) -> None:
    """An earlier version allowed a table inside another table's folder."""
    outer, inner = tmp_path / "outer", tmp_path / "outer" / "inner"
    made(log, inner, format="parquet")
    moved = tmp_path / "moved"
    shutil.move(inner, moved)
    made(log, outer, format="parquet")
    shutil.move(moved, inner)
    now_ms = int((inner / "_lastwrite/current").stat().st_mtime * 1000) + 6 * DAY
    made(log, outer, now_ms=now_ms)
    for name, rows in readings("parquet", inner):
        assert rows == ROWS, name


# ---------------------------------------------------------------------- before the scan


def test_path_is_checked_before_the_log_is_read(
    log: GrowingLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scanned(*_: object, **__: object) -> None:
        raise AssertionError("the log was read")

    monkeypatch.setattr("lastwrite.tables.update.LastWrites", scanned)
    (tmp_path / "file").write_text("")
    for format in FORMATS:
        with pytest.raises(InvalidConfig, match="is not a folder"):
            made(log, tmp_path / "file", format=format)
        with pytest.raises(InvalidConfig, match="is not a folder"):
            made(log, tmp_path / "file" / "table", format=format)
    if os.geteuid():  # root may write everywhere
        closed = tmp_path / "closed"
        closed.mkdir(0o500)
        with pytest.raises(InvalidConfig, match="cannot be written"):
            made(log, closed / "table")


# ---------------------------------------------------------------------- stored settings


def test_settings_of_the_last_run_are_the_next_defaults(
    log: GrowingLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fields = [{"name": "n", "type": "int"}]
    Path("r.avsc").write_text(json.dumps({"type": "record", "name": "r", "fields": fields}))
    to = tmp_path / "table"
    log.append([(key, b"\x02", T) for key in ROWS])
    avro = {"value_format": "avro", "value_schema": "r.avsc", "key_format": "utf8"}
    made(log, to, format="delta", headers=True, on_bad="aside", bad_to="bad", **avro)
    monkeypatch.chdir("/")
    log.append([(b"a", b"", T), (b"b", b"\x04", T)])
    assert made(log, to).how == "updated"
    rows = DeltaTable(str(to)).to_pyarrow_table().to_pylist()
    assert {row["key"]: row["value"]["n"] for row in rows} == {"b": 2, "c": 1}
    assert all("_headers" in row for row in rows) and list((tmp_path / "bad").iterdir())
    with pytest.raises(InvalidConfig, match="give --headers, or"):
        made(log, to, headers=False)
    with pytest.raises(InvalidConfig, match="give --value-format avro, or"):
        made(log, to, value_format="raw")
    with pytest.raises(InvalidConfig, match="give --buckets 1, or"):
        made(log, to, buckets=2)
    assert made(log, to, headers=True, value_format="avro", buckets=1).how == "unchanged"
    assert made(log, to, anew=True, value_format="raw", headers=False).rows == 3
    assert set(DeltaTable(str(to)).to_pyarrow_table().column("value").to_pylist()) == {
        b"",
        b"\x02",
        b"\x04",
    }


# ---------------------------------------------------------------------- other writers

Write = Callable[[Path], None]


def _iceberg(change: Callable[[Table], object]) -> Write:
    return lambda to: change(iceberg_table(to)) and None


def _rows(table: Table, key: bytes) -> pa.Table:
    rows = table.scan().to_arrow()
    return rows.set_column(0, rows.schema.field(0), pa.array([key] * len(rows), pa.binary()))


def _upserted(table: Table) -> object:
    rows = table.scan().to_arrow().slice(0, 1)
    other = rows.set_column(1, rows.schema.field(1), pa.array([b"other"], pa.binary()))
    return table.upsert(other, join_cols=["key"])


def _respecified(table: Table) -> None:
    with table.update_spec() as update:
        update.remove_field("key_bucket")
    table.append(_rows(table, b"appended"))


def _with_column(table: Table) -> None:
    with table.update_schema() as update:
        update.add_column("note", StringType())
    table.append(_rows(table, b"appended"))


def _renamed(table: Table) -> None:
    with table.update_schema() as update:
        update.rename_column("value", "text")


ON_ICEBERG: dict[str, Write] = {
    "append": _iceberg(lambda table: table.append(_rows(table, b"appended"))),
    "delete": _iceberg(lambda table: table.delete("_offset = 1")),
    "upsert": _iceberg(_upserted),
    "overwrite": _iceberg(lambda table: table.overwrite(_rows(table, b"other").slice(0, 1))),
    "partitioning": _iceberg(_respecified),
    "schema": _iceberg(_with_column),
    "rename": _iceberg(_renamed),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("write", ON_ICEBERG)
def test_iceberg_table_changed_by_another_program_needs_a_rebuild(
    log: GrowingLog, tmp_path: Path, write: str
) -> None:
    to = tmp_path / "table"
    made(log, to)
    ON_ICEBERG[write](to)
    log.append([(b"a", b"new", T)])
    with pytest.raises(UnsupportedFormat, match="another program.*--anew"):
        made(log, to)
    log.append([(b"b", None, T)])
    assert made(log, to, anew=True).how == "made"
    assert_right(log, to, "iceberg", {b"a": b"new", b"c": b"3"})


def assert_right(log: GrowingLog, to: Path, format: str, rows: dict[bytes, bytes]) -> None:
    """Every reader finds these rows, and later runs update the table."""
    for name, found in readings(format, to):
        assert found == rows, name
    log.append([(b"later", b"1", T)])
    assert made(log, to).how == "updated"
    for name, found in readings(format, to):
        assert found == rows | {b"later": b"1"}, name
    assert lastwrite.verify_table(str(log.root), str(to)).is_proven


@pytest.mark.filterwarnings("ignore")
def test_iceberg_table_that_is_rolled_back_is_updated(log: GrowingLog, tmp_path: Path) -> None:
    to = tmp_path / "table"
    ours = made(log, to).head
    iceberg_table(to).delete("_offset = 1")
    log.append([(b"a", b"new", T)])
    with pytest.raises(UnsupportedFormat, match=f"roll the table back to snapshot {ours}"):
        made(log, to)
    with iceberg_table(to).manage_snapshots() as change:
        change.rollback_to_snapshot(int(ours))
    assert made(log, to).how == "updated"
    assert_right(log, to, "iceberg", ROWS | {b"a": b"new"})


def _appended(to: Path, **options: Any) -> None:
    rows = DeltaTable(str(to)).to_pyarrow_table()
    key = rows.schema.get_field_index("key")
    keys = pa.array([b"appended"] * len(rows), pa.binary())
    write_deltalake(str(to), rows.set_column(key, "key", keys), mode="append", **options)


def _merged(to: Path) -> None:
    table = DeltaTable(str(to))
    rows = table.to_pyarrow_table().slice(0, 1)
    value, key = (rows.schema.get_field_index(name) for name in ("value", "key"))
    other = rows.set_column(value, "value", pa.array([b"other"], pa.binary()))
    new = rows.set_column(key, "key", pa.array([b"new one"], pa.binary()))
    (
        table.merge(pa.concat_tables([other, new]), "t.key = s.key", "s", "t")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    )


def _overwritten(to: Path, **options: Any) -> None:
    rows = DeltaTable(str(to)).to_pyarrow_table().slice(0, 1)
    write_deltalake(str(to), rows, mode="overwrite", **options)


def _with_other_schema(to: Path) -> None:
    rows = DeltaTable(str(to)).to_pyarrow_table().append_column("note", pa.array(["x"] * 4))
    write_deltalake(str(to), rows, mode="overwrite", schema_mode="overwrite")


ON_DELTA: dict[str, Write] = {
    "append": _appended,
    "delete": lambda to: DeltaTable(str(to)).delete("_offset = 1") and None,
    "upsert": _merged,
    "overwrite": _overwritten,
    "schema": lambda to: (_with_other_schema(to), _appended(to)) and None,
    "partitioning": lambda to: _overwritten(to, partition_by=["key"], schema_mode="overwrite"),
}


@pytest.mark.parametrize("write", ON_DELTA)
def test_delta_table_changed_by_another_program_needs_a_rebuild(
    log: GrowingLog, tmp_path: Path, write: str
) -> None:
    to = tmp_path / "table"
    made(log, to, format="delta")
    log.append([(b"d", b"4", T)])
    made(log, to)
    ON_DELTA[write](to)
    log.append([(b"a", b"new", T)])
    with pytest.raises(UnsupportedFormat, match="another program.*--anew"):
        made(log, to)
    log.append([(b"b", None, T)])
    assert made(log, to, anew=True).how == "made"
    assert_right(log, to, "delta", {b"a": b"new", b"c": b"3", b"d": b"4"})


def test_delta_table_restored_to_our_version_is_updated(log: GrowingLog, tmp_path: Path) -> None:
    to = tmp_path / "table"
    ours = made(log, to, format="delta").head
    DeltaTable(str(to)).delete("_offset = 1")
    log.append([(b"a", b"new", T)])
    with pytest.raises(UnsupportedFormat, match="restore the last version that Lastwrite wrote"):
        made(log, to)
    DeltaTable(str(to)).restore(int(ours))
    assert made(log, to).how == "updated"
    assert_right(log, to, "delta", ROWS | {b"a": b"new"})


@each_format
def test_missing_data_file_needs_a_rebuild(log: GrowingLog, tmp_path: Path, format: str) -> None:
    to = tmp_path / "table"
    made(log, to, format=format)
    (file,) = [path for path in to.rglob("*.parquet") if path.name.startswith("0000")]
    file.unlink()
    log.append([(b"a", b"new", T)])
    with pytest.raises(CorruptLog, match="--anew"):
        made(log, to)
    assert made(log, to, anew=True).how == "made"
    assert_right(log, to, format, ROWS | {b"a": b"new"})


@pytest.mark.parametrize("damage", ["manifest gone", "manifest", "current"])
def test_damaged_parquet_table_needs_a_rebuild(
    log: GrowingLog, tmp_path: Path, damage: str
) -> None:
    to = tmp_path / "table"
    made(log, to, format="parquet")
    (manifest,) = (to / "_lastwrite").glob("manifest-*.json")
    if damage == "manifest gone":
        manifest.unlink()
    else:
        (manifest if damage == "manifest" else to / "_lastwrite/current").write_text("odd")
    with pytest.raises(CorruptLog, match="--anew"):
        made(log, to)
    assert made(log, to, anew=True).how == "made"
    assert parquet_files(to)
    assert_right(log, to, "parquet", ROWS)


@each_format
def test_state_of_another_version_needs_a_rebuild(
    log: GrowingLog, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = tmp_path / "table"
    with monkeypatch.context() as later:
        later.setattr("lastwrite.tables.format._VERSION", 99)
        made(log, to, format=format)
    with pytest.raises(UnsupportedFormat, match="--anew"):
        made(log, to)
    assert made(log, to, anew=True).how == "made"
    assert_right(log, to, format, ROWS)


def test_unreadable_delta_log_needs_another_folder(log: GrowingLog, tmp_path: Path) -> None:
    to = tmp_path / "table"
    made(log, to, format="delta")
    (to / "_delta_log" / f"{0:020}.json").write_text("{")
    for anew in (False, True):
        with pytest.raises(LogError, match="another folder with --to"):
            made(log, to, anew=anew)
    assert made(log, tmp_path / "another", format="delta").how == "made"


def test_upgraded_delta_table_needs_another_folder(log: GrowingLog, tmp_path: Path) -> None:
    to = tmp_path / "table"
    made(log, to, format="delta")
    DeltaTable(str(to)).alter.add_constraint({"positive": "_offset >= 0"})
    for anew in (False, True):
        with pytest.raises(UnsupportedFormat, match="upgraded.*another folder with --to"):
            made(log, to, anew=anew)
    assert made(log, tmp_path / "another", format="delta").how == "made"


def test_append_only_delta_table_is_refused_until_the_property_is_unset(
    log: GrowingLog, tmp_path: Path
) -> None:
    to = tmp_path / "table"
    made(log, to, format="delta")
    DeltaTable(str(to)).alter.set_table_properties({"delta.appendOnly": "true"})
    log.append([(b"a", b"new", T)])
    with pytest.raises(UnsupportedFormat, match="unset"):
        made(log, to)
    DeltaTable(str(to)).alter.set_table_properties({"delta.appendOnly": "false"})
    assert made(log, to).how == "updated"
    assert_right(log, to, "delta", ROWS | {b"a": b"new"})
