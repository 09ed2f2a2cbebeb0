"""Tests of tables that outgrow their buckets.

They get more buckets with the same rows, within the memory setting.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake", reason="pip install 'lastwrite[tables]'")
pytest.importorskip("pyiceberg", reason="pip install 'lastwrite[tables]'")

import lastwrite
from lastwrite.demo.topic_writer import TopicWriter
from lastwrite.encoding.compression import Codec
from lastwrite.model.log import TopicPartition
from lastwrite.model.progress import NoProgress
from lastwrite.reports.table_round import TableRound
from lastwrite.tables.rebucket import buckets_after
from tests.support.kafka.growing import GrowingLog
from tests.support.tables.judges import readings
from tests.tables.rounds import FORMATS, VECTORS

T = 1_700_000_000_000
MEMORY = "3m"  # rows that make a bucket of about 1 MiB
VALUE = b"v" * 90


class Notes(NoProgress):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def append(log: GrowingLog, model: dict[bytes, bytes], first: int, end: int, value: bytes) -> None:
    for at in range(first, end, 1000):
        keys = [b"key-%06d" % n for n in range(at, min(at + 1000, end))]
        log.append([(key, value, T + log.end) for key in keys])
        model.update(dict.fromkeys(keys, value))


def delete(log: GrowingLog, model: dict[bytes, bytes], numbers: range) -> None:
    keys = [b"key-%06d" % n for n in numbers]
    log.append([(key, None, T + log.end) for key in keys])
    for key in keys:
        model.pop(key, None)


@pytest.mark.parametrize("format", FORMATS)
def test_growing_table_gets_more_buckets(format: str, tmp_path: Path) -> None:
    log, to, model = GrowingLog(tmp_path), tmp_path / format, dict[bytes, bytes]()
    notes = Notes()
    plain = format.removesuffix(VECTORS)

    def bring_up() -> Any:
        made = lastwrite.table_to(
            str(tmp_path),
            "t",
            to=str(to),
            format=plain,
            vectors=plain != format,
            memory=MEMORY,
            progress=notes,
        )
        for name, rows in readings(format, to):
            assert rows == model, f"{name} differs"
        proof = lastwrite.verify_table(str(tmp_path), str(to), topic="t", format=plain)
        assert proof.is_proven and proof.proven == len(model)
        return made

    append(log, model, 0, 2_000, VALUE)
    assert bring_up().buckets == 1
    delete(log, model, range(0, 300, 7))  # deleted rows are not moved to other buckets
    bring_up()
    append(log, model, 1_900, 45_000, VALUE[::-1] + b"!")
    delete(log, model, range(1, 1_000, 9))
    made = bring_up()
    assert made.how == "updated" and made.buckets == 16
    assert notes.said == [
        "the table has outgrown its 1 buckets; Lastwrite distributes the rows over 16 buckets"
    ]
    append(log, model, 10, 20, b"later")
    assert bring_up().buckets == 16 and len(notes.said) == 1


def test_requested_number_of_buckets_is_kept(tmp_path: Path) -> None:
    log, model = GrowingLog(tmp_path), dict[bytes, bytes]()
    for first, end in ((0, 1_000), (1_000, 40_000)):
        append(log, model, first, end, VALUE)
        to = str(tmp_path / "table")
        made = lastwrite.table_to(
            str(tmp_path), "t", to=to, format="parquet", memory=MEMORY, buckets=2
        )
        assert made.buckets == 2 and made.rows == len(model)


def test_offsets_without_records_do_not_count(tmp_path: Path) -> None:
    """A compacted log has few records in a wide range of offsets, but they have the usual size."""
    log, model = GrowingLog(tmp_path), dict[bytes, bytes]()
    for first in range(0, 30_000, 1_000):
        append(log, model, first, first + 1_000, VALUE)
        log.end += 1_000_000
    made = lastwrite.table_to(
        str(tmp_path), "t", to=str(tmp_path / "table"), format="parquet", memory=MEMORY
    )
    assert made.rows == 30_000 and made.buckets == 4


@pytest.mark.parametrize(
    ("buckets", "table_mib", "after"),
    [(1, 1, 1), (1, 2, 1), (1, 3, 8), (4, 8, 4), (4, 9, 32), (64, 1, 64), (1, 1000, 2048)],
)
def test_bucket_count_quadruples_or_stays(buckets: int, table_mib: int, after: int) -> None:
    assert buckets_after(buckets, table_mib << 20, 1 << 20) == after


@pytest.mark.parametrize("format", ["iceberg", "delta", "parquet"])
def test_number_of_buckets_follows_the_rows_of_a_compressed_log(
    tmp_path: Path, format: str
) -> None:
    """A bucket is held in memory as rows, whatever the size of their batches on disk."""
    name = TopicPartition("t", 0)
    with TopicWriter(str(tmp_path / "log"), name, codec=Codec.GZIP) as topic:
        for n in range(40):
            topic.append(b"k%d" % n, bytes(300_000), 1_700_000_000_000)
    to = str(tmp_path / "table")

    def run(**options: Any) -> TableRound:
        return lastwrite.table_to(str(tmp_path / "log"), "t", to=to, memory="64m", **options)

    made = run(format=format)
    assert made.buckets >= 4 and made.rows == 40
    assert run().how == "unchanged"
    assert lastwrite.verify_table(str(tmp_path / "log"), to).is_proven
    assert run(anew=True, buckets=1).buckets == 1
