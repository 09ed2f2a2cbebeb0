"""What a table is made of."""

from __future__ import annotations

from typing import Any, NamedTuple


class Write(NamedTuple):
    """A record with a key. ``value`` None: it deletes the key."""

    key: Any  # text in RocketMQ and Pulsar, bytes in Kafka
    offset: int
    time_ms: int
    value: bytes | None
