"""Kafka's log directories: where partitions lie, and what each of them holds.

A partition is read as Kafka's loader would leave it after a start: what a crash left half done is
seen as done or as undone (see ``kafka.recovery``), and nothing is changed for that. Reading costs a
directory listing, two small reads a segment, and the headers at the end of the last one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from lastwrite.errors import CorruptLog, LogError, NotALog, TruncatedLog, UnsupportedFormat
from lastwrite.kafka.format.batch import decode_batch_header
from lastwrite.kafka.format.batch_layout import BATCH_HEADER
from lastwrite.kafka.format.index import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    Int64s,
    decode_offset_index,
    decode_time_index,
)
from lastwrite.kafka.format.names import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_STARTS,
    METADATA_TOPIC,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    SEGMENT_KINDS,
    FileKind,
    FolderState,
    Suffix,
    classify,
    decode_folder_name,
    segment_file_name,
)
from lastwrite.kafka.format.remedy import REBUILD, RESTORE
from lastwrite.kafka.format.text import decode_leader_epochs, decode_partition_metadata
from lastwrite.kafka.producers.history import decode_aborted, read_history, read_producers
from lastwrite.kafka.producers.snapshot import ProducerEntry, decode_snapshot
from lastwrite.kafka.recovery import unclean_shutdown
from lastwrite.kafka.recovery.loss import (
    Witness,
    missing,
    where_a_start_cuts,
    where_a_start_goes_on,
    where_a_start_trusts,
)
from lastwrite.kafka.recovery.unfinished_swap import (
    crash_state,
    finish_swap,
    going,
    is_intent,
    orphans,
    remove_leftovers,
    remove_orphans,
    undo_or_end,
)
from lastwrite.kafka.recovery.walking import Walk, end_offset_of, walk, walk_tail
from lastwrite.kafka.store import links
from lastwrite.kafka.store.checkpoints import read_offsets, recovery_point, write_offset
from lastwrite.model.log import (
    AbortedTransaction,
    PartitionLog,
    Problem,
    ProblemKind,
    Segment,
    TopicPartition,
)
from lastwrite.storage import preflight
from lastwrite.storage.files import to_log_error
from lastwrite.storage.parallel_sync import alone

_MOVE_AWAY = "move it out of this folder: it is no part of the log"
_SETTLED_LATER = "nothing to do: compact, or the broker's next start, puts it in order"
_MARKS = {
    HIGH_WATERMARKS: "the high watermark",
    CLEANER_OFFSETS: "the first dirty offset",
    LOG_STARTS: "the log's start",
}

# ---------------------------------------------------------------------- where partitions lie


def find_partitions(path: str, topic: str | None = None, partition: int | None = None) -> list[str]:
    """The folders of the live partitions at ``path``, by topic and number.

    ``path`` is a log root, a partition's folder, or a file of one; of symbolic links the real path
    decides, see ``links``. Folders that Kafka is deleting, moving or no
    longer knows are left out, and so is the cluster's own metadata log.

    Raises:
        NotALog: nothing of Kafka's lies there, or nothing of that topic and partition.
        LogError: it cannot be read.
    """
    path = os.path.abspath(path)
    if os.path.isfile(path):
        if (
            os.path.islink(path)
            and decode_folder_name(os.path.basename(os.path.dirname(path))) is None
        ):
            path = os.path.realpath(path)
        if classify(os.path.basename(path)).is_foreign:
            raise NotALog(
                "not a file of a Kafka log",
                path=path,
                remedy="give a log root, a partition's folder or a segment, which is named by 20 digits",
            )
        path = os.path.dirname(path)
    if not os.path.isdir(path):
        raise NotALog("no such file or folder", path=path, remedy="check the path")
    if _has_log_files(path):
        folder = links.home_of(path)
        found = {partition_name(folder): folder}
    else:
        found = _partitions_below(os.path.realpath(path))
    chosen = [
        (name, folder)
        for name, folder in sorted(found.items())
        if topic in (None, name.topic) and partition in (None, name.partition)
    ]
    if not chosen:
        wanted = f"of topic {topic!r}" if topic is not None else f"number {partition}"
        listed = ", ".join(str(name) for name in sorted(found)[:5])
        raise NotALog(f"no partition {wanted}", path=path, remedy=f"there are: {listed}")
    return [folder for _, folder in chosen]


def _partitions_below(root: str) -> dict[TopicPartition, str]:
    found = {}
    for entry in _scan(root):
        name = decode_folder_name(entry.name)
        if (
            name is None
            or name.state is not FolderState.LIVE
            or name.partition.topic == METADATA_TOPIC
        ):
            continue
        if entry.is_dir() and _has_log_files(entry.path):
            found[name.partition] = entry.path
    if not found:
        raise NotALog(
            "no Kafka partition in this folder",
            path=root,
            remedy="give a log root (a folder of <topic>-<partition> folders), one of these folders, or a segment",
        )
    return found


def _scan(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError as error:
        raise to_log_error(error, folder, "list the folder") from error


def _has_log_files(folder: str) -> bool:
    return any(not classify(entry.name).is_foreign for entry in _scan(folder))


def partition_name(folder: str) -> TopicPartition:
    """The partition whose folder that is.

    Raises:
        NotALog: the name of the folder says none, or one that must be left alone.
    """
    path = os.path.abspath(folder)
    name = decode_folder_name(os.path.basename(path))
    if name is None:
        raise NotALog(
            "this folder holds segments, but its name is no partition's",
            path=path,
            remedy="rename it to <topic>-<partition>, such as orders-0",
        )
    if name.state is not FolderState.LIVE:
        raise NotALog(
            "a broker is deleting, moving or has disowned this partition",
            path=path,
            remedy="leave it alone",
        )
    if name.partition.topic == METADATA_TOPIC:
        raise NotALog(
            "the cluster's own metadata log, which is never compacted so",
            path=path,
            remedy="leave it alone",
        )
    return name.partition


def root_of(folder: str) -> str:
    """The log root of a partition: there lie its checkpoints and the broker's lock."""
    return os.path.dirname(os.path.abspath(folder))


