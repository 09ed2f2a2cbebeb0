"""What a table is made of."""

from __future__ import annotations

from typing import Any, NamedTuple

Row = dict[str, Any]

BODY_LIMIT_BYTES = 256 << 20  # of one body, decompressed

READ_LATER = "the files are read when the DataFrame is evaluated: create it again"
ROWS_AT_ONCE = 1 << 14


class Write(NamedTuple):
    """A record with a key. ``value`` None: it deletes the key."""

    key: Any  # text in RocketMQ and Pulsar, bytes in Kafka
    offset: int
    time_ms: int
    value: bytes | None


def column_names(schema: str) -> list[str]:
    return [
        column.split()[0] for column in schema.replace("MAP<STRING, STRING>", "MAP").split(", ")
    ]
