"""Two requests that a test encodes itself, because no client sends an acknowledged batch again.

The requests have old versions without tagged fields. A request and its answer follow their size,
i32:

    request  api_key i16, api_version i16, correlation_id i32, client_id string, body
    answer   correlation_id i32, body

A string is its length, i16, and its bytes. The length -1 means null. An array follows its count,
i32.

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
NOT_LEADER_OR_FOLLOWER = 6  # errors of a broker that has just started

_PATIENCE_S = 30.0

_CLIENT = b"lastwrite-tests"


class Answer(NamedTuple):
    """The broker's answer to one batch."""

    error_code: int  # 0: the batch is stored, by this or an earlier request
    base_offset: int  # -1: the batch is not stored


class Wire:
    """A connection to a broker."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._correlation_id = 0

    def new_producer(self) -> tuple[int, int]:
        """A new producer id and its epoch."""
        # transactional id, transaction timeout in ms
        answer = self._ask(
            INIT_PRODUCER_ID, INIT_PRODUCER_ID_VERSION, struct.pack(">hi", -1, 60_000)
        )
        _, error_code, producer_id, epoch = struct.unpack_from(">ihqh", answer)
        assert error_code == 0, error_code
        return producer_id, epoch

    def produce(self, topic: str, batch: bytes) -> Answer:
        """Send ``batch`` to partition 0 as a producer does: base offset 0 and no leader epoch."""
        sent = (
            bytes(8) + batch[8:12] + struct.pack(">i", -1) + batch[16:]
        )  # the CRC covers neither field
        name = _string(topic.encode())
        # transactional id, acks, timeout in ms; one topic, one partition
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