# ---------------------------------------------------------------------- one partition


def recover(folder: str) -> None:
    """Bring to its end, or undo, what a crash left half done; the caller holds the partition.

    Indexes without a segment go, where they tell of no record. In a root whose broker was killed,
    closed segments get the indexes that its next start would give them; what that would cut or
    remove stays, out of our sight. A damaged log is left as it is.

    Raises:
        LogError: a file cannot be changed; the next call goes on where this one stopped.
    """
    # First those of a segment on its way out: without its .deleted file nothing tells that it was
    # to go.
    remove_orphans(folder, going(_names(folder)))
    names = _names(folder)
    state = crash_state(folder, names)
    if state.intent is not None:
        name, first_dirty = partition_name(folder), state.intent.first_dirty_offset
        alone(finish_swap(folder, state.intent))
        write_offset(root_of(folder), CLEANER_OFFSETS, name, first_dirty)
        alone(remove_leftovers(folder))
    elif not state.is_settled:
        undo_or_end(folder, state)
    if not state.is_settled:
        names = _names(folder)
    lost = orphans(names)
    if lost and not read_partition(folder).is_damaged:
        remove_orphans(folder, lost)
    if not unclean_shutdown.was_killed(root_of(folder)):
        return
    log = read_partition(folder)
    if log.is_damaged:
        return
    for n, segment in enumerate(log.segments[:-1]):
        unclean_shutdown.mend_indexes(segment, log.aborted_in(n))


def refuse_unwritable(folder: str, end: int) -> None:
    """Say no before a round where files of segments below the offset ``end`` could not be replaced,
    or the checkpoint.

    Raises:
        LogError: it names what stops it.
    """
    found = [(name, classify(name)) for name in _names(folder)]
    preflight.refuse_unwritable(
        folder, [name for name, file in found if file.offset is not None and file.offset < end]
    )
    preflight.refuse_unwritable(root_of(folder), [CLEANER_OFFSETS])


def _names(folder: str) -> list[str]:
    return sorted(entry.name for entry in _scan(folder))


def read_partition(folder: str) -> PartitionLog:
    """List one partition: segments, bounds, and whatever is wrong with what was looked at.

    ``Segment.path`` is the file as it is named now; after a crash that may be ``….log.swap``. A
    damaged file is a problem in the answer, not an error.

    Raises:
        NotALog: not a partition's folder.
        LogError: a file cannot be read.
    """
    return _Reading(folder).log()


