"""The two requests that a test has to write itself: no client sends a batch again that was
acknowledged.

Old versions of both, without tagged fields. A request and its answer each follow their size, i32:

    request  api_key i16, api_version i16, correlation_id i32, client_id string, body
    answer   correlation_id i32, body

A string is its length, i16, and its bytes; null is the length -1. An array follows its count, i32.

Source: Kafka's ``ProduceRequest.json``, ``InitProducerIdRequest.json`` and their answers.
"""

from __future__ import annotations

import socket
import struct
import time
from types import TracebackType
from typing import NamedTuple

from tests.support.sockets import received

PRODUCE, PRODUCE_VERSION = 0, 7
INIT_PRODUCER_ID, INIT_PRODUCER_ID_VERSION = 22, 1

OUT_OF_ORDER_SEQUENCE_NUMBER = 45
NOT_LEADER_OR_FOLLOWER = 6  # a broker that has just started may say so for a moment

_PATIENCE_S = 30.0

_CLIENT = b"lastwrite-tests"


class Answer(NamedTuple):
    """What the broker says of one batch."""

    error_code: int  # 0: stored, now or before
    base_offset: int  # -1: not stored


class Wire:
    """A connection to a broker."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._correlation_id = 0

    def new_producer(self) -> tuple[int, int]:
        """A producer id that nobody has, and its epoch."""
        # transactional id, its time-out in ms
        answer = self._ask(
            INIT_PRODUCER_ID, INIT_PRODUCER_ID_VERSION, struct.pack(">hi", -1, 60_000)
        )
        _, error_code, producer_id, epoch = struct.unpack_from(">ihqh", answer)
        assert error_code == 0, error_code
        return producer_id, epoch

    def produce(self, topic: str, batch: bytes) -> Answer:
        """Send ``batch`` to partition 0 as a producer does: from offset 0, of no leader epoch."""
        sent = (
            bytes(8) + batch[8:12] + struct.pack(">i", -1) + batch[16:]
        )  # neither is under the crc
        name = _string(topic.encode())
        # transactional id, acks of all, time-out in ms; one topic, one partition
        body = struct.pack(">hhi", -1, -1, 30_000) + struct.pack(">i", 1) + name
        body += struct.pack(">iii", 1, 0, len(sent)) + sent
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            answer = self._ask(PRODUCE, PRODUCE_VERSION, body)
            topics, partitions, partition, error_code, base_offset = struct.unpack_from(
                f">i{len(name)}xiihq", answer
            )
            assert (topics, partitions, partition) == (1, 1, 0)
            if error_code != NOT_LEADER_OR_FOLLOWER or time.monotonic() > deadline:
                return Answer(error_code, base_offset)
            time.sleep(0.1)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(self, api_key: int, version: int, body: bytes) -> bytes:
        self._correlation_id += 1
        head = struct.pack(">hhi", api_key, version, self._correlation_id) + _string(_CLIENT)
        self._socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
        (size,) = struct.unpack(">i", received(self._socket, 4))
        answer = received(self._socket, size)
        assert struct.unpack_from(">i", answer) == (self._correlation_id,)
        return answer[4:]


def _string(text: bytes) -> bytes:
    return struct.pack(">h", len(text)) + text
