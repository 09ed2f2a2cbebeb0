"""Read a segment from front to back in one process, past whatever is damaged, in bounded memory.

``compact`` stops at the first contradiction; a reader who wants to know what is left goes on where
it can: a batch that is damaged inside is passed by its length, a segment whose framing is lost is
left for the next.
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

_FRAME_BYTES = 17  # offset, size, …, magic: the same in every format


def kafka_problem_of(error: LogError, path: str, shift: int = 0) -> Problem:
    """The same of a Kafka log, of which no single file is brought back."""
    return problem_of(error, path, shift, RESTORE)


def loses_records(problem: Problem, log: PartitionLog) -> bool:
    """Whether a consumer of ``log`` would get too little or too much for this problem of its
    listing: damage of a segment, of a transaction index or of the log as a whole, not of the other
    indexes.
    """
    kind = classify(os.path.basename(problem.path)).kind
    return problem.kind is ProblemKind.DAMAGED and (
        problem.path == log.folder
        or kind in (KafkaFileKind.LOG, KafkaFileKind.TRANSACTION_INDEX)
        or any(problem.path == segment.path for segment in log.segments)
    )


def torn_tail(path: str, position: int, left: int, wanted: int) -> Problem:
    """The problem of a file that ends inside a batch."""
    announced = f" of a batch of {wanted}" if wanted else ", too few for a batch"
    return Problem(
        ProblemKind.DAMAGED,
        f"torn tail: the file ends after {left} bytes{announced}",
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
    """The batches of ``segment`` from byte ``start`` on, each with its position and its bytes, not
    yet checked.

    A batch's bytes are valid until the next is asked for. Problems of framing and order go to
    ``note``. What an entry of magic 0 or 1 says of itself is its header here (see
    ``decode_batch_header``).

    A segment whose object is missing goes to ``note``, too.

    Raises:
        OutOfMemoryBudget: a batch is larger than ``limit_bytes``, and ``refuses_large``: else that
            goes to ``note``.
    """
    try:
        with reader_of(segment) as reader:
            yield from _batches_in(reader, segment, note, start, limit_bytes, refuses_large)
    except CorruptLog as error:  # an object that is missing from its archive
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
            wrong = f"batch at offset {header.base_offset}, where {floor} or more should follow"
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
    """The size of the entry at the begin of ``data``, of any magic, or 0 where it announces none."""
    length = int.from_bytes(data[8:12].tobytes(), "big", signed=True)
    return length + LENGTH_END if length >= SHORTEST_ENTRY_BYTES else 0
