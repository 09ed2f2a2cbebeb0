"""Tests of Iceberg tables: rounds, errors, other writers and expired snapshots."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from unittest import mock

import pytest

pytest.importorskip("pyiceberg", reason="pip install 'lastwrite[tables]'")

from pyiceberg.catalog import load_catalog

import lastwrite
from lastwrite.errors import BadValue, CommitConflict, InvalidConfig, UnsupportedFormat
from lastwrite.kafka.format.text import topic_id_text
from lastwrite.reports.table_round import TableRound
from lastwrite.storage import files
from lastwrite.storage.files import FaultPoints
from lastwrite.tables import update
from lastwrite.tables.iceberg import IcebergFormat
from tests.support.kafka.growing import GrowingLog
from tests.support.tables.iceberg import checksum, iceberg_table, rows_of

T = 1_700_000_000_000
DAY = 86_400_000


def values(to: Path) -> dict[bytes, object]:
    return {key: row.value for key, row in rows_of(iceberg_table(to).scan().to_arrow()).items()}


@pytest.fixture
def log(tmp_path: Path) -> GrowingLog:
    (tmp_path / "log").mkdir()
    return GrowingLog(tmp_path / "log")


def made(log: GrowingLog, to: Path, **options: object) -> TableRound:
    return lastwrite.table_to(str(log.root), "t", to=str(to), **options)


def test_round_is_one_snapshot_with_one_delete_file_per_bucket(
    log: GrowingLog, tmp_path: Path
) -> None:
    to = tmp_path / "table"
    keys = [b"k%03d" % n for n in range(300)]
    log.append([(key, b"0", T) for key in keys])
    made(log, to, buckets=2)
    model: dict[bytes, object] = dict.fromkeys(keys, b"0")
    with mock.patch.object(update, "_SMALL_BYTES", 0):
        for turn in range(6):
            changed = random.Random(turn).sample(keys, 7)
            log.append(
                [(key, b"%d" % turn if key[-1:] != b"3" else None, T + turn) for key in changed]
            )
            report = made(log, to)
            assert report.how == "updated"
            for key in changed:
                model.pop(key, None)
                if key[-1:] != b"3":
                    model[key] = b"%d" % turn
            assert values(to) == model
            table = iceberg_table(to)
            assert len(table.snapshots()) == turn + 2
            deletes = [task.delete_files for task in table.scan().plan_files()]
            assert len({file.file_path for some in deletes for file in some}) <= 2
            per_bucket = [task.file.partition[0] for task in table.scan().plan_files()]
            # The bound on files follows from when a bucket is rewritten.
            assert max(map(per_bucket.count, per_bucket)) <= 2 * update.MANY_FILES


def test_many_rounds_keep_the_number_of_files_bounded(log: GrowingLog, tmp_path: Path) -> None:
    to = tmp_path / "table"
    log.append([(b"k%d" % n, b"0", T) for n in range(50)])
    for turn in range(20):
        log.append([(b"k%d" % (turn % 50), b"x", T + turn)])
        made(log, to)
    assert len(list(iceberg_table(to).scan().plan_files())) <= update.MANY_FILES + 1
    assert len(values(to)) == 50


def test_growing_schema_adds_columns(log: GrowingLog, tmp_path: Path) -> None:
    to = tmp_path / "table"
    record = {"type": "record", "name": "r", "fields": [{"name": "n", "type": "int"}]}
    small, large = tmp_path / "1.avsc", tmp_path / "2.avsc"
    small.write_text(json.dumps(record))
    record["fields"] = [
        {"name": "n", "type": "long"},
        {"name": "more", "type": ["null", "string"], "default": None},
    ]
    large.write_text(json.dumps(record))
    log.append([(b"a", b"\x02", T), (b"b", b"\x04", T)])
    avro = {"value_format": "avro", "key_format": "utf8"}
    made(log, to, value_schema=str(small), **avro)
    log.append([(b"b", b"\x06\x02\x04hi", T + 1)])
    with pytest.raises(BadValue):
        made(log, to, value_schema=str(large), on_bad="fail", **avro, anew=True)
    assert made(log, to, value_schema=str(large), **avro).how == "updated"
    assert values(to) == {"a": {"n": 1, "more": None}, "b": {"n": 3, "more": "hi"}}
    with pytest.raises(InvalidConfig, match="give --value-format avro, or .*--anew"):
        made(log, to, key_format="utf8", value_format="raw")
    log.append([(b"b", b"?", T + 2)])
    before = values(to)
    with pytest.raises(BadValue, match="offset 3"):
        made(log, to, value_schema=str(large), **avro)
    assert values(to) == before
    aside = {"on_bad": "aside", "bad_to": str(tmp_path / "bad")}
    made(log, to, value_schema=str(large), **avro, **aside)
    assert list(values(to)) == ["a"] and len(list((tmp_path / "bad").iterdir())) == 1
    raw = {"key_format": "raw", "value_format": "raw", "on_bad": "fail"}
    report = made(log, to, anew=True, buckets=4, **raw)
    assert report.how == "made" and values(to) == {b"a": b"\x02", b"b": b"?"}
    log.append([(b"a", None, T + 3)])
    assert made(log, to).how == "updated" and values(to) == {b"b": b"?"}


def test_missing_data_is_an_error_with_a_remedy(log: GrowingLog, tmp_path: Path) -> None:
    to = tmp_path / "table"
    for n in range(6):
        log.append([(b"k%d" % n, b"1", T)])
        log.roll()
    made(log, to)
    for n in range(3):
        log.append([(b"k%d" % n, None, T)])
        log.roll()
    (log.root / "log-start-offset-checkpoint").write_text("0\n1\nt 0 7\n")
    for base in range(7):
        (log.folder / f"{base:020}.log").unlink()
    with pytest.raises(CommitConflict, match="begins at offset 7.*up to 6.*--anew"):
        made(log, to)
    assert len(values(to)) == 6
    assert made(log, to, anew=True).rows == 0
    shutil.rmtree(log.folder)
    again = GrowingLog(log.root, topic_id=topic_id_text(bytes(range(16))))
    again.append([(b"a", b"1", T)] * 20)
    with pytest.raises(CommitConflict, match="created again: its topic id was"):
        made(log, to)
    assert made(again, to, anew=True).rows == 1


def test_concurrent_writer_causes_a_retry_or_an_error(log: GrowingLog, tmp_path: Path) -> None:
    to = tmp_path / "table"
    log.append([(b"a", b"1", T), (b"b", b"1", T)])
    first = made(log, to)
    format = IcebergFormat(str(to), "t")
    head = format.head()
    assert head is not None and head.token == first.head
    log.append([(b"a", b"2", T)])
    real = IcebergFormat.commit

    def late(self: IcebergFormat, head: object, change: object) -> object:
        with mock.patch.object(IcebergFormat, "commit", real):
            made(log, to)
        return real(self, head, change)  # type: ignore[arg-type]

    with mock.patch.object(IcebergFormat, "commit", late):
        report = made(log, to)
    assert (report.how, report.attempts) == ("unchanged", 2)
    assert values(to) == {b"a": b"2", b"b": b"1"}
    iceberg_table(to).delete()
    with pytest.raises(UnsupportedFormat, match="another program changed"):
        made(log, to)


def test_old_snapshots_are_expired(log: GrowingLog, tmp_path: Path) -> None:
    to = tmp_path / "table"
    for turn in range(4):
        log.append([(b"a", b"%d" % turn, T), (b"b%d" % turn, b"1", T)])
        made(log, to)
    now = iceberg_table(to).current_snapshot().timestamp_ms
    left = to / "data" / "00000-0123456789abcdef.parquet"
    left.write_bytes(b"of a run that died")
    foreign = to / "data" / "mine.parquet"
    foreign.write_bytes(b"")
    before = values(to)
    made(log, to, now_ms=now + DAY // 2)
    assert left.exists() and len(iceberg_table(to).snapshots()) == 4
    report = made(log, to, now_ms=now + 6 * DAY)
    assert report.tidied > 3 and not left.exists() and foreign.exists()
    assert len(iceberg_table(to).snapshots()) == 1 and values(to) == before
    log.append([(b"c", b"1", T)])
    assert made(log, to).how == "updated" and len(values(to)) == 6


@pytest.mark.long
def test_failure_at_every_step_leaves_the_old_table_or_the_new(
    log: GrowingLog, tmp_path: Path
) -> None:
    """Each file operation and all after it fail, in turn."""
    to, copy = tmp_path / "table", tmp_path / "copy"
    log.append([(b"k%d" % n, b"0", T) for n in range(20)])
    made(log, to, buckets=2)
    old = values(to)
    log.append([(b"k1", None, T), (b"k2", b"1", T), (b"new", b"1", T)])
    new = {**old, b"k2": b"1", b"new": b"1"}
    del new[b"k1"]
    shutil.copytree(to, copy)
    point, outcomes = 0, []
    while True:
        point += 1
        shutil.rmtree(to)
        shutil.copytree(copy, to)
        faults = FaultPoints(point, 5)
        with mock.patch.object(files, "faults", faults):
            try:
                made(log, to)
            except Exception as error:
                assert "Input/output" in str(error), error
        found = values(to)
        assert found in (old, new)
        outcomes.append(found == new)
        made(log, to)
        assert values(to) == new
        table = iceberg_table(to).scan().to_arrow()
        head = IcebergFormat(str(to), "t").head()
        assert head is not None and head.state is not None
        assert head.state.checksum == checksum(table)
        if faults.passed < point:
            break
    assert outcomes == sorted(outcomes) and not outcomes[0] and outcomes[-1]
    assert len(outcomes) > 15


def test_table_uses_an_external_catalog(log: GrowingLog, tmp_path: Path) -> None:
    log.append([(b"a", b"1", T)])
    with pytest.raises(InvalidConfig, match="needs a catalog"):
        lastwrite.table_to(str(log.root), "t", to="s3://lake/orders", format="iceberg")
    uri = f"sqlite:///{tmp_path}/shared.db"
    place = tmp_path / "place"
    assert made(log, place, catalog=uri).how == "made"
    log.append([(b"a", None, T), (b"b", b"2", T)])
    assert made(log, place, catalog=uri).how == "updated"
    catalog = load_catalog("lastwrite", type="sql", uri=uri)
    found = catalog.load_table(("lastwrite", "t")).scan().to_arrow()
    assert list(rows_of(found)) == [b"b"] and not (place / "catalog.db").exists()
