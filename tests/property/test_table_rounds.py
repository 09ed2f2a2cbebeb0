"""Properties of tables of all formats and systems: a short run of ``python -m tests.tables``.

Other programs read the tables after every round, and some runs are killed.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

for package in ("deltalake", "pyiceberg", "duckdb", "polars"):
    pytest.importorskip(package, reason="pip install 'lastwrite[test]'")

from tests.support.tables.topics import TOPICS  # noqa: E402
from tests.tables.rounds import play  # noqa: E402


@pytest.mark.parametrize("seed", range(3), ids=list(TOPICS))
def test_every_reader_gets_the_model(seed: int) -> None:
    met = play(seed, rounds=4)
    assert met["read by duckdb"] == 12 and met["read by delta-rs"] == 8
    assert met["read by pyiceberg"] == 8


@pytest.mark.slow
@pytest.mark.parametrize(
    "format",
    [
        "delta-vectors",
        pytest.param("delta", marks=pytest.mark.long),
        pytest.param("parquet", marks=pytest.mark.long),
        pytest.param("iceberg", marks=pytest.mark.long),
        pytest.param("iceberg-vectors", marks=pytest.mark.long),
    ],
)
def test_killed_run_leaves_the_old_table_or_the_new_one(format: str) -> None:
    command = [sys.executable, "-m", "tests.tables", "--kills", "10", "--as", format]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_spark_gets_the_model() -> None:
    command = [sys.executable, "-m", "tests.tables", "--seeds", "3", "--rounds", "6", "--spark"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("seed", [1, 2], ids=["rocketmq", "pulsar"])
def test_round_that_removes_the_beginning_of_the_log_is_followed(seed: int) -> None:
    """The new log start is above the table's offsets, but the table has missed no record."""
    assert play(seed, rounds=12, formats=["parquet"])["rounds of parquet compared"]
