"""The keyed records of a Kafka topic for ``latest`` with a session, as columns of Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from lastwrite.kafka.look.columns import RowUnit, read_rows
from lastwrite.reports.table import column_names

KAFKA_SCHEMA = (
    "topic STRING, partition INT, offset BIGINT, key BINARY, value BINARY, timestamp BIGINT"
)
COLUMNS = tuple(column_names(KAFKA_SCHEMA))


def kafka_batches(unit: RowUnit) -> Iterator[Any]:
    """The keyed records of one piece, as Arrow record batches of ``KAFKA_SCHEMA``; the unit asks
    for ``COLUMNS``.

    Raises:
        CommitConflict: it is not the file that was listed.
        CorruptLog: a batch cannot be read.
    """
    import pyarrow as pa

    for batch in read_rows(unit):
        times = batch.column("timestamp").cast(pa.int64())
        found = batch.set_column(
            len(COLUMNS) - 1, "timestamp", pa.array(np.asarray(times) // 1000, pa.int64())
        )
        yield found.filter(batch.column("key").is_valid())
