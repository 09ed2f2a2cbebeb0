"""Deletes the oldest segments of a log, so that a crash at any time leaves a log that loads.

Example: a log has segments 0, 100 and the active 200, and 0 and 100 have expired::

    log-start-offset-checkpoint      set to 200: readers begin there from now on
    leader-epoch-checkpoint          reduced to the epochs from 200 on
    0.snapshot, 100.snapshot         .deleted: producers below the log's start are not needed
    0.log, 100.log, their indexes    .deleted, the oldest segment first, then the folder is synced
    (nothing)                        files marked deleted are removed
    log-start-offset-checkpoint      entry removed: the first segment's name has the same offset

Kafka deletes in this order too, but writes the checkpoint once a minute. If it is written first,
it does not matter which renames survive a power cut. A remaining segment is below the log's start,
and the next run removes it. The same holds for a crash at any time after the first step.

If every segment is deleted, an empty segment is created at the log's end first, because its name
stores the offset at which a broker continues. Kafka writes a producer snapshot there. It ignores
that snapshot after a restart, like every snapshot that is not above the log's start. Therefore
Lastwrite writes no snapshot there, and keeps an existing snapshot.

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
    KafkaFileKind,
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

# The ``.log`` of a segment is first: any loader removes indexes without a ``.log``.
_ORDER = (KafkaFileKind.SNAPSHOT, *SEGMENT_KINDS)


def retain_all(
    wave: Sequence[tuple[PartitionLog, Retention]], *, checkpoint_root: str
) -> list[Outcome]:
    """Delete expired segments and set the log starts, for several logs of a root together.

    The caller has locked the partitions. If there is nothing to delete, only the checkpoint entry
    that a crash left is removed. Returns an error or None per log. CommitConflict means that a
    segment changed since the log was read, and nothing was deleted. Any other error means that the
    file in the error could not be changed. After an error the log starts at the old or the new
    offset, and the next run continues.
    """
    retaining = _Retaining(wave, checkpoint_root)
    retaining.run()
    return retaining.errors


class _Retaining:
    """Deletes the segments of several logs step by step.

    After an error, a log takes no further step.
    """

    def __init__(self, wave: Sequence[tuple[PartitionLog, Retention]], root: str) -> None:
        self._wave = wave
        self._root = root
        self.errors: list[Outcome] = [None] * len(wave)

    def run(self) -> None:
        # A crash may leave a log without segments. Then only the checkpoint shows that its other
        # files are below the log's start, so the entry stays.
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
            elif sound:
                # A killed run may have written the entries without syncing the root, so sync it.
                files.fsync_dir(self._root)
        except (LogError, OSError) as error:
            for place in sound:
                self.errors[place] = error


def _begin(log: PartitionLog, retention: Retention) -> Steps:
    check_unchanged(log)
    names = doomed(os.listdir(log.folder), retention)
    preflight.reject_unwritable(log.folder, [*names, LEADER_EPOCHS])
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
    """The files of the segments that ``retention`` deletes, in the order of deletion."""
    removed = {segment.base_offset for segment in retention.segments}
    found = [(name, classify(name)) for name in names]
    chosen = [
        (file.kind is not KafkaFileKind.SNAPSHOT, file.offset, _ORDER.index(file.kind), name)
        for name, file in found
        if file.suffix is Suffix.LIVE and file.kind in _ORDER and file.offset in removed
    ]
    return [name for *_, name in sorted(chosen)]


def make_empty_segment(folder: str, base_offset: int) -> None:
    """Write a segment without records, and its indexes, so that no loader has to rebuild them.

    The indexes are written first. Until the ``.log`` exists, any loader removes them, so a crash
    leaves no partial segment.
    """
    siblings = [
        os.path.join(folder, name)
        for name in sorted(os.listdir(folder))
        if name.endswith(KafkaFileKind.LOG)
    ][-1:]
    for kind in (KafkaFileKind.INDEX, KafkaFileKind.TIME_INDEX, KafkaFileKind.LOG):
        path = os.path.join(folder, segment_file_name(base_offset, kind))
        files.write(path, b"", like=files.owner_of(path, siblings))


def cut_leader_epochs(folder: str, log_start: int) -> None:
    """Rewrite ``leader-epoch-checkpoint``, if it exists, for a log that starts at ``log_start``."""
    _rewrite_leader_epochs(folder, lambda epochs: leader_epochs_from(epochs, log_start))


def end_leader_epochs(folder: str, end_offset: int) -> None:
    """Rewrite ``leader-epoch-checkpoint``, if it exists, for a log that ends at ``end_offset``."""
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
