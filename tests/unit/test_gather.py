"""Tests of records as columns, against the same bytes decoded record by record."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="pip install 'lastwrite[frames]'")

from lastwrite.errors import CorruptLog, InvalidConfig  # noqa: E402
from lastwrite.kafka.format.batch import decode_batch  # noqa: E402
from lastwrite.kafka.format.batch_layout import Batch, Record  # noqa: E402
from lastwrite.kafka.look.columns import ROWS  # noqa: E402
from lastwrite.kafka.look.problems import whole_batches  # noqa: E402
from lastwrite.kafka.look.read import AbortedData  # noqa: E402
from lastwrite.kafka.store.log_dir import read_partition  # noqa: E402
from lastwrite.kafka.store.partitions import find_partitions  # noqa: E402
from lastwrite.model.log import PartitionLog  # noqa: E402
from lastwrite.model.work import Limits  # noqa: E402
from lastwrite.rows.arrow import COLUMNS, arrow_schema, chosen_columns  # noqa: E402
from lastwrite.rows.reading import read_rows, row_units  # noqa: E402
from lastwrite.storage.problems import BATCH_LIMIT_BYTES  # noqa: E402

CORPUS = Path(__file__).parents[1] / "corpus"
ROOTS = [CORPUS / "kafka-4.4.0" / "stopped", *sorted((CORPUS / "old-formats").iterdir())]
FOLDERS = [
    folder for root in ROOTS if root.is_dir() for folder in find_partitions(str(root), None, None)
]
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def expected(log: PartitionLog, first: int, end: int, is_committed: bool) -> list[dict[str, Any]]:
    """A slow model that builds one row for each record."""
    aborted, rows = AbortedData(log), []
    for segment in log.segments:
        for _, _, data in whole_batches(segment, lambda problem: None):
            batch = decode_batch(data, 0, BATCH_LIMIT_BYTES)
            if batch.attributes.control or (is_committed and aborted.has(batch)):
                continue
            for record in batch.records:
                if first <= record.offset < end:
                    rows.append(_row(log, batch, record))
    return rows


def _row(log: PartitionLog, batch: Batch, record: Record) -> dict[str, Any]:
    time_type = 1 if batch.attributes.append_time else 0
    return {
        "key": record.key,
        "value": record.value,
        "topic": log.name.topic,
        "partition": log.name.partition,
        "offset": record.offset,
        "timestamp": EPOCH + datetime.timedelta(milliseconds=record.timestamp_ms),
        "timestampType": -1 if batch.header.magic == 0 else time_type,
        "headers": [{"key": name.decode(), "value": value} for name, value in record.headers]
        or None,
    }


def rows(log: PartitionLog, **asked: Any) -> list[dict[str, Any]]:
    limits = asked.pop("limits", None)
    units = row_units(ROWS, log, asked.pop("columns", COLUMNS), **asked)
    return [row for unit in units for batch in read_rows(unit, limits) for row in batch.to_pylist()]


@pytest.mark.parametrize("is_committed", [True, False])
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: "/".join(folder.split("/")[-2:]))
def test_columns_equal_the_records(folder: str, is_committed: bool) -> None:
    log = read_partition(folder)
    end = log.last_stable_offset if is_committed else log.high_watermark
    found = rows(log, is_committed=is_committed)
    assert found == expected(log, log.log_start, end, is_committed)
    low, high = log.log_start + (end - log.log_start) // 3, end - 2
    part = rows(log, is_committed=is_committed, first=low, end=high, piece_bytes=600)
    assert part == [row for row in found if low <= row["offset"] < high]


def test_corpus_contains_all_kinds_of_records() -> None:
    """The test above needs all of them in the corpus."""
    found = [row for folder in FOLDERS for row in rows(read_partition(folder), is_committed=False)]
    for column in ("key", "value", "headers"):
        assert {row[column] is None for row in found} == {True, False}
    assert {row["timestampType"] for row in found} == {-1, 0, 1}
    assert any(header["value"] is None for row in found for header in row["headers"] or ())


def test_chosen_columns_keep_the_requested_order() -> None:
    (folder,) = (folder for folder in FOLDERS if folder.endswith("stopped/client-lz4-0"))
    log = read_partition(folder)
    (unit,) = row_units(ROWS, log, ("offset", "key"), is_committed=True)[:1]
    batch = next(read_rows(unit))
    assert batch.schema == arrow_schema(("offset", "key"))
    assert batch.schema.names == ["offset", "key"]


def test_unknown_or_repeated_column_is_refused() -> None:
    assert chosen_columns(None) == COLUMNS[:-1]
    for wrong in (["offset", "offset"], ["nothing"], []):
        with pytest.raises(InvalidConfig):
            chosen_columns(wrong)


def test_damage_is_an_error_with_path_and_byte(tmp_path: Path) -> None:
    (folder,) = (folder for folder in FOLDERS if folder.endswith("stopped/client-lz4-0"))
    log = read_partition(folder)
    broken = tmp_path / "client-lz4-0"
    broken.mkdir()
    for file in Path(folder).iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    path = broken / Path(log.segments[0].path).name
    data = bytearray(path.read_bytes())
    data[80] ^= 1
    path.write_bytes(data)
    (tmp_path / "replication-offset-checkpoint").write_text(
        f"0\n1\nclient-lz4 0 {log.high_watermark}\n"
    )
    with pytest.raises(CorruptLog) as caught:
        rows(read_partition(str(broken)), is_committed=False, limits=Limits())
    assert caught.value.path == str(path)
    assert caught.value.at == 17
