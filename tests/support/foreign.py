"""Files of other users, and work done as another user, for tests that run as root."""

from __future__ import annotations

import functools
import os
import shutil
import stat
import struct
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import lastwrite
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.reports.compaction import CompactionReport
from lastwrite.spark.inline import INLINE
from tests.support.kafka.logs import write_segment

OWNER, GROUP = 61_234, 61_235  # the broker's user: an id that no machine uses
STRANGER = 61_236
NOW_MS = 1_700_000_000_000
EACH = 40
CONFIG = {"segment.bytes": "14", "index.interval.bytes": "200", "cleanup.policy": "compact"}

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
ACCESS_LIST = "system.posix_acl_access"


class Owned(NamedTuple):
    uid: int
    gid: int
    mode: int
    attributes: tuple[tuple[str, bytes], ...]


def access_list(group: int, other: int, user: int = 777) -> bytes:
    """A POSIX access list: the file's owner may read and write, ``user`` may read."""
    entries = [
        (0x01, 6, -1),
        (0x02, 4, user),
        (0x04, group, -1),
        (0x10, 4 | group, -1),
        (0x20, other, -1),
    ]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)


def owned(path: Path) -> Owned:
    seen = path.stat()
    names = sorted(
        name for name in os.listxattr(path) if name == ACCESS_LIST or name.startswith("user.")
    )
    return Owned(
        seen.st_uid,
        seen.st_gid,
        stat.S_IMODE(seen.st_mode),
        tuple((name, os.getxattr(path, name)) for name in names),
    )


def owners(root: Path) -> dict[str, Owned]:
    """The owner, mode and attributes of the folder and of everything in it, by relative path."""
    return {str(path.relative_to(root)): owned(path) for path in [root, *sorted(root.rglob("*"))]}


def give_all(root: Path, mode: int = 0o640, folder_mode: int = 0o750) -> None:
    """Make the broker's user the owner of all files below ``root``, and of ``root`` itself."""
    for path in [root, *root.rglob("*")]:
        os.chown(path, OWNER, GROUP)
        path.chmod(folder_mode if path.is_dir() else mode)


def compact(root: Path, **arguments: object) -> CompactionReport:
    config = {**CONFIG, "min.cleanable.dirty.ratio": "0"}
    return lastwrite.compact(str(root), config=config, now_ms=NOW_MS, spark=INLINE, **arguments)  # type: ignore[arg-type]


def write_root(root: Path, *names: str) -> Path:
    """Write a log root with two closed segments and an active one for each partition.

    A round removes most of the records in the closed segments.
    """
    for name in names or ("t-0",):
        for base in (0, EACH, 2 * EACH):
            records = [
                Record(base + n, NOW_MS - 9, b"k%d" % (n % 3), b"v%d" % n) for n in range(EACH)
            ]
            batches = [encode_batch(records[n : n + 5]) for n in range(0, EACH, 5)]
            write_segment(
                root / name, base, batches if base < 2 * EACH else batches[:1], 200, NOW_MS
            )
    (root / "meta.properties").write_text("version=1\n")
    if os.geteuid() == 0:  # only root may give files away
        give_all(root)
    return root


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder on a real disk that every user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="lastwrite-owned-"))
    folder.chmod(0o755)
    yield folder
    subprocess.run(["chattr", "-R", "-i", "-a", str(folder)], check=False, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def _load_kernels() -> None:
    """Run a round, so that the kernels are loaded before the process changes its user.

    Another user may not read the kernels' files.
    """
    with tempfile.TemporaryDirectory() as folder:
        compact(write_root(Path(folder)))


def as_user(uid: int, gid: int, work: Callable[[], object]) -> str:
    """Run ``work`` in a child process of that user.

    Returns the traceback of its exception, or an empty text if it succeeded.
    """
    _load_kernels()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(reader)
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
            work()
            status = 0
        except BaseException:
            os.write(writer, traceback.format_exc().encode()[-60_000:])
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        said = file.read().decode()
    _, ended = os.waitpid(child, 0)
    return said or ("" if ended == 0 else f"ended with {ended}")
