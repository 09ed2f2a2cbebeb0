"""Find the ends of a store's queues, compaction logs and index, up to which it is dispatched.

For a broker that starts, a queue ends at its first invalid unit. If the previous broker was stopped
cleanly, all units before it are valid, so a bisection finds it. Units that point beyond the end of
the commit log do not count, because a starting broker removes them.

Source: RocketMQ 5.5.0 ``ConsumeQueue.recover``, ``BatchConsumeQueue.recover``,
``SparseConsumeQueue.recover``, ``IndexService.load``; docs/formats/rocketmq.md;
docs/formats/rocketmq-compaction.md, "Files and their sizes".
"""

from __future__ import annotations

import os
from bisect import bisect_left
from typing import Any

from lastwrite.errors import CorruptLog, InvalidConfig, LogError
from lastwrite.model.columns import ByteArray
from lastwrite.model.log import TopicPartition
from lastwrite.rocketmq.dispatch_work import NO_END, IndexFileState, LogState, QueueState
from lastwrite.rocketmq.format import index_file, names, sides, units
from lastwrite.rocketmq.reports import QueueKind
from lastwrite.rocketmq.store import reading
from lastwrite.rocketmq.store.reading import MappedFile, MappedLog, StoreFolder
from lastwrite.storage.files import to_log_error
from lastwrite.storage.mapping import mapped

# The remedy requires a message of the queue in the commit log. Without one, the rebuilt queue would
# have no units, and its offsets would begin at 0 again.
MAKE_ANEW = (
    "if the commit log still has a message of the queue, move the queue's folder out of the "
    "store, keep it, and run lastwrite dispatch STORE --whole-log, which rebuilds the queue"
)
# The remedy requires all messages of the queue in the commit log. Messages expire there, so the
# compaction log may have the only copy.
MAKE_LOG_ANEW = (
    f"{names.RESTORE_QUEUE}; or, if the commit log still has every message of the queue, move "
    "both folders of the queue out of the store, keep them, and run lastwrite dispatch STORE "
    "--whole-log, which rebuilds the queue"
)


def read_checkpoint(root: str) -> sides.Checkpoint:
    """Read the store's ``checkpoint``. All numbers are 0 if the file is missing or invalid."""
    path = os.path.join(root, names.CHECKPOINT)
    try:
        with open(path, "rb") as file:
            return sides.decode_checkpoint(file.read(sides.CHECKPOINT_BYTES))
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            raise to_log_error(error, path, "read the checkpoint") from error
    except LogError:
        pass
    return sides.Checkpoint(0, 0, 0, 0, 0, 0)


# ---------------------------------------------------------------------- consume queues


def read_queue_state(log: MappedLog, kind: QueueKind, until: int = NO_END) -> QueueState:
    """Find the end of a consume queue. Units of records at or after address ``until`` do not count.

    Raises:
        CorruptLog: a broker would not load the queue's files.
    """
    is_batch = kind is QueueKind.BATCH
    size = units.BATCH_UNIT.size if is_batch else units.CONSUME_QUEUE_UNIT.size
    files = log.check_loadable().files
    spare: list[str] = []
    for place in range(len(files) - 1, -1, -1):
        file = files[place]
        if file.size_bytes % size:
            wrong = (
                f"the file has {file.size_bytes} bytes, which is not a multiple of the unit "
                f"size {size}"
            )
            raise CorruptLog(wrong, 0, file.path, MAKE_ANEW)
        with mapped(file.path) as data:
            table = units.queue_units(data, is_batch=is_batch)
            slots = range(len(table))
            count = bisect_left(
                slots,
                True,
                key=lambda i, of=table: not is_valid(of[i], until),  # type: ignore[misc]
            )
            if count:
                if place:
                    _reject_hole(files[place - 1], file, until, is_batch=is_batch)
                last = table[count - 1]
                address, length = int(last["physical_offset"]), int(last["size"])
                end = -1 if length == units.FILLER_SIZE else address + length
                return QueueState(
                    next_number=file.start // size + count,
                    end=address if is_batch else end,
                    tail_path=file.path,
                    tail_start=file.start,
                    first_number=0 if is_batch else _first_number(files[0]),
                    spare=tuple(spare),
                )
        spare.append(os.path.basename(file.path))
    return QueueState(spare=tuple(spare))


def _reject_hole(before: MappedFile, file: MappedFile, until: int, *, is_batch: bool) -> None:
    """Raise unless the file ``before`` is full and ends where ``file`` begins."""
    with mapped(before.path) as data:
        table = units.queue_units(data, is_batch=is_batch)
        is_full = is_valid(table[len(table) - 1], until)
    if not is_full or before.end != file.start:
        raise CorruptLog("units are missing before this file", 0, file.path, MAKE_ANEW)


def _first_number(file: MappedFile) -> int:
    """The number of a consume queue's first unit that is not a filler."""
    with mapped(file.path) as data:
        sizes = units.consume_queue_units(data)["size"]
        fillers = bisect_left(
            range(len(sizes)), True, key=lambda i: int(sizes[i]) != units.FILLER_SIZE
        )
    return file.start // units.CONSUME_QUEUE_UNIT.size + fillers


