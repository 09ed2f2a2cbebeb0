"""Tests of the operations that change files, their fault points, and their errors."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lastwrite.errors import CommitConflict, LogError
from lastwrite.storage import files
from lastwrite.storage.files import FaultPoints


def test_each_operation_has_its_effect(tmp_path: Path) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    files.write(one, b"content")
    files.set_mtime(one, 1_700_000_000_123_000_000)
    files.link(one, two)
    assert os.stat(one).st_ino == os.stat(two).st_ino
    files.unlink(two)
    files.copy(one, two)
    assert Path(two).read_bytes() == b"content"
    assert os.stat(two).st_mtime_ns == 1_700_000_000_123_000_000
    assert os.stat(one).st_ino != os.stat(two).st_ino
    files.truncate(two, 3)
    assert Path(two).read_bytes() == b"con"
    files.rename(two, one)
    assert Path(one).read_bytes() == b"con" and not Path(two).exists()
    files.make_folder(str(tmp_path / "a" / "b"))
    files.make_folder(str(tmp_path / "a" / "b"))
    files.fsync_file(one)
    files.fsync_dir(str(tmp_path))


def test_link_falls_back_to_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.ENOTSUP, "not supported")

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "copy_file_range", refuse, raising=False)
    content = os.urandom(3_000_001)
    (tmp_path / "one").write_bytes(content)
    files.link(str(tmp_path / "one"), str(tmp_path / "two"))
    assert (tmp_path / "two").read_bytes() == content
    assert (tmp_path / "two").stat().st_mtime_ns == (tmp_path / "one").stat().st_mtime_ns


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.ENOSPC, LogError, "the disk is full"),
        (errno.EDQUOT, LogError, "the disk is full"),
        (errno.EROFS, LogError, "read-only"),
        (errno.EACCES, LogError, "permission denied"),
        (errno.ENOENT, CommitConflict, "another program deleted"),
        (errno.EIO, LogError, "Input/output error"),
        (errno.EFBIG, LogError, "file size limit"),
    ],
)
def test_error_names_the_file_and_a_remedy(number: int, kind: type[LogError], words: str) -> None:
    error = files.to_log_error(
        OSError(number, os.strerror(number)), "/logs/t-0/x.log", "write the file"
    )
    assert type(error) is kind
    assert words in error.problem and error.path == "/logs/t-0/x.log" and error.remedy


@pytest.fixture
def arm(monkeypatch: pytest.MonkeyPatch) -> Callable[[FaultPoints], None]:
    return lambda points: monkeypatch.setattr(files, "faults", points)


def test_fault_points_are_logged_and_fail_where_configured(
    tmp_path: Path, arm: Callable[[FaultPoints], None]
) -> None:
    log = tmp_path / "log"
    arm(FaultPoints(4, errno.ENOSPC, str(log)))
    files.write(str(tmp_path / "one"), b"ab")
    files.rename(str(tmp_path / "one"), str(tmp_path / "two"))
    with pytest.raises(LogError, match="the disk is full"):
        files.unlink(str(tmp_path / "two"))
    with pytest.raises(LogError):
        files.fsync_dir(str(tmp_path))
    assert log.read_text().splitlines()[:4] == [
        "write one",
        "write the rest one",
        "rename two",
        "unlink two",
    ]
    assert (tmp_path / "two").exists()


def test_torn_write_leaves_a_partial_file(
    tmp_path: Path, arm: Callable[[FaultPoints], None]
) -> None:
    arm(FaultPoints(2, errno.ENOSPC))
    with pytest.raises(LogError):
        files.write(str(tmp_path / "one"), b"abcd")
    assert (tmp_path / "one").read_bytes() == b"ab"


def test_single_fault_lets_later_operations_pass(
    tmp_path: Path, arm: Callable[[FaultPoints], None]
) -> None:
    arm(FaultPoints(1, errno.EIO, once=True))
    with pytest.raises(LogError):
        files.fsync_dir(str(tmp_path))
    files.fsync_dir(str(tmp_path))


def test_environment_sets_the_fault_point() -> None:
    points = FaultPoints.from_environment(
        {"LASTWRITE_FAULT_POINT": "7", "LASTWRITE_FAULT_ERROR": "28"}
    )
    assert (points.point, points.error, points.is_armed) == (7, 28, True)
    assert not FaultPoints.from_environment({}).is_armed


def test_folders_exchange_names_and_trees_are_removed(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        (folder / "below").mkdir(parents=True)
        (folder / "below" / "file").write_text(folder.name)
    files.exchange(str(one), str(other))
    assert (one / "below" / "file").read_text() == "other" and (
        other / "below" / "file"
    ).read_text() == "one"
    (one / "link").symlink_to(other)
    files.copy_symlink(str(one / "link"), str(one / "below" / "again"))
    assert os.readlink(one / "below" / "again") == str(other)
    files.remove_tree(str(one))
    assert not one.exists() and (other / "below" / "file").exists(), "where a link leads to stays"
    files.remove_tree(str(one))
    with pytest.raises(CommitConflict, match="another program deleted"):
        files.exchange(str(one), str(other))


def test_new_file_has_the_owner_and_mode_of_its_sibling(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.touch(0o640)
    other.touch(0o600)
    files.give(str(other), files.owner_of(str(one)))
    assert other.stat().st_mode == one.stat().st_mode
    files.write(str(tmp_path / "new"), b"", like=files.owner_of(str(tmp_path / "new"), [str(one)]))
    assert (tmp_path / "new").stat().st_mode == one.stat().st_mode, "a new file has its sibling's"


def test_make_folder_creates_missing_parents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files.make_folder("a/b/c")
    files.make_folder("a/b/c")
    assert (tmp_path / "a/b/c").is_dir()


def test_file_in_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(LogError, match="make the folder"):
        files.make_folder(str(tmp_path / "a"))
    with pytest.raises(LogError, match="make the folder"):
        files.make_folder(str(tmp_path / "a" / "b"))
