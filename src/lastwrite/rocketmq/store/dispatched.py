"""What of a store is dispatched already: the ends of consume queues, compaction logs and the index.

A broker that starts finds the end of a queue by its units: the first that is not valid ends it. In
a store that was stopped in order all units before that are valid, so a binary search finds it.
Units that point behind the commit log's end are none: a broker's start cuts them off.

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
from lastwrite.rocketmq.dispatch_work import NO_END, IndexState, LogState, QueueKind, QueueState
from lastwrite.rocketmq.format import index_file, names, sides, units
from lastwrite.rocketmq.store import reading
from lastwrite.rocketmq.store.reading import MappedFile, MappedLog, Part
from lastwrite.storage.files import to_log_error
from lastwrite.storage.mapping import mapped

# The number of a queue's next message follows from its units: without any it would be 0 again.
MAKE_ANEW = (
    "if the commit log still has a message of the queue, move the queue's folder out of the store, keep it, and run "
    "lastwrite dispatch with --whole-log"
)
# What a compaction log has may be all that there is: the commit log forgets.
MAKE_LOG_ANEW = (
    "restore the file from a replica or a backup; or, where the commit log still has all of the queue, move both "
    "folders of it out of the store, keep them, and dispatch again"
)
_LARGEST_SIDE_BYTES = 1 << 30


def topics(root: str) -> dict[str, sides.Topic]:
    """The topics' settings; without a file, or its backup, none.

    Raises:
        CorruptLog: neither the file nor its backup can be understood.
    """
    path = os.path.join(root, names.CONFIG, names.TOPICS)
    problem: LogError | None = None
    for place in (path, path + names.BACKUP_SUFFIX):
        try:
            with open(place, "rb") as file:
                return sides.decode_topics(file.read(_LARGEST_SIDE_BYTES))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise to_log_error(error, place, "read the topics") from error
        except LogError as error:
            problem = problem or error.located(place)
    if problem is not None:
        raise problem
    return {}


def index_time_of_checkpoint(root: str) -> int:
    """The store time up to which a killed broker's index files count, 0 where nothing tells."""
    checkpoint = _checkpoint_of(root)
    return 0 if checkpoint is None else checkpoint.index_time_ms


def address_of_checkpoint(root: str) -> int:
    """The address that the commit log had reached by the file ``checkpoint``; 0 where it does not
    say.
    """
    checkpoint = _checkpoint_of(root)
    return (
        0 if checkpoint is None else max(checkpoint.confirm_offset, checkpoint.consume_queue_offset)
    )


def _checkpoint_of(root: str) -> sides.Checkpoint | None:
    """The store's file ``checkpoint``; None: it is missing, or not one."""
    path = os.path.join(root, names.CHECKPOINT)
    try:
        with open(path, "rb") as file:
            return sides.decode_checkpoint(file.read(4096))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise to_log_error(error, path, "read the checkpoint") from error
    except LogError:
        return None


# ---------------------------------------------------------------------- consume queues


def read_queue_state(log: MappedLog, kind: QueueKind, until: int = NO_END) -> QueueState:
    """Where a consume queue ends; units of records at ``until`` or behind are none.

    Raises:
        CorruptLog: its files are not as a broker would load them.
    """
    _refuse_problems(log)
    size = units.BATCH_UNIT.size if kind is QueueKind.BATCH else units.CONSUME_QUEUE_UNIT.size
    files = list(log.files)
    spare: list[str] = []
    while files:
        file = files[-1]
        if file.size_bytes % size:
            raise CorruptLog(
                f"a file of {file.size_bytes} bytes cannot hold units of {size}",
                0,
                file.path,
                MAKE_ANEW,
            )
        with mapped(file.path) as data:
            table = (
                units.batch_units(data)
                if kind is QueueKind.BATCH
                else units.consume_queue_units(data)
            )
            count = bisect_left(
                range(len(table)), True, key=lambda i: not _is_valid(table[i], until)
            )
            if count:
                _refuse_hole(files, kind, size, until)
                return _state(file, table, count, kind, log, spare)
        spare.append(os.path.basename(file.path))
        files.pop()
    return QueueState(spare=tuple(spare))


def _is_valid(unit: Any, until: int) -> bool:
    if not 0 <= int(unit["physical_offset"]) < until or int(unit["size"]) <= 0:
        return False
    return "base" not in (unit.dtype.names or ()) or (
        int(unit["base"]) >= 0 and int(unit["number"]) > 0
    )


def _refuse_hole(files: list[MappedFile], kind: QueueKind, size: int, until: int) -> None:
    """The file before must be full, and lie right before."""
    if len(files) < 2:
        return
    before, file = files[-2:]
    with mapped(before.path) as data:
        table = (
            units.batch_units(data) if kind is QueueKind.BATCH else units.consume_queue_units(data)
        )
        is_full = _is_valid(table[len(table) - 1], until)
    if not is_full or before.end != file.start:
        raise CorruptLog("units are missing before this file", 0, file.path, MAKE_ANEW)


def _state(
    file: MappedFile,
    table: units.Units,
    count: int,
    kind: QueueKind,
    log: MappedLog,
    spare: list[str],
) -> QueueState:
    last = table[count - 1]
    offset, size = int(last["physical_offset"]), int(last["size"])
    first_number = 0
    if kind is QueueKind.BATCH:
        end = offset
        number = file.start // units.BATCH_UNIT.size + count
    else:
        end = -1 if size == units.FILLER_SIZE else offset + size
        number = file.start // units.CONSUME_QUEUE_UNIT.size + count
        first_number = _first_number(log)
    return QueueState(number, end, file.path, file.start, first_number, tuple(spare))


