"""Small logs with expired parts, for tests that kill a process while it deletes those parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from lastwrite.kafka.format.text import encode_partition_metadata, topic_id_text
from lastwrite.kafka.producers.snapshot import encode_snapshot
from lastwrite.kafka.rules.retention import expired
from lastwrite.kafka.rules.settings import KafkaTopicConfig
from lastwrite.kafka.store import log_dir
from tests.support.kafka.crashing import CLOCK_MS, INTERVAL_BYTES, batch
from tests.support.kafka.logs import NAME, write_checkpoint, write_segment
from tests.support.kafka.single import retain as take_out

NOW_MS = CLOCK_MS + 100_000


@dataclass(frozen=True)
class Expiring:
    """A log, retention settings, and the result of applying them."""

    name: str
    segments: dict[int, range]
    config: dict[str, str]
    new_bases: list[int]
    new_start: int
    log_start: int | None = None  # from the checkpoint file; None means no entry
    epochs: str = "0\n1\n0 0\n"
    new_epochs: str = "0\n1\n0 0\n"
    snapshots: list[int] = field(default_factory=list)

    @property
    def offsets(self) -> list[int]:
        return [offset for offsets in self.segments.values() for offset in offsets]

    @property
    def end(self) -> int:
        return max(*self.segments, *[offset + 1 for offset in self.offsets])

    @property
    def old_start(self) -> int:
        return max(self.log_start or 0, min(self.segments))


_DELETE = {"cleanup.policy": "delete", "retention.ms": "-1"}
_THREE = {0: range(10), 10: range(10, 25), 25: range(25, 32)}

EXPIRING = [
    Expiring(
        "one goes by time",
        _THREE,
        {"cleanup.policy": "delete", "retention.ms": str(NOW_MS - CLOCK_MS - 12)},
        [10, 25],
        10,
        new_epochs="0\n1\n0 10\n",
    ),
    Expiring(
        "two go by size",
        _THREE,
        {**_DELETE, "retention.bytes": "100"},
        [25],
        25,
        epochs="0\n3\n0 0\n2 12\n5 30\n",
        new_epochs="0\n2\n2 25\n5 30\n",
        snapshots=[10, 25, 32],
    ),
    Expiring(
        "one lies below the log start, which lies inside the next",
        _THREE,
        {"cleanup.policy": "compact"},
        [10, 25],
        14,
        log_start=14,
        new_epochs="0\n1\n0 14\n",
        snapshots=[10, 25],
    ),
    Expiring(
        "all go",
        _THREE,
        {"cleanup.policy": "compact,delete", "retention.ms": "0"},
        [32],
        32,
        epochs="0\n2\n0 0\n1 25\n",
        new_epochs="0\n1\n1 32\n",
        snapshots=[10, 25, 32],
    ),
    Expiring(
        "the only one goes",
        {7: range(7, 12)},
        {**_DELETE, "retention.bytes": "0"},
        [12],
        12,
        log_start=9,
        epochs="0\n1\n4 7\n",
        new_epochs="0\n1\n4 12\n",
    ),
    Expiring(
        "all go but the empty one",
        {0: range(5), 5: range(5, 9), 9: range(9, 9)},
        {**_DELETE, "retention.bytes": "0"},
        [9],
        9,
        new_epochs="0\n1\n0 9\n",
        snapshots=[5, 9],
    ),
    Expiring(
        "empty ones among those that go",
        {0: range(0), 3: range(3, 9), 9: range(9, 9), 20: range(20, 22)},
        {**_DELETE, "retention.bytes": "1"},
        [20],
        20,
        new_epochs="0\n1\n0 20\n",
    ),
]


def write_expiring(root: Path, layout: Expiring) -> Path:
    """Write the log and the checkpoints of its root. Returns the partition's folder."""
    folder = root / NAME
    for base, offsets in layout.segments.items():
        write_segment(
            folder, base, [batch(offset) for offset in offsets], INTERVAL_BYTES, CLOCK_MS + base
        )
    for base in layout.snapshots:
        (folder / f"{base:020d}.snapshot").write_bytes(encode_snapshot([]))
    (folder / "leader-epoch-checkpoint").write_text(layout.epochs)
    (folder / "partition.metadata").write_bytes(
        encode_partition_metadata(topic_id_text(b"0123456789abcdef"))
    )
    write_segment(root / "u-3", 0, [batch(0)])
    own = {} if layout.log_start is None else {NAME: layout.log_start}
    write_checkpoint(root, "log-start-offset-checkpoint", {"u-3": 1, **own})
    return folder


def retain(folder: Path, layout: Expiring) -> None:
    """Recover the log from a crash, then delete what has expired."""
    log_dir.recover(str(folder))
    log = log_dir.read_partition(str(folder))
    assert not log.problems, log.problems
    found = expired(log, KafkaTopicConfig.from_names(layout.config), NOW_MS)
    take_out(log, found, checkpoint_root=str(folder.parent))
