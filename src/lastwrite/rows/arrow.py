"""Convert records to Arrow batches, in the schema of Spark's Kafka source.

``key, value, topic, partition, offset, timestamp, timestampType``, and ``headers`` on request.
Names, types and order of the columns are a contract: a Spark job moves from ``kafka`` to
``lastwrite`` by changing only its ``format``.

Source: Spark 4.1 ``KafkaRecordToRowConverter``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lastwrite.encoding.slices import gathered
from lastwrite.errors import InvalidConfig
from lastwrite.model.columns import Int64Array, RecordColumns, Slices
from lastwrite.model.log import TopicPartition

ROWS_AT_ONCE = 8192  # rows of a batch; the JVM received smaller and larger batches more slowly
BYTES_AT_ONCE = 1 << 20
HEADERS = "headers"
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999  # years 1 to 9999, UTC

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    HEADERS: pa.list_(pa.field("element", _HEADER)),
}
_OF_SPARK = {
    "key": "BINARY",
    "value": "BINARY",
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "timestampType": "INT",
    HEADERS: "ARRAY<STRUCT<key: STRING, value: BINARY>>",
}
COLUMNS = tuple(_TYPES)
USUAL_COLUMNS = COLUMNS[:-1]


def chosen_columns(columns: Sequence[str] | None, headers: bool = False) -> tuple[str, ...]:
    """Check the requested columns, and return them.

    ``columns`` None means all columns, ``headers`` only if the argument ``headers`` is true.

    Raises:
        InvalidConfig: a column does not exist, or is named twice.
    """
    if columns is None:
        return COLUMNS if headers else USUAL_COLUMNS
    unknown = [name for name in columns if name not in _TYPES]
    if unknown or not columns or len(set(columns)) < len(columns):
        raise InvalidConfig(
            f"the columns are {', '.join(columns) or 'none'}, but some are unknown or repeated",
            remedy=f"choose from: {', '.join(COLUMNS)}",
        )
    return tuple(columns)


def spark_schema(columns: Sequence[str]) -> str:
    """The schema of the columns in Spark's notation."""
    return ", ".join(f"`{name}` {_OF_SPARK[name]}" for name in columns)


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of each batch."""
    return pa.schema([pa.field(name, _TYPES[name]) for name in columns])


def batches_of(
    records: RecordColumns, name: TopicPartition, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The records as Arrow batches of some thousand rows with ``columns``.

    Batches own their memory.
    """
    whole = batch_of(records, name, columns)
    parts = max(1, round(max(len(whole) / ROWS_AT_ONCE, whole.nbytes / BYTES_AT_ONCE)))
    rows = max(1, -(-len(whole) // parts))
    for start in range(0, len(whole), rows):
        yield whole.slice(start, rows)


def batch_of(
    records: RecordColumns, name: TopicPartition, columns: Sequence[str]
) -> pa.RecordBatch:
    """The records as one Arrow batch of ``columns``, which owns its memory."""
    arrays = [_MADE[column](records, name) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def bytes_column(data: np.ndarray, found: Slices) -> pa.Array:
    """A column of bytes from slices of ``data``. A length of -1 means null."""
    starts, lengths = found
    joined, ends = gathered(data, starts, lengths)
    is_null = lengths < 0
    present = pa.py_buffer(np.packbits(~is_null, bitorder="little")) if is_null.any() else None
    buffers = [present, pa.py_buffer(ends), pa.py_buffer(joined)]
    return pa.Array.from_buffers(pa.binary(), len(starts), buffers)


def headers_column(records: RecordColumns) -> pa.Array:
    """The column of headers. Records without headers have null, as in Spark's Kafka source."""
    assert records.header_names is not None and records.header_values is not None
    names = text_column(records.data, records.header_names)
    values = bytes_column(records.data, records.header_values)
    headers = pa.StructArray.from_arrays([names, values], fields=list(_HEADER))
    ends = np.zeros(records.rows + 1, np.int32)
    np.cumsum(records.headers[1], out=ends[1:])
    return pa.ListArray.from_arrays(
        pa.array(ends), headers, type=_TYPES[HEADERS], mask=pa.array(records.headers[1] == 0)
    )


def text_column(
    data: np.ndarray, found: Slices, decode: Callable[[bytes], str] | None = None
) -> pa.Array:
    """A column of text from slices of ``data``.

    ``decode`` converts slices that are not UTF-8. If ``decode`` is None, bad bytes are replaced.
    """
    column = bytes_column(data, found)
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        decode = decode or _replaced
        texts = [None if one is None else decode(one) for one in column.to_pylist()]
        return pa.array(texts, pa.string())


def _replaced(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def odd_times(times_ms: Int64Array) -> npt.NDArray[np.bool_] | None:
    """Whether each time is before year 1 or after year 9999. None if all times are in range."""
    if not len(times_ms) or FIRST_MS <= times_ms.min() <= times_ms.max() <= LAST_MS:
        return None
    return (times_ms < FIRST_MS) | (times_ms > LAST_MS)


def _timestamps(records: RecordColumns) -> pa.Array:
    """A column of times in microseconds.

    Times outside the years 1 to 9999 are null, because SQL and Python cannot represent them.
    """
    odd = odd_times(records.times_ms)
    if odd is None:
        return pa.array(records.times_ms * 1000).view(_TYPES["timestamp"])
    times_us = np.where(odd, 0, records.times_ms) * 1000
    return pa.array(times_us, mask=odd).view(_TYPES["timestamp"])


def _repeated(column: str, value: str | int, rows: int) -> pa.Array:
    return _repeated_often(column, value, 1 << rows.bit_length()).slice(0, rows)


@lru_cache(8)
def _repeated_often(column: str, value: str | int, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, _TYPES[column]), rows)


_MADE: dict[str, Callable[[RecordColumns, TopicPartition], pa.Array]] = {
    "key": lambda records, name: bytes_column(records.data, records.keys),
    "value": lambda records, name: bytes_column(records.data, records.values),
    "topic": lambda records, name: _repeated("topic", name.topic, records.rows),
    "partition": lambda records, name: _repeated("partition", name.partition, records.rows),
    "offset": lambda records, name: pa.array(records.offsets),
    "timestamp": lambda records, name: _timestamps(records),
    "timestampType": lambda records, name: pa.array(records.time_types.astype(np.int32)),
    HEADERS: lambda records, name: headers_column(records),
}
