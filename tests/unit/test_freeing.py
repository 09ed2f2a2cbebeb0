"""Tests of deleting files: the name is removed at once, the disk space is freed a little later."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from lastwrite.storage import deferred_unlink, files


def test_name_is_deleted_at_once_and_space_soon_after(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(1000))
    files.unlink(str(path))
    assert not path.exists()
    deferred_unlink.wait()
    open_files = Path("/proc/self/fd")
    if open_files.is_dir():
        assert not [link for link in open_files.iterdir() if str(path) in os.path.realpath(link)]


def test_file_without_disk_space_is_not_deferred(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "link").symlink_to("large")
    (tmp_path / "large").write_bytes(bytes(10))
    os.mkfifo(tmp_path / "pipe")
    for name in ("empty", "link", "pipe", "missing", ""):
        assert deferred_unlink.hold(str(tmp_path / name)) is None


def test_number_of_deferred_files_is_limited(tmp_path: Path) -> None:
    paths = [tmp_path / str(n) for n in range(deferred_unlink._MOST_HELD + 10)]
    for path in paths:
        path.write_bytes(b"room")
    before = len(os.listdir("/proc/self/fd"))
    with deferred_unlink.after_syncs():
        for path in paths:
            files.unlink(str(path))
        # plus one that the thread is closing
        assert len(os.listdir("/proc/self/fd")) - before <= deferred_unlink._MOST_HELD + 1
        assert not any(path.exists() for path in paths)
    deferred_unlink.wait()
    assert len(os.listdir("/proc/self/fd")) == before


def test_many_deferred_files_are_all_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = []
    for n in range(400):
        path = tmp_path / str(n)
        path.write_bytes(bytes(200))
        handle = deferred_unlink.hold(str(path))
        assert handle is not None
        handles.append(handle)
    for handle in handles:
        deferred_unlink.release(handle)
    deferred_unlink.wait()
    for handle in set(handles):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(handle)


def test_nothing_is_freed_before_the_syncs_finish(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(1000))
    with deferred_unlink.after_syncs():
        with deferred_unlink.after_syncs():
            handle = deferred_unlink.hold(str(path))
            assert handle is not None
            files.unlink(str(path))
            deferred_unlink.release(handle)
        time.sleep(0.05)
        assert os.fstat(handle).st_size == 1000
    deferred_unlink.wait()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)


def test_forked_process_frees_with_its_own_thread(tmp_path: Path) -> None:
    files_of_both = [tmp_path / "parent", tmp_path / "child"]
    for path in files_of_both:
        path.write_bytes(bytes(200))
    files.unlink(str(files_of_both[0]))
    deferred_unlink.wait()
    with deferred_unlink.after_syncs():
        child = os.fork()
    if child == 0:
        files.unlink(str(files_of_both[1]))
        deferred_unlink.wait()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert not files_of_both[1].exists()
