"""Read one partition of a live topic from its leader.

A broker sends the bytes that it stores: complete batches, and perhaps a partial batch at the end,
which is ignored. While a response is processed, the next request is already sent.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from lastwrite.errors import CommitConflict, CorruptLog, RemoteFailed
from lastwrite.kafka.format.batch_layout import BATCH_HEADER
from lastwrite.kafka.format.chunk import KafkaFormat
from lastwrite.kafka.network.cluster import KafkaCluster
from lastwrite.kafka.network.connection import KafkaConnection, ReceiveBuffer, RetriableError
from lastwrite.kafka.network.fetch import FetchedPartition, FetchPartition
from lastwrite.kafka.network.messages import build_message
from lastwrite.kafka.rules import forks
from lastwrite.kafka.rules.live_settings import KafkaClientConfig
from lastwrite.model.columns import IS_OLD, BatchTable, ByteArray
from lastwrite.model.log import TopicPartition

_EPOCH_AT = BATCH_HEADER.offset_of("partition_leader_epoch")
_EARLIEST, _LATEST = -2, -1
_OUT_OF_RANGE = 1
# A response of this size stays in the processor's cache. Fetching with 16 MiB took three times as
# long.
_FETCH_BYTES = 4 << 20
# lower limit of a request's max bytes, which is reduced after connections broke
_LEAST_BYTES = 16 << 10
_MOST_BYTES = (1 << 31) - 1
_WAIT_MS = 500  # longest time that the broker waits for records
_LOOKS = 3  # attempts to fetch damaged bytes, because the damage may occur in transit


class LogBounds(NamedTuple):
    """The bounds of a log: its first offset and its high watermark."""

    log_start: int
    high_watermark: int


class LiveLog:
    """Reads one partition. Not thread-safe. ``close`` returns the connection to the cluster."""

    def __init__(
        self, cluster: KafkaCluster, name: TopicPartition, config: KafkaClientConfig
    ) -> None:
        self.name = name
        self.path = f"kafka://{cluster.address}/{name}"
        self.topic_id = cluster.topic(name.topic).id
        self._cluster = cluster
        self._config = config
        self._stack = contextlib.ExitStack()
        self._connection: KafkaConnection | None = None
        self._epoch = -1  # leader epoch of the requests
        self._last_epoch = -1  # leader epoch of the last batch received; -1 if unknown
        self._max_bytes = _FETCH_BYTES
        self._requested: FetchPartition | None = None
        # a separate buffer, because other responses overwrite the connection's buffer
        self._room = ReceiveBuffer()

    def close(self) -> None:
        self._stack.close()

    # ------------------------------------------------------------------ bounds

    def bounds(self) -> LogBounds:
        """Request the log start offset and the high watermark.

        Raises:
            RemoteFailed: no broker answers within the timeout.
        """
        try:
            return self._cluster.with_retries(
                lambda: LogBounds(self._offset(_EARLIEST), self._offset(_LATEST))
            )
        except RemoteFailed:
            self._cluster.note_abandoned()
            raise

    def _offset(self, timestamp: int) -> int:
        doing = f"read the first and last offsets of {self.name}"
        address, epoch = self._cluster.leader(self.name.topic, self.name.partition)
        with self._cluster.connection(address) as connection:
            module = connection.schema("list_offsets", doing)
            part = {"partition_index": self.name.partition, "timestamp": timestamp}
            parts = (
                build_message(module, "ListOffsetsPartition", **part, current_leader_epoch=epoch),
            )
            topics = (module.ListOffsetsTopic(name=self.name.topic, partitions=parts),)
            answer = connection.request(
                "list_offsets", doing, replica_id=-1, isolation_level=0, topics=topics
            )
        found = answer.topics[0].partitions[0]
        self._cluster.check(found.error_code, doing, address)
        return int(found.offset)

    def lineage(self, known: int, log_start: int) -> tuple[tuple[int, int], ...]:
        """Request the leader epochs above ``known`` with their start offsets, oldest first.

        If these epochs begin above ``log_start``, the preceding epoch is added with the offset
        ``log_start``. Empty if the broker has no epochs.

        Uses OffsetForLeaderEpoch, which returns the largest epoch up to the requested epoch, and
        the start offset of the epoch after it.

        Raises:
            RemoteFailed: no broker answers within the timeout.
        """
        _, epoch = self._cluster.leader(self.name.topic, self.name.partition)
        found: list[tuple[int, int]] = []
        while epoch > max(known, 0):
            below, start = self._cluster.with_retries(partial(self._end_of_epoch, epoch - 1))
            if start < 0 or (found and start == found[-1][1]):  # the epoch has no records
                return tuple(reversed(found))
            found.append((epoch, start))
            epoch = below
        if epoch >= 0 and not (found and found[-1][1] <= log_start):
            found.append((epoch, log_start))
        return tuple(reversed(found))

    def common_end(self, epochs: Sequence[tuple[int, int]], end: int) -> int | None:
        """The offset up to which this log and another log have the same records. None if unknown.

        ``epochs`` are the other log's leader epochs with start offsets, and ``end`` is its end
        offset.

        Raises:
            RemoteFailed: no broker answers within the timeout.
        """

        def ask(epoch: int) -> tuple[int, int]:
            return self._cluster.with_retries(partial(self._end_of_epoch, epoch))

        return forks.common_end(epochs, end, ask)

    def _end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The log's last epoch up to ``epoch``, and the start offset of the epoch after it."""
        doing = f"read the leader epochs of {self.name}"
        address, current = self._cluster.leader(self.name.topic, self.name.partition)
        with self._cluster.connection(address) as connection:
            module = connection.schema("offset_for_leader_epoch", doing)
            part = module.OffsetForLeaderPartition(
                partition=self.name.partition, current_leader_epoch=current, leader_epoch=epoch
            )
            topics = (module.OffsetForLeaderTopic(topic=self.name.topic, partitions=(part,)),)
            answer = connection.request(
                "offset_for_leader_epoch", doing, replica_id=-1, topics=topics
            )
        found = answer.topics[0].partitions[0]
        self._cluster.check(found.error_code, doing, address)
        return int(found.leader_epoch), int(found.end_offset)

    # ------------------------------------------------------------------ records

    def batches(
        self, first: int, end: int, format: KafkaFormat, epoch: int
    ) -> Iterator[tuple[ByteArray, BatchTable]]:
        """The stored batches with offsets from ``first`` to ``end``, each verified by its checksum.

        Yields (bytes, table of the batches in the bytes). ``origin`` in the table is a position in
        the bytes. Bytes and table are valid until the next item is requested.

        Args:
            epoch: the leader epoch of the records below ``first``; -1 if unknown.

        Raises:
            CorruptLog: the batches are malformed, also when fetched again.
            CommitConflict: the log no longer has ``first``, or an election truncated the log.
            RemoteFailed: the broker rejects the request, or no broker answers within the timeout.
        """
        self._last_epoch = epoch
        at, lowest, looks = first, 0, _LOOKS
        heard, cuts = time.monotonic(), 0
        try:
            while at < end:
                answer = self._read(at, heard)
                data = np.frombuffer(answer.records, dtype=np.uint8)
                try:
                    tables = list(_split(data, lowest, format))
                except CorruptLog as error:
                    looks -= 1
                    self._drop()
                    if not looks:
                        raise error.located(f"{self.path}, fetched from offset {at}") from error
                    continue
                if answer.is_cut:
                    self._drop()
                    self._max_bytes = max(min(len(data), self._max_bytes), _LEAST_BYTES)
                if not tables:
                    heard = time.monotonic() if answer.throttle_ms else heard
                    if answer.is_cut:
                        self._wait_after_cut(at, len(data), heard, cuts)
                        cuts += 1
                    else:
                        self._wait_for_more(at, len(data), heard)
                    continue
                if not answer.is_cut and self._max_bytes < _FETCH_BYTES:
                    self._max_bytes = min(2 * self._max_bytes, _FETCH_BYTES)
                heard, looks, cuts = time.monotonic(), _LOOKS, 0
                self._cluster.note_records()
                begun, at = at, int(tables[-1]["next_offset"][-1])
                if at <= begun:
                    raise CorruptLog(
                        f"the broker returned offsets up to {at} for a fetch from offset {begun}",
                        path=self.path,
                    )
                lowest = at
                self._last_epoch = _epoch_of(data, tables[-1])
                if at < end:
                    self._prefetch(at)  # the broker reads while this response is processed
                for table in tables:
                    wanted = (table["next_offset"] > begun) & (table["base_offset"] < end)
                    if wanted.any():
                        yield data, table[wanted]
                heard = time.monotonic()  # so the time in the caller does not count as waiting
        finally:
            if self._requested is not None:  # the connection has an unread response
                self._drop()

    def _wait_for_more(self, at: int, received: int, heard: float) -> None:
        """Handle a response without a complete batch: request more bytes, or raise."""
        if received:
            if self._max_bytes == _MOST_BYTES:
                raise CorruptLog(
                    f"the broker returned an incomplete batch at offset {at}", path=self.path
                )
            self._max_bytes = min(2 * self._max_bytes, _MOST_BYTES)
        elif time.monotonic() - heard > self._config.api_timeout_ms / 1000:
            raise RemoteFailed(
                f"the broker returns no record from offset {at} on, although its log continues",
                path=self.path,
                remedy="check the broker's log; for a tiered topic, check that the broker can "
                "read the tier",
            )

    def _wait_after_cut(self, at: int, received: int, heard: float, cuts: int) -> None:
        """Wait before the next request, because the connection broke within a batch.

        ``cuts`` is the number of earlier failures of this kind in succession.
        """
        until = heard + self._cluster.patience_s
        if time.monotonic() >= until:
            why = (
                "connections break before the batch at that offset has arrived completely; the "
                f"last attempt received {received} bytes"
            )
            raise self._stalled(at, heard, why)
        self._cluster.wait(until, cuts)

    def _stalled(self, at: int, heard: float, why: str) -> RetriableError:
        self._cluster.note_abandoned()
        return RetriableError(
            f"no record from offset {at} on arrived for {time.monotonic() - heard:.0f} s: {why}",
            path=self.path,
            remedy="check the network and the broker, and run the command again: it "
            "continues at this offset; to wait longer, raise default.api.timeout.ms",
        )

    def _read(self, at: int, heard: float) -> FetchedPartition:
        """Fetch records from offset ``at`` on. Retries with the new leader if the leader changed.

        ``heard`` is the monotonic time at which the last record arrived.
        """

        doing = f"fetch from {self.name}"

        def read() -> FetchedPartition:
            try:
                if self._requested is None or self._requested.offset != at:
                    self._drop()
                    self._request(at)
                assert self._requested is not None and self._connection is not None
                asked, self._requested = self._requested, None
                answer = self._connection.receive_fetch(asked, self._room, doing)
                if answer.error == _OUT_OF_RANGE:
                    raise CommitConflict(
                        f"the log no longer contains offset {at}: it was deleted or truncated "
                        "during the command",
                        path=self.path,
                        remedy="run the command again: it starts with the log's present offsets",
                    )
                address = self._connection.address
                self._cluster.check(answer.error, doing, address)
                return answer
            except RemoteFailed:
                self._drop()
                raise

        try:
            return self._cluster.with_retries(read, heard)
        except RetriableError as error:
            raise self._stalled(at, heard, error.problem) from error

    def _request(self, at: int) -> None:
        """Send a Fetch request for the records from offset ``at`` on."""
        doing = f"fetch from {self.name}"
        if self._connection is None:
            topic = self._cluster.topic(self.name.topic)
            if topic.id != self.topic_id:
                raise CommitConflict(
                    "the topic was deleted and created again during the command",
                    path=self.path,
                    remedy="run the command again: it starts with the log's present offsets",
                )
            address, epoch = self._cluster.leader(self.name.topic, self.name.partition)
            if epoch != self._epoch:
                self._reject_if_cut(at)
            self._epoch = epoch
            self._connection = self._stack.enter_context(self._cluster.connection(address))
        request = FetchPartition(
            self.name.topic,
            self.topic_id,
            self.name.partition,
            self._epoch,
            at,
            self._max_bytes,
            _WAIT_MS,
        )
        self._connection.send_fetch(request, doing)
        self._requested = request

    def _reject_if_cut(self, at: int) -> None:
        """Raise ``CommitConflict`` if the new leader lacks records that were already fetched."""
        if self._last_epoch < 0:
            return
        epoch, end = self._end_of_epoch(self._last_epoch)
        if end >= 0 and (epoch < self._last_epoch or end < at):
            raise CommitConflict(
                f"a leader election truncated the log at offset {end}, after offsets up to {at} "
                "had been fetched",
                path=self.path,
                remedy="run the command again: it starts with the log's present offsets",
            )

    def _prefetch(self, at: int) -> None:
        """Send the next Fetch request in advance. Ignores errors: ``_read`` then sends it again."""
        try:
            self._request(at)
        except RemoteFailed:
            self._drop()

    def _drop(self) -> None:
        """Close the connection, because an unread response may still arrive."""
        self._requested = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._stack.close()


def _epoch_of(data: ByteArray, table: BatchTable) -> int:
    """The leader epoch of the last batch of ``table``; -1 for formats before magic 2."""
    if table["flags"][-1] & IS_OLD:
        return -1
    at = int(table["origin"][-1]) + _EPOCH_AT
    return int.from_bytes(data[at : at + 4].tobytes(), "big", signed=True)


def _split(data: ByteArray, lowest: int, format: KafkaFormat) -> Iterator[BatchTable]:
    """The tables of the complete batches in ``data``. A partial batch at the end is ignored."""
    start = 0
    while start < len(data):
        table, consumed, wanted, _ = format.split(data, start, len(data), lowest)
        if not len(table) and consumed == start:
            return
        start = consumed
        if len(table):
            lowest = int(table["next_offset"][-1])
            yield table.copy()
