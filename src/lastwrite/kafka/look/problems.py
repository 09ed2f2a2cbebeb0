"""Reads the batches of a segment in order, past any damage, in bounded memory.

``compact`` stops at the first damage. A reader continues: it skips a batch with damaged contents by
its length. If the length or order of batches is damaged, it skips the rest of the segment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from lastwrite.errors import CorruptLog, LogError, OutOfMemoryBudget, UnsupportedFormat
from lastwrite.kafka.format.batch import decode_batch_header
from lastwrite.kafka.format.batch_layout import LENGTH_END, SHORTEST_ENTRY_BYTES, BatchHeader
from lastwrite.kafka.format.names import KafkaFileKind, classify
from lastwrite.kafka.format.remedy import RESTORE
from lastwrite.model.columns import ByteArray
from lastwrite.model.log import PartitionLog, Problem, ProblemKind, Segment
from lastwrite.storage.problems import BATCH_LIMIT_BYTES, Window, problem_of
from lastwrite.storage.reading import SegmentReader, reader_of

_FRAME_BYTES = 17  # bytes through the magic, which have the same layout in every format


def kafka_problem_of(error: LogError, path: str, shift: int = 0) -> Problem:
    """The problem that describes ``error``, with the remedy for a damaged Kafka log."""
    return problem_of(error, path, shift, RESTORE)


def loses_records(problem: Problem, log: PartitionLog) -> bool:
    """Whether a consumer of ``log`` would get too few or too many records because of this problem.

    True for damage of a segment, of a transaction index or of the whole log; False for damage of
    other indexes.
    """
    kind = classify(os.path.basename(problem.path)).kind
    return problem.kind is ProblemKind.DAMAGED and (
        problem.path == log.folder
        or kind in (KafkaFileKind.LOG, KafkaFileKind.TRANSACTION_INDEX)
        or any(problem.path == segment.path for segment in log.segments)
    )


def torn_tail(path: str, position: int, left: int, needed: int) -> Problem:
    """The problem of a file that ends inside a batch."""
    cut = f"after {left} of the {needed} bytes of a batch" if needed else "inside a batch header"
    return Problem(
        ProblemKind.DAMAGED,
        f"torn tail: the file ends {cut}",
        path,
        position,
        RESTORE,
    )


def whole_batches(
    segment: Segment,
    note: Callable[[Problem], None],
    start: int = 0,
    limit_bytes: int = BATCH_LIMIT_BYTES,
    refuses_large: bool = False,
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """The batches of ``segment`` from byte ``start`` on, with their positions and bytes,
    unverified.

    A batch's bytes are valid until the next batch. Problems of framing and order, and a missing
    object, are passed to ``note``. For an entry of magic 0 or 1, the header is derived from the
    entry's header alone (see ``decode_batch_header``).

    Raises:
        OutOfMemoryBudget: a batch is larger than ``limit_bytes``, and ``refuses_large``. Otherwise
            ``note`` gets the problem.
    """
    try:
        with reader_of(segment) as reader:
            yield from _batches_in(reader, segment, note, start, limit_bytes, refuses_large)
    except CorruptLog as error:  # the object is missing in its archive
        note(kafka_problem_of(error, segment.path))


def _batches_in(
    reader: SegmentReader,
    segment: Segment,
    note: Callable[[Problem], None],
    start: int,
    limit_bytes: int,
    refuses_large: bool,
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    path, size = segment.path, segment.size_bytes
    position, floor = start, segment.base_offset
    window = Window(reader, size, limit_bytes)
    while position < size:
        data = window.at(position, 61)
        if len(data) < _FRAME_BYTES:
            note(torn_tail(path, position, len(data), 0))
            return
        try:
            header = decode_batch_header(data, 0)
        except (CorruptLog, UnsupportedFormat) as error:
            if 0 < size - position < frame_bytes(data):
                note(torn_tail(path, position, size - position, frame_bytes(data)))
            else:
                note(kafka_problem_of(error, path, position))
            return
        if header.size_bytes > size - position:
            note(torn_tail(path, position, size - position, header.size_bytes))
            return
        if header.base_offset < floor:
            wrong = (
                f"the batch has base offset {header.base_offset}, but offset {floor} or higher "
                "must follow"
            )
            note(kafka_problem_of(CorruptLog(wrong, position), path))
            return
        try:
            data = window.at(position, header.size_bytes)
        except OutOfMemoryBudget as too_large:
            if refuses_large:
                raise too_large.located(path) from too_large
            note(kafka_problem_of(too_large, path))
        else:
            yield position, header, memoryview(data)[: header.size_bytes]
        floor = header.next_offset
        position += header.size_bytes


def frame_bytes(data: ByteArray) -> int:
    """The size of the entry that begins ``data``, of any magic. 0 if its length is impossible."""
    length = int.from_bytes(data[8:12].tobytes(), "big", signed=True)
    return length + LENGTH_END if length >= SHORTEST_ENTRY_BYTES else 0
