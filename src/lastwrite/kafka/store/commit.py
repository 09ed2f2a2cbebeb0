"""Replaces old segments by new ones, so that a crash at any time leaves the old log or the new one.

Example: a log has segments 0, 100, 200 and 300, and 0 and 200 are rewritten::

    0.log.cleaned, 200.log.cleaned       written by workers; now synced, and their times are set
    note                                 the planned changes, for Lastwrite's own recovery
    200.log.swap, 0.log.swap             renamed from the highest base offset down, then the folder
                                         is synced: this decides the commit, and the note is renamed
                                         to record the decision
    0.log.deleted, 200.log.deleted       from the lowest up
    0.log, 200.log                       the new segments
    checkpoint                           the first dirty offset, of all committed partitions at once
    (nothing)                            files marked deleted are removed, the note last

This is Kafka's own order, so its loader understands every state in between. But the loader treats
all segments between the lowest and the highest ``.swap`` as replaced, including segment 100.
Therefore an untouched segment in between joins the swap under a second name (a hard link, no byte
is written). If the loader has to finish the swap, it removes one name and renames the other.

The loader also assumes that the replaced range ends with the last new record. If no record of a
later old segment is left, the loader would keep that segment. Therefore an empty segment replaces
it, and is removed at the end. Likewise an empty transaction index replaces an old one if the new
segment is empty.

Source: Kafka 4.4 ``UnifiedLog.replaceSegments``, ``LogLoader``; docs/decisions/one-swap-a-round.md.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from lastwrite.errors import CommitConflict, LogError
from lastwrite.kafka.format.names import (
    CLEANER_OFFSETS,
    SEGMENT_KINDS,
    KafkaFileKind,
    Suffix,
    classify,
    segment_file_name,
)
from lastwrite.kafka.recovery import unclean_shutdown
from lastwrite.kafka.recovery.unfinished_swap import (
    Intent,
    crash_state,
    encode_intents,
    finish_swap,
    intent_file,
    is_intent,
    remove_leftovers,
)
from lastwrite.kafka.store.checkpoints import recovery_point, write_offsets
from lastwrite.kafka.store.outputs import (
    ALWAYS,
    NewSegment,
    check_outputs,
    check_unchanged,
    copy_attributes,
    in_order,
)
from lastwrite.model.log import PartitionLog, TopicPartition
from lastwrite.storage import files
from lastwrite.storage.parallel_sync import DiskWork, Steps
from lastwrite.storage.reading import AGAIN

UNFINISHED = (
    "run the command again to finish the swap: the new segments are complete beside the "
    "old ones; a broker's "
    "start finishes the swap, too"
)
IN_PLACE = (
    "run the command again to finish the round: the new segments have replaced the old "
    "ones; the next run "
    "sets the checkpoint and removes the old segments"
)


class CommitNotes:
    """The note on planned changes, shared by all concurrent commits in a root through hard links.

    A link costs a disk far less than a new file, and the file is synced only once.
    """

    def __init__(self) -> None:
        self._intents: dict[str, Intent] = {}
        self._path: str | None = None

    def announce(self, folder: str, intent: Intent) -> None:
        """Register a planned commit. Register all commits before the first call of ``leave``."""
        self._intents[os.path.basename(folder)] = intent

    def leave(self, folder: str) -> None:
        """Link the note into a folder. The link is durable once the folder is synced."""
        path = os.path.join(folder, intent_file(self._intents[os.path.basename(folder)]))
        if self._path is None or not os.path.exists(self._path):
            # Every process that may finish the swap must be able to read the note, including the
            # processes of the log's owner.
            segment = segment_file_name(
                self._intents[os.path.basename(folder)].sources[0], KafkaFileKind.LOG
            )
            like = files.owner_of(path, [os.path.join(folder, segment)])
            files.write(path, encode_intents(self._intents), like=like)
            self._path = path
        else:
            files.link(self._path, path)


def swap(
    log: PartitionLog, outputs: Sequence[NewSegment], first_dirty_offset: int, notes: CommitNotes
) -> Steps:
    """The steps of a commit that replaces old segments by the new segments ``outputs``.

    ``log`` was returned by ``read_partition``, and the caller has locked the partition. From the
    first step on this function owns the new files, and removes them after an error. Afterwards the
    caller calls ``record`` and then ``delete_replaced``, for many partitions at once. Until then
    the note and the old files stay, so that recovery can finish the commit after a crash. All
    concurrent swaps of one root share ``notes``.

    Raises:
        CommitConflict: a segment changed since ``log`` was read. The old log is intact.
        LogError: a file could not be changed. The old log is intact; or, if the remedy is
            ``UNFINISHED``, the new log is safe and the next run finishes the swap.
    """
    if not outputs:
        check_unchanged(log)
        return
    planned = None
    try:
        _check_settled(log, check_unchanged(log))
        planned = _Swap(log, outputs, check_outputs(log, outputs), first_dirty_offset)
        notes.announce(log.folder, planned.intent)
        yield []  # wait until all commits are registered
        yield planned.prepare(notes)
        check_unchanged(log, intent_file(planned.intent))
        planned.decide()
    except BaseException as error:
        _give_up(log, outputs, planned)
        if isinstance(error, LogError) and _is_decided(log.folder):
            with _with_remedy(UNFINISHED):
                raise
        raise
    with _with_remedy(UNFINISHED):
        yield from finish_swap(log.folder, planned.intent)


def record(root: str, first_dirty_offsets: Mapping[TopicPartition, int]) -> None:
    """Write the first dirty offsets of partitions to the checkpoint. Call it after ``swap`` ended.

    Raises:
        LogError: a checkpoint cannot be read or written. The next run sets it.
    """
    with _with_remedy(IN_PLACE):
        write_offsets(root, CLEANER_OFFSETS, first_dirty_offsets)


def delete_replaced(folder: str) -> Steps:
    """The steps that remove the old files and the note, once the checkpoint is written.

    Old files are removed first, then the note.

    Raises:
        LogError: a file could not be removed. The next run removes it.
    """
    with _with_remedy(IN_PLACE):
        yield from remove_leftovers(folder)


def _check_settled(log: PartitionLog, names: Sequence[str]) -> None:
    for name in sorted(names):
        if _is_a(Suffix.SWAP, name):
            raise CommitConflict(
                "another program has not finished a swap of segments",
                path=os.path.join(log.folder, name),
                remedy=AGAIN,
            )


def _give_up(log: PartitionLog, outputs: Sequence[NewSegment], swap: _Swap | None) -> None:
    """Remove the new files. If that fails too, the next run or a broker removes them."""
    with contextlib.suppress(LogError, OSError):
        if swap is not None:
            swap.undo()
            return
        for path in (path for output in outputs for path in output.paths):
            if os.path.exists(path):
                files.unlink(path)


def _is_decided(folder: str) -> bool:
    """Whether the new log is valid, although a step failed and could not be undone."""
    return crash_state(folder, os.listdir(folder)).intent is not None


@contextlib.contextmanager
def _with_remedy(remedy: str) -> Iterator[None]:
    try:
        yield
    except LogError as error:
        raise type(error)(error.problem, error.at, error.path, remedy) from error


def _is_a(suffix: Suffix, name: str) -> bool:
    return name.endswith(suffix) and classify(name).suffix is suffix


class _Swap:
    """A commit, up to the rename after which the new log is valid.

    ``end`` is the offset after the last record of the new segments.
    """

    def __init__(
        self, log: PartitionLog, outputs: Sequence[NewSegment], end: int, first_dirty_offset: int
    ) -> None:
        self._log = log
        self._outputs = in_order(outputs)
        outputs = [output for output, _ in self._outputs]
        sources = [segment.base_offset for output in outputs for segment in output.sources]
        bases = {output.base_offset for output in outputs}
        # Extend the range that Kafka's loader treats as replaced, so that it covers every source.
        stand_in = max(
            (base for base in sources if base not in bases and base >= end), default=None
        )
        end = end if stand_in is None else stand_in
        replaced = set(sources)
        kept = [
            segment
            for segment in log.segments
            if segment.base_offset not in replaced and sources[0] <= segment.base_offset < end
        ]
        # (base offset, kind, staged name, .swap name) of each file in the swap
        self._parts: list[tuple[int, KafkaFileKind, str, str]] = []
        self._handed: list[tuple[str, str]] = []
        self._links: list[tuple[str, str]] = []
        for output in outputs:
            for kind, path in output.files:
                # The file is renamed, so that the cleanup by the task that wrote it does not find
                # it.
                staged = segment_file_name(
                    output.base_offset, kind, Suffix.CLEANED, attempt="commit"
                )
                self._handed.append((path, staged))
                self._add(output.base_offset, kind, staged)
        for segment in kept:
            for kind in SEGMENT_KINDS:
                name = segment_file_name(segment.base_offset, kind)
                if os.path.exists(self._path(name)):
                    staged = segment_file_name(
                        segment.base_offset, kind, Suffix.CLEANED, attempt="kept"
                    )
                    self._links.append((name, staged))
                    self._add(segment.base_offset, kind, staged)
        self._empty: list[str] = []
        if stand_in is not None:
            for kind in ALWAYS:
                self._link_stand_in(stand_in, kind)
        # If the range ends at the base offset of an empty segment, the loader removes an old file
        # of that segment only if a new file replaces it.
        if end == stand_in or (
            end == outputs[-1].base_offset and not outputs[-1].transaction_index_path
        ):
            if os.path.exists(self._path(segment_file_name(end, KafkaFileKind.TRANSACTION_INDEX))):
                self._link_stand_in(end, KafkaFileKind.TRANSACTION_INDEX)
        empty = set(self._empty)
        self.intent = Intent(
            first_dirty_offset=first_dirty_offset,
            outputs=tuple(output.base_offset for output in outputs),
            sources=tuple(sources),
            kept=tuple(segment.base_offset for segment in kept),
            swaps=tuple(swap for *_, swap in self._parts),
            stand_ins=tuple(swap for *_, staged, swap in self._parts if staged in empty),
        )

    def _link_stand_in(self, base: int, kind: KafkaFileKind) -> None:
        self._empty.append(segment_file_name(base, kind, Suffix.CLEANED, attempt="gone"))
        self._add(base, kind, self._empty[-1])

    def _add(self, base: int, kind: KafkaFileKind, staged: str) -> None:
        self._parts.append((base, kind, staged, segment_file_name(base, kind, Suffix.SWAP)))

    def _path(self, name: str) -> str:
        return f"{self._log.folder}/{name}"

    def prepare(self, notes: CommitNotes) -> list[DiskWork]:
        """Rename the new files for the swap and write the note. Returns the syncs to run next."""
        self._sweep()
        for output, sources in self._outputs:
            for kind, path in output.files:
                copy_attributes(path, sources[0], kind, sources[-1].mtime_ns)
        for path, staged in self._handed:
            files.rename(path, self._path(staged))
        for name, staged in self._links:
            files.link(self._path(name), self._path(staged))
        for name in self._empty:
            like = files.owner_of(self._path(name), [self._log.segments[-1].path])
            files.write(self._path(name), b"", like=like)
        notes.leave(self._log.folder)
        return [partial(files.fsync_dir, self._log.folder), *self._sync_kept_segments()]

    def _sync_kept_segments(self) -> list[DiskWork]:
        """The syncs of kept segments that are not flushed.

        Their records supersede removed records.
        """
        root = os.path.dirname(self._log.folder)
        if not unclean_shutdown.was_killed(root):
            return []
        flushed = recovery_point(root, self._log.name)
        removed = set(self.intent.sources)
        return [
            partial(files.fsync_file, segment.path)
            for n, segment in enumerate(self._log.segments)
            if segment.base_offset not in removed
            and segment.base_offset < self.intent.first_dirty_offset
            and self._log.segment_end(n) > flushed
        ]

    def _sweep(self) -> None:
        """Remove foreign ``.cleaned`` files: they make a loader discard the ``.swap`` files."""
        ours = {os.path.basename(path) for path, _ in self._handed}
        for name in sorted(os.listdir(self._log.folder)):
            if (_is_a(Suffix.CLEANED, name) and name not in ours) or is_intent(name):
                files.unlink(self._path(name))

    def decide(self) -> None:
        """Rename all new files to ``.swap``, the highest base offset first.

        The last rename commits.
        """
        for _, _, staged, swap in sorted(
            self._parts, key=lambda part: (-part[0], SEGMENT_KINDS.index(part[1]))
        ):
            files.rename(self._path(staged), self._path(swap))
        # An abandoned task may have written files in the meantime.
        for name in sorted(os.listdir(self._log.folder)):
            if _is_a(Suffix.CLEANED, name):
                files.unlink(self._path(name))

    def undo(self) -> None:
        """Restore the old log. This is possible only before the first old file is renamed."""
        names = set(os.listdir(self._log.folder))
        *_, staged, swap = min(
            self._parts, key=lambda part: (part[0], SEGMENT_KINDS.index(part[1]))
        )
        if swap in names:
            # All files were renamed. One .cleaned file at the lowest base offset makes any loader
            # discard the swap.
            files.rename(self._path(swap), self._path(staged))
            files.fsync_dir(self._log.folder)
        note = intent_file(self.intent)
        if note in names:
            files.unlink(self._path(note))
            files.fsync_dir(self._log.folder)
        names = set(os.listdir(self._log.folder))
        handed = [os.path.basename(path) for path, _ in self._handed]
        for name in [part[3] for part in self._parts] + [part[2] for part in self._parts] + handed:
            if name in names:
                files.unlink(self._path(name))
        files.fsync_dir(self._log.folder)
