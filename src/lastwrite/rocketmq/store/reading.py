"""Lists the files of a RocketMQ store directory with their kinds and sizes, and reads their bytes.

A store has a few logs, each a sequence of files of equal size. A file's name is the address of its
first byte. The file of an address is found by the names and never by division, because there may be
gaps between names. File sizes are measured, because the setting may have changed since the files
were created.

Source: RocketMQ 5.5.0 and 4.9.3; docs/formats/rocketmq.md; docs/formats/rocketmq-compaction.md,
"Files and their sizes" and "Settings".
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise

import numpy as np

from lastwrite.errors import CommitConflict, CorruptLog, LogError
from lastwrite.model.log import Problem, ProblemKind, TopicPartition
from lastwrite.rocketmq.format import names, units
from lastwrite.rocketmq.store import archived, layouts
from lastwrite.rocketmq.store.archived import ArchivedQueue
from lastwrite.rocketmq.store.lock import was_killed
from lastwrite.storage.files import to_log_error
from lastwrite.storage.missing import missing_error
from lastwrite.storage.objects.address import is_address, join, store_at
from lastwrite.storage.problems import damaged, recovered
from lastwrite.storage.reading import AGAIN, ObjectReader, SegmentReader, read_small

# Folders that exist in a queue's folders while a broker compacts, or rebuilds a replica.
WORK_FOLDERS = (names.COMPACTING, names.REPLICATING)
INDEX_LIMIT_BYTES = 1 << 30  # largest compaction index file, which is read at once
_OPEN_FILES = 64  # files that one reader keeps open
_HEAD_BYTES = 512
_MESSAGE_MAGICS = (-626843481, -626843477, -875286124)  # message v1, v2, blank
_PHYSICAL_OFFSET = slice(28, 36)  # bytes of a record's address; see ``format.record``


class StoreFolder(StrEnum):
    """One of the logs or folders of a store. The value is its path below the store."""

    COMMIT_LOG = "commitlog"
    CONSUME_QUEUE = "consumequeue"
    EXTENSION = "consumequeue_ext"
    BATCH_QUEUE = "batchconsumequeue"
    COMPACTION_LOG = "compaction/compactionLog"
    COMPACTION_INDEX = "compaction/compactionCq"
    COMPACTION = "compaction"
    INDEX = "index"
    CONFIG = "config"


QUEUE_PARTS = (
    StoreFolder.CONSUME_QUEUE,
    StoreFolder.EXTENSION,
    StoreFolder.BATCH_QUEUE,
    StoreFolder.COMPACTION_LOG,
    StoreFolder.COMPACTION_INDEX,
)


class RocketmqFileKind(StrEnum):
    """The kind of a file in a store."""

    COMMIT_LOG = "commit log"
    CONSUME_QUEUE = "consume queue"
    EXTENSION = "consume queue extension"
    BATCH_QUEUE = "batch consume queue"
    COMPACTION_LOG = "compaction log"
    COMPACTION_INDEX = "compaction index"
    INDEX = "index file"
    CHECKPOINT = "checkpoint"
    ABORT = "abort"
    LOCK = "lock"
    TOPICS = "topics"
    CONSUMER_OFFSETS = "consumer offsets"
    DELAY_OFFSETS = "delay offsets"
    TIMER_CHECKPOINT = "timer checkpoint"
    POSITIONS = "position checkpoint"
    CONFIG = "config"  # a JSON file of the folder config without a kind of its own

    @property
    def has_records(self) -> bool:
        return self in (RocketmqFileKind.COMMIT_LOG, RocketmqFileKind.COMPACTION_LOG)

    @property
    def has_units(self) -> bool:
        return self in PART_OF_KIND and not self.has_records and self is not RocketmqFileKind.INDEX


KIND_OF_PART = {
    StoreFolder.COMMIT_LOG: RocketmqFileKind.COMMIT_LOG,
    StoreFolder.CONSUME_QUEUE: RocketmqFileKind.CONSUME_QUEUE,
    StoreFolder.EXTENSION: RocketmqFileKind.EXTENSION,
    StoreFolder.BATCH_QUEUE: RocketmqFileKind.BATCH_QUEUE,
    StoreFolder.COMPACTION_LOG: RocketmqFileKind.COMPACTION_LOG,
    StoreFolder.COMPACTION_INDEX: RocketmqFileKind.COMPACTION_INDEX,
    StoreFolder.INDEX: RocketmqFileKind.INDEX,
}
PART_OF_KIND = {kind: part for part, kind in KIND_OF_PART.items()}


@dataclass(frozen=True, slots=True)
class MappedFile:
    """One file of a log. ``start`` is the address of its first byte, taken from its name."""

    path: str
    start: int
    size_bytes: int
    mtime_ns: int
    inode: int = 0
    is_growing: bool = False  # a broker appends to the file, so size and time may change
    etag: str = ""  # version of an object in an archive; see ``Segment``

    @property
    def end(self) -> int:
        return self.start + self.size_bytes

    def open(self) -> SegmentReader:
        """Open the file for reading by position.

        Raises:
            CommitConflict: the file was deleted or changed since it was listed.
        """
        if is_address(self.path):
            return ObjectReader(self.path, self.size_bytes, self.etag)
        growing = self.inode if self.is_growing else 0
        return SegmentReader(self.path, self.size_bytes, self.mtime_ns, growing, self.etag)


@dataclass(frozen=True, slots=True)
class MappedLog:
    """A sequence of files of one size. ``problems`` has deviations from a broker's layout."""

    files: tuple[MappedFile, ...] = ()
    problems: tuple[Problem, ...] = ()
    file_size: int | None = None  # bytes of each file; None if there is no file
    starts: tuple[int, ...] = field(default=(), repr=False)
    # if a broker has the log open: the address up to which the log is complete and is read
    bound: int | None = None

    @property
    def start(self) -> int:
        """The first address; 0 without files."""
        return self.files[0].start if self.files else 0

    @property
    def end(self) -> int:
        """The address after the last file, whether written or not."""
        return self.files[-1].end if self.files else 0

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def gaps(self) -> tuple[Problem, ...]:
        """A problem for each missing file between files of a commit log or consume queue.

        In a compaction log, gaps between names are normal.
        """
        return tuple(
            damaged(
                f"the file is missing, and the log continues at {after.start}: "
                f"{after.start - before.end} bytes are missing",
                os.path.join(os.path.dirname(before.path), names.file_name(before.end)),
            )
            for before, after in pairwise(self.files)
            if after.start > before.end
        )

    def find(self, address: int) -> MappedFile | None:
        """The file that contains ``address``."""
        n = bisect_right(self.starts, address) - 1
        return self.files[n] if n >= 0 and address < self.files[n].end else None

    def is_last(self, file: MappedFile) -> bool:
        return bool(self.files) and self.files[-1].path == file.path

    def check_loadable(self) -> MappedLog:
        """Return the log if a broker would load it.

        Raises:
            CorruptLog: a broker would not load it.
        """
        damage = [problem for problem in self.problems if problem.kind is ProblemKind.DAMAGED]
        if damage:
            first = damage[0]
            raise CorruptLog(first.message, first.position, first.path, first.remedy)
        return self


