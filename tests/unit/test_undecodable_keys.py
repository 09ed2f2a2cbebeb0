"""Tests of undecodable keys in tables and in ``follow``, and of their errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pip install 'lastwrite[frames]'")
pytest.importorskip("deltalake", reason="pip install 'lastwrite[tables]'")

import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from deltalake import DeltaTable  # noqa: E402

import lastwrite  # noqa: E402
from lastwrite.errors import BadValue  # noqa: E402
from tests.support.kafka.growing import GrowingLog  # noqa: E402
from tests.support.tables.judges import iceberg_table, parquet_files  # noqa: E402

BAD = b"\xff\xfe"
FORMATS = ["iceberg", "delta", "parquet"]


class Kept:
    """A table with text keys that follows a log."""

    def __init__(self, root: Path, format: str, **options: Any) -> None:
        self.log = GrowingLog(root / "logs")
        self.log.append([(b"a", b"1", 5), (b"b", b"1", 5)])
        self.place, self.format = str(root / "table"), format
        self.options = {"key_format": "utf8", **options}

    def run(self, **options: Any) -> Any:
        return lastwrite.table_to(
            str(self.log.root), "t", to=self.place, format=self.format, **self.options, **options
        )

    def rows(self, *columns: str) -> list[Any]:
        if self.format == "iceberg":
            table = iceberg_table(Path(self.place)).scan().to_arrow()
        elif self.format == "delta":
            table = pa.table(DeltaTable(self.place).to_pyarrow_table())
        else:
            table = pa.concat_tables(map(pq.read_table, parquet_files(Path(self.place))))
        return sorted(zip(*(table[name].to_pylist() for name in columns), strict=True), key=str)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("on_bad", ["fail", "null", "aside"])
def test_deleted_undecodable_key_stops_no_run(tmp_path: Path, format: str, on_bad: str) -> None:
    given = {"bad_to": str(tmp_path / "aside")} if on_bad == "aside" else {}
    kept = Kept(tmp_path, format, on_bad=on_bad, **given)
    kept.run()
    kept.log.append([(BAD, None, 6), (b"b", None, 6)])
    assert kept.run().rows == 1
    assert kept.rows("key") == [("a",)]
    assert not (tmp_path / "aside").exists()


@pytest.mark.parametrize("format", FORMATS)
def test_null_option_gives_a_row_that_a_delete_removes(tmp_path: Path, format: str) -> None:
    kept = Kept(tmp_path, format, on_bad="null")
    kept.log.append([(BAD, b"2", 6), (b"\xfd", b"3", 6)])
    assert kept.run().rows == 4
    reason = "key: not UTF-8, at byte 0 of the text"
    assert kept.rows("key", "_key", "_error") == [
        ("a", b"a", None),
        ("b", b"b", None),
        (None, b"\xfd", reason),
        (None, BAD, reason),
    ]
    assert not lastwrite.verify_table(str(kept.log.root), kept.place, topic="t").differences
    kept.log.append([(BAD, None, 7), (b"a", b"4", 7)])
    assert kept.run().rows == 3
    # from now on the table compares keys by their bytes, whatever option a run has
    kept.log.append([(b"\xfd", None, 8)])
    kept.options["on_bad"] = "fail"
    assert kept.run().rows == 2
    assert kept.rows("key", "_key", "value") == [("a", b"a", b"4"), ("b", b"b", b"1")]


@pytest.mark.parametrize("format", FORMATS)
def test_aside_option_omits_the_record(tmp_path: Path, format: str) -> None:
    kept = Kept(tmp_path, format, on_bad="aside", bad_to=str(tmp_path / "aside"))
    kept.run()
    kept.log.append([(BAD, b"2", 6)])
    assert kept.run().rows == 2
    (file,) = (tmp_path / "aside").iterdir()
    (row,) = pq.read_table(file).to_pylist()
    assert (row["key"], row["value"], row["offset"]) == (BAD, b"2", 2)
    assert "not UTF-8" in row["error"]


def test_fail_option_names_the_record_and_a_working_remedy(tmp_path: Path) -> None:
    kept = Kept(tmp_path, "parquet")
    kept.run()
    kept.log.append([(BAD, b"2", 6)])
    with pytest.raises(BadValue, match="t-0: offset 2, key: not UTF-8, at byte 0") as caught:
        kept.run()
    assert "on_bad=null" in str(caught.value)
    # a table that was created without the keys' bytes cannot store them
    kept.options["on_bad"] = "null"
    with pytest.raises(BadValue, match="offset 2, key: .*--anew") as caught:
        kept.run()
    assert "on_bad=null" not in str(caught.value)
    assert kept.run(anew=True).rows == 3
    assert kept.rows("key", "_key") == [("a", b"a"), ("b", b"b"), (None, BAD)]


def test_follow_continues_after_the_key_is_deleted(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path)
    log.append([(b"a", b"1", 5)])
    table = lastwrite.table(tmp_path, "t", key_format="utf8")
    log.append([(BAD, b"2", 6)])
    with pytest.raises(BadValue, match="t-0: offset 1, key"):
        list(table.follow(poll_s=None))
    log.append([(BAD, None, 7), (b"a", b"2", 7)])
    (batch,) = table.follow(poll_s=None)
    assert [(row["key"], row["value"]) for row in batch.to_pylist()] == [("a", b"2")]
