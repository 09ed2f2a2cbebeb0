"""Tests that ``--to`` must be a folder outside the input.

Otherwise nothing is done, and the exit status is 2.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

import lastwrite
from lastwrite.cli import run
from lastwrite.errors import InvalidConfig
from lastwrite.model.progress import NoProgress
from lastwrite.reports.compaction import Status
from lastwrite.spark.inline import INLINE
from lastwrite.storage import files
from lastwrite.storage.files import FaultPoints
from tests.support.kafka.crashing import contents
from tests.support.kafka.logs import write_segment
from tests.support.pulsar.folders import single
from tests.support.pulsar.topics import put_ledger, topic_folder

CORPUS = Path(__file__).parents[1] / "corpus"
REST = "run the command again to complete it, or delete the folder"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A log of each system, and a link to each."""
    write_segment(tmp_path / "kafka" / "t-0", 0, [])
    shutil.copytree(CORPUS / "rocketmq" / "5.5.0", tmp_path / "rocketmq")
    (tmp_path / "rocketmq" / "abort.running").unlink()
    put_ledger(topic_folder(tmp_path / "pulsar", "persistent://a/b/t"), 1, [single("k", "v")])
    for name in ("kafka", "rocketmq", "pulsar"):
        (tmp_path / f"{name}-link").symlink_to(tmp_path / name)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "to", "said"),
    [
        ("kafka", "kafka", "--to is the same path as the source"),
        ("kafka", "kafka/new/copy", "--to is inside the source "),
        ("kafka", "kafka-link", "--to is the same path as the source"),
        ("kafka-link", "kafka/copy", "--to is inside the source "),
        ("kafka/t-0", "kafka-link/t-0/../t-0", "--to is the same path as the source"),
        ("kafka/t-0", "kafka", "is inside --to"),
        ("kafka/t-0", "kafka-link", "is inside --to"),
        ("kafka", ".", "is inside --to"),
        ("rocketmq", "rocketmq", "--to is the same path as the source"),
        ("rocketmq", "rocketmq-link/copy", "--to is inside the source "),
        ("rocketmq/compaction/compactionLog", "rocketmq", "is inside --to"),
        ("pulsar", "pulsar", "--to is the same path as the source"),
        ("pulsar-link", "pulsar/a", "--to is inside the source "),
        ("pulsar/a/b/persistent/t", "pulsar-link", "is inside --to"),
    ],
)
def test_compact_refuses_a_target_inside_its_input(
    place: Path, path: str, to: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(place)
    with pytest.raises(InvalidConfig, match=said) as caught:
        lastwrite.compact(str(place / path), to=str(place / to), spark=INLINE)
    assert caught.value.exit_status == 2 and caught.value.path == str(place / to)
    assert caught.value.remedy == "give a --to folder outside the source"
    assert contents(place) == before


def test_target_beside_the_input_is_accepted(place: Path) -> None:
    for path in ("kafka", "kafka/t-0", "rocketmq", "pulsar"):
        report = lastwrite.compact(
            str(place / path),
            to=f"{place / path}-copy",
            spark=INLINE,
            system=path.partition("/")[0],
        )
        assert report.exit_status == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("fetch", "objects", "--to", "objects"),
        ("fetch", "objects", "--to", "objects/archive"),
        ("dump", "rocketmq", "--to", "rocketmq/out", "--format", "json"),
        ("dump", "rocketmq/commitlog", "--to", "rocketmq/out", "--format", "json"),
        ("dump", "rocketmq-link", "--to", "rocketmq/commitlog/out", "--format", "json"),
    ],
)
def test_commands_refuse_a_target_inside_their_input(
    place: Path, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(CORPUS / "pulsar" / "offloaded", place / "objects")
    before = contents(place)
    is_path = ("objects", "rocketmq")
    given = [str(place / each) if each.startswith(is_path) else each for each in arguments]
    assert run(given) == 2
    error = capsys.readouterr().err
    assert "--to" in error and "give a --to folder outside the source" in error
    assert contents(place) == before


def test_failed_copy_on_a_full_disk_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin, to = CORPUS / "kafka-4.4.0" / "stopped", tmp_path / "to"
    point = failed = 0
    while point == failed:
        point += 1
        monkeypatch.setattr(files, "faults", FaultPoints(point, errno.ENOSPC, once=True))
        try:
            [report] = lastwrite.compact(
                str(origin), to=str(to), topic="client-zstd", spark=INLINE
            ).partitions
        finally:
            monkeypatch.setattr(files, "faults", FaultPoints())
        if report.status is Status.FAILED:
            failed += 1
            assert (
                "the disk is full — free some space on the disk, then run the command again"
                in str(report.reason)
            )
            # A file is complete under its final name or missing: none is left under its temporary
            # name.
            assert list(to.rglob("*-delete/*")) == [], point
            shutil.rmtree(to, ignore_errors=True)
    assert failed > 10 and (to / "client-zstd-0").is_dir()


class Interrupted(NoProgress):
    """Ctrl-C at the beginning of a stage. The progress notes are kept."""

    def __init__(self, at: str) -> None:
        self.at = at
        self.said: list[str] = []

    def stage(self, name: str, total_bytes: int) -> None:
        if name == self.at:
            raise KeyboardInterrupt

    def note(self, text: str) -> None:
        self.said.append(text)


@pytest.mark.parametrize("path", ["kafka", "rocketmq", "pulsar"])
def test_interrupted_copy_is_completed_by_the_same_command(place: Path, path: str) -> None:
    if path == "kafka":
        shutil.rmtree(place / path)
        shutil.copytree(CORPUS / "kafka-4.4.0" / "stopped", place / path)
    before, to = contents(place / path), place / "copy"
    for stage in ("scan", "commit"):
        progress = Interrupted(stage)
        with pytest.raises(KeyboardInterrupt):
            lastwrite.compact(str(place / path), to=str(to), spark=INLINE, progress=progress)
        said = [f"{to} contains only a part of the copy; {REST}"]
        assert progress.said == (said if to.exists() and os.listdir(to) else [])
    assert progress.said
    with pytest.raises(KeyboardInterrupt):
        lastwrite.compact(str(place / path), to=str(to), spark=INLINE, progress=progress)
    assert progress.said[1:] == [said[0].removesuffix(", or delete the folder")]
    for target in (to, place / "other"):
        report = lastwrite.compact(str(place / path), to=str(target), spark=INLINE)
        assert report.exit_status == 0
    names = [sorted(str(file.relative_to(top)) for file in top.rglob("*")) for top in (to, target)]
    if path != "pulsar":  # Pulsar's ledgers have random names
        assert names[0] == names[1]
    assert len(names[0]) == len(names[1]) and contents(place / path) == before


class FullDisk(FaultPoints):
    """The disk is full for one operation, except a removal."""

    def __init__(self, point: int) -> None:
        super().__init__(point, errno.ENOSPC, once=True)

    def reach(self, operation: str, path: str) -> None:
        if operation not in ("unlink", "rmdir"):
            super().reach(operation, path)


@pytest.mark.parametrize("to", [False, True], ids=["in place", "copy"])
@pytest.mark.parametrize("path", ["kafka", "rocketmq", "pulsar"])
def test_full_disk_leaves_no_partial_files(
    place: Path, path: str, to: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No temporary file is left, except those that Kafka's next run continues with. A copy reports
    its leftovers.
    """
    origin, work, copy = place / path, place / "work", place / "copy"
    if path == "kafka":
        shutil.rmtree(origin)
        shutil.copytree(CORPUS / "kafka-4.4.0" / "stopped", origin)
    point = failed = 0
    while True:
        point += 1 + point // 12
        shutil.copytree(origin, work)
        progress, faults = Interrupted(""), FullDisk(point)
        monkeypatch.setattr(files, "faults", faults)
        try:
            report = lastwrite.compact(
                str(work),
                to=str(copy) if to else None,
                topic="client-zstd" if path == "kafka" else None,
                config={} if path == "pulsar" else {"min.cleanable.dirty.ratio": 0},
                spark=INLINE,
                progress=progress,
            )
        finally:
            monkeypatch.setattr(files, "faults", FaultPoints())
        if faults.passed < point:
            break
        left = {str(file.relative_to(place)) for top in (work, copy) for file in top.rglob("*")}
        ends = (".aside", ".tmp", ".aside-index", "-delete")
        assert [name for name in left if name.endswith(ends) or ".lastwrite" in name] == [], point
        if any(each.status is Status.FAILED for each in report.partitions):
            failed += 1
            said = f"{copy} contains only a part of the copy; {REST}"
            assert progress.said == ([said] if to and copy.exists() else []), point
        shutil.rmtree(work)
        shutil.rmtree(copy, ignore_errors=True)
    assert failed > 3


def test_full_disk_during_a_fetch_is_reported(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    archive, point, told = place / "archive", 0, 0
    command = ["fetch", str(CORPUS / "pulsar" / "offloaded"), "--to", str(archive), "--copy"]
    while True:
        point += 3
        faults = FullDisk(point)
        monkeypatch.setattr(files, "faults", faults)
        status = run(command)
        monkeypatch.setattr(files, "faults", FaultPoints())
        error = capsys.readouterr().err
        if faults.passed < point:
            assert status == 0
            break
        assert list(archive.rglob("*.aside")) == [], point
        if status == 1 and archive.exists() and os.listdir(archive):
            told += 1
            assert f"{archive} contains only a part of the fetched topics" in error
            assert run(command) == 0
        shutil.rmtree(archive, ignore_errors=True)
    assert told > 5
