"""Tests of the table formats: head, commit, conflicts, and damage that is reported by name."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="pip install 'lastwrite[frames]'")
pytest.importorskip("deltalake", reason="pip install 'lastwrite[tables]'")

import pyarrow.parquet as pq  # noqa: E402
from deltalake import DeltaTable as Loaded  # noqa: E402

from lastwrite.errors import (  # noqa: E402
    CorruptLog,
    InvalidConfig,
    LogHeld,
    RemoteFailed,
    UnsupportedFormat,  # noqa: E402
)
from lastwrite.storage.objects.store import Version  # noqa: E402
from lastwrite.tables.delta import DeltaTable  # noqa: E402
from lastwrite.tables.format import Head, TableFormat  # noqa: E402
from lastwrite.tables.parquet import CURRENT, ParquetTable  # noqa: E402
from tests.support.tables.made import SCHEMA, become, state  # noqa: E402

FORMATS: list[Callable[[str], Any]] = [ParquetTable, DeltaTable]
ROWS = {b"a": b"1", b"b": b"2", b"c": b"3", b"d": b"4"}
each_format = pytest.mark.parametrize("format", FORMATS, ids=["parquet", "delta"])
Format = Callable[[str], Any]


def rows_of(head: Head | None) -> dict[bytes, bytes]:
    assert head is not None
    tables = [pq.ParquetFile(file.path).read(["key", "value"]) for file in head.files]
    return {row["key"]: row["value"] for table in tables for row in table.to_pylist()}


def existing(root: Path) -> set[str]:
    return {str(path) for path in root.rglob("*") if path.is_file() and path.suffix != ".lock"}


@each_format
def test_table_is_created_and_changed(format: Format, tmp_path: Path) -> None:
    table: TableFormat = format(str(tmp_path / "t"))
    assert table.head() is None
    made = become(table, None, ROWS, 4)
    assert made == table.head() and made.state == state(4, 4) and made.schema == SCHEMA
    changed = ROWS | {b"a": b"5", b"e": b"6"}
    del changed[b"b"]
    now = become(table, made, changed, 7, touched=(1, 2))
    assert now == format(str(tmp_path / "t")).head()
    assert rows_of(now) == changed and now.state == state(7, 4)
    assert {file.path for file in made.files} & {file.path for file in now.files}
    nothing = become(table, now, {}, 9)
    assert nothing.files == () and table.head() == nothing


@each_format
def test_commit_on_an_outdated_head_is_refused(format: Format, tmp_path: Path) -> None:
    table = format(str(tmp_path))
    made = become(table, None, ROWS, 4)
    now = become(table, made, ROWS | {b"a": b"other"}, 5, touched=(1,))
    for head in (None, made):
        with pytest.raises(LogHeld, match="let only one program write the table") as caught:
            become(format(str(tmp_path)), head, {b"x": b"wrong"}, 9)
        assert caught.value.exit_status == 4
    assert table.head() == now


@each_format
def test_one_of_several_concurrent_writers_wins(format: Format, tmp_path: Path) -> None:
    head = become(format(str(tmp_path)), None, ROWS, 4)
    won: list[int] = []

    def write(number: int) -> None:
        try:
            become(format(str(tmp_path)), head, ROWS | {b"a": b"%d" % number}, 5 + number, (1,))
        except LogHeld:
            return
        won.append(number)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    (number,) = won
    assert rows_of(format(str(tmp_path)).head()) == ROWS | {b"a": b"%d" % number}


class Deaf:
    """A store that loses the responses to some writes."""

    def __init__(self, store: Any, said: list[str]) -> None:
        self._store, self._said = store, said

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _answer(self, do: Callable[[], Version | None]) -> Version | None:
        said = self._said.pop(0) if self._said else "all is well"
        if said == "lost on its way":
            return None
        made = do()
        if said == "no answer":
            raise RemoteFailed("no answer")
        return None if said == "an odd answer" else made

    def create(self, key: str, content: bytes) -> Version | None:
        return self._answer(lambda: self._store.create(key, content))

    def replace(self, key: str, content: bytes, seen: Version) -> Version | None:
        return self._answer(lambda: self._store.replace(key, content, seen))


@each_format
@pytest.mark.parametrize("said", ["lost on its way", "no answer", "an odd answer"])
def test_lost_response_to_a_commit_is_resolved_by_reading(
    format: Format, said: str, tmp_path: Path
) -> None:
    table = format(str(tmp_path))
    head = become(table, None, ROWS, 4)
    for place in range(2):
        changed = ROWS | {b"a": b"%d" % place}
        table._place.store = Deaf(table._place.store, ["all is well"] * place + [said])
        head = become(table, head, changed, 5 + place, touched=(1,))
        assert rows_of(format(str(tmp_path)).head()) == changed


def test_lost_response_is_resolved_after_a_later_commit(tmp_path: Path) -> None:
    table = ParquetTable(str(tmp_path))
    head = become(table, None, ROWS, 4)

    class Slow(Deaf):
        def replace(self, key: str, content: bytes, seen: Version) -> Version | None:
            assert self._store.replace(key, content, seen) is not None
            other = ParquetTable(str(tmp_path))
            become(other, other.head(), ROWS | {b"b": b"later"}, 9, touched=(2,))
            return None

    table._place.store = Slow(table._place.store, [])  # type: ignore[assignment]
    become(table, head, ROWS | {b"a": b"ours"}, 5, touched=(1,))
    assert rows_of(ParquetTable(str(tmp_path)).head()) == ROWS | {b"a": b"ours", b"b": b"later"}


@each_format
def test_unreferenced_files_are_no_longer_needed(format: Format, tmp_path: Path) -> None:
    table = format(str(tmp_path))
    head = become(table, None, ROWS, 0)
    for offset in range(1, 24):
        head = become(table, head, ROWS | {b"a": b"%d" % offset}, offset, touched=(1,))
        assert table.expire(0) == 0
    assert existing(tmp_path) - table.named() == set(), "all that was is named"
    now_ms = time.time_ns() // 1_000_000
    forgotten = table.expire(now_ms + 1000)
    assert forgotten >= 13 and table.expire(now_ms + 1000) == 0
    loose = existing(tmp_path) - table.named()
    assert len(loose) >= (10 if isinstance(table, DeltaTable) else 23)
    for path in loose:
        Path(path).unlink()
    assert format(str(tmp_path)).head() == head
    assert rows_of(head) == ROWS | {b"a": b"23"}
    assert become(table, head, ROWS, 24) == format(str(tmp_path)).head()


@each_format
def test_columns_are_added(format: Format, tmp_path: Path) -> None:
    table = format(str(tmp_path))
    head = become(table, None, ROWS, 4)
    more = SCHEMA.append(pa.field("price", pa.float64()))
    head = become(table, head, ROWS | {b"a": b"5"}, 5, touched=(1,), schema=more)
    assert head.schema == more and table.head() == head


def test_schema_that_delta_cannot_represent_is_refused(tmp_path: Path) -> None:
    table = DeltaTable(str(tmp_path))
    with pytest.raises(InvalidConfig, match="cannot have a column named 'a b'"):
        table.file_schema(None, pa.schema([("a b", pa.int32())]))
    with pytest.raises(InvalidConfig, match="cannot have columns of these types"):
        table.file_schema(None, pa.schema([("a", pa.duration("us"))]))
    head = become(table, None, ROWS, 4, schema=SCHEMA.append(pa.field("at", pa.timestamp("us"))))
    assert table.head() == head and Loaded(str(tmp_path)).to_pyarrow_table().num_rows == 4


def test_other_writers_may_optimise_a_delta_table_but_not_change_it(tmp_path: Path) -> None:
    table = DeltaTable(str(tmp_path))
    head = become(table, None, ROWS | {b"e": b"5"}, 4)
    other = Loaded(str(tmp_path))
    other.optimize.z_order(["key"])
    now = table.head()
    assert now is not None and now.state == head.state and now.token != head.token
    assert rows_of(now) == ROWS | {b"e": b"5"}
    assert {file.bucket for file in now.files} == {file.bucket for file in head.files}
    with pytest.raises(LogHeld):
        become(table, head, ROWS, 5)
    now = become(table, now, ROWS, 5)
    Loaded(str(tmp_path)).delete("_offset = 5 and _bucket = 1")
    with pytest.raises(UnsupportedFormat, match="rebuild the table"):
        table.head()


def test_delta_transactions_record_the_offsets(tmp_path: Path) -> None:
    become(DeltaTable(str(tmp_path)), None, ROWS, 4)
    assert Loaded(str(tmp_path)).transaction_version("lastwrite:an-id:orders-0") == 4


def test_damage_is_named(tmp_path: Path) -> None:
    table = ParquetTable(str(tmp_path))
    head = become(table, None, ROWS, 4)
    (tmp_path / head.token).rename(tmp_path / "aside")
    with pytest.raises(CorruptLog, match="manifest-1-.*restore the manifest from a copy"):
        table.head()
    (tmp_path / head.token).write_text("{")
    with pytest.raises(CorruptLog, match="manifest-1-.*manifest is damaged"):
        table.head()
    (tmp_path / CURRENT).write_text("../../etc/passwd")
    with pytest.raises(CorruptLog, match="not the name of a manifest"):
        table.head()
    delta = DeltaTable(str(tmp_path / "d"))
    become(delta, None, ROWS, 4)
    (tmp_path / "d" / "_delta_log" / f"{0:020}.json").write_text("{")
    with pytest.raises(CorruptLog, match="/d: "):
        delta.head()
