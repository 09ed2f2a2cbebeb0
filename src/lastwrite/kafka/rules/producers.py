"""The producers in a log, and which of their batches compaction must keep.

The smallest case: producer 7 writes two batches, which end at offsets 3 and 5. If a broker receives
the second batch again, it returns the offset of the first copy, because it remembers each
producer's last batch. After a restart it restores this state from a snapshot or from the log. So
the last batch, with ``last_offset`` 5, stays as an empty batch after compaction has removed all its
records. It is removed after producer 7 has written again, or has written nothing for
``producer.id.expiration.ms``.

- A new epoch of a producer makes the broker forget the producer's older batches.
- A transaction is open from the first offset of its first batch to its marker. Offsets from the
  first open transaction on are unstable. A transaction whose marker is not replicated counts as
  open.
- Since 4.0 a marker may begin a new epoch. Then the broker remembers no data batch (``last_offset``
  -1), and the log has only the marker of the producer's epoch. So the marker's batch stays instead
  of a data batch.
- A marker whose record compaction has removed has no effect.

Source: Kafka 4.4 ``ProducerStateManager``, ``ProducerAppendInfo``, ``ProducerStateEntry``,
``LastRecord``; docs/formats/kafka.md, "Indexes" and "Producer snapshot";
docs/formats/kafka-cleaning.md, "The range" and "Batches and the delete horizon".
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from lastwrite.model.columns import Int64Array
from lastwrite.model.log import AbortedTransaction, ProducerState
from lastwrite.model.policy import LONG_MAX


class ProducerStates:
    """The producers and transactions of a log, updated batch by batch in log order.

    ``producers`` is the initial state, for example from a snapshot. Offsets below
    ``high_watermark`` are replicated. A finished transaction is unstable if its marker is at or
    above ``high_watermark``.
    """

    def __init__(self, producers: Iterable[ProducerState] = (), high_watermark: int = 0) -> None:
        producers = tuple(producers)
        # Producer id to (epoch, last offset, timestamp).
        self._producers = {
            p.producer_id: (p.producer_epoch, p.last_offset, p.timestamp_ms) for p in producers
        }
        # Open transactions, producer id to first offset. They are added in log order, so the first
        # item is the earliest.
        begun = sorted((p.open_from, p.producer_id) for p in producers if p.open_from >= 0)
        self._open = {producer_id: first for first, producer_id in begun}
        self._high_watermark = high_watermark
        self._unreplicated_from: int | None = None
        self._aborted: list[AbortedTransaction] = []

    def data(
        self,
        producer_id: int,
        epoch: int,
        base_offset: int,
        last_offset: int,
        timestamp_ms: int,
        transactional: bool,
    ) -> None:
        """Add a data batch, which may be empty. ``timestamp_ms`` is the largest timestamp in it."""
        self._producers[producer_id] = (epoch, last_offset, timestamp_ms)
        if transactional:
            self._open.setdefault(producer_id, base_offset)

    def marker(
        self, producer_id: int, epoch: int, offset: int, timestamp_ms: int, aborts: bool
    ) -> None:
        """Add the COMMIT or ABORT record at ``offset``. Skip control batches without records."""
        known_epoch, last_offset, _ = self._producers.get(producer_id, (epoch, -1, -1))
        self._producers[producer_id] = (
            epoch,
            last_offset if epoch == known_epoch else -1,
            timestamp_ms,
        )
        first = self._open.pop(producer_id, None)
        if first is None:
            return
        if offset >= self._high_watermark and (
            self._unreplicated_from is None or first < self._unreplicated_from
        ):
            self._unreplicated_from = first
        if aborts:
            stable = next(iter(self._open.values()), offset + 1)
            self._aborted.append(AbortedTransaction(producer_id, first, offset, stable))

    @property
    def producers(self) -> tuple[ProducerState, ...]:
        """All producers so far, by id, including expired ones, because expiry needs a clock."""
        return tuple(
            ProducerState(producer_id, *state, self._open.get(producer_id, -1))
            for producer_id, state in sorted(self._producers.items())
        )

    @property
    def open(self) -> tuple[tuple[int, int], ...]:
        """The open transactions as (producer id, first offset), in the order of first offsets."""
        return tuple(self._open.items())

    @property
    def aborted(self) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions, in the order of their markers' offsets."""
        return tuple(self._aborted)

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the earliest transaction that is open or has an unreplicated marker.

        None if there is no such transaction.
        """
        found = (next(iter(self._open.values()), None), self._unreplicated_from)
        return min((offset for offset in found if offset is not None), default=None)


def active(
    producers: Iterable[ProducerState], now_ms: int, expiration_ms: int
) -> tuple[ProducerState, ...]:
    """The producers whose last batch must be kept at ``now_ms``, in the given order.

    ``expiration_ms`` is ``producer.id.expiration.ms``: the time after which an idle producer
    expires. A producer with an open transaction never expires. A producer also never expires if
    ``now_ms`` minus its timestamp exceeds 63 bits, because in Kafka this difference overflows to a
    negative number.
    """
    return tuple(
        p
        for p in producers
        if p.open_from >= 0 or not expiration_ms <= now_ms - p.timestamp_ms <= LONG_MAX
    )


def required_batches(active: Iterable[ProducerState]) -> tuple[Int64Array, Int64Array]:
    """The batches of these producers that compaction must keep, even without records.

    Returns two arrays. The first has the last offset of each active producer's last data batch,
    ascending. The second has (id, epoch) of each active producer without a data batch, ascending;
    all its control batches of that epoch stay.
    """
    offsets: list[int] = []
    markers: list[tuple[int, int]] = []
    for producer in active:
        if producer.last_offset >= 0:
            offsets.append(producer.last_offset)
        else:
            markers.append((producer.producer_id, producer.producer_epoch))
    return np.array(sorted(offsets), dtype=np.int64), np.array(
        sorted(markers), dtype=np.int64
    ).reshape(-1, 2)