class _Reading:
    """The listing of one partition, on its way to a ``PartitionLog``."""

    def __init__(self, folder: str) -> None:
        self._folder = os.path.abspath(folder)
        self._name = partition_name(folder)
        self._root = root_of(folder)
        self._problems: list[Problem] = []
        self._is_end_said = False  # that records are missing behind the log's end
        self._aborted: dict[int, tuple[AbortedTransaction, ...]] = {}  # by segment
        self._unsure: set[int] = (
            set()
        )  # segments whose transaction index may not be what the broker meant
        # Before the log: where a broker runs, it notes later what comes later.
        self._offsets = {
            file: self._offset(file) for file in (LOG_STARTS, HIGH_WATERMARKS, CLEANER_OFFSETS)
        }
        self._recovery_point = recovery_point(self._root, self._name)
        names = _names(folder)
        self._state = crash_state(folder, names)
        self._live = self._state.live(names)
        self._say_what_is_settled(names)
        self._orphans = orphans(self._live)
        on_their_way = {*going(names)}
        # segments without a file, and the greatest offset that their indexes name
        self._gone: dict[int, int] = {}
        for name in self._orphans:
            base, named = int(name[:20]), self._named(name)
            if named is not None and name not in on_their_way:
                self._gone[base] = max(named, self._gone.get(base, base))
        for name in self._orphans:
            del self._live[name]
        self._bases = sorted(
            int(name[:20]) for name in self._live if classify(name).kind is FileKind.LOG
        )
        self._was_killed = unclean_shutdown.was_killed(self._root)
        # From the segment that begins here on a broker that was killed may not have flushed all
        # that it wrote.
        self._unflushed = max(
            (base for base in self._bases if base <= self._recovery_point), default=0
        )
        self._witnesses = [
            *(
                Witness(at, f"{words} is {at} ({file})")
                for file, words in _MARKS.items()
                if (at := self._offsets[file])
            ),
            Witness(
                self._recovery_point,
                f"the recovery point is {self._recovery_point} ({RECOVERY_POINTS})",
            ),
        ]

    def log(self) -> PartitionLog:
        for name in sorted(self._live):
            self._look_at(name)
        bases = self._bases
        segments, end_offset = self._segments()
        log_start = max(self._offsets[LOG_STARTS] or 0, bases[0] if bases else 0)
        if not bases:
            end_offset = log_start
        self._say_which_segments_are_gone(end_offset)
        self._say_what_is_missing(segments, end_offset)
        seen = {os.path.basename(segment.path) for segment in segments}
        logs = {self._live[segment_file_name(base, FileKind.LOG)] for base in bases}
        watermark = self._offsets[HIGH_WATERMARKS]
        high_watermark = end_offset if watermark is None else min(watermark, end_offset)
        snapshots = [
            int(name[:20]) for name in self._live if classify(name).kind is FileKind.SNAPSHOT
        ]
        producers, first_unstable = read_producers(
            segments, snapshots, self._snapshot, log_start, high_watermark, end_offset
        )
        intent = self._state.intent
        listed = PartitionLog(
            name=self._name,
            folder=self._folder,
            segments=segments,
            log_start=log_start,
            end_offset=end_offset,
            high_watermark=high_watermark,
            checkpoint=self._offsets[CLEANER_OFFSETS]
            if intent is None
            else intent.first_dirty_offset,
            problems=tuple(self._problems),
            producers=producers,
            aborted=tuple(entry for base in bases for entry in self._aborted.get(base, ())),
            first_unstable_offset=first_unstable,
            unseen=tuple(sorted(logs - seen)),
            cached=tuple(
                sorted(name for name in self._live if classify(name).kind is FileKind.KEPT)
            ),
        )
        return self._with_aborted(listed) if self._unsure else listed

    def _with_aborted(self, log: PartitionLog) -> PartitionLog:
        """With the aborted transactions that a broker's start would find in the log, where it
        believes no index.

        An entry of whose transaction no data is left is no lie, as long as its marker is there.
        """
        history = read_history(log)
        told = replace(log, aborted=history.aborted)
        segments: list[Segment] = []
        aborted: list[AbortedTransaction] = []
        for n, segment in enumerate(log.segments):
            known = self._aborted.get(segment.base_offset, ())
            if segment.base_offset in self._unsure:
                true = {
                    a.last_offset: a
                    for a in known
                    if (a.producer_id, a.last_offset) in history.aborts
                }
                for entry in told.aborted_in(n):
                    if (
                        entry.last_offset not in true
                        or true[entry.last_offset].first_offset > entry.first_offset
                    ):
                        true[entry.last_offset] = entry
                if [true[offset] for offset in sorted(true)] != list(known):
                    name = segment_file_name(segment.base_offset, FileKind.TRANSACTION_INDEX)
                    self._recovered(
                        "does not go with the records: they say themselves what was aborted", name
                    )
                    segment, known = (
                        replace(segment, is_abort_indexed=False),
                        tuple(true[o] for o in sorted(true)),
                    )
            segments.append(segment)
            aborted += known
        return replace(
            log, segments=tuple(segments), aborted=tuple(aborted), problems=tuple(self._problems)
        )

    def _damaged(
        self, message: str, name: str, position: int | None = None, remedy: str | None = None
    ) -> None:
        path = os.path.join(self._folder, self._live.get(name, name))
        self._problems.append(Problem(ProblemKind.DAMAGED, message, path, position, remedy))

    def _recovered(self, message: str, name: str, position: int | None = None) -> None:
        path = os.path.join(self._folder, self._live.get(name, name))
        self._problems.append(
            Problem(ProblemKind.RECOVERED, message, path, position, _SETTLED_LATER)
        )

    def _say_what_is_settled(self, names: Iterable[str]) -> None:
        if self._state.renames:
            self._recovered(
                "new segments that a crash left on their way: they count", self._state.renames[0][0]
            )
            return
        for name in sorted(names):
            if classify(name).suffix in (Suffix.SWAP, Suffix.CLEANED):
                self._recovered("new segments that were never finished: they do not count", name)
                return

    def _note(self, error: LogError, path: str, remedy: str = RESTORE) -> None:
        is_unknown = isinstance(error, UnsupportedFormat)
        kind = ProblemKind.UNSUPPORTED if is_unknown else ProblemKind.DAMAGED
        said = error.remedy or (None if is_unknown else remedy)
        self._problems.append(Problem(kind, error.problem, error.path or path, error.at, said))

    def _read(self, name: str) -> bytes:
        return _read_file(os.path.join(self._folder, self._live[name]))

    # ------------------------------------------------------------------ side files

    def _look_at(self, name: str) -> None:
        """Judge a file by its name and, where it is small, by what is in it."""
        file = classify(name)
        path = os.path.join(self._folder, self._live[name])
        if file.kind in (FileKind.INDEX, FileKind.TIME_INDEX, FileKind.TRANSACTION_INDEX):
            if file.kind is FileKind.TRANSACTION_INDEX:
                try:
                    self._aborted[int(name[:20])] = decode_aborted(self._read(name), int(name[:20]))
                except CorruptLog as error:
                    if not self._is_unflushed(int(name[:20])):
                        self._note(error, path, REBUILD)
                if self._is_unflushed(int(name[:20])):
                    self._unsure.add(int(name[:20]))
        elif file.kind is FileKind.SNAPSHOT:
            self._witnesses.append(Witness(int(name[:20]), f"{name} is of that offset"))
            try:
                for entry in decode_snapshot(self._read(name)):
                    said = f"producer {entry.producer_id} in {name} wrote up to {entry.last_offset}"
                    self._witnesses.append(Witness(entry.last_offset + 1, said))
            except LogError as error:
                self._recovered(f"{error.problem}: passed over, as a broker does", name, error.at)
        elif name == LEADER_EPOCHS or name == PARTITION_METADATA:
            try:
                if name == LEADER_EPOCHS:
                    for epoch, start_offset in decode_leader_epochs(self._read(name)):
                        said = f"leader epoch {epoch} begins at {start_offset} ({name})"
                        self._witnesses.append(Witness(start_offset, said))
                else:
                    decode_partition_metadata(self._read(name))
            except LogError as error:
                self._note(
                    error,
                    path,
                    "bring back the file from a backup of this folder, or from a replica in sync",
                )
        elif file.kind in (
            FileKind.FOREIGN,
            FileKind.METADATA_SNAPSHOT,
            FileKind.QUORUM_STATE,
        ) and not is_intent(name):
            self._damaged("a foreign file", name, remedy=_MOVE_AWAY)

    def _snapshot(self, offset: int) -> tuple[ProducerEntry, ...]:
        return decode_snapshot(self._read(segment_file_name(offset, FileKind.SNAPSHOT)))

    def _offset(self, file: str) -> int | None:
        try:
            return read_offsets(self._root, file).get(self._name)
        except (CorruptLog, UnsupportedFormat) as error:
            self._damaged_root(error, file)
            return None

    def _damaged_root(self, error: LogError, file: str) -> None:
        path = error.path or os.path.join(self._root, file)
        self._problems.append(
            Problem(ProblemKind.DAMAGED, error.problem, path, error.at, error.remedy)
        )

    # ------------------------------------------------------------------ segments

    def _is_unflushed(self, base: int) -> bool:
        return self._was_killed and base >= self._unflushed

    def _segments(self) -> tuple[tuple[Segment, ...], int]:
        """The segments up to the place where a broker's start would end the log, and the offset
        there.
        """
        segments: list[Segment] = []
        end_offset = 0
        for base in self._bases:
            is_active = base == self._bases[-1]
            has_no_index = segment_file_name(base, FileKind.INDEX) not in self._live
            if self._is_unflushed(base) or (self._was_killed and has_no_index):
                segment, end_offset = self._recovered_segment(base, is_active=is_active)
            else:
                segment = self._segment(base, is_active=is_active)
                if is_active:
                    tail = self._tail(segment)
                    end_offset = tail.end_offset
                    # The time index of a segment that is still appended to may lag behind its
                    # records.
                    indexed = segment.largest_timestamp_ms if segment.time_index_bytes else -1
                    if tail.largest_timestamp_ms > indexed:
                        segment = replace(segment, largest_timestamp_ms=tail.largest_timestamp_ms)
            segments.append(segment)
            if segment.torn_bytes:
                behind = len(self._bases) - len(segments)
                if behind:
                    following = segment_file_name(self._bases[len(segments)], FileKind.LOG)
                    self._recovered(
                        f"{behind} segments behind the place where the log ends are not seen",
                        following,
                    )
                break
        return tuple(segments), end_offset

    def _recovered_segment(self, base: int, *, is_active: bool) -> tuple[Segment, int]:
        """A segment as a broker's start would leave it after a crash, and the offset behind it."""
        log, index, times, _ = (segment_file_name(base, kind) for kind in SEGMENT_KINDS)
        path, index_at, times_at = (
            os.path.join(self._folder, self._live.get(name, name)) for name in (log, index, times)
        )
        found = unclean_shutdown.recover_segment(path, base, index_at, times_at)
        seen = _stat(path)
        size_bytes = seen.st_size
        is_damaged = self._is_damaged(base, path, found, is_active=is_active)
        if found.error is not None and not is_damaged:
            size_bytes = found.size_bytes
            cut = seen.st_size - size_bytes
            self._recovered(
                f"{found.error.problem}: the log ends, {cut} bytes are not seen", log, size_bytes
            )
        if found.has_markers:
            self._unsure.add(base)
        is_indexed = found.is_indexed(is_active=is_active)
        if not is_indexed and size_bytes and not is_damaged:
            self._recovered("is missing, or does not go with the records: not looked at", index)
        largest = found.largest_timestamp_ms
        segment = Segment(
            base_offset=base,
            path=path,
            size_bytes=size_bytes,
            mtime_ns=seen.st_mtime_ns,
            largest_timestamp_ms=largest if largest >= 0 else seen.st_mtime_ns // 1_000_000,
            first_batch_timestamp_ms=self._first_timestamp(path, base, size_bytes, is_active=True),
            index_bytes=found.index.entry_bytes if is_indexed else 0,
            time_index_bytes=found.time_index.entry_bytes if is_indexed else 0,
            torn_bytes=seen.st_size - size_bytes,
            is_indexed=is_indexed,
        )
        return segment, found.end_offset

    def _is_damaged(
        self, base: int, path: str, found: unclean_shutdown.Recovered, *, is_active: bool
    ) -> bool:
        """Whether records are lost in a segment, which is said. Else it is whole, or a crash tore
        the log's tail.
        """
        end_offset, following, error = (
            found.end_offset,
            [other for other in self._bases if other > base],
            found.error,
        )
        if error is None:
            named = None if is_active else found.indexed_beyond
            return named is not None and self._is_known_to_indexes(
                base, found.size_bytes, end_offset, named
            )
        if found.is_unseen or not self._is_unflushed(base):
            self._note(error, path)
            return True
        witness = self._next_segment(base) if following else self._furthest
        if witness.end_offset > end_offset:
            is_torn = isinstance(error, TruncatedLog)
            words = f"{error.problem}: {missing(end_offset, witness, is_file_at_end=is_torn)}"
        elif found.is_emptied:
            words = f"{error.problem}, for which a broker's start empties the whole segment"
        elif any(_stat(self._log_path(other)).st_size for other in following):
            words = f"{error.problem}, before segments that are whole"
        elif beyond := unclean_shutdown.whole_beyond(path, found.size_bytes, base, end_offset):
            known = f"whole batches from offset {beyond.base_offset} on come after it at byte {beyond.position}"
            gone = missing(end_offset, Witness(beyond.end_offset, known), is_file_at_end=False)
            words = f"{error.problem}: {gone}"
        else:
            return False
        remedy = where_a_start_cuts(end_offset, following, self._offsets[LOG_STARTS] or 0)
        self._problems.append(Problem(ProblemKind.DAMAGED, words, path, error.at, remedy))
        self._is_end_said |= not following
        return True

    def _log_path(self, base: int) -> str:
        return os.path.join(self._folder, self._live[segment_file_name(base, FileKind.LOG)])

    def _next_segment(self, base: int) -> Witness:
        after = min(other for other in self._bases if other > base)
        return Witness(after, f"the next segment begins at {after}")

    @property
    def _furthest(self) -> Witness:
        """What knows of the most records."""
        return max(self._witnesses, key=lambda witness: witness.end_offset)

    def _is_known_to_indexes(self, base: int, size_bytes: int, end_offset: int, named: int) -> bool:
        """Whether the offset that an index of a closed segment names lies behind its last record,
        which is said.
        """
        after = self._next_segment(base)
        if not end_offset <= named < after.end_offset:
            return False  # no true entry: the index does not count
        ends = f"the segment ends at offset {end_offset}" if size_bytes else "the segment is empty"
        witness = Witness(after.end_offset, f"its indexes name offset {named}, and {after.words}")
        self._damaged(
            f"{ends}: {missing(end_offset, witness)}",
            segment_file_name(base, FileKind.LOG),
            size_bytes,
            RESTORE,
        )
        return True

    def _say_what_is_missing(self, segments: Sequence[Segment], end_offset: int) -> None:
        """Say it where something beside the log knows of records behind its end."""
        witness = self._furthest
        if witness.end_offset <= end_offset or self._is_end_said:
            return
        words = f"the log ends at offset {end_offset}: {missing(end_offset, witness)}"
        remedy = where_a_start_goes_on(end_offset, self._offsets[LOG_STARTS] or 0)
        last = segments[-1] if segments else None
        path, position = (last.path, last.size_bytes) if last is not None else (self._folder, None)
        self._problems.append(Problem(ProblemKind.DAMAGED, words, path, position, remedy))

    def _named(self, name: str) -> int | None:
        """The greatest offset that an index names; its base where no entry can be made out; None:
        it has none.
        """
        data, base, kind = self._read(name), int(name[:20]), classify(name).kind
        if not any(data):
            return None
        try:
            if kind is FileKind.TRANSACTION_INDEX:
                return max(
                    (entry.last_offset for entry in decode_aborted(data, base)), default=base
                )
            decode = decode_offset_index if kind is FileKind.INDEX else decode_time_index
            return max(decode(data, base).offsets.tolist(), default=base)
        except LogError:
            return base

    def _say_which_segments_are_gone(self, end_offset: int) -> None:
        """Say it where indexes have entries and their segment has no file; all others without one
        do not count.
        """
        log_start = self._offsets[LOG_STARTS] or 0
        lost = {
            base for base, named in self._gone.items() if not self._is_over(base, named, log_start)
        }
        for name in self._orphans:
            if int(name[:20]) not in lost:
                self._recovered("an index without its segment, which does not count", name)
        for base in sorted(lost):
            after = self._after(base)
            is_last = not any(other > base for other in self._bases)
            known = (
                f"the next segment begins at {after}"
                if after is not None
                else "nothing comes after it"
            )
            end = after if after is not None else self._gone[base] + 1
            gone = missing(
                base, Witness(end, f"its indexes name offset {self._gone[base]}, and {known}")
            )
            remedy = where_a_start_goes_on(end_offset, log_start) if is_last else RESTORE
            log = segment_file_name(base, FileKind.LOG)
            self._damaged(f"the segment's file is missing: {gone}", log, remedy=remedy)

    def _is_over(self, base: int, named: int, log_start: int) -> bool:
        """Whether the records of a segment without a file had left the log before its file did.

        They lie below the log's start, or in the segment before: a cleaner made one of both.
        """
        after = self._after(base)
        if (named + 1 if after is None else after) <= log_start:
            return True
        before = max((other for other in self._bases if other < base), default=None)
        if before is None:
            return False
        path = self._log_path(before)
        return end_offset_of(path, index_path(path), before) > named

    def _after(self, base: int) -> int | None:
        """Where the next segment begins, of those that are gone too."""
        return min((other for other in (*self._bases, *self._gone) if other > base), default=None)

    def _segment(self, base: int, *, is_active: bool) -> Segment:
        log = segment_file_name(base, FileKind.LOG)
        path = os.path.join(self._folder, self._live[log])
        seen = _stat(path)
        index_bytes, last_entry = self._last_entry(base, FileKind.INDEX, bool(seen.st_size))
        time_bytes, last_time = self._last_entry(base, FileKind.TIME_INDEX, bool(seen.st_size))
        if not seen.st_size and not is_active:
            named = [
                entry[n] for n, entry in enumerate((last_entry, last_time)) if entry is not None
            ]
            if named:
                self._is_known_to_indexes(base, 0, base, base + min(named))
        elif last_entry is not None and not is_active and last_entry[1] >= seen.st_size:
            self._say_entry_beyond(
                base,
                walk(path, seen.st_size, base).end_offset,
                seen.st_size,
                last_entry,
                index_bytes,
            )
        largest = seen.st_mtime_ns // 1_000_000
        if last_time is not None and last_time[0] >= 0:
            largest = last_time[0]
        return Segment(
            base_offset=base,
            path=path,
            size_bytes=seen.st_size,
            mtime_ns=seen.st_mtime_ns,
            largest_timestamp_ms=largest,
            first_batch_timestamp_ms=self._first_timestamp(path, base, seen.st_size, is_active),
            index_bytes=index_bytes,
            time_index_bytes=time_bytes,
        )

    def _say_entry_beyond(
        self, base: int, end_offset: int, size_bytes: int, entry: tuple[int, int], index_bytes: int
    ) -> None:
        """Say that the last entry of an offset index leads behind the segment's end: which of both
        is wrong.
        """
        offset, position = base + entry[0], entry[1]
        words = f"the last entry leads to byte {position} of a segment of {size_bytes}"
        is_last = base == self._bases[-1]
        known = (
            Witness(offset + 1, "nothing comes after it") if is_last else self._next_segment(base)
        )
        is_lost = end_offset <= offset < known.end_offset
        if is_lost:
            gone = missing(
                end_offset,
                Witness(known.end_offset, f"its index names offset {offset}, and {known.words}"),
            )
            words = f"the segment ends at offset {end_offset}: {gone}"
            self._damaged(words, segment_file_name(base, FileKind.LOG), size_bytes, RESTORE)
            self._is_end_said |= is_last
        else:
            self._damaged(
                words,
                segment_file_name(base, FileKind.INDEX),
                index_bytes - OFFSET_ENTRY.size,
                REBUILD,
            )

    def _last_entry(
        self, base: int, kind: FileKind, is_filled: bool
    ) -> tuple[int, tuple[int, int] | None]:
        """Bytes of entries in an index, without the zeros behind, and the last entry's two fields."""
        name = segment_file_name(base, kind)
        layout = OFFSET_ENTRY if kind is FileKind.INDEX else TIME_ENTRY
        if name not in self._live:
            if is_filled and self._was_killed:
                self._recovered("is missing: the time of its segment's file counts", name)
            elif is_filled:
                self._damaged(
                    "the file is missing, though its segment has records", name, remedy=REBUILD
                )
            return 0, None
        path = os.path.join(self._folder, self._live[name])
        size = _stat(path).st_size
        if size % layout.size:
            self._damaged(
                f"{size} bytes, which is no multiple of {layout.size}", name, size, REBUILD
            )
            return size, None
        if not size:
            return 0, None
        with open(path, "rb", buffering=0) as file:
            tail = os.pread(file.fileno(), layout.size, size - layout.size)
        if any(tail):
            first, second = layout.unpack_from(tail)
            return size, (first, second)
        try:
            if kind is FileKind.INDEX:
                offsets = decode_offset_index(_read_file(path), base)
                rows, last = len(offsets), [offsets.offsets[-1:] - base, offsets.positions[-1:]]
            else:
                times = decode_time_index(_read_file(path), base)
                rows, last = len(times), [times.timestamps_ms[-1:], times.offsets[-1:] - base]
        except LogError as error:
            self._note(error, path, REBUILD)
            return size, None
        return rows * layout.size, (int(last[0][0]), int(last[1][0])) if rows else None

    def _first_timestamp(
        self, path: str, base: int, size_bytes: int, is_active: bool
    ) -> int | None:
        """The largest timestamp of the first batch; None where there is none."""
        if not size_bytes:
            return None
        try:
            with open(path, "rb", buffering=0) as file:
                head = os.pread(file.fileno(), BATCH_HEADER.size, 0)
            header = decode_batch_header(head, 0)
            if header.base_offset < base:
                raise CorruptLog(
                    f"a batch at offset {header.base_offset} in the segment of {base}", 0
                )
        except OSError as error:
            raise to_log_error(error, path, "read the segment") from error
        except LogError as error:
            if not is_active:  # of the active segment the walk will say it
                self._note(error, path)
            return None
        return header.max_timestamp_ms

    def _tail(self, active: Segment) -> Walk:
        """Where the log ends: the last whole batch of the active segment."""
        index = decode_offset_index(b"", active.base_offset)
        name = segment_file_name(active.base_offset, FileKind.INDEX)
        if name in self._live:
            try:
                index = decode_offset_index(self._read(name), active.base_offset)
            except LogError as error:
                path = os.path.join(self._folder, self._live[name])
                if not any(problem.path == path for problem in self._problems):
                    self._note(error, path, REBUILD)
        found = walk_tail(active.path, active.size_bytes, index)
        if len(index) and int(index.positions[-1]) >= active.size_bytes:
            last = int(index.offsets[-1]) - active.base_offset, int(index.positions[-1])
            self._say_entry_beyond(
                active.base_offset,
                found.end_offset,
                active.size_bytes,
                last,
                len(index) * OFFSET_ENTRY.size,
            )
        wrong, witness = found.error, self._furthest
        if wrong is not None:
            if isinstance(wrong, CorruptLog) and witness.end_offset > found.end_offset:
                gone = missing(
                    found.end_offset, witness, is_file_at_end=isinstance(wrong, TruncatedLog)
                )
                wrong = CorruptLog(f"{wrong.problem}: {gone}", wrong.at, wrong.path)
            self._note(wrong, active.path, where_a_start_trusts(found.end_offset))
            self._is_end_said = True
        return found


