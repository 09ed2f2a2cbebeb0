"""Kafka's log directories: where partitions lie, and what each of them holds.

A partition is read as Kafka's loader would leave it after a start: what a crash left half done is seen as done
or as undone (see ``recovery``), and nothing is changed for that. Reading costs a directory listing, two small
reads a segment, and the headers at the end of the last one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Protocol

from lastwrite.errors import CorruptLog, LogError, NotALog, UnsupportedFormat
from lastwrite.formats.kafka.batch import BATCH_HEADER, decode_batch_header
from lastwrite.formats.kafka.index import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    Int64s,
    decode_offset_index,
    decode_time_index,
)
from lastwrite.formats.kafka.names import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_STARTS,
    METADATA_TOPIC,
    PARTITION_METADATA,
    SEGMENT_KINDS,
    FileKind,
    FolderState,
    Suffix,
    classify,
    decode_folder_name,
    segment_file_name,
)
from lastwrite.formats.kafka.snapshot import ProducerEntry, decode_snapshot
from lastwrite.formats.kafka.text import decode_leader_epochs, decode_partition_metadata
from lastwrite.logstore import unclean
from lastwrite.logstore.checkpoints import read_offsets
from lastwrite.logstore.files import to_log_error
from lastwrite.logstore.producers import decode_aborted, read_history, read_producers
from lastwrite.logstore.recovery import is_intent, orphans, perform, remove_orphans, settle
from lastwrite.logstore.walking import Walk, walk_tail
from lastwrite.model.log import (
    AbortedTransaction,
    PartitionLog,
    Problem,
    ProblemKind,
    Segment,
    TopicPartition,
)

_RESTORE = "nothing was changed; restore this file from a replica or a backup"
_REBUILD = (
    "start the broker on this log once: it makes indexes anew; or delete all three and let it"
)
_MOVE_AWAY = "move it out of this folder: it is no part of the log"
_SETTLED_LATER = "nothing to do: compact, or the broker's next start, puts it in order"
_NOTHING_LOST = 1 << 63  # the recovery point where a broker shut down in order
_REBUILD_ABORTED = (
    "delete it and the .index beside it, and start the broker on this log once: it makes both anew"
)

# ---------------------------------------------------------------------- where partitions lie


def find_partitions(path: str, topic: str | None = None, partition: int | None = None) -> list[str]:
    """The folders of the live partitions at ``path``, by topic and number.

    ``path`` is a log root, a partition's folder, or a file of one. Folders that Kafka is deleting, moving or no
    longer knows are left out, and so is the cluster's own metadata log.

    Raises:
        NotALog: nothing of Kafka's lies there, or nothing of that topic and partition.
        LogError: it cannot be read.
    """
    path = os.path.abspath(path)
    if os.path.isfile(path):
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
        found = {partition_name(path): path}
    else:
        found = _partitions_below(path)
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

    Indexes without a segment go. In a root whose broker was killed, closed segments get the indexes that its next
    start would give them; what that would cut or remove stays, out of our sight. A damaged log is left as it is.

    Raises:
        LogError: a file cannot be changed; the next call goes on where this one stopped.
    """
    names = _names(folder)
    settlement = settle(folder, names)
    if not settlement.is_settled:
        perform(folder, settlement, partition_name(folder), root_of(folder))
        names = _names(folder)
    remove_orphans(folder, names)
    if not unclean.was_killed(root_of(folder)):
        return
    log = read_partition(folder)
    if any(problem.kind is ProblemKind.DAMAGED for problem in log.problems):
        return
    for n, segment in enumerate(log.segments[:-1]):
        unclean.mend_indexes(segment, log.aborted_in(n))


def _names(folder: str) -> list[str]:
    return sorted(entry.name for entry in _scan(folder))


