"""Properties of tables on disk, compared with a dictionary.

Between two updates, records are appended, segments are rolled and rounds run.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lastwrite
from lastwrite.spark.inline import Inline
from tests.support.kafka.growing import GrowingLog, Written

pytest.importorskip("pyiceberg", reason="pip install 'lastwrite[tables]'")

from lastwrite.tables import update  # noqa: E402
from lastwrite.tables.iceberg import IcebergFormat  # noqa: E402
from tests.property.test_follow import folded  # noqa: E402
from tests.support.tables.iceberg import Row, checksum, iceberg_table, rows_of  # noqa: E402

CLEAN = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "delete.retention.ms": 0}
KEYS = [f"key-{n}".encode() for n in range(40)]
RECORDS = st.lists(
    st.tuples(st.sampled_from(KEYS), st.sampled_from([None, b"1", b"2", b"3"])), max_size=12
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 1), st.integers(-3, 3), RECORDS),
        st.tuples(
            st.sampled_from(["roll", "compact", "look", "look"]),
            st.integers(0, 1),
            st.just(0),
            st.just([]),
        ),
    ),
    max_size=16,
)
Steps = list[tuple[str, int, int, list[tuple[bytes, bytes | None]]]]


def check(root: Path, to: Path, model: dict[bytes, bytes] | None, small_bytes: int) -> str:
    """Update the table and compare it. With ``model`` None, only with the log's last writes."""
    with mock.patch.object(update, "_SMALL_BYTES", small_bytes):
        report = lastwrite.table_to(root, "t", to=to, buckets=None if to.exists() else 2)
    found = iceberg_table(to).scan().to_arrow()
    rows = rows_of(found)
    values = {key: row.value for key, row in rows.items()}
    if model is not None:
        assert values == model
    if report.how != "unchanged":
        with lastwrite.table(root, "t") as now:
            last = {
                row["key"]: Row(row["value"], row["partition"], row["offset"])
                for row in now.to_arrow().to_pylist()
            }
            assert rows == last
            assert report.offsets == now.end_offsets
    head = IcebergFormat(str(to), "t").head()
    assert head is not None and head.state is not None
    assert report.rows == head.state.rows == len(rows)
    assert head.state.checksum == checksum(found)
    return report.how


@settings(deadline=None, max_examples=15)
@given(STEPS, st.integers(1, 2), st.booleans(), st.sampled_from([0, 4 << 20]))
def test_table_equals_the_dictionary(
    steps: Steps, partitions: int, apart: bool, small: int
) -> None:
    """With ``apart``, no two partitions have the same key."""
    with tempfile.TemporaryDirectory() as folder:
        root, to = Path(folder, "log"), Path(folder, "table")
        root.mkdir()
        logs = [GrowingLog(root, n) for n in range(partitions)]
        writes: list[list[Written]] = [[] for _ in logs]
        now = 1_700_000_000_000
        for n, (log, own) in enumerate(zip(logs, writes, strict=True)):
            own += [(key + b"/%d" % n * apart, b"0", now) for key in KEYS]
            log.append(own)
        # If a key is in several partitions, compacting a delete away can restore an older write.
        has_model = apart or partitions == 1

        def look() -> None:
            check(root, to, folded(writes) if has_model else None, small)

        look()
        for what, number, late, records in steps:
            number %= partitions
            if what == "append":
                now += 2
                some: list[Written] = [
                    (key + b"/%d" % number * apart, value, now + late) for key, value in records
                ]
                writes[number] += some
                logs[number].append(some)
            elif what == "roll":
                logs[number].roll()
            elif what == "compact":
                lastwrite.compact(str(root), topic="t", config=CLEAN, spark=Inline())
            else:
                look()
        look()
