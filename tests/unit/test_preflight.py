"""Tests that obstacles to a swap are found before anything is written.

Other partitions are compacted.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lastwrite
from lastwrite.errors import LogError
from lastwrite.reports.compaction import Status
from lastwrite.spark.inline import INLINE
from lastwrite.storage import preflight
from tests.support.foreign import (
    GROUP,
    OWNER,
    STRANGER,
    as_user,
    compact,
    needs_root,
    owners,
    write_root,
)
from tests.support.foreign import place as place
from tests.support.pulsar.topics import put_ledger, topic_folder
from tests.unit.test_ownership import ROCKETMQ
from tests.unit.test_pulsar_cleaner import entries

FIRST, SECOND = f"{0:020d}.log", f"{40:020d}.index"


def mark(flag: str, *paths: Path) -> None:
    done = subprocess.run(
        ["chattr", flag, *map(str, paths)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no such marks here: {done.stderr.strip()}")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@needs_root
@pytest.mark.parametrize(
    ("flag", "name", "says"),
    [
        ("+i", FIRST, f"b-0/{FIRST}: the file is immutable"),
        ("+i", SECOND, f"b-0/{SECOND}: the file is immutable"),
        ("+a", FIRST, f"b-0/{FIRST}: the file is append-only"),
        ("+i", ".", "b-0: the folder is immutable"),
        ("+a", ".", "b-0: the folder is append-only"),
    ],
)
def test_immutable_file_fails_only_its_partition(
    place: Path, flag: str, name: str, says: str
) -> None:
    root = write_root(place / "data", "a-0", "b-0", "c-0")
    before = owners(root / "b-0"), names(root / "b-0")
    mark(flag, root / "b-0" / name)
    a, b, c = compact(root).partitions
    assert (a.status, b.status, c.status) == (Status.CLEANED, Status.FAILED, Status.CLEANED)
    assert (
        b.reason is not None
        and says in b.reason
        and "chattr -" in b.reason
        and "nothing was changed" in b.reason
    )
    assert b.bytes_read in (0, None), "before the scan"
    assert (owners(root / "b-0"), names(root / "b-0")) == before
    mark(flag.replace("+", "-"), root / "b-0" / name)
    assert [each.status for each in compact(root, partition=0, topic="b").partitions] == [
        Status.CLEANED
    ]


@needs_root
def test_immutable_file_that_stays_is_no_obstacle(place: Path) -> None:
    root = write_root(place / "data")
    mark("+i", root / "t-0" / f"{80:020d}.log")
    assert [each.status for each in compact(root).partitions] == [Status.CLEANED]


@needs_root
def test_immutable_checkpoint_fails_before_the_swap(place: Path) -> None:
    root = write_root(place / "data")
    (root / "cleaner-offset-checkpoint").write_text("0\n0\n")
    mark("+i", root / "cleaner-offset-checkpoint")
    before = names(root / "t-0")
    [report] = compact(root).partitions
    assert (
        report.status is Status.FAILED
        and "cleaner-offset-checkpoint: the file is immutable" in str(report.reason)
    )
    assert names(root / "t-0") == before


@needs_root
def test_immutable_expired_segment_fails_before_the_log_start_moves(place: Path) -> None:
    root = write_root(place / "data")
    mark("+i", root / "t-0" / FIRST)
    config = {"cleanup.policy": "delete", "retention.ms": "1"}
    [report] = lastwrite.compact(str(root), config=config, spark=INLINE).partitions
    assert report.status is Status.FAILED and "immutable" in str(report.reason)
    assert not (root / "log-start-offset-checkpoint").exists()


_ROUND = """
import json, sys, lastwrite
from lastwrite.spark.inline import INLINE
config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
report = lastwrite.compact(sys.argv[1], config=config, spark=INLINE)
print(json.dumps([[each.topic, each.status, each.reason] for each in report.partitions]))
"""


@needs_root
def test_read_only_mount_is_named(place: Path) -> None:
    root = write_root(place / "data", "a-0", "b-0")
    folder = root / "b-0"
    before = owners(folder)
    script = f"mount --bind {folder} {folder} && mount -o remount,ro,bind {folder}"
    script += f" && exec {sys.executable} -c '{_ROUND}' {root}"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False
    )
    if "mount:" in done.stderr or "unshare:" in done.stderr:
        pytest.skip(f"no mounts here: {done.stderr.strip()}")
    (_, a, _), (_, b, reason) = json.loads(done.stdout)
    assert (a, b) == ("cleaned", "failed")
    assert f"{folder}: the file system is mounted read-only" in reason
    assert owners(folder) == before


@needs_root
def test_unwritable_folder_is_named(place: Path) -> None:
    root = write_root(place / "data", "a-0", "b-0")
    (root / "b-0").chmod(0o550)

    def work() -> None:
        a, b = compact(root).partitions
        assert (a.status, b.status) == (Status.CLEANED, Status.FAILED)
        assert b.reason is not None and "b-0: this user cannot write to the folder" in b.reason
        assert "nothing was changed [" in b.reason

    assert not as_user(OWNER, GROUP, work)


@needs_root
def test_sticky_folder_is_named(place: Path) -> None:
    root = write_root(place / "data")
    for path in (root, root / "t-0"):
        os.chown(path, 0, 0)
        path.chmod(0o1777)
    for path in (root / "t-0").iterdir():
        os.chown(path, STRANGER, STRANGER)
        path.chmod(0o644)

    def work() -> None:
        [report] = compact(root).partitions
        assert report.status is Status.FAILED and "a folder with the sticky bit" in str(
            report.reason
        )

    assert not as_user(OWNER, GROUP, work)


@needs_root
def test_rocketmq_store_and_pulsar_folder_are_checked(place: Path) -> None:
    store = Path(shutil.copytree(ROCKETMQ, place / "store"))
    marked = min((store / "compaction" / "compactionCq" / "ctopic" / "0").iterdir())
    mark("+i", marked)
    before = names(store)
    for report in lastwrite.compact(str(store), spark=INLINE).partitions:
        # The tree is exchanged as a whole, so all queues fail.
        assert report.status is Status.FAILED and f"{marked}: the file is immutable" in str(
            report.reason
        )
    assert names(store) == sorted({*before, "lock"})
    with pytest.raises(LogError, match="immutable"):
        lastwrite.dispatch(str(store), spark=INLINE, unclean=True)
    folder = topic_folder(place / "archive", "persistent://public/default/a")
    put_ledger(folder, 10, entries(20))
    lastwrite.compact(str(place / "archive"), spark=INLINE)
    put_ledger(folder, 11, entries(20))
    mark("+i", folder / "compacted.json")
    before = [name for name in names(folder) if not name.endswith(".survey")]
    [report] = lastwrite.compact(str(place / "archive"), spark=INLINE).partitions
    assert report.status is Status.FAILED and "compacted.json: the file is immutable" in str(
        report.reason
    )
    assert [name for name in names(folder) if not name.endswith(".survey")] == before


def test_replaceable_files_pass(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    preflight.reject_unwritable(str(tmp_path), ["file", "not there"])
    with pytest.raises(LogError):
        preflight.reject_unwritable(str(tmp_path / "nowhere"), [])
