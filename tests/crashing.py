"""Small logs, ways to compact them, and what a crash may leave of both: for the tests of the commit.

A log is a mapping from base offsets to the offsets in each segment; a batch holds one record, whose key and
value follow from its offset. What compaction decides does not matter here, so a ``Layout`` says it outright:
which segments become one, and which records stay.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lastwrite.errors import LogError
from lastwrite.formats.kafka.batch import Record, encode_batch
from lastwrite.formats.kafka.snapshot import encode_snapshot
from lastwrite.formats.kafka.text import encode_partition_metadata, topic_id_text
from lastwrite.logstore import files, kafka
from lastwrite.logstore.commit import Output, commit, publish_copy, staging_folder
from lastwrite.logstore.files import FaultPoints
from lastwrite.model.log import PartitionLog
from tests.logs import NAME, headers_of, write_checkpoint, write_segment

CLOCK_MS = 1_700_000_000_000
INTERVAL_BYTES = 1000  # so that small segments have index entries too


@dataclass(frozen=True)
class Layout:
    """A log, and a round over it. The last segment is the active one."""

    name: str
    segments: dict[int, range]
    groups: list[list[int]]  # the base offsets of segments that become one
    stay: range | set[int]  # offsets that stay, in the segments that are rewritten
    first_dirty: int
    snapshots: list[int] = field(default_factory=list)

    @property
    def new_offsets(self) -> list[int]:
        rewritten = {base for group in self.groups for base in group}
        return [
            offset
            for base, offsets in self.segments.items()
            for offset in offsets
            if base not in rewritten or offset in self.stay
        ]

    @property
    def old_offsets(self) -> list[int]:
        return [offset for offsets in self.segments.values() for offset in offsets]


LAYOUTS = [
    Layout("one segment", {0: range(20), 20: range(20, 23)}, [[0]], range(0, 20, 3), 20),
    Layout(
        "several outputs",
        {0: range(10), 10: range(10, 20), 20: range(20, 30), 30: range(30, 32)},
        [[0], [10], [20]],
        set(range(0, 32, 2)) | {9, 19, 29},
        30,
    ),
    Layout(
        "merged groups, snapshots of vanished bases",
        {0: range(10), 10: range(10, 20), 25: range(25, 35), 40: range(40, 50), 50: range(50, 52)},
        [[0, 10], [25, 40]],
        set(range(0, 50, 3)) | {19, 49},
        50,
        snapshots=[10, 25, 40, 50, 52],
    ),
    Layout(
        "untouched segments in between",
        {0: range(8), 10: range(10, 18), 20: range(20, 28), 30: range(30, 38), 40: range(40, 44)},
        [[0], [20]],
        set(range(0, 40, 2)),
        40,
        snapshots=[10, 20, 30, 40],
    ),
    Layout(
        "an empty output before another",
        {0: range(8), 10: range(10, 18), 20: range(20, 28), 30: range(30, 33)},
        [[0, 10], [20]],
        set(range(24, 28)),
        30,
    ),
    Layout(
        "nothing stays of the last sources",
        {0: range(8), 10: range(10, 18), 20: range(20, 28), 30: range(30, 33)},
        [[0, 10, 20]],
        set(range(8)),
        30,
        snapshots=[10, 20, 30],
    ),
    Layout(
        "nothing stays at all", {5: range(5, 8), 10: range(10, 18), 20: range(20, 23)}, [[5, 10]], set(), 20, [10, 20]
    ),
    Layout(
        "untouched before, between and behind, and nothing stays of some sources",
        {0: range(4), 10: range(10, 14), 20: range(20, 24), 30: range(30, 34), 40: range(40, 44),
         50: range(50, 54), 60: range(60, 62)},
        [[10], [30, 40]],
        {12, 13, 30},
        60,
        snapshots=[20, 40, 50],
    ),
    Layout("the active segment too", {0: range(9), 9: range(9, 15)}, [[0, 9]], {2, 3, 14}, 15, snapshots=[9, 15]),
]  # fmt: skip


def batch(offset: int) -> bytes:
    value = b"%d" % offset * 60
    return encode_batch([Record(offset, CLOCK_MS + offset, b"key-%d" % offset, value)], base_offset=offset)


def write_layout(root: Path, layout: Layout) -> Path:
    """The log on disk with the checkpoints of its root; returns the partition's folder."""
    folder = root / NAME
    for n, (base, offsets) in enumerate(layout.segments.items()):
        write_segment(folder, base, [batch(offset) for offset in offsets], INTERVAL_BYTES, CLOCK_MS + 1000 * n)
    for base in layout.snapshots:
        (folder / f"{base:020d}.snapshot").write_bytes(encode_snapshot([]))
    (folder / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    (folder / "partition.metadata").write_bytes(encode_partition_metadata(topic_id_text(b"0123456789abcdef")))
    # A neighbour that is there and one that is gone.
    write_segment(root / "u-3", 0, [batch(0)])
    write_checkpoint(root, "cleaner-offset-checkpoint", {"u-3": 1, "gone-0": 7, NAME: min(layout.segments)})
    write_checkpoint(root, "replication-offset-checkpoint", {NAME: max(layout.old_offsets) + 1})
    return folder


def write_aside(folder: Path, layout: Layout, log: PartitionLog, attempt: str = "a1") -> list[Output]:
    """The new segments as workers write them."""
    outputs = []
    for group in layout.groups:
        sources = tuple(segment for segment in log.segments if segment.base_offset in group)
        staying = [offset for base in group for offset in layout.segments[base] if offset in layout.stay]
        made = folder.parent.parent / "made"
        shutil.rmtree(made, ignore_errors=True)
        write_segment(made, group[0], [batch(offset) for offset in staying], INTERVAL_BYTES)
        paths = []
        for kind in ("log", "index", "timeindex"):
            source, aside = made / f"{group[0]:020d}.{kind}", folder / f"{group[0]:020d}.{kind}.{attempt}.cleaned"
            files.write(str(aside), source.read_bytes())
            paths.append(str(aside))
        outputs.append(Output(group[0], sources, *paths))
    return outputs


def compact(folder: Path, layout: Layout) -> None:
    """A round: what a crash left is put in order, and unless the round was done it is done now."""
    kafka.recover(str(folder))
    log = kafka.read_partition(str(folder))
    assert not log.problems, log.problems
    if log.checkpoint == layout.first_dirty:
        return
    outputs = write_aside(folder, layout, log)
    commit(log, outputs, layout.first_dirty, checkpoint_root=str(folder.parent))


def compact_to(folder: Path, target: Path, layout: Layout) -> None:
    """A round that leaves the log alone and writes a cleaned copy."""
    log = kafka.read_partition(str(folder))
    staging = Path(staging_folder(str(target)))
    made = write_aside(staging, layout, log)
    publish_copy(log, made, str(target), layout.first_dirty)


# ---------------------------------------------------------------------- looking


def contents(root: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below ``root`` by its name: bytes, and of segments the time of modification."""
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mtime_ns if path.name[0].isdigit() else 0)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def offsets_seen(folder: Path) -> list[int]:
    """The offsets that our own listing leads a reader to."""
    log = kafka.read_partition(str(folder))
    assert not log.problems, log.problems
    return [header.base_offset for segment in log.segments for _, header in headers_of(Path(segment.path))]


# ---------------------------------------------------------------------- stopping


def run_until(point: int, action: Callable[[], None]) -> bool:
    """Run ``action`` in a process of its own that kills itself before its ``point``-th changing operation.

    Returns whether it was killed; an error in it is an error here.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            files.faults = FaultPoints(point)
            action()
            status = 0
        except BaseException as error:
            print(f"in the child: {error!r}", flush=True)
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        return True
    assert os.WEXITSTATUS(status) == 0, "the child failed; its output says why"
    return False


def fail_at(point: int, error: int, action: Callable[[], None], *, once: bool) -> LogError | None:
    """Run ``action``, whose ``point``-th changing operation fails with ``error``, and all later ones unless ``once``.

    Returns the error that it raised; None: it came to its end before that.
    """
    files.faults = FaultPoints(point, error, once=once)
    try:
        action()
    except LogError as raised:
        return raised
    finally:
        files.faults = FaultPoints()
    return None


# ---------------------------------------------------------------------- Kafka's loader, by the specification


def load_like_kafka(folder: Path) -> list[int]:
    """Do to ``folder`` what a broker's start does (spec/kafka-storage S.17, 1 to 4), and read all offsets.

    Written from the specification alone: nothing of ``logstore`` is used.
    """

    def offset(path: Path) -> int:
        return int(path.name.split(".")[0])

    def paths() -> list[Path]:
        return sorted(path for path in folder.iterdir() if path.name[0].isdigit())

    for path in paths():
        if path.name.endswith(".deleted"):
            path.unlink()
    lowest = min((offset(path) for path in paths() if path.name.endswith(".cleaned")), default=None)
    for path in paths():
        if path.name.endswith(".cleaned") or (
            lowest is not None and path.name.endswith(".swap") and offset(path) >= lowest
        ):
            path.unlink()
    swaps = [path for path in paths() if path.name.endswith(".swap")]
    logs = [path for path in swaps if path.name.endswith(".log.swap")]
    if logs:
        first = min(map(offset, logs))
        end = max(max([header.next_offset for _, header in headers_of(path)] + [offset(path)]) for path in logs)
        for path in paths():
            if path not in swaps and first <= offset(path) < end:
                path.unlink()
    for path in swaps:
        os.replace(path, path.with_suffix(""))
    seen: list[int] = []
    for path in paths():
        log = path.with_suffix(".log")
        if path.suffix in (".index", ".timeindex") and not log.exists():
            path.unlink()
        elif path.suffix == ".log":
            assert path.with_suffix(".index").exists(), f"{path.name} would be recovered: it has no index"
            headers = [header for _, header in headers_of(path)]
            assert all(header.base_offset >= offset(path) for header in headers)
            seen += [header.base_offset for header in headers]
    assert seen == sorted(set(seen)), "offsets fall or repeat"
    return seen
