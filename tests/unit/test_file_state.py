"""Tests of recognising a file by more than its path, inode, size and modification time."""

from __future__ import annotations

import os
from pathlib import Path

from lastwrite.kafka.format.names import HIGH_WATERMARKS
from lastwrite.kafka.store.checkpoints import read_offsets
from lastwrite.model.log import Segment, TopicPartition
from lastwrite.server.files import Files
from lastwrite.storage.file_state import checksum_of_ends, state_of

TIME_NS = 1_700_000_000_000_000_000


def _write(path: Path, content: bytes) -> None:
    """Overwrite the file and set its modification time, as a restore from a backup does."""
    path.write_bytes(content)
    os.utime(path, ns=(TIME_NS, TIME_NS))


def test_rewritten_file_with_equal_metadata_has_another_state(tmp_path: Path) -> None:
    path = tmp_path / "file"
    _write(path, b"one")
    before = state_of(str(path))
    _write(path, b"two")
    after = state_of(str(path))
    assert before is not None and after is not None
    assert before[:4] == after[:4] and before != after
    assert before.is_same_file(after)


def test_checksum_of_ends_detects_a_change_at_either_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = bytes(range(256)) * 300
    _write(path, content + b"torn")
    state = state_of(str(path))
    known = checksum_of_ends(str(path), 100, len(content) - 100, state)
    assert known is not None
    for at in (100, len(content) - 1):
        changed = bytearray(content)
        changed[at] ^= 1
        _write(path, bytes(changed))
        assert checksum_of_ends(str(path), 100, len(content) - 100, state) != known
    assert checksum_of_ends(str(path), 100, len(content), state) is None  # the file is too short
    path.rename(tmp_path / "before")
    _write(path, content)
    assert checksum_of_ends(str(path), 100, len(content) - 100, state) is None  # a new file


def test_checkpoint_rewritten_in_place_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / HIGH_WATERMARKS
    for offset in (3, 7):
        _write(path, f"0\n1\nt 0 {offset}\n".encode())
        assert read_offsets(str(tmp_path), HIGH_WATERMARKS) == {TopicPartition("t", 0): offset}


def test_server_reads_a_segment_replaced_with_equal_metadata(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020}.log"
    _write(path, b"damaged")
    segment = Segment(0, str(path), 7, TIME_NS, TIME_NS // 1_000_000)
    files = Files(1 << 20)
    try:
        assert files.read(segment, 0, 7) == b"damaged"
        _write(tmp_path / "copy", b"healthy")
        os.replace(tmp_path / "copy", path)
        assert files.read(segment, 0, 7) == b"healthy"
        path.unlink()
        assert files.read(segment, 0, 7) == b"healthy"  # the old file is still open
    finally:
        files.close()