def log_of_one(file: MappedFile) -> MappedLog:
    """A log that consists of one file."""
    return MappedLog((file,), (), file.size_bytes, (file.start,))


def start_of(name: str, is_index: bool) -> int | None:
    """The number in a file name: an address, or the time of an index file.

    None for any other name.
    """
    if is_index:
        return int(name) if names.is_index_name(name) else None
    return names.parse_file_name(name)


# ---------------------------------------------------------------------- lists


def commit_log_folders(root: str, config: Mapping[str, object] | None = None) -> list[str]:
    """The folders of the commit log, including DLedger's data folders.

    The settings ``storePathCommitLog`` and ``readOnlyCommitLogStorePaths`` list the folders, with
    commas between them as in a broker. Without these settings, the folder is ``commitlog`` below
    the store. A broker that was changed to DLedger continues at the address where its older commit
    log ends. If a setting names a DLedger folder, no other DLedger folders are added.
    """
    config = config or {}
    folders: list[str] = []
    for setting in ("storePathCommitLog", "readOnlyCommitLogStorePaths"):
        text = str(config.get(setting) or "")
        folders += [folder.strip() for folder in text.split(",") if folder.strip()]
        if not folders:
            folders.append(os.path.join(root, StoreFolder.COMMIT_LOG))
    if not any(map(layouts.is_dledger_data, folders)):
        folders += layouts.dledger_folders(root, config)
    return list(dict.fromkeys(folders))


