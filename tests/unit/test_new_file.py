"""Tests that a new file has the given bytes, through the page cache or by direct I/O."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.storage import new_file
from lastwrite.storage.new_file import BUFFER_BYTES, DIRECT_FROM_BYTES, NewFile

PATTERN = os.urandom(1 << 20)


def pattern(first: int, size: int) -> memoryview:
    turned = PATTERN[first % len(PATTERN) :] + PATTERN[: first % len(PATTERN)]
    return memoryview((turned * (size // len(PATTERN) + 1))[:size])


def is_direct(handle: int) -> bool:
    return new_file._is_direct(handle)


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, bool]]:
    """Each write's position, size, and whether it bypasses the page cache."""
    seen: list[tuple[int, int, bool]] = []
    pwrite = os.pwrite

    def noting(handle: int, data: memoryview, place: int) -> int:
        seen.append((place, len(data), is_direct(handle)))
        return pwrite(handle, data, place)

    monkeypatch.setattr(os, "pwrite", noting)
    return seen


def goes_direct(folder: Path) -> bool:
    """Whether the file system supports direct I/O, which bypasses the page cache."""
    try:
        os.close(os.open(folder / "tried", os.O_CREAT | os.O_WRONLY | os.O_DIRECT))
    except (OSError, AttributeError):
        return False
    return True


SIZES = st.lists(
    st.one_of(st.integers(0, 9000), st.integers(0, 3 << 20), st.sampled_from([4096, BUFFER_BYTES])),
    max_size=12,
)


@given(sizes=SIZES)
def test_file_contains_the_appended_pieces(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    path = tmp_path_factory.getbasetemp() / "pieces"
    file, given = NewFile(str(path), None), bytearray()
    try:
        for size in sizes:
            data = bytearray(pattern(len(given), size))
            given += data
            file.append(memoryview(data))
            data[:] = bytes(len(data))  # the caller may reuse its buffer after ``append``
        file.close()
        assert path.read_bytes() == given
    finally:
        path.unlink()


def test_only_a_large_file_bypasses_the_page_cache(
    tmp_path: Path, writes: list[tuple[int, int, bool]]
) -> None:
    if not goes_direct(tmp_path):
        pytest.skip("this file system writes nothing past the page cache")
    small = NewFile(str(tmp_path / "small"), None)
    small.append(pattern(0, DIRECT_FROM_BYTES))
    small.close()
    assert writes == []
    large = NewFile(str(tmp_path / "large"), None)
    for n in range(9):
        large.append(pattern(n * 1_000_001, 1_000_001))
    large.close()
    assert [size for _, size, direct in writes if direct] == [BUFFER_BYTES] * 4
    assert all(place % 4096 == 0 for place, _, direct in writes if direct)
    assert os.path.getsize(tmp_path / "large") == 9_000_009


def test_file_that_is_read_soon_stays_in_the_page_cache(
    tmp_path: Path, writes: list[tuple[int, int, bool]]
) -> None:
    file = NewFile(str(tmp_path / "part"), None, is_read_soon=True)
    file.append(pattern(0, 3 * DIRECT_FROM_BYTES))
    file.close()
    assert writes == []


def test_two_files_are_written_at_once(tmp_path: Path) -> None:
    """The second file cannot use the direct-I/O buffers while the first has them."""
    one, other = NewFile(str(tmp_path / "one"), None), NewFile(str(tmp_path / "other"), None)
    for n in range(12):
        one.append(pattern(n, 1 << 20))
        other.append(pattern(n + 1, 1 << 20))
    one.close()
    for n in range(12):
        other.append(pattern(n, 1 << 20))
    other.close()
    assert (tmp_path / "one").read_bytes() == b"".join(pattern(n, 1 << 20) for n in range(12))
    assert (tmp_path / "other").read_bytes() == b"".join(
        [*(pattern(n + 1, 1 << 20) for n in range(12)), *(pattern(n, 1 << 20) for n in range(12))]
    )


@pytest.mark.parametrize("half", [False, True])
def test_refused_direct_write_falls_back_to_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: bool
) -> None:
    """The file system rejects every direct write, or writes only part of the second block."""
    pwrite, seen = os.pwrite, []

    def refusing(handle: int, data: memoryview, place: int) -> int:
        seen.append(place)
        if is_direct(handle):
            if half and len(seen) == 2:
                return pwrite(handle, data[: 4096 * 3], place) - 1000
            if not half or place % 4096:
                raise OSError(errno.EINVAL, "no")
        return pwrite(handle, data, place)

    monkeypatch.setattr(os, "pwrite", refusing)
    file = NewFile(str(tmp_path / "log"), None)
    file.append(pattern(0, 12 << 20))
    file.close()
    assert (tmp_path / "log").read_bytes() == pattern(0, 12 << 20)


