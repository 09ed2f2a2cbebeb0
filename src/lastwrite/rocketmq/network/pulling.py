"""Reads stored messages of a live broker's queue by queue offset, and verifies them.

For a topic with ``cleanup.policy=COMPACTION`` a broker answers from its compaction log. The offsets
then have gaps, and the addresses and the end refer to the compaction log. For any other topic a
broker answers from the commit log. ``original`` reads messages from the commit log that compaction
has removed from the compaction log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeAlias, TypeVar

import numpy as np

from lastwrite.errors import CorruptLog, LogError, RemoteFailed
from lastwrite.model.columns import ByteArray
from lastwrite.model.log import TopicPartition
from lastwrite.rocketmq.format import kernels
from lastwrite.rocketmq.format.kernels import MESSAGE, MessageTable
from lastwrite.rocketmq.format.record import RocketmqMessage, decode_message
from lastwrite.rocketmq.network.client import (
    PULL_COUNT,
    PullCode,
    PullResponse,
    RocketmqClient,
    Unit,
)
from lastwrite.rocketmq.network.connection import RequestRefused, RocketmqConnectionBroken
from lastwrite.rocketmq.network.patience import REMEDY, Patience
from lastwrite.rocketmq.network.route import MessageQueue

Records: TypeAlias = tuple[ByteArray, MessageTable]  # a buffer, and the table of its records
T = TypeVar("T")

CACHE_SETTING = "searchBcqByCacheEnable"
_MOST_RETRIES = 100  # retries of a pull; a broker requests them while it removes files
_RETRY_SECONDS = 0.1
_UNITS = 512  # units per request
_SMALLEST_RECORD_BYTES = 91


class Puller:
    """Pulls messages from one queue. Two threads must not use an instance at once."""

    def __init__(
        self, client: RocketmqClient, queue: MessageQueue, patience: Patience | None = None
    ) -> None:
        self.queue = queue
        self.name = TopicPartition(queue.topic, queue.queue)
        self._client = client
        self._patience = patience or Patience()
        self.path = f"{queue.broker}/{self.name}"  # the queue's name in error messages
        self._units: dict[int, Unit] = {}
        # Messages per pull and units per request; lowered if connections break during an answer.
        self._pulls, self._most_units = PULL_COUNT, _UNITS

    def with_retries(self, ask: Callable[[], T]) -> T:
        """Call ``ask``, which sends a request, until the broker answers. Return the result.

        Raises:
            RemoteFailed: the request is rejected, or not answered within the limit.
        """
        begin_s = time.monotonic()
        try:
            return self._patience.until_answered(ask, self._client.close_connections)
        except RequestRefused:
            raise
        except RemoteFailed as error:
            self._patience.note_abandoned()
            words = f"{self.name}: no answer from the broker for {time.monotonic() - begin_s:.0f} s"
            raise RemoteFailed(
                f"{words}: {error.problem}", path=error.path, remedy=REMEDY
            ) from error

    def bounds(self) -> tuple[int, int]:
        """The first offset that a pull can return, and the offset after the last message.

        Raises:
            RemoteFailed: the broker does not answer, or rejects the request.
        """
        pulled = self.with_retries(lambda: self._client.pull(self.queue, 0, 1))
        return pulled.min_offset, pulled.max_offset

    def commit_bounds(self) -> tuple[int, int]:
        """The first offset of the ordinary consume queue, and the offset after its last message.

        These messages are in the commit log. Raises the errors of ``bounds``.
        """
        return self.with_retries(lambda: self._client.bounds(self.queue))

    def records(self, first: int = 0, below: int | None = None) -> Iterator[Records]:
        """The messages of the queue from offset ``first`` to before offset ``below``.

        ``below`` None means the queue's end. Yields a buffer and a table of the records in it.

        Raises:
            RemoteFailed: the broker does not answer or rejects the request, or its answers do not
                reach a higher offset.
            CorruptLog: a record in an answer is damaged.
        """
        offset, retries, heard_s = first, 0, time.monotonic()
        while below is None or offset < below:
            pulled = self._pull(offset, heard_s)
            if pulled.status is PullCode.FOUND:
                retries = 0
                self._patience.note_records()
                self._pulls = min(2 * self._pulls, PULL_COUNT)
                data, table = self._split(pulled.records, offset)
                last = int(table["queue_offset"][-1])
                if pulled.next_offset <= last:
                    raise self._strange(
                        offset,
                        f"returned the next offset {pulled.next_offset} after the message "
                        f"of offset {last}",
                    )
                if below is not None:
                    table = table[table["queue_offset"] < below]
                if len(table):
                    yield data, table
                heard_s = time.monotonic()  # so the caller's processing time does not count
                offset = pulled.next_offset
            elif pulled.status is PullCode.RETRY:
                retries += 1
                if retries > _MOST_RETRIES:
                    raise self._strange(
                        offset, "repeatedly answered that the client must pull again later"
                    )
                time.sleep(_RETRY_SECONDS)
            elif pulled.status is PullCode.MOVED and pulled.next_offset > offset:
                offset = pulled.next_offset
            elif offset < pulled.max_offset:
                raise self._strange(
                    offset,
                    f"returned no message, although its queue ends at offset {pulled.max_offset}",
                )
            elif below is not None and 0 < pulled.max_offset < below:
                raise self._strange(
                    offset,
                    f"has messages up to offset {pulled.max_offset}, but offset {below} was "
                    "requested: it lags behind its master",
                )
            else:
                return

    def _pull(self, offset: int, heard_s: float) -> PullResponse:
        """Send one pull. After each broken connection, repeat it with fewer messages.

        ``heard_s`` is the monotonic time at which the last messages arrived.
        """

        def pull() -> PullResponse:
            try:
                return self._client.pull(self.queue, offset, self._pulls)
            except RocketmqConnectionBroken:
                self._pulls = max(self._pulls // 2, 1)
                raise

        try:
            return self._patience.until_answered(pull, self._client.close_connections, heard_s)
        except RequestRefused:
            raise
        except RemoteFailed as error:
            self._patience.note_abandoned()
            waited_s = time.monotonic() - heard_s
            raise RemoteFailed(
                f"{self.name}: no message from offset {offset} on arrived for {waited_s:.0f} s: "
                f"{error.problem}",
                path=error.path,
                remedy=REMEDY,
            ) from error

    def last_before(self, end: int) -> Records | None:
        """The last message below ``end`` that a pull returns. Returns None if there is none."""
        step, found = 1, None
        while found is None:
            first = max(end - step, 0)
            for data, table in self.records(first, end):
                found = data, table[-1:]
            if first == 0:
                break
            step *= 16
        return found

    # ------------------------------------------------------------------ the commit log

    def original(self, offset: int, ahead: int = 1) -> tuple[RocketmqMessage, bytes] | None:
        """The message at a queue offset in the commit log, and its bytes. None if it is missing.

        ``ahead`` is the number of consecutive offsets that the caller will probably request.
        """
        if offset not in self._units:
            first, units = self.with_retries(lambda: self._units_from(offset, ahead))
            self._units = {first + n: unit for n, unit in enumerate(units)}
        unit = self._units.get(offset)
        if unit is None or unit.address < 0 or unit.size < _SMALLEST_RECORD_BYTES:
            return None
        data = self.with_retries(lambda: self._client.record_at(self.queue, unit.address))
        if data is None:
            return None
        with suppress(LogError):
            found = decode_message(data, 0, len(data))
            place = found.topic, found.queue_id, found.queue_offset
            if (
                place == (self.name.topic, self.name.partition, offset)
                and found.size == len(data)
                and found.body_crc_holds
            ):
                return found, data
        return None

    def _units_from(self, offset: int, ahead: int) -> tuple[int, list[Unit]]:
        try:
            return self._client.units(self.queue, offset, min(max(ahead, 1), self._most_units))
        except RocketmqConnectionBroken:
            self._most_units = max(self._most_units // 2, 1)
            raise

    # ------------------------------------------------------------------ answers

    def _split(self, records: bytes, offset: int) -> Records:
        data: ByteArray = np.frombuffer(records, np.uint8).copy()
        table: MessageTable = np.zeros(len(data) // _SMALLEST_RECORD_BYTES + 1, MESSAGE)
        rows, _, code, at, _ = kernels.split(data, 0, len(data), table, True)
        table = table[:rows]
        if code != kernels.OK or not rows:
            words = (
                kernels.CODES[int(code)] if code != kernels.OK else "the answer contains no message"
            )
            raise CorruptLog(
                f"the broker's answer for {self.name} at offset {offset} is damaged: {words}",
                int(at),
                self.queue.broker,
                "check the broker's log for damage, or fetch from another replica",
            )
        offsets = table["queue_offset"]
        if int(offsets[0]) < offset or not bool((offsets[1:] > offsets[:-1]).all()):
            raise self._strange(
                offset, "returned messages whose offsets are not in ascending order"
            )
        if not bool((table["queue_id"] == self.queue.queue).all()):
            raise self._strange(offset, "returned messages of another queue")
        return data, table

    def _strange(self, offset: int, what: str) -> LogError:
        return RemoteFailed(
            f"pulling {self.name} at offset {offset}: broker {self.queue.broker} {what}",
            remedy="run the command again; if the error remains, check the settings in "
            "docs/guide/rocketmq-operators.md",
        )


def reject_reader_with_holes(client: RocketmqClient, broker: str, otherwise: str = "") -> None:
    """Raise if a broker may skip live messages of a compacted topic after a restart.

    A broker with ``searchBcqByCacheEnable=false`` skips no message. ``otherwise`` is text that is
    added to the remedy.

    Raises:
        RemoteFailed: the broker may skip messages, or its setting is unknown.
    """
    remedy = (
        f"on the live broker, run mqadmin updateBrokerConfig -k {CACHE_SETTING} -v false{otherwise}"
    )
    try:
        value = client.broker_config(broker).get(CACHE_SETTING)
    except RemoteFailed as error:
        raise RemoteFailed(
            f"Lastwrite cannot determine whether broker {broker} skips messages: {error.problem}",
            path=error.path,
            remedy=remedy,
        ) from error
    if value is not None and value.lower() != "false":  # None: the release has no such cache
        raise RequestRefused(
            f"broker {broker} has {CACHE_SETTING}={value}, so it may have skipped live messages "
            "since its last start",
            remedy=remedy,
        )