def read_commit_log(root: str, config: Mapping[str, object] | None = None) -> MappedLog:
    """List the files of the commit log in all its folders.

    ``config`` may have settings for the folders; see ``commit_log_folders``.

    Raises:
        LogError: a named folder cannot be read.
    """
    return read_files(*commit_log_folders(root, config))


def queue_folder(tree: str, name: TopicPartition) -> str:
    """The folder ``TOPIC/QUEUE`` of a queue below the folder ``tree``."""
    return os.path.join(tree, name.topic, str(name.partition))


def log_folder(root: str, name: TopicPartition) -> str:
    """The folder of a queue's log files, in a store or in an archive."""
    if archived.is_root(root):
        return archived.folder_of(root, name)
    return queue_folder(os.path.join(root, StoreFolder.COMPACTION_LOG), name)


def archived_pairs(queue: ArchivedQueue, folder: str) -> tuple[MappedLog, MappedLog]:
    """The log files of an archived queue at ``folder``, and their index files.

    Files with missing objects are skipped, and each is a problem.

    Raises:
        CommitConflict: compaction has replaced a file since the manifest was read.
    """
    logs, indexes = [], []
    there = _objects_in(folder)
    for stored in queue.files:
        at, mtime_ns = stored.address, stored.mtime_ms * 1_000_000
        path, index = f"{folder}/{stored.key}", f"{folder}/{stored.key}{archived.INDEX_SUFFIX}"
        logs.append(MappedFile(path, at, stored.bytes, mtime_ns, etag=stored.etag))
        indexes.append(MappedFile(index, at, stored.index_bytes, mtime_ns, etag=stored.index_etag))
    lost = {file.start for file in logs if file.path not in there}
    found = _without_missing(logs, there)
    pairs = _without_missing([file for file in indexes if file.start not in lost], there)
    gaps = archived.gaps_of(queue, folder)
    return (
        replace(found, problems=(*gaps, *found.problems)),
        replace(pairs, problems=(*found.problems, *pairs.problems)),
    )


def _without_missing(files: list[MappedFile], there: Set[str]) -> MappedLog:
    found = tuple(file for file in files if file.path in there)
    problems = []
    for file in files:
        if file.path not in there:
            error = missing_error(file.path, "the object", AGAIN)
            if isinstance(error, CommitConflict):
                raise error
            problems.append(damaged(error.problem, file.path))
    return MappedLog(found, tuple(problems), starts=tuple(file.start for file in found))


def _objects_in(folder: str) -> Set[str]:
    """The addresses of all objects below a queue's folder in an archive."""
    store, key = store_at(folder)
    prefix = f"{key}/" if key else ""
    return {join(folder, each.key[len(prefix) :]) for each in store.list(prefix)}


def read_queue(root: str, part: StoreFolder, name: TopicPartition) -> MappedLog:
    """The files of one queue in the folder ``part`` of a store; empty if there are none."""
    if archived.is_root(root):
        if part not in (StoreFolder.COMPACTION_LOG, StoreFolder.COMPACTION_INDEX):
            return MappedLog()
        folder = archived.folder_of(root, name)
        pairs = archived_pairs(archived.read_contents(folder), folder)
        return pairs[part is StoreFolder.COMPACTION_INDEX]
    return read_files(queue_folder(os.path.join(root, part), name))


