"""Small logs, rounds over them, and the states that a crash may leave, for tests of the commit.

A log maps base offsets to the offsets in each segment. Each batch has one record, whose key and
value follow from its offset, or a transaction marker. The election does not matter here. A
``Layout`` states its result: which segments become one, which records remain, and where an
additional output segment begins.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from lastwrite.errors import LogError
from lastwrite.kafka.format.batch import ControlType, encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.index import AbortedEntry, encode_transaction_index
from lastwrite.kafka.format.text import encode_partition_metadata, topic_id_text
from lastwrite.kafka.producers.snapshot import encode_snapshot
from lastwrite.kafka.recovery.unfinished_swap import crash_state
from lastwrite.kafka.store import log_dir
from lastwrite.kafka.store.outputs import NewSegment
from lastwrite.kafka.store.publish import staging_folder
from lastwrite.model.log import PartitionLog
from lastwrite.storage import files
from lastwrite.storage.files import FaultPoints
from tests.support.kafka.logs import NAME, headers_of, write_checkpoint, write_segment
from tests.support.kafka.single import commit, encode_control_record, publish_copy

CLOCK_MS = 1_700_000_000_000
ABORT, COMMIT = ControlType.ABORT, ControlType.COMMIT
FAR = 1 << 31  # the first offset that an index entry of a segment with base 0 cannot express
INTERVAL_BYTES = 1000  # small enough for index entries in small segments


@dataclass(frozen=True)
class Layout:
    """A log and a round over it. The last segment is the active one."""

    name: str
    segments: dict[int, range | list[int]]
    groups: list[list[int]]  # base offsets of the segments that are merged
    stay: range | set[int]  # remaining offsets in the rewritten segments
    first_dirty: int
    snapshots: list[int] = field(default_factory=list)
    further: set[int] = field(default_factory=set)  # offsets at which another output segment begins
    data: dict[int, int] = field(
        default_factory=dict
    )  # data offset -> producer id of its transaction
    ends: dict[int, tuple[int, ControlType]] = field(
        default_factory=dict
    )  # marker offset -> producer id and type

    @property
    def rewritten(self) -> set[int]:
        return {base for group in self.groups for base in group}

    @property
    def new_offsets(self) -> list[int]:
        return [
            offset
            for base, offsets in self.segments.items()
            for offset in offsets
            if base not in self.rewritten or offset in self.stay
        ]

    @property
    def old_offsets(self) -> list[int]:
        return [offset for offsets in self.segments.values() for offset in offsets]

    @property
    def new_bases(self) -> list[int]:
        kept = [base for base in self.segments if base not in self.rewritten]
        return sorted({*kept, *(group[0] for group in self.groups), *self.further})

    @property
    def outgrows_its_indexes(self) -> bool:
        """Whether a segment has offsets that its index cannot express."""
        return any(
            offset - base >= FAR for base, offsets in self.segments.items() for offset in offsets
        )

    def outputs(self, group: list[int]) -> list[tuple[int, list[int]]]:
        """The new segments of a group: base offset and remaining offsets."""
        found: list[tuple[int, list[int]]] = [(group[0], [])]
        for offset in (
            offset for base in group for offset in self.segments[base] if offset in self.stay
        ):
            if offset in self.further:
                found.append((offset, []))
            found[-1][1].append(offset)
        return found

    def aborted(self, offsets: Iterable[int]) -> list[AbortedEntry]:
        """The entries of the transaction index of a segment with these offsets."""
        wanted, found = set(offsets), []
        begun: dict[int, int] = {}
        for offset in self.old_offsets:
            if offset in self.data:
                begun.setdefault(self.data[offset], offset)
            elif offset in self.ends:
                producer, kind = self.ends[offset]
                first = begun.pop(producer, offset)
                if kind is ControlType.ABORT and offset in wanted:
                    stable = min([offset + 1, *begun.values()])
                    found.append(AbortedEntry(0, producer, first, offset, stable))
        return found

    def transaction_indexes(self) -> tuple[dict[int, bytes], dict[int, bytes]]:
        """The non-empty transaction indexes by base offset: of the old log and of the new one."""
        old = {base: self.aborted(offsets) for base, offsets in self.segments.items()}
        new = {base: entries for base, entries in old.items() if base not in self.rewritten}
        for group in self.groups:
            new.update((base, self.aborted(offsets)) for base, offsets in self.outputs(group))
        return (
            {base: encode_transaction_index(entries) for base, entries in old.items() if entries},
            {base: encode_transaction_index(entries) for base, entries in new.items() if entries},
        )


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
        "nothing stays at all",
        {5: range(5, 8), 10: range(10, 18), 20: range(20, 23)},
        [[5, 10]],
        set(),
        20,
        [10, 20],
    ),
    Layout(
        "untouched before, between and behind, and nothing stays of some sources",
        {
            0: range(4),
            10: range(10, 14),
            20: range(20, 24),
            30: range(30, 34),
            40: range(40, 44),
            50: range(50, 54),
            60: range(60, 62),
        },
        [[10], [30, 40]],
        {12, 13, 30},
        60,
        snapshots=[20, 40, 50],
    ),
    Layout(
        "the active segment too",
        {0: range(9), 9: range(9, 15)},
        [[0, 9]],
        {2, 3, 14},
        15,
        snapshots=[9, 15],
    ),
    Layout(
        "transactions: one begins a segment earlier, the index of one segment shrinks, that of another goes",
        {0: range(10), 10: range(10, 20), 20: range(20, 30), 30: range(30, 33)},
        [[0, 10], [20]],
        {*range(0, 30, 2)} - {2, 4, 6, 24, 26} | {15, 19, 29},
        30,
        snapshots=[10, 20, 30],
        data={2: 7, 3: 7, 4: 8, 14: 7, 15: 7, 24: 9},
        ends={6: (8, ABORT), 12: (7, ABORT), 22: (7, COMMIT), 26: (9, ABORT)},
    ),
    Layout(
        "transaction indexes of untouched neighbours",
        {0: range(8), 10: range(10, 18), 20: range(20, 28), 30: range(30, 38), 40: range(40, 44)},
        [[0], [20]],
        set(range(8, 40, 2)) | {7, 27},
        40,
        data={1: 7, 11: 7, 21: 7, 31: 7, 41: 7},
        ends={2: (7, ABORT), 12: (7, ABORT), 22: (7, ABORT), 32: (7, ABORT), 42: (7, ABORT)},
    ),
    Layout(
        "an empty output, and the last source, had transaction indexes",
        {0: range(4), 10: range(10, 14), 20: range(20, 24), 30: range(30, 33)},
        [[0], [10, 20]],
        {1, 3},
        30,
        snapshots=[10, 20, 30],
        data={1: 7, 11: 7, 21: 7},
        ends={3: (7, ABORT), 12: (7, ABORT), 22: (7, ABORT)},
    ),
    Layout(
        "nothing but an empty output that had a transaction index",
        {0: range(4), 10: range(10, 14)},
        [[0]],
        set(),
        10,
        data={1: 7},
        ends={3: (7, ABORT)},
    ),
    Layout(
        "two segments that no index could serve as one",
        {
            0: [0, 3, FAR // 2],
            FAR + 7: [FAR + 7, FAR + 9, FAR + 12, FAR + 13],
            FAR + 20: range(FAR + 20, FAR + 22),
        },
        [[0, FAR + 7]],
        {3, FAR + 9, FAR + 13},
        FAR + 20,
        snapshots=[FAR + 7, FAR + 20],
        further={FAR + 9},
        data={3: 7, FAR + 9: 7},
        ends={FAR + 13: (7, ABORT)},
    ),
    Layout(
        "one segment that becomes three, between empty ones; the farthest offset that an index can name",
        {
            0: [],
            5: [6],
            10: [10, 9 + FAR, 10 + FAR, 4 * FAR, 4 * FAR + 1],
            5 * FAR: [],
            5 * FAR + 8: [],
            6 * FAR: [7 * FAR - 1],
        },
        [[5], [10], [5 * FAR, 5 * FAR + 8]],
        {6, 10, 9 + FAR, 10 + FAR, 4 * FAR + 1},
        6 * FAR,
        snapshots=[10, 5 * FAR, 6 * FAR],
        further={10 + FAR, 4 * FAR + 1},
    ),
    Layout(
        "a further segment that begins where an old one did, and untouched ones around",
        {
            0: [1],
            4: [4, 5],
            9: [9, FAR + 8],
            3 * FAR: [3 * FAR, 3 * FAR + 1],
            4 * FAR: [4 * FAR],
            4 * FAR + 9: [4 * FAR + 9, 4 * FAR + 10],
            4 * FAR + 11: [4 * FAR + 11],
        },
        [[4, 9, 3 * FAR], [4 * FAR + 9]],
        {9, FAR + 8, 3 * FAR, 4 * FAR + 10},
        4 * FAR + 11,
        snapshots=[9, 3 * FAR, 4 * FAR],
        further={FAR + 8, 3 * FAR},
    ),
]


def batch(offset: int, layout: Layout | None = None) -> bytes:
    producer, kind = (layout.ends if layout else {}).get(offset, (-1, None))
    if kind is not None:
        record = encode_control_record(offset, CLOCK_MS, kind)
        return encode_batch(
            [record], control=True, transactional=True, producer_id=producer, producer_epoch=0
        )
    value = b"%d" % offset * 60
    record = Record(offset, CLOCK_MS + offset, b"key-%d" % offset, value)
    if layout is None or offset not in layout.data:
        return encode_batch([record])
    sequence = list(layout.data).index(offset)
    return encode_batch(
        [record],
        transactional=True,
        producer_id=layout.data[offset],
        producer_epoch=0,
        base_sequence=sequence,
    )


def write_batches(
    folder: Path, base: int, layout: Layout, offsets: Iterable[int], mtime_ms: int | None = None
) -> None:
    """Write a segment of the layout with its indexes.

    Offsets too far above the base offset get no index entry.
    """
    near = [offset for offset in offsets if offset - base < FAR]
    write_segment(
        folder, base, [batch(offset, layout) for offset in near], INTERVAL_BYTES, mtime_ms
    )
    stem = folder / f"{base:020d}"
    with open(stem.with_suffix(".log"), "ab") as log:
        log.write(b"".join(batch(offset, layout) for offset in offsets if offset - base >= FAR))
    aborted = layout.aborted(offsets)
    if aborted:
        stem.with_suffix(".txnindex").write_bytes(encode_transaction_index(aborted))
    for path in folder.glob(f"{base:020d}.*"):
        if mtime_ms is not None and path.suffix != ".snapshot":
            os.utime(path, ns=(mtime_ms * 1_000_000, mtime_ms * 1_000_000))


def write_layout(root: Path, layout: Layout) -> Path:
    """Write the log and the checkpoints of its root. Returns the partition's folder."""
    folder = root / NAME
    for n, (base, offsets) in enumerate(layout.segments.items()):
        write_batches(folder, base, layout, offsets, CLOCK_MS + 1000 * n)
    for base in layout.snapshots:
        (folder / f"{base:020d}.snapshot").write_bytes(encode_snapshot([]))
    (folder / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    (folder / "partition.metadata").write_bytes(
        encode_partition_metadata(topic_id_text(b"0123456789abcdef"))
    )
    # Of two other partitions in the checkpoint, one exists and one does not.
    write_segment(root / "u-3", 0, [batch(0)])
    write_checkpoint(
        root, "cleaner-offset-checkpoint", {"u-3": 1, "gone-0": 7, NAME: min(layout.segments)}
    )
    write_checkpoint(root, "replication-offset-checkpoint", {NAME: max(layout.old_offsets) + 1})
    return folder


def write_staged(
    folder: Path, layout: Layout, log: PartitionLog, attempt: str = "a1"
) -> list[NewSegment]:
    """Write the round's new segments as workers write them."""
    outputs = []
    for group in layout.groups:
        sources = tuple(segment for segment in log.segments if segment.base_offset in group)
        for base, staying in layout.outputs(group):
            made = folder.parent.parent / "made"
            shutil.rmtree(made, ignore_errors=True)
            write_batches(made, base, layout, staying)
            paths: list[str | None] = []
            for kind in ("log", "index", "timeindex", "txnindex"):
                source, staged = (
                    made / f"{base:020d}.{kind}",
                    folder / f"{base:020d}.{kind}.{attempt}.cleaned",
                )
                if source.exists():
                    files.write(str(staged), source.read_bytes())
                paths.append(str(staged) if source.exists() else None)
            log_path, index_path, time_index_path, transactions = paths
            assert log_path and index_path and time_index_path
            outputs.append(
                NewSegment(base, sources, log_path, index_path, time_index_path, transactions)
            )
            sources = ()
    return outputs


def compact(folder: Path, layout: Layout) -> None:
    """Recover the log from a crash, then run the round unless it was committed already."""
    log_dir.recover(str(folder))
    log = log_dir.read_partition(str(folder))
    check_readable(log)
    if log.checkpoint == layout.first_dirty:
        return
    outputs = write_staged(folder, layout, log)
    commit(log, outputs, layout.first_dirty, checkpoint_root=str(folder.parent))


def compact_to(folder: Path, target: Path, layout: Layout) -> None:
    """Run the round to a copy. The log itself is unchanged."""
    log = log_dir.read_partition(str(folder))
    staging = Path(staging_folder(str(target)))
    made = write_staged(staging, layout, log)
    publish_copy(log, made, str(target), layout.first_dirty)


# ---------------------------------------------------------------------- reading


def contents(root: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below ``root`` by path: its bytes, and a segment's modification time in ns."""
    return {
        str(path.relative_to(root)): (
            path.read_bytes(),
            path.stat().st_mtime_ns if path.name[0].isdigit() else 0,
        )
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def offsets_seen(folder: Path) -> list[int]:
    """The offsets in the segments that Lastwrite lists."""
    log = log_dir.read_partition(str(folder))
    check_readable(log)
    return [
        header.base_offset
        for segment in log.segments
        for _, header in headers_of(Path(segment.path))
    ]


def check_readable(log: PartitionLog) -> None:
    """Assert that the log has no problems except those that a crash leaves."""
    wrong = [
        problem for problem in log.problems if problem.kind not in ("recovered", "unsupported")
    ]
    assert not wrong, wrong


def transaction_indexes_seen(folder: Path) -> dict[int, bytes]:
    """The non-empty transaction indexes that Lastwrite lists as part of the log, by base offset."""
    names = os.listdir(folder)
    live = crash_state(str(folder), names).live(names)
    found = {
        int(name[:20]): (folder / now).read_bytes()
        for name, now in sorted(live.items())
        if name.endswith(".txnindex")
    }
    return {base: content for base, content in found.items() if content}


def transaction_indexes_at(folder: Path) -> dict[int, bytes]:
    """The non-empty transaction indexes under their final names, by base offset."""
    found = {int(path.stem): path.read_bytes() for path in folder.glob("*.txnindex")}
    return {base: content for base, content in found.items() if content}


# ---------------------------------------------------------------------- stopping


def run_until(point: int, action: Callable[[], None]) -> bool:
    """Run ``action`` in a process that kills itself before its ``point``-th file system change.

    Returns whether it was killed. An exception of the action is raised here.
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
    """Run ``action`` with an ``error`` at its ``point``-th file system change.

    Unless ``once``, all later changes fail, too. Returns the exception that the action raised, or
    None if it ended before that change.
    """
    files.faults = FaultPoints(point, error, once=once)
    try:
        action()
    except LogError as raised:
        return raised
    finally:
        files.faults = FaultPoints()
    return None


# ---------------------------------------------------------------------- Kafka's loader


def load_like_kafka(folder: Path) -> list[int]:
    """Load ``folder`` as a starting broker does, and return all offsets.

    Uses no code of the package. Source: docs/formats/kafka-cleaning.md, "Loading a log".
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
        end = max(
            max([header.next_offset for _, header in headers_of(path)] + [offset(path)])
            for path in logs
        )
        for path in paths():
            if path not in swaps and first <= offset(path) < end:
                path.unlink()
    for path in swaps:
        os.replace(path, path.with_suffix(""))
    seen: list[int] = []
    for path in paths():
        log = path.with_suffix(".log")
        if path.suffix in (".index", ".timeindex", ".txnindex") and not log.exists():
            path.unlink()
        elif path.suffix == ".log":
            assert path.with_suffix(".index").exists(), (
                f"{path.name} would be recovered: it has no index"
            )
            headers = [header for _, header in headers_of(path)]
            assert all(header.base_offset >= offset(path) for header in headers)
            seen += [header.base_offset for header in headers]
    assert seen == sorted(set(seen)), "offsets fall or repeat"
    return seen
