"""A partition that Lastwrite itself appends to: segments like a broker's, without indexes.

    FOLDER/00000000000000000000.log     closed
           00000000000000081234.log     active: ends with its last batch

The process that has the log open locks the partition. An appended batch is in the kernel's page
cache, so it survives a crash of the process. A crash of the machine may leave a torn batch, which
the next opening truncates. The recovery point in the root is 0, as after a broker was killed.
Readers therefore list the log as Kafka's recovery would leave it, and need no indexes.

Source: docs/formats/kafka.md; Kafka 4.4 ``LogSegment.recover``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from lastwrite.errors import CorruptLog, located
from lastwrite.kafka.format.batch import encode_batch, iter_batches
from lastwrite.kafka.format.batch_layout import Batch, Record
from lastwrite.kafka.format.names import RECOVERY_POINTS, KafkaFileKind, segment_file_name
from lastwrite.kafka.store import log_dir
from lastwrite.kafka.store.checkpoints import write_offset
from lastwrite.kafka.store.partitions import partition_name, root_of, scan
from lastwrite.model.log import Segment
from lastwrite.storage import files
from lastwrite.storage.reading import reader_of


class AppendedLog:
    """An open log in ``folder``, to which records are appended.

    The folder is created if it is missing. A segment is full at ``segment_bytes``.

    Raises:
        CorruptLog: the log is damaged, not only torn at its end.
        LogError: the log cannot be written.
    """

    def __init__(self, folder: str, segment_bytes: int) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._size = 0
        self.end_offset = 0
        self._segments: tuple[Segment, ...] = ()
        files.make_folder(folder)
        if not os.path.exists(os.path.join(root_of(folder), RECOVERY_POINTS)):
            write_offset(root_of(folder), RECOVERY_POINTS, partition_name(folder), 0)
        if any(entry.name.endswith(KafkaFileKind.LOG) for entry in scan(folder)):
            self._open()
        self._path = self._segments[-1].path if self._segments else self._path_of(0)

    def _open(self) -> None:
        log_dir.recover(self._folder)
        log = log_dir.read_partition(self._folder)
        for problem in log.problems:
            if not problem.is_note:
                raise CorruptLog(problem.message, problem.position, problem.path, problem.remedy)
        last = log.segments[-1]
        if last.torn_bytes:
            files.truncate(last.path, last.size_bytes)
            # List the log again: readers check that the file has the listed size and time.
            log = log_dir.read_partition(self._folder)
        self._segments, self.end_offset = log.segments, log.end_offset
        self._size = last.size_bytes

    def batches(self) -> Iterator[Batch]:
        """The batches that the log had when it was opened.

        Raises:
            CorruptLog: a batch cannot be read.
        """
        return batches_of(self._segments)

    def append(self, records: Sequence[Record], leader_epoch: int = 0) -> None:
        """Append records as a batch, completely or not at all. Offsets begin at ``end_offset``.

        Raises:
            LogError: the batch could not be written.
        """
        batch = encode_batch(records, leader_epoch=leader_epoch)
        if self._size and self._size + len(batch) > self._segment_bytes:
            self._path, self._size = self._path_of(self.end_offset), 0
        files.append(self._path, batch, self._size)
        self._size += len(batch)
        self.end_offset = records[-1].offset + 1

    def _path_of(self, base_offset: int) -> str:
        return os.path.join(self._folder, segment_file_name(base_offset, KafkaFileKind.LOG))


def batches_of(segments: Iterable[Segment]) -> Iterator[Batch]:
    """Yield the batches of small segments. Each segment is read into memory as a whole.

    Raises:
        CorruptLog: a batch cannot be read.
    """
    for segment in segments:
        data = np.empty(segment.size_bytes, dtype=np.uint8)
        with reader_of(segment) as reader:
            reader.read_into(data, 0)
        with located(segment.path):
            for _, batch in iter_batches(data):
                yield batch
