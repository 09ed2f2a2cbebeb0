"""Tests of the demo on its sample and on small git repositories, whose trees are the expected
result.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import lastwrite
from lastwrite.cli import run
from lastwrite.demo.proof import prove, read_table
from lastwrite.demo.run import DemoReport, run_demo
from lastwrite.demo.sample_topic import SampleTopic
from lastwrite.demo.topic_writer import TopicWriter
from lastwrite.errors import EnvironmentUnfit, InvalidConfig, NotALog, VerificationFailed
from lastwrite.model.log import TopicPartition
from lastwrite.reports.compaction import Status
from lastwrite.spark.inline import INLINE
from tests.support.git_repository import Repository, needs_git
from tests.system.test_git_history import (
    HISTORIES,
    merged,
    paths_of_any_bytes,
    rewritten_and_deleted,
)

NOW_MS = 1_700_000_000_000
REPOSITORY = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("LASTWRITE_DATA", REPOSITORY.parent / "shared" / "data"))


@pytest.mark.spark
def test_sample_needs_neither_git_nor_a_repository(tmp_path: Path) -> None:
    """In an empty folder without git: first text for people, then JSON for programs."""
    (tmp_path / "empty").mkdir()
    command = [sys.executable, "-m", "lastwrite.cli", "demo", "--master", "local[1]"]
    broken_git = tmp_path / "tools" / "git"
    broken_git.parent.mkdir()
    broken_git.write_text("#!/bin/sh\nexit 1\n")
    broken_git.chmod(0o755)
    environment = os.environ | {"PATH": f"{broken_git.parent}:{os.environ['PATH']}"}
    for more, shown in (["--keep", "kept"], "Proved:   the 1,299 live keys"), (["--json"], None):
        ended = subprocess.run(
            [*command, *more],
            cwd=tmp_path / "empty",
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        if shown is not None:
            assert shown in ended.stdout
            assert re.search(r"^delivered +949 +20..-..-..$", ended.stdout, re.MULTILINE)
    document = json.loads(ended.stdout)
    assert document["topic"] == "orders"
    assert document["repository"] is None
    assert document["equals_last_writes"] is True
    assert document["equals_git_ls_tree"] is False
    assert (document["before"]["records"], document["after"]["records"]) == (12_000, 1_388)
    verified = lastwrite.verify(
        str(tmp_path / "empty/kept/after"), str(tmp_path / "empty/kept/before"), spark=INLINE
    )
    assert verified.exit_status == 0


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
def test_demo_compiles_no_kernel_after_its_warm_up(tmp_path: Path) -> None:
    """Otherwise its stages would wait for a compiler that uses one processor."""
    package = tmp_path / "lastwrite"
    shutil.copytree(Path(lastwrite.__file__).parent, package, ignore=lambda *_: ["__pycache__"])
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}

    def ran(*command: str) -> set[Path]:
        subprocess.run([sys.executable, *command], env=environment, cwd=tmp_path, check=True)
        return set(package.rglob("*.code"))

    compiled = ran(
        "-c",
        "from lastwrite.demo import warm_up\n"
        "for part in (*warm_up.PARTS, *warm_up.LATER): part()\n"
        "assert warm_up.is_compiled()\n",
    )
    assert len(compiled) > 20
    assert ran("-m", "lastwrite.cli", "demo", "--master", "local[1]") == compiled


def test_sample_with_another_last_write_fails_the_comparison(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = SampleTopic().live_keys() | {b"order-0001": b"{}"}
    monkeypatch.setattr(SampleTopic, "live_keys", lambda self: changed)
    with pytest.raises(VerificationFailed, match="1 keys have another value .*order-0001"):
        run_demo(now_ms=NOW_MS, spark=INLINE)


@pytest.mark.spark
def test_query_that_spark_refuses_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SampleTopic, "sql", "SELECT nothing FROM topic")
    with pytest.raises(EnvironmentUnfit, match="Spark could not run a query: .*nothing"):
        run_demo(now_ms=NOW_MS, master="local[1]")


def demo(repository: Repository, keep: Path) -> DemoReport:
    report = run_demo(str(repository.folder), str(keep), now_ms=NOW_MS, spark=INLINE)
    table = read_table(str(keep / "after" / "git-history-0"))
    assert table.live == repository.ls_tree()
    assert not table.repeated
    return report


@needs_git
@pytest.mark.parametrize("build", HISTORIES, ids=lambda build: build.__name__)
def test_compacted_topic_equals_the_tree(
    tmp_path: Path, build: Callable[[Repository], None]
) -> None:
    repository = Repository(tmp_path / "r")
    build(repository)
    report = demo(repository, tmp_path / "kept")
    assert report.after.records == report.after.keys == report.before.keys
    assert report.live_keys == len(repository.ls_tree())


def churn(repository: Repository, commits: int) -> None:
    for n in range(commits):
        repository.write(f"folder/file {n % 7}", b"%d" % n)
        if n % 5 == 4:
            repository.remove(f"folder/file {(n - 1) % 7}")
        repository.commit()


@needs_git
def test_small_history_has_several_segments_and_shrinks(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "r")
    churn(repository, 60)
    report = demo(repository, tmp_path / "kept")
    assert report.before.segments > 3
    assert report.before.records == 60 + 12
    assert report.after.records == 7
    assert report.after.bytes < report.before.bytes / 3
    assert report.compaction.partitions[0].status is Status.CLEANED
    assert report.stage_seconds["git to topic"] > 0
    logs = sorted((tmp_path / "kept" / "before" / "git-history-0").glob("*.log"))
    assert [
        path.stat().st_size for path in logs if path.stat().st_size > report.segment_bytes
    ] == []
    assert logs[-1].stat().st_size == 0


@needs_git
def test_record_contains_commit_and_time(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "r")
    repository.write("a")
    commit = repository.commit()
    demo(repository, tmp_path / "kept")
    (record,) = lastwrite.dump(str(tmp_path / "kept" / "before"))
    assert record["timestamp"] == 1_600_000_001_000
    assert base64.b64decode(record["headers"][0][1]) == commit


@needs_git
def test_demo_leaves_no_files_unless_requested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(tmp_path / "r")
    rewritten_and_deleted(repository)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    report = run_demo(str(repository.folder), now_ms=NOW_MS, spark=INLINE)
    assert report.before_path is None
    assert not [path for path in (tmp_path / "temporary").iterdir() if "demo" in path.name]
    assert repository.git("status", "--porcelain") == b""


@needs_git
def test_earlier_demo_is_not_overwritten(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "r")
    rewritten_and_deleted(repository)
    demo(repository, tmp_path / "kept")
    with pytest.raises(InvalidConfig, match="kept: the folder contains an earlier before"):
        run_demo(str(repository.folder), str(tmp_path / "kept"), now_ms=NOW_MS, spark=INLINE)


@needs_git
def test_history_without_a_file_is_a_clear_error(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "r")
    repository.commit()
    with pytest.raises(NotALog, match="none of the 1 commits has a file"):
        run_demo(str(repository.folder), str(tmp_path / "kept"), spark=INLINE)
    assert not (tmp_path / "kept").exists()


@needs_git
@pytest.mark.parametrize("make", [lambda folder: Repository(folder), lambda folder: folder.mkdir()])
def test_missing_history_exits_with_2_and_one_line(
    tmp_path: Path,
    make: Callable[[Path], object],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    make(tmp_path / "r")
    assert run(["demo", "--repo", str(tmp_path / "r")]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert re.fullmatch(
        r"lastwrite: .*(has no commit|finds no repository).*--repo \[LW-202\]\n", err
    )


@needs_git
def test_missing_git_exits_with_1_and_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(["demo", "--repo", str(tmp_path)]) == 1
    assert "apt-get install git" in capfd.readouterr().err


@needs_git
@pytest.mark.spark
def test_demo_command_runs_on_spark(tmp_path: Path) -> None:
    """In a shallow clone with unusual paths: first text for people, then JSON for programs."""
    repository = Repository(tmp_path / "r")
    merged(repository)
    paths_of_any_bytes(repository)
    churn(repository, 20)
    repository.git(
        "clone", "--quiet", "--no-checkout", "--depth=15", repository.folder.as_uri(), "../clone"
    )
    command = [
        sys.executable,
        "-m",
        "lastwrite.cli",
        "demo",
        "--repo",
        str(tmp_path / "clone"),
        "--master",
        "local[1]",
    ]

    said = subprocess.run(
        [*command, "--keep", str(tmp_path / "k")], capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr
    count = len(repository.ls_tree())
    assert f"the {count:,} live keys equal `git ls-tree -r HEAD`" in said.stdout
    assert "shallow" in said.stdout
    assert re.search(r"^folder +\d+ +20..-..-..$", said.stdout, re.MULTILINE), said.stdout
    look = [line for line in said.stdout.splitlines() if line.startswith("  lastwrite ")]
    assert any(line.startswith("  lastwrite inspect ") for line in look)
    assert read_table(str(tmp_path / "k" / "after" / "git-history-0")).live == repository.ls_tree()

    said = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    document = json.loads(said.stdout)
    assert document["live_keys"] == count
    assert document["equals_git_ls_tree"] is True
    assert document["is_shallow"] is True
    assert document["compaction"]["partitions"][0]["status"] == "cleaned"
    assert document["before_path"] is None
    assert document["answer"]["files"] == count >= sum(document["answer"]["folder_files"])


@pytest.mark.skipif(
    not DATA.exists(), reason=f"no long history at {DATA}; LASTWRITE_DATA names another folder"
)
def test_history_of_thirteen_years_is_compacted(tmp_path: Path) -> None:
    """git itself counts 98,257 changes of 10,061 paths, of which 6,519 still exist."""
    import cramjam

    def lines(name: str) -> list[list[bytes]]:
        content = bytes(cramjam.zstd.decompress((DATA / name).read_bytes()))
        return [line.split(b"\t") for line in content.splitlines()]

    settings = {"internal.segment.bytes": 1_500_000}
    with TopicWriter(
        str(tmp_path / "before"), TopicPartition("git", 0), segment_bytes=1_500_000
    ) as writer:
        for seconds, path, value in lines("git-history.events.tsv.zst"):
            writer.append(path, value or None, int(seconds) * 1000)
        writer.roll()
    assert writer.end_offset == 98_257

    report = lastwrite.compact(
        str(tmp_path / "before"),
        to=str(tmp_path / "after"),
        config=settings,
        topic="git",
        now_ms=NOW_MS,
        spark=INLINE,
    )
    (partition,) = report.partitions
    assert (partition.status, partition.records_before, partition.records_after) == (
        Status.CLEANED,
        98_257,
        10_061,
    )
    table = read_table(str(tmp_path / "after" / "git-0"))
    prove(table, dict(lines("git-history.tree.tsv.zst")))
    assert (len(table.live), table.tombstones) == (6_519, 10_061 - 6_519)
    verified = lastwrite.verify(
        str(tmp_path / "after"),
        before=str(tmp_path / "before"),
        config=settings,
        topic="git",
        now_ms=NOW_MS,
        spark=INLINE,
    )
    assert verified.exit_status == 0