def read_partition(folder: str) -> PartitionLog:
    """List one partition: segments, bounds, and whatever is wrong with what was looked at.

    ``Segment.path`` is the file as it is named now; after a crash that may be ``….log.swap``. A damaged file is
    a problem in the answer, not an error.

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
        self._aborted: dict[int, tuple[AbortedTransaction, ...]] = {}  # by segment
        self._unsure: set[int] = (
            set()
        )  # segments whose transaction index may not be what the broker meant
        names = _names(folder)
        self._settlement = settle(folder, names)
        self._live = self._settlement.live(names)
        self._say_what_is_settled(names)
        for name in orphans(self._live):
            self._recovered("an index without its segment, which does not count", name)
            del self._live[name]
        self._bases = sorted(
            int(name[:20]) for name in self._live if classify(name).kind is FileKind.LOG
        )
        self._was_killed = unclean.was_killed(self._root)
        self._recovery_point = (
            unclean.recovery_point(self._root, self._name) if self._was_killed else _NOTHING_LOST
        )
        # From the segment that begins here on a broker that was killed may not have flushed all that it wrote.
        self._unflushed = max(
            (base for base in self._bases if base <= self._recovery_point), default=0
        )

    def log(self) -> PartitionLog:
        for name in sorted(self._live):
            self._look_at(name)
        bases = self._bases
        segments, end_offset = self._segments()
        lowest_start = self._offset(LOG_STARTS) or 0
        log_start = max(lowest_start, bases[0] if bases else 0)
        if not bases:
            end_offset = log_start
        elif end_offset < lowest_start and not any(
            p.kind is ProblemKind.DAMAGED for p in self._problems
        ):
            first = segment_file_name(bases[0], FileKind.LOG)
            message = f"the log ends at offset {end_offset}, before its start at {lowest_start}: nothing of it counts"
            self._recovered(message, first)
            segments, end_offset = (), lowest_start
        seen = {os.path.basename(segment.path) for segment in segments}
        logs = {self._live[segment_file_name(base, FileKind.LOG)] for base in bases}
        watermark = self._offset(HIGH_WATERMARKS)
        high_watermark = end_offset if watermark is None else min(watermark, end_offset)
        snapshots = [
            int(name[:20]) for name in self._live if classify(name).kind is FileKind.SNAPSHOT
        ]
        producers, first_unstable = read_producers(
            segments, snapshots, self._snapshot, log_start, high_watermark, end_offset
        )
        intent = self._settlement.intent
        listed = PartitionLog(
            name=self._name,
            folder=self._folder,
            segments=segments,
            log_start=log_start,
            end_offset=end_offset,
            high_watermark=high_watermark,
            checkpoint=self._offset(CLEANER_OFFSETS)
            if intent is None
            else intent.first_dirty_offset,
            problems=tuple(self._problems),
            producers=producers,
            aborted=tuple(entry for base in bases for entry in self._aborted.get(base, ())),
            first_unstable_offset=first_unstable,
            unseen=tuple(sorted(logs - seen)),
            kept=tuple(sorted(name for name in self._live if classify(name).kind is FileKind.KEPT)),
        )
        return self._with_aborted(listed) if self._unsure else listed

    def _with_aborted(self, log: PartitionLog) -> PartitionLog:
        """With the aborted transactions that a broker's start would find in the log, where it believes no index.

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
        if self._settlement.renames:
            self._recovered(
                "new segments that a crash left on their way: they count",
                self._settlement.renames[0][0],
            )
            return
        for name in sorted(names):
            if classify(name).suffix in (Suffix.SWAP, Suffix.CLEANED):
                self._recovered("new segments that were never finished: they do not count", name)
                return

    def _note(self, error: LogError, path: str, remedy: str | None = None) -> None:
        kind = (
            ProblemKind.UNSUPPORTED if isinstance(error, UnsupportedFormat) else ProblemKind.DAMAGED
        )
        self._problems.append(
            Problem(
                kind,
                error.problem,
                error.path or path,
                error.at,
                error.remedy or remedy or _RESTORE,
            )
        )

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
                        self._note(error, path, _REBUILD_ABORTED)
                if self._is_unflushed(int(name[:20])):
                    self._unsure.add(int(name[:20]))
        elif file.kind is FileKind.SNAPSHOT:
            try:
                decode_snapshot(self._read(name))
            except LogError as error:
                self._recovered(f"{error.problem}: passed over, as a broker does", name, error.at)
        elif name == LEADER_EPOCHS or name == PARTITION_METADATA:
            try:
                if name == LEADER_EPOCHS:
                    decode_leader_epochs(self._read(name))
                else:
                    decode_partition_metadata(self._read(name))
            except LogError as error:
                self._note(error, path, "bring back the file from a replica")
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
        """The segments up to the place where a broker's start would end the log, and the offset there."""
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
                    # The time index of a segment that is still appended to may lag behind its records.
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
        found = unclean.recover_segment(path, base, index_at, times_at)
        seen = _stat(path)
        size_bytes = seen.st_size
        if found.error is not None:
            was_flushed = not self._is_unflushed(base) or found.end_offset < self._recovery_point
            if found.is_unseen or was_flushed:
                self._note(found.error, path)
            else:
                size_bytes = found.size_bytes
                cut = seen.st_size - size_bytes
                self._recovered(
                    f"{found.error.problem}: the log ends, {cut} bytes are not seen",
                    log,
                    size_bytes,
                )
        if found.has_markers:
            self._unsure.add(base)
        is_indexed = found.is_indexed(is_active=is_active)
        if not is_indexed and size_bytes:
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

    def _segment(self, base: int, *, is_active: bool) -> Segment:
        log = segment_file_name(base, FileKind.LOG)
        path = os.path.join(self._folder, self._live[log])
        seen = _stat(path)
        index_bytes, last_entry = self._last_entry(base, FileKind.INDEX, bool(seen.st_size))
        time_bytes, last_time = self._last_entry(base, FileKind.TIME_INDEX, bool(seen.st_size))
        if last_entry is not None and not is_active and last_entry[1] >= seen.st_size:
            self._damaged(
                f"the last entry leads to byte {last_entry[1]} of a segment of {seen.st_size}",
                segment_file_name(base, FileKind.INDEX),
                index_bytes - OFFSET_ENTRY.size,
                _REBUILD,
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
                    "the file is missing, though its segment has records", name, remedy=_REBUILD
                )
            return 0, None
        path = os.path.join(self._folder, self._live[name])
        size = _stat(path).st_size
        if size % layout.size:
            self._damaged(
                f"{size} bytes, which is no multiple of {layout.size}", name, size, _REBUILD
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
            self._note(error, path, _REBUILD)
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
                    self._note(error, path, _REBUILD)
        if len(index) and int(index.positions[-1]) >= active.size_bytes:
            position = (len(index) - 1) * OFFSET_ENTRY.size
            self._damaged("an entry that leads behind the segment's end", name, position, _REBUILD)
        found = walk_tail(active.path, active.size_bytes, index)
        if found.error is not None:
            self._note(
                found.error,
                active.path,
                "start the broker on this log once: it cuts what is not whole",
            )
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
    """The entries of a segment's time index: timestamps in ms and absolute offsets, row for row; see above.

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
        CorruptLog: an entry of an unknown version, or markers that lie below the segment or do not rise.
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