def _stat(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        raise to_log_error(error, path, "look at the file") from error


def _read_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise to_log_error(error, path, "read the file") from error


# ---------------------------------------------------------------------- indexes of one segment


def segment_path(folder: str, base_offset: int) -> str:
    """The segment that begins at an offset, in a folder where no swap is under way."""
    return os.path.join(folder, segment_file_name(base_offset, FileKind.LOG))


def index_path(log_path: str) -> str:
    """The offset index beside a segment, also of one that is still a ``.swap``."""
    return _beside(log_path, FileKind.INDEX)


def time_index_path(log_path: str) -> str:
    """The time index beside a segment, also of one that is still a ``.swap``."""
    return _beside(log_path, FileKind.TIME_INDEX)


def transaction_index_path(log_path: str) -> str:
    """The transaction index beside a segment, also where one of both is still a ``.swap``."""
    path = _beside(log_path, FileKind.TRANSACTION_INDEX)
    swap = path + Suffix.SWAP
    return swap if not os.path.exists(path) and os.path.exists(swap) else path


def _beside(log_path: str, kind: FileKind) -> str:
    folder, name = os.path.split(log_path)
    return os.path.join(folder, name[:20] + kind + name[20:].removeprefix(FileKind.LOG))


class Indexed(Protocol):
    """A segment, or a piece of one."""

    @property
    def path(self) -> str: ...
    @property
    def is_indexed(self) -> bool: ...


def read_offset_index(source: Indexed) -> tuple[Int64s, Int64s]:
    """The entries of a segment's offset index: absolute offsets and positions, row for row.

    None if it is missing, or if a crash left one that nobody may look into.

    Raises:
        CorruptLog: the entries contradict each other.
    """
    path = index_path(source.path)
    try:
        index = decode_offset_index(
            _read_if_there(path) if source.is_indexed else b"", _base_of(source.path)
        )
    except LogError as error:
        raise error.located(path) from error
    return index.offsets, index.positions


def read_time_index(source: Indexed) -> tuple[Int64s, Int64s]:
    """The entries of a segment's time index: timestamps in ms and absolute offsets, row for row;
    see above.

    Raises:
        CorruptLog: the entries contradict each other.
    """
    path = time_index_path(source.path)
    try:
        index = decode_time_index(
            _read_if_there(path) if source.is_indexed else b"", _base_of(source.path)
        )
    except LogError as error:
        raise error.located(path) from error
    return index.timestamps_ms, index.offsets


def read_aborted_of(log_path: str) -> tuple[AbortedTransaction, ...]:
    """The entries of a segment's transaction index, by last offset; none if there is no such file.

    Raises:
        CorruptLog: an entry of an unknown version, or markers that lie below the segment or do not
            rise.
    """
    path = transaction_index_path(log_path)
    try:
        return decode_aborted(_read_if_there(path), _base_of(log_path))
    except LogError as error:
        raise error.located(path) from error


def snapshots_of(folder: str) -> list[tuple[int, str]]:
    """(Offset, path) of each producer snapshot, by offset."""
    names = [
        name for name in _names(folder) if classify(name)[:2] == (FileKind.SNAPSHOT, Suffix.LIVE)
    ]
    return [(int(name[:20]), os.path.join(folder, name)) for name in names]


def _base_of(log_path: str) -> int:
    return int(os.path.basename(log_path)[:20])


def _read_if_there(path: str) -> bytes:
    return _read_file(path) if os.path.exists(path) else b""
