"""Tests that ``verify_table`` finds each difference between a table and its topic, and names the
key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="pip install 'lastwrite[frames]'")

import lastwrite  # noqa: E402
from lastwrite.commands.verify_table import verify_table  # noqa: E402
from lastwrite.errors import CommitConflict, NotALog  # noqa: E402
from lastwrite.reports.table_proof import TableProof  # noqa: E402
from lastwrite.spark.inline import Inline  # noqa: E402
from lastwrite.tables.files import read_file, write_file  # noqa: E402
from lastwrite.tables.format import DataFile, Head, TableChange  # noqa: E402
from lastwrite.tables.parquet import ParquetTable  # noqa: E402
from tests.support.kafka.growing import GrowingLog  # noqa: E402

CLEAN = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": 0,
    "delete.retention.ms": 0,
    "max.keyless.ratio": 1,
}


@pytest.fixture
def log(tmp_path: Path) -> GrowingLog:
    (tmp_path / "log").mkdir()
    log = GrowingLog(tmp_path / "log")
    log.append([(b"k%d" % n, b"v%d" % n, 1000 + n) for n in range(20)])
    log.append([(b"k1", None, 2000), (b"k2", b"new", 2001), (None, b"keyless", 2002)])
    lastwrite.table_to(str(log.root), "t", to=str(tmp_path / "t"), format="parquet", buckets=2)
    return log


def proof(log: GrowingLog, **how: Any) -> TableProof:
    return verify_table(str(log.root), str(log.root.parent / "t"), **how)


def tamper(log: GrowingLog, change: Any) -> None:
    """Replace the rows of the file with k2 by ``change`` of them."""
    table = ParquetTable(str(log.root.parent / "t"))
    head = table.head()
    assert isinstance(head, Head) and head.state is not None
    for file in head.files:
        rows = read_file(file.path, file.size_bytes)
        found = rows.to_pylist()
        if any(row["key"] == b"k2" for row in found):
            made = pa.Table.from_pylist(change(found), schema=rows.schema)
            path = table.data_path(file.bucket, "tampered.parquet")
            written = write_file(path, made)
            new = DataFile(path, file.bucket, len(made), written.size_bytes, footer=written.footer)
            table.commit(head, TableChange([new], [file.path], {}, head.state, head.schema))
            return


def test_correct_table_is_proven(log: GrowingLog) -> None:
    found = proof(log)
    assert found.is_proven and (found.rows, found.proven, found.records) == (19, 19, 22)
    assert found.has_values and not found.unproven
    log.append([(b"k3", b"later", 3000), (b"new", b"later", 3001)])
    assert proof(log) == replace_records(found, 24)
    assert proof(log, memory="1k") == replace_records(found, 24)


def replace_records(found: TableProof, records: int) -> TableProof:
    return TableProof(**{**found.to_dict(), "records": records, "offsets": found.offsets})


def of_k2(**values: Any) -> Any:
    return lambda rows: [row | values if row["key"] == b"k2" else row for row in rows]


@pytest.mark.parametrize(
    ("kind", "key", "change"),
    [
        ("missing", "k2", lambda rows: [row for row in rows if row["key"] != b"k2"]),
        ("beyond", "zz", lambda rows: [*rows, rows[-1] | {"key": b"zz", "_offset": 3}]),
        ("beyond", "k1", lambda rows: [rows[0] | {"key": b"k1", "_offset": 1}, *rows]),
        ("older", "k2", of_k2(value=b"v2", _offset=2)),
        ("value", "k2", of_k2(value=b"v2")),
        ("twice", "k2", lambda rows: [*rows, *[row for row in rows if row["key"] == b"k2"]]),
    ],
)
def test_each_difference_is_named_with_its_key(
    log: GrowingLog, kind: str, key: str, change: Any
) -> None:
    tamper(log, change)
    found = proof(log)
    assert not found.is_proven and found.counts == {kind: 1}
    (difference,) = found.differences
    assert (difference.kind, difference.key) == (kind, key)
    assert found.is_state_right == (kind == "value")
    assert proof(log, limit=0).differences == []


def test_rows_superseded_by_a_later_round_are_unproven(log: GrowingLog) -> None:
    log.append([(b"k3", b"later", 3000), (b"k4", None, 3001)])
    log.roll()
    lastwrite.compact(str(log.root), topic="t", config=CLEAN, spark=Inline())
    found = proof(log)
    assert found.is_proven and (found.proven, found.unproven) == (17, 2)


def test_log_without_the_tables_offsets_is_refused(log: GrowingLog, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    GrowingLog(tmp_path / "other").append([(b"a", b"1", 5)])
    with pytest.raises(
        CommitConflict, match="the log lacks records .* that the table has, up to offset 23"
    ):
        verify_table(str(tmp_path / "other"), str(tmp_path / "t"))
    with pytest.raises(NotALog, match="the address has no table"):
        verify_table(str(log.root), str(tmp_path / "nowhere"), format="parquet")


def test_iceberg_table_is_found_by_its_path(log: GrowingLog, tmp_path: Path) -> None:
    """Also in a catalog with tables of other topics."""
    catalog = f"sqlite:///{tmp_path}/catalog.db"
    for place, given in (("here", None), ("a", catalog), ("b", catalog)):
        root = tmp_path / f"log-{place}"
        root.mkdir()
        GrowingLog(root).append([(place.encode(), b"1", 5)])
        if place == "b":
            (root / "t-0").rename(root / "other-0")
        lastwrite.table_to(str(root), to=str(tmp_path / f"of-{place}"), catalog=given)
    for place, given in (("here", None), ("a", catalog), ("b", catalog)):
        found = verify_table(
            str(tmp_path / f"log-{place}"), str(tmp_path / f"of-{place}"), catalog=given
        )
        assert found.is_proven and found.rows == 1
    with pytest.raises(NotALog, match="the address has no table"):
        verify_table(str(log.root), str(tmp_path / "nowhere"), catalog=catalog)
