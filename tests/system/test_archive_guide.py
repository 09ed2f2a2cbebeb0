"""Tests of the commands in ``docs/guide/archives.md``.

The archive is in a real S3 server, and the cluster's workers share no folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.support.cluster import SECONDS, cluster_in
from tests.support.objects import BUCKET, s3_server
from tests.system.test_killed_starts import NAME

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.broker]
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guide" / "archives.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.long
def test_guide_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (walk,) = re.findall(
        r"^## The whole way.*?(?=^## )", PAGE.read_text(), re.DOTALL | re.MULTILINE
    )
    (_, given), *blocks, (_, shown) = BLOCK.findall(walk)
    for name in [name for name in os.environ if name.startswith(("SPARK_", "PYSPARK_"))]:
        monkeypatch.delenv(name)
    for folder in ("t", "home"):
        (tmp_path / folder).mkdir()
    mark = uuid.uuid4().hex
    monkeypatch.setenv(NAME, mark)
    with s3_server(tmp_path / "s3", BUCKET) as s3:
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        with cluster_in(tmp_path / "cluster", mark) as cluster:
            cluster.add_worker([tmp_path / "home"])
            values = {"BUCKET": f"s3://{BUCKET}", "MASTER": cluster.url}
            lines = given.splitlines()
            assert {line.partition("=")[0] for line in lines} >= {f"export {n}" for n in values}
            begin = [*lines, *(f"export {name}={value}" for name, value in values.items())]
            script = "\n".join(["set -eu", *begin, *(_as_shell(*block) for block in blocks)])
            done = subprocess.run(
                ["sh", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=2 * SECONDS
            )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == shown.strip()


def _as_shell(language: str, code: str) -> str:
    return f"python - <<'END'\n{code}END\n" if language == "python" else code