def without_stopped_roll(root: str, logs: MappedLog, indexes: MappedLog) -> MappedLog:
    """The files of a compaction log, without a last file for which a killed broker wrote no index.

    After a broker closes a pair, it creates the next log file, then its index, then the first
    record. When it starts, it truncates the log after the last unit's record, which removes such a
    file (RocketMQ 5.5.0 ``TopicPartitionLog.roll``, ``recover``). So nothing is lost if the broker
    was killed, the file has no record, and the last index has a unit.

    Raises:
        LogError: a file cannot be read.
    """
    if not indexes.files or logs.starts[:-1] != indexes.starts or not was_killed(root):
        return logs
    *_, last = logs.files
    if _begins_with(last, 8) != bytes(8) or not units.valid_count(
        units.batch_units(_begins_with(indexes.files[-1], 46))
    ):
        return logs
    wrong = "the log file has no index file, because the broker was killed"
    remedy = "nothing to do: the file has no record, and the broker's next start removes it"
    problems = (*logs.problems, recovered(wrong, last.path, None, remedy))
    return replace(logs, files=logs.files[:-1], starts=logs.starts[:-1], problems=problems)


def stopped_roll(root: str, name: TopicPartition) -> set[str]:
    """The name of the file that ``without_stopped_roll`` skips in a queue's log.

    Returns a set, which is empty without such a file.
    """
    if not was_killed(root):
        return set()
    logs = read_queue(root, StoreFolder.COMPACTION_LOG, name)
    kept = without_stopped_roll(root, logs, read_queue(root, StoreFolder.COMPACTION_INDEX, name))
    return {os.path.basename(file.path) for file in logs.files[len(kept.files) :]}


def _begins_with(file: MappedFile, count: int) -> bytes:
    with file.open() as reader:
        head = np.empty(min(count, file.size_bytes), dtype=np.uint8)
        reader.read_into(head, 0)
    return head.tobytes()


def read_index_files(root: str) -> MappedLog:
    """The index files in order of creation; a file's ``start`` is its name as a number."""
    return read_files(os.path.join(root, StoreFolder.INDEX), is_index=True)


def list_queues(root: str, part: StoreFolder) -> list[TopicPartition]:
    """The queues with a folder in the folder ``part``, sorted. Other entries are skipped."""
    if archived.is_root(root):
        is_there = part in (StoreFolder.COMPACTION_LOG, StoreFolder.COMPACTION_INDEX)
        return sorted(archived.find(root)) if is_there else []
    found = []
    folder = os.path.join(root, part)
    for topic in entries_of(folder):
        if os.path.isdir(os.path.join(folder, topic)):
            for queue in entries_of(os.path.join(folder, topic)):
                if names.parse_queue_name(queue) is not None and os.path.isdir(
                    os.path.join(folder, topic, queue)
                ):
                    found.append(TopicPartition(topic, int(queue)))
    return sorted(found)


def read_files(*folders: str, is_index: bool = False, is_copy: bool = False) -> MappedLog:
    """The files of one log in ``folders``, sorted by address.

    ``is_copy`` means a commit log outside a store. If none of its file names is a number, a file's
    address is the one stored in its first record.
    A file that a broker would not load is a problem: its name is not a number, or its size differs
    from that of the other files. An empty last file is skipped; a broker deletes it.
    """
    found: list[MappedFile] = []
    problems: list[Problem] = []
    paths = [os.path.join(folder, name) for folder in folders for name in entries_of(folder)]
    is_copy = is_copy and all(start_of(os.path.basename(path), is_index) is None for path in paths)
    for path in paths:
        name = os.path.basename(path)
        try:
            seen = os.stat(path)
        except OSError:
            continue  # a live broker may delete files at any moment
        start = start_of(name, is_index)
        if is_copy and os.path.isfile(path) and starts_with_record(path):
            start = _first_address(path)
        if os.path.isdir(path):
            if name in WORK_FOLDERS:
                wrong = "the folder was left by an interrupted compaction or rebuild of a broker"
                remedy = (
                    "nothing to do: brokers serve nothing from the folder, and the next "
                    "compaction overwrites it"
                )
                problems.append(recovered(wrong, path, None, remedy))
        elif start is not None:
            found.append(MappedFile(path, start, seen.st_size, seen.st_mtime_ns, seen.st_ino))
        elif seen.st_size and not _is_of_aside(path):
            problems.append(_wrong_name(path))
    found.sort(key=lambda file: (file.start, file.path))
    if found and not found[-1].size_bytes:
        found.pop()
    kept: list[MappedFile] = []
    for file in found:
        if kept and kept[-1].start == file.start:
            wrong = "the log has two files of the same name"
            remedy = (
                f"compare the file with {kept[-1].path}; move the wrong file out of the store, "
                "and keep it"
            )
            problems.append(damaged(wrong, file.path, None, remedy))
        else:
            kept.append(file)
    size = _common_size(kept)
    problems += _wrong_sizes(kept, size, is_index)
    return MappedLog(tuple(kept), tuple(problems), size, tuple(file.start for file in kept))


