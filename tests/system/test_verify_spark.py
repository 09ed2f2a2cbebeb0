"""Tests that ``verify`` on a real Spark session reports the same as without one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import lastwrite
from lastwrite.cli import run
from lastwrite.spark.inline import INLINE
from lastwrite.spark.session import spark_session
from tests.system.test_spark import NOW, make_root

pytestmark = pytest.mark.spark

STORE = Path(__file__).resolve().parents[1] / "corpus" / "rocketmq" / "5.5.0"
ROCKETMQ_NOW = 1_795_300_000_000


def test_spark_reports_the_same_as_the_inline_engine(tmp_path: Path) -> None:
    before = make_root(tmp_path / "before")
    after = tmp_path / "after"
    shutil.copytree(before, after)
    config = {"cleanup.policy": "compact", "segment.bytes": 3000, "min.cleanable.dirty.ratio": 0}
    lastwrite.compact(str(after), config=config, now_ms=NOW, spark=INLINE)
    # Log t-0 is intact. The first segment of t-1 lacks its last batch, and t-2 has a flipped byte.
    cut, flipped = (min((after / f"t-{n}").glob("*.log")) for n in (1, 2))
    data = cut.read_bytes()
    ends = [0]
    while ends[-1] < len(data):
        ends.append(ends[-1] + 12 + int.from_bytes(data[ends[-1] + 8 : ends[-1] + 12], "big"))
    cut.write_bytes(data[: ends[-2]])
    for kind in (".index", ".timeindex"):
        cut.with_suffix(kind).write_bytes(b"")
    flipped.write_bytes(flipped.read_bytes()[:-1] + b"?")
    with spark_session("local[2]", {}) as session:
        found = lastwrite.verify(str(after), before=str(before), now_ms=NOW, spark=session)
    expected = lastwrite.verify(str(after), before=str(before), now_ms=NOW, spark=INLINE)
    assert [str(p.status) for p in found.partitions] == ["verified", "broken", "damaged"]
    assert [p.to_dict() for p in found.partitions] == [p.to_dict() for p in expected.partitions]
    assert found.exit_status == 5


@pytest.mark.long
def test_rocketmq_store_has_the_same_report_on_spark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = shutil.copytree(STORE, tmp_path / "before")
    after = shutil.copytree(STORE, tmp_path / "after")
    lastwrite.compact(str(after), now_ms=ROCKETMQ_NOW, spark=INLINE)
    options = ["--now", str(ROCKETMQ_NOW), "--master", "local[2]"]
    assert run(["verify", str(after), str(before), *options]) == 0
    shown = capsys.readouterr().out
    assert "ctopic-1" in shown and "Everything is correct" in shown
    for folder in ("compaction/compactionLog/ctopic/0", "commitlog"):
        log = min((after / folder).iterdir())
        log.write_bytes(bytes([0xFF]) + log.read_bytes()[1:])
    with spark_session("local[2]", {}) as session:
        found = lastwrite.verify(
            str(after), before=str(before), now_ms=ROCKETMQ_NOW, spark=session
        ).to_dict()
    expected = lastwrite.verify(
        str(after), before=str(before), now_ms=ROCKETMQ_NOW, spark=INLINE
    ).to_dict()
    assert found["exit_status"] == 3 and found["store"]["status"] == "damaged"
    del found["seconds"], expected["seconds"]
    assert found == expected
