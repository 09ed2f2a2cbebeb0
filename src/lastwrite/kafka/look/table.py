"""The writes of a Kafka topic for ``latest``: as values, and as columns of Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from lastwrite.errors import CorruptLog, UnsupportedFormat, located
from lastwrite.kafka.format.batch import decode_batch
from lastwrite.kafka.look.problems import whole_batches
from lastwrite.kafka.look.read import AbortedData
from lastwrite.model.log import PartitionLog, Problem, ProblemKind, Segment
from lastwrite.model.stores import StoreSettings
from lastwrite.reports.table import ROWS_AT_ONCE, Write, column_names
from lastwrite.storage.objects import address
from lastwrite.storage.problems import BATCH_LIMIT_BYTES

KAFKA_SCHEMA = (
    "topic STRING, partition INT, offset BIGINT, key BINARY, value BINARY, timestamp BIGINT"
)


def kafka_batches(unit: tuple[PartitionLog, int, StoreSettings]) -> Iterator[Any]:
    """The keyed records of one segment, as Arrow record batches of ``KAFKA_SCHEMA``; the last of
    the unit says how its bucket is reached.

    Raises:
        CommitConflict: it is not the file that was listed.
        CorruptLog: a batch cannot be read.
    """
    import pyarrow as pa

    log, number, stores = unit
    address.use(stores)
    writes = kafka_writes(log, [log.segments[number]])
    while some := [write for _, write in zip(range(ROWS_AT_ONCE), writes)]:  # noqa: B905 -- as many as there are
        columns = [
            pa.array([log.name.topic] * len(some), pa.string()),
            pa.array([log.name.partition] * len(some), pa.int32()),
            pa.array([write.offset for write in some], pa.int64()),
            pa.array([write.key for write in some], pa.binary()),
            pa.array([write.value for write in some], pa.binary()),
            pa.array([write.time_ms for write in some], pa.int64()),
        ]
        yield pa.RecordBatch.from_arrays(columns, column_names(KAFKA_SCHEMA))


def kafka_writes(log: PartitionLog, segments: Iterable[Segment]) -> Iterator[Write]:
    """The writes that a consumer of committed records gets from these segments, in order: what lies
    below the last stable offset.

    Raises:
        CorruptLog: a batch cannot be read.
    """
    aborted = AbortedData(log)
    for segment in segments:
        problems: list[Problem] = []
        for position, _, data in whole_batches(segment, problems.append):
            with located(segment.path, position):
                batch = decode_batch(data, 0, BATCH_LIMIT_BYTES)
            if batch.attributes.control or aborted.has(batch):
                continue
            for record in batch.records:
                is_stable = log.log_start <= record.offset < log.last_stable_offset
                if record.key is not None and is_stable:
                    yield Write(record.key, record.offset, record.timestamp_ms, record.value)
        for problem in problems:
            kind = CorruptLog if problem.kind is ProblemKind.DAMAGED else UnsupportedFormat
            raise kind(problem.message, problem.position, problem.path, problem.remedy)