def is_valid(unit: Any, until: int = NO_END) -> bool:
    """Whether ``unit`` is a filler or belongs to a record below the address ``until``."""
    if not 0 <= int(unit["physical_offset"]) < until or int(unit["size"]) <= 0:
        return False
    if unit.dtype != units.BATCH_DTYPE:
        return True
    return int(unit["base"]) >= 0 and int(unit["number"]) > 0


def address_of(log: MappedLog, number: int) -> int | None:
    """The address of the record with queue offset ``number``, from an ordinary consume queue.

    Returns None if the queue has no unit for it.
    """
    with reading.LogReader(log) as reader:
        return address_in(reader, number)


def address_in(queue: reading.LogReader, number: int) -> int | None:
    """The address of the record with queue offset ``number``, from an open ordinary consume queue.

    None if the queue has no unit for it.
    """
    size = units.CONSUME_QUEUE_UNIT.size
    raw = queue.read(number * size, size)
    if len(raw) < size:
        return None
    offset, length, _ = units.CONSUME_QUEUE_UNIT.unpack_from(raw)
    return offset if offset >= 0 and 0 < length < units.FILLER_SIZE else None


# ---------------------------------------------------------------------- compaction logs


def read_log_state(root: str, name: TopicPartition) -> tuple[LogState, int | None, int | None]:
    """The state of a queue's compaction log, and the sizes of its log and index files.

    The sizes are None if the log has no files.

    Raises:
        CorruptLog: a broker would not load the log's files.
    """
    logs = reading.read_queue(root, StoreFolder.COMPACTION_LOG, name).check_loadable()
    indexes = reading.read_queue(root, StoreFolder.COMPACTION_INDEX, name).check_loadable()
    logs = reading.without_stopped_roll(root, logs, indexes)
    if logs.starts != indexes.starts:
        odd = min(set(logs.starts) ^ set(indexes.starts))
        raise CorruptLog(
            f"the log file or the index file {names.file_name(odd)} is missing",
            None,
            reading.queue_folder(os.path.join(root, StoreFolder.COMPACTION_LOG), name),
            f"do not start a broker on the store, because it fails; {MAKE_LOG_ANEW}",
        )
    if not logs.files:
        return LogState(), None, None
    # If the newest log file has no record, the file before it has the highest offset.
    newest, newest_index = logs.files[-1], indexes.files[-1]
    highest, log_wrote, index_wrote = -1, 0, 0
    for log, index in zip(reversed(logs.files), reversed(indexes.files), strict=True):
        with mapped(index.path) as data:
            table = units.batch_units(data)
            count = units.valid_count(table)
            if not count:
                continue
            last = table[count - 1 : count].copy()
        _, highest = units.offsets_of(last, 0, 0)
        if log is newest:
            address = int(last["physical_offset"][0])
            log_wrote = address + int(last["size"][0]) - log.start
            index_wrote = count * units.BATCH_UNIT.size
            if not 0 < log_wrote <= log.size_bytes:
                raise CorruptLog(
                    f"the last unit points to physical offset {address}, which is outside its "
                    "log file",
                    index_wrote - units.BATCH_UNIT.size,
                    index.path,
                    MAKE_LOG_ANEW,
                )
        break
    state = LogState(highest, newest.start, log_wrote, index_wrote, newest.path, newest_index.path)
    return state, logs.file_size, indexes.file_size


# ---------------------------------------------------------------------- index


def read_index_state(
    root: str, slots: int | None, entries: int | None, newest_ms: int | None = None
) -> tuple[IndexFileState, list[str]]:
    """The state of the newest index file, and the names of index files to be rebuilt.

    ``slots`` and ``entries`` are the settings, or None. If the store's broker was killed,
    ``newest_ms`` is the index time in the checkpoint. As in a broker, files whose last record was
    stored after that time are rebuilt.

    Raises:
        InvalidConfig: the number of slots cannot be derived from the files, or differs from the
            setting.
        CorruptLog: a file is too short for its header.
    """
    left_out: list[str] = []
    for file in reversed(reading.read_index_files(root).check_loadable().files):
        with mapped(file.path) as data:
            try:
                header = index_file.decode_index_header(data)
                if newest_ms is not None and header.last_store_time_ms > newest_ms:
                    left_out.append(os.path.basename(file.path))
                    continue
                found = index_file.IndexFile.of(data, _slots(data, file, slots, entries))
            except CorruptLog as error:
                raise error.located(file.path) from error
            has_records = header.count > 1 or header.last_physical_offset > 0
            state = IndexFileState(
                os.path.basename(file.path),
                file.path,
                found.slots,
                found.capacity,
                header.count,
                header.last_physical_offset if has_records else -1,
                header.last_store_time_ms,
            )
            return state, left_out
    return IndexFileState(), left_out


def _slots(data: ByteArray, file: MappedFile, slots: int | None, entries: int | None) -> int:
    for some, room in ((slots, entries), (index_file.DEFAULT_SLOTS, index_file.DEFAULT_ENTRIES)):
        if some is not None and room is not None:
            if index_file.index_bytes(some, room) == file.size_bytes:
                return some
    found = index_file.find_slots(data)
    if found is None or (slots is not None and slots != found):
        raise InvalidConfig(
            "maxHashSlotNum and maxIndexNum do not match the existing index file of "
            f"{file.size_bytes} bytes",
            path=file.path,
            remedy="give the broker's values with --config maxHashSlotNum=… and --config "
            "maxIndexNum=…",
        )
    return found
