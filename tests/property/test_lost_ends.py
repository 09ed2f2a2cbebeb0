"""Properties of truncated logs: damage is reported if and only if another file shows it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.index import decode_offset_index, decode_time_index
from lastwrite.kafka.format.text import LeaderEpoch, encode_leader_epochs
from lastwrite.kafka.producers.snapshot import ProducerEntry, encode_snapshot
from lastwrite.kafka.store import log_dir
from lastwrite.model.log import ProblemKind
from tests.support.kafka.logs import SCRATCH, write_checkpoint, write_segment

CHECKPOINTS = (
    "replication-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    "cleaner-offset-checkpoint",
    "log-start-offset-checkpoint",
)
KINDS = (*CHECKPOINTS, "snapshot", "producer", "epoch")


def note(folder: Path, kind: str, offset: int) -> None:
    """Write a broker's file that refers to all records below ``offset``."""
    if kind in CHECKPOINTS:
        write_checkpoint(folder.parent, kind, {"t-0": offset})
    elif kind == "epoch":
        (folder / "leader-epoch-checkpoint").write_bytes(
            encode_leader_epochs([LeaderEpoch(3, offset)])
        )
    else:
        last = offset - 1 if kind == "producer" else 0
        entry = ProducerEntry(7, 0, 0, last, 0, 1000, -1, -1)
        name = 0 if kind == "producer" else offset
        (folder / f"{name:020d}.snapshot").write_bytes(encode_snapshot([entry]))


@st.composite
def offsets(draw: st.DrawFn) -> list[list[int]]:
    """The offsets of each segment's batches of one record, with gaps as after cleaning."""
    found, at = [], 0
    for _ in range(draw(st.integers(1, 4))):
        batches = []
        for _ in range(draw(st.integers(1, 6))):
            batches.append(at)
            at += draw(st.sampled_from([1, 1, 1, 2, 9]))
        found.append(batches)
    return found


@settings(max_examples=150)
@given(
    segments=offsets(),
    data=st.data(),
    interval=st.sampled_from([0, 100, 4096]),
    is_clean=st.booleans(),
)
def test_truncated_log_is_damaged_if_another_file_reveals_it(
    segments: list[list[int]], data: st.DataObject, interval: int, is_clean: bool
) -> None:
    with tempfile.TemporaryDirectory(dir=SCRATCH) as place:
        folder = Path(place) / "root" / "t-0"
        encoded = [
            [encode_batch([Record(o, 1000 + o, b"k", b"%d" % o)]) for o in batches]
            for batches in segments
        ]
        for batches, made in zip(segments, encoded, strict=True):
            write_segment(folder, batches[0], made, interval)
        end = segments[-1][-1] + 1
        (folder.parent / "meta.properties").write_text("version=1\n")
        if is_clean:
            (folder.parent / ".kafka_cleanshutdown").touch()
        known = 0
        for kind in data.draw(st.lists(st.sampled_from(KINDS), unique=True), label="what is noted"):
            # A recovery point within the log would mark a part of it as flushed, for which another
            # rule holds.
            offset = (
                end if kind.startswith("recovery") else data.draw(st.integers(1, end), label=kind)
            )
            note(folder, kind, offset)
            known = max(known, offset)
        assert not _is_damaged(folder), "nothing is cut yet"

        chosen = data.draw(st.integers(0, len(segments) - 1), label="segment")
        made, base, is_last = encoded[chosen], segments[chosen][0], chosen + 1 == len(segments)
        size = data.draw(st.integers(0, sum(map(len, made)) - 1), label="bytes left")
        ends = [sum(map(len, made[:n])) for n in range(len(made) + 1)]
        whole = max(n for n, at in enumerate(ends) if at <= size)
        left = segments[chosen][whole - 1] + 1 if whole else base
        is_torn = ends[whole] < size
        os.truncate(folder / f"{base:020d}.log", size)
        index = decode_offset_index((folder / f"{base:020d}.index").read_bytes(), base)
        times = decode_time_index((folder / f"{base:020d}.timeindex").read_bytes(), base)
        named = max([-1, *index.offsets.tolist(), *times.offsets.tolist()])
        is_looked_at = not is_clean and not (folder.parent / CHECKPOINTS[1]).exists()
        if is_last and not is_clean:
            expected = known > left
        elif is_last:
            beyond = bool(len(index)) and int(index.positions[-1]) >= size
            expected = is_torn or known > left or beyond
        elif is_looked_at:
            expected = is_torn or named >= left
        # Listing does not read the records of this segment. It notices an empty file, and an index
        # entry after the file's end.
        else:
            beyond = bool(len(index)) and int(index.positions[-1]) >= size
            is_cut_short = is_torn and not whole
            expected = beyond or is_cut_short and _is_unreadable(size) or not size and named >= left
        assert _is_damaged(folder) is expected
        assert log_dir.read_partition(str(folder)).unseen == ()
        bases = [segment.base_offset for segment in log_dir.read_partition(str(folder)).segments]
        assert bases == [batches[0] for batches in segments], "none is hidden"


def _is_damaged(folder: Path) -> bool:
    return any(
        problem.kind is ProblemKind.DAMAGED
        for problem in log_dir.read_partition(str(folder)).problems
    )


def _is_unreadable(size: int) -> bool:
    """Whether the header of a closed segment's first batch cannot be read."""
    return size < 61