def test_caller_does_not_wait_for_buffered_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not goes_direct(tmp_path):
        pytest.skip("this file system writes nothing past the page cache")
    pwrite, is_ready = os.pwrite, Event()

    def slow(handle: int, data: memoryview, place: int) -> int:
        assert is_ready.wait(60)
        return pwrite(handle, data, place)

    monkeypatch.setattr(os, "pwrite", slow)
    size = DIRECT_FROM_BYTES + 3 * BUFFER_BYTES
    file = NewFile(str(tmp_path / "log"), None)
    file.append(pattern(0, DIRECT_FROM_BYTES))
    file.append(pattern(DIRECT_FROM_BYTES, 3 * BUFFER_BYTES))
    is_ready.set()
    file.append(pattern(size, 5 * BUFFER_BYTES))
    file.close()
    assert (tmp_path / "log").read_bytes() == pattern(0, size + 5 * BUFFER_BYTES)


def test_full_disk_is_reported_at_the_latest_on_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int, data: memoryview, place: int) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwrite", full)
    file = NewFile(str(tmp_path / "log"), None)
    with pytest.raises(OSError) as told:
        file.append(pattern(0, DIRECT_FROM_BYTES))
        file.append(pattern(0, BUFFER_BYTES + 1))
        file.close()
    assert told.value.errno == errno.ENOSPC
    file.abandon()
    monkeypatch.undo()
    # it gets the buffers that the abandoned file released, or does without
    next_one = NewFile(str(tmp_path / "next"), None)
    next_one.append(pattern(0, 9 << 20))
    next_one.close()
    assert (tmp_path / "next").read_bytes() == pattern(0, 9 << 20)


def test_abandoned_writer_releases_its_buffers_and_handle(tmp_path: Path) -> None:
    for n in range(3):
        file = NewFile(str(tmp_path / f"{n}"), None)
        file.append(pattern(0, 9 << 20))
        del file
    new_file._thread().submit(int).result()
    assert len(new_file._spare or ()) == 1
    assert not [name for name in os.listdir("/proc/self/fd") if str(tmp_path) in _target(name)]


def test_fork_writes_with_its_own_buffers_and_thread(tmp_path: Path) -> None:
    parents = NewFile(str(tmp_path / "parents"), None)
    parents.append(pattern(0, 9 << 20))
    child = os.fork()
    if child == 0:
        file = NewFile(str(tmp_path / "childs"), None)
        file.append(pattern(1, 9 << 20))
        file.close()
        os._exit(new_file._spare is None)
    assert os.waitpid(child, 0)[1] == 0
    parents.append(pattern(0, 9 << 20))
    parents.close()
    assert (tmp_path / "childs").read_bytes() == pattern(1, 9 << 20)
    assert (tmp_path / "parents").read_bytes() == bytes(pattern(0, 9 << 20)) * 2


def test_fork_does_not_change_the_buffers_of_its_parent(tmp_path: Path) -> None:
    file = NewFile(str(tmp_path / "log"), None)
    file.append(pattern(0, DIRECT_FROM_BYTES + 1000))
    if file._direct is None:
        pytest.skip("this file system writes nothing past the page cache")
    child = os.fork()
    if child == 0:
        file._direct._buffers[0][:1000] = bytes(1000)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    file.close()
    assert (tmp_path / "log").read_bytes() == pattern(0, DIRECT_FROM_BYTES + 1000)


def _target(handle: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{handle}")
    except OSError:
        return ""
