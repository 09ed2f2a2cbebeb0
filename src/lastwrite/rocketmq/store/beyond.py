"""The records of a commit log after a damaged address, and the queue offsets that were lost.

A log that is damaged at an address usually continues after it. The search for the next record uses
the address that each record stores, in the same file and the files after it. The consume queues
list the queue offsets of the damaged bytes. If a queue has no units for these bytes, the lost
offsets are between the last offset before the damage and the first offset after it.

Source: RocketMQ 5.5.0 ``CommitLog.checkMessageAndReturnSize``, ``ConsumeQueue``;
docs/formats/rocketmq.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from lastwrite.model.columns import ByteArray
from lastwrite.model.log import TopicPartition
from lastwrite.rocketmq.dispatch_work import NO_END
from lastwrite.rocketmq.format import kernels, units
from lastwrite.rocketmq.format.kernels import BAD_NUMBER, HAS_INNER
from lastwrite.rocketmq.format.record import TRANSACTION_COMMIT, TRANSACTION_MASK
from lastwrite.rocketmq.reports import OffsetRange, QueueKind
from lastwrite.rocketmq.store import walking
from lastwrite.rocketmq.store.reading import MappedFile, MappedLog
from lastwrite.storage.mapping import mapped


@dataclass(slots=True)
class WholeRecords:
    """The undamaged records in an address range of the commit log."""

    first: int = -1  # address of the first record; -1: no record
    last: int = -1  # address of the last record
    end: int = -1  # address after the last record
    records: int = 0
    record_bytes: int = 0
    bad: list[int] = field(default_factory=list)  # addresses where the log is damaged
    # first and last queue offset of each queue
    queues: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)

    def _add(self, base: int, table: kernels.MessageTable) -> None:
        places = table["position"].tolist()
        if self.first < 0:
            self.first = base + places[0]
        self.last = base + places[-1]
        self.end = self.last + int(table["size"][-1])
        self.records += len(table)
        self.record_bytes += int(table["size"].sum())


def survey(
    files: Sequence[MappedFile], start: int, end: int = NO_END, *, is_exact: bool = False
) -> WholeRecords:
    """Find the undamaged records in ``[start, end)``, skipping damaged bytes.

    ``is_exact`` means that a record begins at ``start``; otherwise the first record after it is
    searched.

    Raises:
        LogError: a file cannot be read, or its size has changed.
    """
    found = WholeRecords()
    for file in files:
        if file.end <= start or file.start >= end:
            continue
        first, last = max(start, file.start), min(walking.written_end(file), end)
        exact = is_exact or start < file.start
        with mapped(file.path, file.size_bytes) as data:
            for table in walking.whole_records(file, data, first, last, found.bad, is_exact=exact):
                found._add(file.start, table)
                _number(found, data, table)
    return found


def _number(found: WholeRecords, data: ByteArray, table: kernels.MessageTable) -> None:
    """Add the records' queue offsets to ``found.queues``. Skips records that get no unit."""
    stage = table["sys_flag"] & TRANSACTION_MASK
    queued = table[(stage == 0) | (stage == TRANSACTION_COMMIT)]
    columns = ["topic_at", "topic_length", "queue_id", "queue_offset", "marks"]
    columns += ["inner_base", "inner_num"]
    for at, length, queue, offset, marks, base, number in queued[columns].tolist():
        topic = data[at : at + length].tobytes().decode("utf-8", "replace")
        is_batch = marks & HAS_INNER and not marks & BAD_NUMBER
        first, count = (base, number) if is_batch else (offset, 1)
        name, last = TopicPartition(topic, queue), first + count - 1
        lowest, highest = found.queues.get(name, (first, last))
        found.queues[name] = min(lowest, first), max(highest, last)


# ---------------------------------------------------------------------- consume queues


def listed(
    log: MappedLog, kind: QueueKind, start: int, end: int = NO_END
) -> tuple[int, int] | None:
    """The first and last queue offset of the records in ``[start, end)``, from a consume queue.

    Returns None if the queue has no unit of a record there.
    """
    found: list[int] = []
    for file in log.files:
        with mapped(file.path) as data:
            table = units.queue_units(data, is_batch=kind is QueueKind.BATCH)
            count = units.valid_count(table)
            low, high = (
                units.lower_bound(table["physical_offset"], at, count) for at in (start, end)
            )
            if low < high:
                found += (
                    units.offsets_of(table, low, file.start)[0],
                    units.offsets_of(table, high - 1, file.start)[1],
                )
    return (found[0], found[-1]) if found else None


def lost_between(
    there: Mapping[TopicPartition, tuple[int, int]],
    ahead: Collection[TopicPartition],
    beyond: WholeRecords,
    ends: Mapping[TopicPartition, int],
) -> list[OffsetRange]:
    """The queue offsets that were lost to damage, as ranges.

    Offsets in consume queues are known to be lost. If a queue has no units for the damaged bytes,
    the gap in its offsets counts as lost.

    Args:
        there: the first and last offset that a queue has for the damaged bytes.
        ahead: the queues with units for the damaged bytes or later bytes. Their lost offsets are
            known, so no gap is computed.
        beyond: the records after the damage.
        ends: the offset after each queue's last whole record before the damage.
    """
    lost = ranges_of(there, "consume queue")
    for name, (first, _) in sorted(beyond.queues.items()):
        end = ends.get(name, first)
        if name not in ahead and end < first:
            lost.append(OffsetRange(name.topic, name.partition, end, first - 1, "records"))
    return lost


def ranges_of(queues: Mapping[TopicPartition, tuple[int, int]], source: str) -> list[OffsetRange]:
    return [
        OffsetRange(name.topic, name.partition, *offsets, source)
        for name, offsets in sorted(queues.items())
    ]


def describe_ranges(ranges: Collection[OffsetRange], most: int = 5) -> str:
    """Describe offset ranges like ``orders-0 17 to 19, orders-1 4``.

    Lists ``most`` ranges, then the number of further ranges.
    """
    named = [
        f"{TopicPartition(one.topic, one.queue)} {one.first}"
        + (f" to {one.last}" if one.last > one.first else "")
        for one in ranges
    ]
    more = len(named) - most
    return ", ".join(named[:most]) + (f" and {more} more queues" if more > 0 else "")