def _wrong_sizes(
    files: Sequence[MappedFile], size: int | None, is_index: bool
) -> Iterator[Problem]:
    """A problem for each file that does not have ``size`` bytes or overlaps the next file."""
    for n, file in enumerate(files):
        if file.size_bytes != size:
            wrong = (
                f"the file has {file.size_bytes} bytes, but the other files of the log have {size}"
            )
            remedy = (
                "restore the file from a replica or a backup, because a broker does not load it"
            )
            yield damaged(wrong, file.path, None, remedy)
        if n and not is_index and file.start < files[n - 1].end:
            wrong = (
                f"the file begins at address {file.start}, but the previous file ends at "
                f"{files[n - 1].end}"
            )
            remedy = (
                "restore the file from a replica or a backup; rename it only if its first "
                "record has another physical offset than the file's name"
            )
            yield damaged(wrong, file.path, None, remedy)


def _is_of_aside(path: str) -> bool:
    """Whether the file is the guard file of ``cut`` in the old commit log, which was moved aside.

    A guard file keeps brokers from starting.
    """
    folder, name = os.path.split(path)
    return name == names.CUT_GUARD and folder.endswith(names.BEFORE_CUT)


def _wrong_name(path: str) -> Problem:
    """A problem: a file in a log's folder whose name is not an address."""
    name = os.path.basename(path)
    wrong = "the file's name is not the name of a log file"
    remedy = (
        "move the file out of the store and keep it, because a broker does not load the log "
        "with this file"
    )
    if name.endswith(names.DELETED_SUFFIX):
        wrong = (
            "the file belongs to an interrupted compaction of a broker, and a broker does not "
            "start on the store"
        )
        remedy = names.UNFINISHED_REMEDY
    elif name in (names.CUT_GUARD, names.DISPATCH_GUARD):
        command = "cut STORE --undo" if name == names.CUT_GUARD else "dispatch STORE again"
        wrong = "the file keeps brokers from starting after an interrupted command"
        remedy = f"leave the file there, and run lastwrite {command}"
    return damaged(wrong, path, None, remedy)


def _common_size(files: list[MappedFile]) -> int | None:
    """The most frequent size of the files. Among equally frequent sizes, the largest."""
    counts = Counter(file.size_bytes for file in files)
    return max(counts, key=lambda size: (counts[size], size), default=None)


