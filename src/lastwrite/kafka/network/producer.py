"""The producer that restores a partition's records, and the note of its progress.

Requests of an earlier run that was killed may still arrive. So all runs use the same transactional
id. Each run raises its epoch, and ends an empty transaction, whose marker is written to the
partition. After that marker the broker rejects requests of earlier epochs. The log's end therefore
shows which of their records arrived::

    epoch 4    progress: 3 + 2 records from 70 on     3 records @70  (lost: 2 records @73)
    epoch 6    marker @73    progress: 2 records from 74 on          2 records @74

The restored records are not part of a transaction: records once written stay, and no consumer reads
a record twice, not even with ``read_uncommitted``. The progress is written in a transaction. It is
text in the offset metadata of a consumer group. A long text is split over several groups, which are
committed together.

Source: Kafka 4.4 ``ProducerAppendInfo``, ``TransactionCoordinator``; KIP-98;
docs/decisions/giving-back-through-produce.md.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Sequence

from lastwrite.errors import CommitConflict
from lastwrite.kafka.format.outgoing import OutgoingBatch, next_sequence
from lastwrite.kafka.network.cluster import KafkaCluster
from lastwrite.kafka.network.connection import KafkaConnection, RetriableError
from lastwrite.kafka.network.coordinator import GroupClient, TransactionClient
from lastwrite.kafka.network.produce import ProduceBatch
from lastwrite.model.log import TopicPartition

_UNDER_WAY = 5  # requests in flight; a broker remembers the last five batches of a producer
_PIECE_CHARACTERS = 3000  # characters in one group; brokers accept 4096 bytes of offset metadata
_FENCED = (47, 90)
_OUT_OF_ORDER = 45
_LONGEST_SILENCE_S = 60.0


class ProgressRecord:
    """A restore's progress for one partition, stored in the cluster itself.

    The text is the metadata of a committed offset of a consumer group. A text that is too long for
    one commit is divided among several groups, whose names begin with ``name``.
    """

    def __init__(self, cluster: KafkaCluster, name: str, of: TopicPartition) -> None:
        self._cluster = cluster
        self._name = name
        self._of = of
        self._groups: list[GroupClient] = []

    def read(self) -> str:
        """Read the stored text. Empty if there is none.

        Raises:
            RemoteFailed: a request is refused, or not answered within the timeout.
        """
        first = self._group(0).position(self._of)
        if first is None:
            return ""
        text = first.metadata
        for number in range(1, first.offset):
            more = self._group(number).position(self._of)
            text += "" if more is None else more.metadata
        return text

    def write(self, text: str, transactions: TransactionClient) -> None:
        """Replace the stored text in a transaction.

        Raises:
            CommitConflict: a later producer has fenced ``transactions``.
            RemoteFailed: a request is refused, or not answered within the timeout.
        """
        starts = range(0, max(len(text), 1), _PIECE_CHARACTERS)
        for number, start in enumerate(starts):
            group = self._group(number)
            transactions.add_group(group.name)
            piece = text[start : start + _PIECE_CHARACTERS]
            group.commit_within(transactions, self._of, len(starts), piece)
        transactions.end(committed=True)

    def _group(self, number: int) -> GroupClient:
        while number >= len(self._groups):
            more = f".{len(self._groups)}" if self._groups else ""
            self._groups.append(GroupClient(self._cluster, self._name + more))
        return self._groups[number]


class TransactionalProducer:
    """Writes restored batches to one partition, under a transactional id. Not thread-safe.

    ``close`` returns the connection to the cluster.
    """

    def __init__(
        self, cluster: KafkaCluster, name: TopicPartition, transactions: TransactionClient
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._transactions = transactions
        self._doing = f"write to {name}"
        self._stack = contextlib.ExitStack()
        self._connection: KafkaConnection | None = None
        self._sequence = 0

    def close(self) -> None:
        self._stack.close()

    def begin(self) -> None:
        """Fence every earlier producer with this transactional id.

        Raises:
            CommitConflict: another run begins at the same time.
            RemoteFailed: a request is refused, or not answered within the timeout.
        """
        self.abandon()
        self._transactions.begin()
        self._transactions.add_partition(self._name)
        self._transactions.end(committed=False)
        self._transactions.begin()  # this call returns after the marker is written
        self._sequence = 0

    def send(self, batches: Sequence[OutgoingBatch], offset: int) -> None:
        """Send the batches. Checks that the broker writes them from offset ``offset`` on.

        Raises:
            RetriableError: it is unknown which batches arrived. Call ``begin`` again.
            CommitConflict: another run, or another producer, writes to the partition.
            RemoteFailed: the broker refuses the batches.
        """
        waiting: deque[int] = deque()
        heard = time.monotonic()
        try:
            address, _ = self._cluster.leader(self._name.topic, self._name.partition)
            if self._connection is None:
                self._connection = self._stack.enter_context(self._cluster.connection(address))
            for batch in batches:
                if len(waiting) == _UNDER_WAY:
                    self._take(waiting.popleft())
                    heard = self._awake(heard)
                data = batch.signed(
                    self._transactions.producer_id, self._transactions.epoch, self._sequence
                )
                self._sequence = next_sequence(self._sequence, batch.records)
                append = ProduceBatch(self._name.topic, self._name.partition, data.data)
                self._connection.send_produce(append, self._doing)
                waiting.append(offset)
                offset += batch.records
            while waiting:
                self._take(waiting.popleft())
        except BaseException:
            self.abandon()
            raise

    def _awake(self, heard: float) -> float:
        """Check that this process was not paused for long. Returns the time.

        Raises ``RetriableError`` if the last call is too long ago: another run may have replaced
        this process, and brokers may have forgotten the producer.
        """
        now = time.monotonic()
        if now - heard > _LONGEST_SILENCE_S:
            raise RetriableError(
                f"could not {self._doing}: the process was paused for too long",
                path=self._cluster.address,
            )
        return now

    def _take(self, offset: int) -> None:
        """Receive a response, and check that its batch was written at ``offset``."""
        assert self._connection is not None
        answer, address = self._connection.receive_produce(self._doing), self._connection.address
        if answer.error in _FENCED:
            raise CommitConflict(
                f"could not {self._doing}: another restore of the same topic has started",
                path=address,
                remedy="wait until that restore has ended, then run the command again",
            )
        if answer.error == _OUT_OF_ORDER:
            raise RetriableError(
                f"could not {self._doing}: the broker lost the batch that was written last",
                path=address,
            )
        rights = "Write of the topic"
        self._cluster.check(answer.error, self._doing, address, answer.message, rights)
        if answer.base_offset != offset:
            raise CommitConflict(
                f"another producer writes to {self._name}: the batch for offset {offset} was "
                f"written at offset {answer.base_offset}",
                path=address,
                remedy="stop the topic's other producers; if their records are not needed, delete "
                "the topic and run the command again; otherwise restore under another name "
                "with --as",
            )

    def abandon(self) -> None:
        """Close the connection, because unread responses may still arrive."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._stack.close()
