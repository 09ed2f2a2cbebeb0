"""Tests of a query whose files a cleaner replaces between planning and reading.

It returns all planned rows, or raises an error with the file and the remedy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pip install 'lastwrite[frames]'")
pytest.importorskip("pyspark.sql.streaming.datasource", reason="limits came with PySpark 4.2")

import lastwrite  # noqa: E402
from lastwrite.commands import table as table_command  # noqa: E402
from lastwrite.errors import CommitConflict  # noqa: E402
from lastwrite.rows import last_writes  # noqa: E402
from lastwrite.source.reader import DefaultSource  # noqa: E402
from lastwrite.spark.inline import INLINE  # noqa: E402
from tests.unit.test_source_filters import SCHEMA  # noqa: E402
from tests.unit.test_stream import ALL, Root, asked, shown  # noqa: E402

CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}


def clean(path: Path | str, **config: Any) -> None:
    report = lastwrite.compact(str(path), topic="t", spark=INLINE, config={**CONFIG, **config})
    assert [str(each.status) for each in report.partitions] == ["cleaned"], report


def batch(path: Path | str) -> tuple[Any, Any]:
    """A reader and the partitions of its plan."""
    reader = DefaultSource({"path": str(path), "subscribe": "t"}).reader(SCHEMA)
    return reader, reader.partitions()


def compacted(path: Path | str) -> tuple[Any, Any]:
    options = {"path": str(path), "subscribe": "t", "view": "compacted"}
    reader = DefaultSource(options).reader(SCHEMA)
    return reader, reader.partitions()


def stream(path: Path | str) -> tuple[Any, Any]:
    reader = asked(path, startingOffsets="earliest")
    return reader, reader.partitions(shown(0), reader.latestOffset(shown(0), ALL))


def read(planned: tuple[Any, Any]) -> int:
    reader, pieces = planned
    return sum(batch.num_rows for piece in pieces for batch in reader.read(piece))


@pytest.fixture
def root(tmp_path: Path) -> Root:
    made = Root(tmp_path / "logs")
    for records in (40, 30, 2):
        made.add("t-0", records)
    return made


WAYS = pytest.mark.parametrize("plan", [batch, compacted, stream])


@WAYS
def test_query_of_a_cleaned_folder_raises_or_is_complete(
    root: Root, plan: Callable[[Path | str], tuple[Any, Any]]
) -> None:
    before, again = plan(root.path), plan(root.path)
    whole = read(again)
    clean(root.path)
    with pytest.raises(CommitConflict, match="run the query again") as caught:
        read(before)
    assert str(caught.value.path).endswith(".log")
    assert 7 <= read(plan(root.path)) <= whole
    assert read(compacted(root.path)) == 7


@WAYS
def test_query_of_an_archive_raises_after_a_sweep(
    root: Root, tmp_path: Path, plan: Callable[[Path | str], tuple[Any, Any]]
) -> None:
    """The files that a round replaced are kept for a while. Then ``sweep`` deletes them."""
    archive = str(tmp_path / "archive")
    lastwrite.fetch([str(root.path)], archive, topic="t", include_active=True)
    before = plan(archive)
    whole = read(before)
    clean(archive, **{"storage.keepReplacedMs": 0})
    try:
        assert read(before) == whole
    except CommitConflict as error:
        assert error.path is not None and error.path.startswith(archive)
    lastwrite.sweep(archive, older_than_ms=0, everything=True, config={"storage.keepReplacedMs": 0})
    with pytest.raises(CommitConflict) as caught:
        read(before)
    assert str(caught.value.path).startswith(archive)
    assert read(plan(archive)) <= whole


def test_failed_update_leaves_a_table_unchanged(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round replaces a segment between listing and scan. The next update scans the new one."""
    table = lastwrite.table(root.path, "t")
    state = dict(table.items())
    root.add("t-0", 20)
    real, fails, turn = last_writes.add_places_of, [True], threading.Lock()

    def spoilt(*arguments: Any) -> None:
        with turn:
            if fails:
                fails.clear()
                raise CommitConflict("replaced", path="somewhere")
        real(*arguments)

    monkeypatch.setattr(last_writes, "add_places_of", spoilt)
    with pytest.raises(CommitConflict, match="replaced"):
        list(table.follow(poll_s=None))
    for batch in table.follow(poll_s=None):
        state |= {row["key"]: row["value"] for row in batch.to_pylist()}
    assert state == dict(table.items()) == dict(lastwrite.table(root.path, "t").items())
    assert table.end_offsets == {0: 92}


def test_repeated_update_still_reports_deleted_keys(
    root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.kafka.logs import encode_model, write_checkpoint, write_segment
    from tests.support.kafka.model import ModelBatch, ModelRecord

    table = lastwrite.table(root.path, "t")
    assert b"k2" in table
    gone = ModelRecord(72, 1072, b"k2", None)
    write_segment(
        root.path / "t-0",
        72,
        [encode_model(ModelBatch(72, 72, (gone,), 0, False, 1072, 1072))],
        200,
    )
    root.ends["t-0"] = 73
    for file in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        write_checkpoint(root.path, file, root.ends)
    root.add("t-0", 4)  # k3 to k6, so that the tombstone is no longer in the active segment
    later = 10_000_000_000_000
    for now_ms in (later, 2 * later, 3 * later):
        lastwrite.compact(
            str(root.path),
            topic="t",
            spark=INLINE,
            config={**CONFIG, "delete.retention.ms": 0},
            now_ms=now_ms,
        )
    assert b"k2" not in {
        row["key"] for row in lastwrite.table(root.path, "t").to_arrow().to_pylist()
    }
    real, tries = table_command.steady, []

    def twice(system: Any, listed: Any, made: Any) -> Any:
        tries.append(1)
        made(listed())  # a repeated attempt must not lose the findings of the first
        return real(system, listed, made)

    monkeypatch.setattr(table_command, "steady", twice)
    (*changes,) = table.follow(poll_s=None)
    told = {row["key"]: row["value"] for each in changes for row in each.to_pylist()}
    assert tries and told[b"k2"] is None
    assert b"k2" not in table
