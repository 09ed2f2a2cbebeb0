"""Taking the oldest segments out of a log, so that a crash anywhere leaves one that loads.

Take segments 0, 100 and the active 200, of which 0 and 100 have expired::

    log-start-offset-checkpoint      says 200: whoever reads the log from now on begins there
    leader-epoch-checkpoint          cut to what begins at 200
    0.snapshot, 100.snapshot         .deleted: nobody looks for a producer below the log's start
    0.log, 100.log, their indexes    .deleted, the oldest segment first, then the folder is synced
    (nothing)                        what is marked deleted is removed
    log-start-offset-checkpoint      without this log: the name of its first segment says it now

Kafka deletes in this order too, but writes the checkpoint once a minute. With it written first
nothing depends on which of the renames a power cut lets through: a segment that is still there lies
below the log's start and goes with the next run. Likewise a crash anywhere after the first step:
the next run finds segments below the log's start.

If every segment goes, an empty one is made at the log's end before all else, because its name says
where a broker goes on. Kafka takes a snapshot of its producers there and ignores it after a
restart, like every snapshot that does not lie above the log's start; so none is made here, and one
that is there stays.

Source: Kafka 4.4.0 UnifiedLog.deleteSegments, LogSegment.changeFileSuffixes,
LeaderEpochFileCache.truncateFromStart; docs/formats/kafka.md, "Text files";
docs/formats/kafka-cleaning.md, "Loading a log".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

from lastwrite.engine.rules.retention import Retention
from lastwrite.errors import LogError
from lastwrite.kafka.format.names import (
    LEADER_EPOCHS,
    LOG_STARTS,
    SEGMENT_KINDS,
    FileKind,
    Suffix,
    classify,
    segment_file_name,
)
from lastwrite.kafka.format.text import (
    LeaderEpoch,
    decode_leader_epochs,
    encode_leader_epochs,
    leader_epochs_from,
)
from lastwrite.kafka.recovery.unfinished_swap import remove_leftovers
from lastwrite.kafka.store.checkpoints import read_offsets, write_offsets
from lastwrite.kafka.store.outputs import check_unchanged
from lastwrite.model.log import PartitionLog
from lastwrite.storage import files, preflight
from lastwrite.storage.parallel_sync import Outcome, Steps, side_by_side

# The log of a segment goes first: indexes without a log are swept away by any loader.
_ORDER = (FileKind.SNAPSHOT, *SEGMENT_KINDS)


def retain_all(
    wave: Sequence[tuple[PartitionLog, Retention]], *, checkpoint_root: str
) -> list[Outcome]:
    """Take the segments of each retention out of its log, and set the log starts, of all logs of a
    root together.

    The caller holds the partitions. Where there is nothing to take only the checkpoint is tidied
    that a crash left behind. Returns, log for log, why it failed: CommitConflict where a segment
    changed since the log was read, and nothing was taken; else the file that could not be changed.
    The log starts where it did or where it is to then, and the next run goes on.
    """
    retaining = _Retaining(wave, checkpoint_root)
    retaining.run()
    return retaining.errors


class _Retaining:
    """Steps over many logs; one that fails takes no further step."""

    def __init__(self, wave: Sequence[tuple[PartitionLog, Retention]], root: str) -> None:
        self._wave = wave
        self._root = root
        self.errors: list[Outcome] = [None] * len(wave)

    def run(self) -> None:
        # What a crash left of a log without segments lies before its start, and only the checkpoint
        # says so.
        seen = [place for place, (log, _) in enumerate(self._wave) if log.segments]
        taken = [place for place in seen if self._wave[place][1].segments]
        self._each(_begin, taken)
        self._set_log_starts(taken, lambda retention: retention.log_start)
        self._each(_take, taken)
        named = [
            place
            for place in seen
            if self._wave[place][1].log_start == self._wave[place][1].first_base
        ]
        self._set_log_starts(named, lambda retention: None)

    def _each(
        self, step: Callable[[PartitionLog, Retention], Steps], places: Sequence[int]
    ) -> None:
        sound = [place for place in places if self.errors[place] is None]
        for place, error in zip(
            sound, side_by_side(step(*self._wave[place]) for place in sound), strict=True
        ):
            self.errors[place] = error

    def _set_log_starts(
        self, places: Sequence[int], start_of: Callable[[Retention], int | None]
    ) -> None:
        sound = [place for place in places if self.errors[place] is None]
        try:
            known = read_offsets(self._root, LOG_STARTS)
            wanted = {self._wave[place][0].name: start_of(self._wave[place][1]) for place in sound}
            changes = {name: start for name, start in wanted.items() if known.get(name) != start}
            if changes:
                write_offsets(self._root, LOG_STARTS, changes)
            elif sound:  # a run that was killed may have written them, and not synced their name
                files.fsync_dir(self._root)
        except (LogError, OSError) as error:
            for place in sound:
                self.errors[place] = error


def _begin(log: PartitionLog, retention: Retention) -> Steps:
    check_unchanged(log)
    names = doomed(os.listdir(log.folder), retention)
    preflight.refuse_unwritable(log.folder, [*names, LEADER_EPOCHS])
    if retention.rolls:
        make_empty_segment(log.folder, retention.first_base)
    yield []


def _take(log: PartitionLog, retention: Retention) -> Steps:
    sync_folder = partial(files.fsync_dir, log.folder)
    cut_leader_epochs(log.folder, retention.log_start)
    yield [sync_folder]
    for name in doomed(os.listdir(log.folder), retention):
        path = os.path.join(log.folder, name)
        files.rename(path, path + Suffix.DELETED)
    yield [sync_folder]
    yield from remove_leftovers(log.folder)


def doomed(names: list[str], retention: Retention) -> list[str]:
    """The files that go with the segments of ``retention``, in the order in which they go."""
    gone = {segment.base_offset for segment in retention.segments}
    found = [(name, classify(name)) for name in names]
    chosen = [
        (file.kind is not FileKind.SNAPSHOT, file.offset, _ORDER.index(file.kind), name)
        for name, file in found
        if file.suffix is Suffix.LIVE and file.kind in _ORDER and file.offset in gone
    ]
    return [name for *_, name in sorted(chosen)]


def make_empty_segment(folder: str, base_offset: int) -> None:
    """A segment without records; with indexes, so that no loader has to make them, and these first:
    they alone are swept away, and the segment is there when its log is."""
    siblings = [
        os.path.join(folder, name)
        for name in sorted(os.listdir(folder))
        if name.endswith(FileKind.LOG)
    ][-1:]
    for kind in (FileKind.INDEX, FileKind.TIME_INDEX, FileKind.LOG):
        path = os.path.join(folder, segment_file_name(base_offset, kind))
        files.write(path, b"", like=files.owner_of(path, siblings))


def cut_leader_epochs(folder: str, log_start: int) -> None:
    """Rewrite ``leader-epoch-checkpoint``, if there is one, for a log that starts at ``log_start``."""
    _rewrite_leader_epochs(folder, lambda epochs: leader_epochs_from(epochs, log_start))


def end_leader_epochs(folder: str, end_offset: int) -> None:
    """The same, for a log that ends at ``end_offset``."""
    _rewrite_leader_epochs(folder, lambda all: tuple(e for e in all if e.start_offset < end_offset))


def _rewrite_leader_epochs(
    folder: str, change: Callable[[tuple[LeaderEpoch, ...]], tuple[LeaderEpoch, ...]]
) -> None:
    path = os.path.join(folder, LEADER_EPOCHS)
    if not os.path.exists(path):
        return
    try:
        with open(path, "rb") as file:
            epochs = decode_leader_epochs(file.read())
    except OSError as error:
        raise files.to_log_error(error, path, "read the leader epochs") from error
    cut = change(epochs)
    if cut != epochs:
        files.replace(path, encode_leader_epochs(cut), like=files.owner_of(path))