def entries_of(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise to_log_error(error, folder, "list the folder") from error


# ---------------------------------------------------------------------- bytes


class LogReader:
    """Reads a log's bytes by address. Keeps a limited number of files open between reads."""

    def __init__(self, log: MappedLog) -> None:
        self.log = log
        self._open: OrderedDict[str, int] = OrderedDict()
        self._readers: dict[str, SegmentReader] = {}  # readers of objects by address

    def read(self, address: int, size: int) -> bytes:
        """Read up to ``size`` bytes from ``address`` on.

        Returns fewer at a file's end, and none if no file has the address.

        Raises:
            LogError: a file cannot be read.
        """
        file = self.log.find(address)
        if file is None or size <= 0:
            return b""
        size = min(size, file.end - address)
        if is_address(file.path):
            content = np.empty(size, dtype=np.uint8)
            self._reader(file).read_into(content, address - file.start)
            return content.tobytes()
        try:
            return os.pread(self._handle(file.path), size, address - file.start)
        except FileNotFoundError as error:
            raise missing_error(file.path, "the file", AGAIN) from error
        except OSError as error:
            raise to_log_error(error, file.path, "read the log") from error

    def read_over(self, address: int, size: int) -> bytes:
        """Read up to ``size`` bytes from ``address`` on, across the ends of files."""
        out = b""
        while len(out) < size and (part := self.read(address + len(out), size - len(out))):
            out += part
        return out

    def _reader(self, file: MappedFile) -> SegmentReader:
        if file.path not in self._readers:
            self._readers[file.path] = file.open()
        return self._readers[file.path]

    def _handle(self, path: str) -> int:
        handle = self._open.get(path)
        if handle is None:
            handle = self._open[path] = os.open(path, os.O_RDONLY)
            if len(self._open) > _OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
        else:
            self._open.move_to_end(path)
        return handle

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        while self._open:
            os.close(self._open.popitem()[1])

    def __enter__(self) -> LogReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_file(file: MappedFile, limit_bytes: int) -> bytes:
    """Read the bytes of an index file, but at most ``limit_bytes``.

    Raises:
        LogError: the file cannot be read.
    """
    if is_address(file.path):
        return read_small(file.path)[:limit_bytes]
    try:
        with open(file.path, "rb") as opened:
            # ``read`` allocates the requested size first, so request at most the file's size.
            return opened.read(min(limit_bytes, os.fstat(opened.fileno()).st_size))
    except OSError as error:
        raise to_log_error(error, file.path, "read the file") from error


def written_stretches(file: MappedFile) -> Iterator[tuple[int, int]]:
    """The ranges of a file that are not holes, as ``(start, end)`` positions.

    If the file system does not report holes, the whole file is one range.
    """
    end = 0
    try:
        handle = os.open(file.path, os.O_RDONLY)
    except OSError as error:
        raise to_log_error(error, file.path, "read the file") from error
    try:
        while end < file.size_bytes:
            try:
                start = os.lseek(handle, end, os.SEEK_DATA)
            except OSError:  # no data follows, or the file system cannot report it
                if end == 0 and os.fstat(handle).st_blocks:
                    yield 0, file.size_bytes
                return
            end = os.lseek(handle, start, os.SEEK_HOLE)
            yield start, min(end, file.size_bytes)
    finally:
        os.close(handle)


def map_file(file: MappedFile) -> memoryview:
    """The file's bytes as a memory map, so that only accessed pages are read from disk.

    An index file has hundreds of megabytes, and a lookup reads only a few pages.

    Raises:
        LogError: the file cannot be read.
    """
    if is_address(file.path):
        return memoryview(read_small(file.path))
    try:
        with open(file.path, "rb") as opened:
            if not os.fstat(opened.fileno()).st_size:
                return memoryview(b"")
            return memoryview(mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ))
    except OSError as error:
        raise to_log_error(error, file.path, "read the file") from error
    except ValueError as error:
        raise LogError(f"could not read the file: {error}", path=file.path) from error


def read_head(path: str) -> bytes:
    """The first 512 bytes of a file, which show its kind.

    Raises:
        LogError: the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError as error:
        raise to_log_error(error, path, "read the file") from error


def starts_with_record(path: str) -> bool:
    """Whether the file begins with a commit log record. This identifies a file with any name."""
    try:
        data = read_head(path)
    except LogError:
        return False
    data = layouts.without_dledger_header(data)
    size, magic = (int.from_bytes(data[at : at + 4], "big", signed=True) for at in (0, 4))
    return len(data) >= 8 and size > 0 and magic in _MESSAGE_MAGICS


def _first_address(path: str) -> int:
    head = read_head(path)
    record = layouts.without_dledger_header(head)
    address = int.from_bytes(record[_PHYSICAL_OFFSET], "big", signed=True)
    return max(0, address - (len(head) - len(record)))


def read_one_file(path: str) -> MappedLog:
    """A log that consists of one file in any folder.

    The log's address is in the file name, or else in the first record.

    Raises:
        LogError: the file cannot be read.
    """
    base = os.path.basename(path).removesuffix(names.DELETED_SUFFIX)
    try:
        seen = os.stat(path)
    except OSError as error:
        raise to_log_error(error, path, "read the file") from error
    start = start_of(base, names.is_index_name(base))
    if start is None:
        start = _first_address(path)
    return log_of_one(MappedFile(path, start, seen.st_size, seen.st_mtime_ns, seen.st_ino))