def _first_number(log: MappedLog) -> int:
    """The number of the first unit that is no filler."""
    file = log.files[0]
    with mapped(file.path) as data:
        sizes = units.consume_queue_units(data)["size"]
        return file.start // units.CONSUME_QUEUE_UNIT.size + bisect_left(
            range(len(sizes)), True, key=lambda i: int(sizes[i]) != units.FILLER_SIZE
        )


def address_of(log: MappedLog, number: int) -> int | None:
    """The address of the record with this queue offset by an ordinary consume queue; None where it
    has none.
    """
    size = units.CONSUME_QUEUE_UNIT.size
    with reading.LogReader(log) as reader:
        raw = reader.read(number * size, size)
    if len(raw) < size:
        return None
    offset, length, _ = units.CONSUME_QUEUE_UNIT.unpack_from(raw)
    return offset if offset >= 0 and 0 < length < units.FILLER_SIZE else None


def _refuse_problems(log: MappedLog) -> None:
    for problem in log.problems:
        if problem.kind == "damaged":
            raise CorruptLog(problem.message, problem.position, problem.path, problem.remedy)


# ---------------------------------------------------------------------- compaction logs


def read_log_state(root: str, name: TopicPartition) -> tuple[LogState, int | None, int | None]:
    """What a queue's compaction log holds, and the sizes of its log and index files, None where it
    has none.

    Raises:
        CorruptLog: its files are not as a broker would load them.
    """
    logs = reading.read_queue(root, Part.COMPACTION_LOG, name)
    indexes = reading.read_queue(root, Part.COMPACTION_INDEX, name)
    _refuse_problems(logs)
    _refuse_problems(indexes)
    logs = reading.without_stopped_roll(root, logs, indexes)
    if logs.starts != indexes.starts:
        odd = min(set(logs.starts) ^ set(indexes.starts))
        raise CorruptLog(
            f"of the pair {names.file_name(odd)} the log or its index is missing",
            None,
            os.path.join(root, Part.COMPACTION_LOG, name.topic, str(name.partition)),
            f"a broker does not start on this; {MAKE_LOG_ANEW}",
        )
    if not logs.files:
        return LogState(), None, None
    state: LogState | None = None
    for place in range(len(logs.files) - 1, -1, -1):
        log, index = logs.files[place], indexes.files[place]
        with mapped(index.path) as data:
            table = units.batch_units(data)
            count = units.valid_count(table)
            last = table[count - 1].copy() if count else None
        if last is None:
            # The newest pair may wait for its first record.
            if state is None:
                state = LogState(-1, log.start, 0, 0, log.path, index.path)
            continue
        highest = int(last["base"]) + int(last["number"]) - 1
        if state is not None:
            state = LogState(highest, state.start, 0, 0, state.log_path, state.index_path)
            break
        wrote = int(last["physical_offset"]) + int(last["size"]) - log.start
        if not 0 < wrote <= log.size_bytes:
            raise CorruptLog(
                f"the last unit points to {int(last['physical_offset'])}, outside of its log file",
                (count - 1) * units.BATCH_UNIT.size,
                index.path,
                MAKE_LOG_ANEW,
            )
        state = LogState(
            highest, log.start, wrote, count * units.BATCH_UNIT.size, log.path, index.path
        )
        break
    assert state is not None
    return state, logs.file_size, indexes.file_size


# ---------------------------------------------------------------------- index


def read_index_state(
    root: str, slots: int | None, entries: int | None, newest_ms: int | None = None
) -> tuple[IndexState, list[str]]:
    """The newest index file, and the names of those that are not to count.

    ``slots`` and ``entries``: the settings, where they were given. ``newest_ms``: of a killed
    broker's, those whose last record was stored later are left out and made anew, as a broker does.

    Raises:
        InvalidConfig: the files do not tell how many slots they have, or the settings contradict
            them.
        CorruptLog: a file is too short for what it states.
    """
    log = reading.read_index_files(root)
    _refuse_problems(log)
    files = list(log.files)
    left_out = []
    while files:
        file = files[-1]
        with mapped(file.path) as data:
            try:
                header = index_file.decode_index_header(data)
                if newest_ms is not None and header.last_store_time_ms > newest_ms:
                    left_out.append(os.path.basename(file.path))
                    files.pop()
                    continue
                known = _slots(data, file, slots, entries)
                found = index_file.IndexFile.of(data, known)
            except CorruptLog as error:
                raise error.located(file.path) from error
            last = (
                header.last_physical_offset
                if header.count > 1 or header.last_physical_offset > 0
                else -1
            )
            return IndexState(
                os.path.basename(file.path),
                file.path,
                found.slots,
                found.capacity,
                header.count,
                last,
                header.last_store_time_ms,
            ), left_out
    return IndexState(), left_out


def _slots(data: ByteArray, file: MappedFile, slots: int | None, entries: int | None) -> int:
    for some, room in ((slots, entries), (index_file.DEFAULT_SLOTS, index_file.DEFAULT_ENTRIES)):
        if (
            some is not None
            and room is not None
            and index_file.index_bytes(some, room) == file.size_bytes
        ):
            return some
    found = index_file.find_slots(data)
    if found is None or (slots is not None and slots != found):
        raise InvalidConfig(
            f"an index file of {file.size_bytes} bytes, and the settings make others",
            path=file.path,
            remedy="give --config maxHashSlotNum=… and maxIndexNum=… as the broker has them",
        )
    return found
