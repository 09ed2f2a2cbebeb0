"""``verify`` on a real Spark session says what it says without one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import lastwrite
from lastwrite.pipeline.inline import INLINE
from lastwrite.pipeline.session import spark_session
from tests.system.test_spark import NOW, make_root

pytestmark = pytest.mark.spark


def test_spark_finds_what_is_found_without_it(tmp_path: Path) -> None:
    before = make_root(tmp_path / "before")
    after = tmp_path / "after"
    shutil.copytree(before, after)
    config = {"segment.bytes": 3000, "min.cleanable.dirty.ratio": 0}
    lastwrite.compact(str(after), config=config, now_ms=NOW, spark=INLINE)
    # t-0 stays right; of t-1 the last batch of the first segment is cut off; in t-2 a byte is flipped.
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
