"""``read`` of a Pulsar topic folder: one row per message that a consumer gets.

A consumer reads with or without ``readCompacted``.

``reader`` reads the entries.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from lastwrite.errors import InvalidConfig
from lastwrite.model.log import Problem
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.look.reader import EARLIEST_NAME, END, Start, TopicReader
from lastwrite.pulsar.look.rows import message_rows, row_problem
from lastwrite.pulsar.store.place import name_of
from lastwrite.pulsar.store.topic import find_topics
from lastwrite.reports.table import Row

LIMIT, DAMAGED = "LIMIT", "DAMAGED"


class TopicReading(Iterator[Row]):
    """The messages of a read, one dictionary each, with the fields of ``dump``.

    ``status`` is the reason why the read ended: ``END_OF_TOPIC``, ``LIMIT``, or
    ``OPEN_TRANSACTION`` if readers have to wait for a transaction to end. It is ``DAMAGED`` if the
    end was reached, and an entry before it is missing or could not be read. It is None before the
    last message. ``notes`` are problems, and how they were handled.
    """

    def __init__(self, reader: TopicReader, limit: int | None) -> None:
        self._reader = reader
        self._limit = limit
        self._found = 0
        self._requested = reader.at
        self._is_limited = False
        self._rows = self._read()

    @property
    def notes(self) -> list[Problem]:
        return self._reader.notes

    @property
    def status(self) -> str | None:
        if self._is_limited:
            return LIMIT
        is_bad_end = self._reader.status == END and self._reader.is_damaged
        return DAMAGED if is_bad_end else self._reader.status

    @property
    def next_id(self) -> str:
        """The position to continue from, in the form of ``--from``."""
        return self._id(self._reader.at)

    @property
    def horizons(self) -> list[str]:
        """The horizons of all compacted ledgers that were read from, in order."""
        return self._reader.horizons

    def __next__(self) -> Row:
        row = next(self._rows)
        self._found += 1
        return row

    def summary(self) -> Row:
        """The summary of the read. Existing field names never change."""
        reader = self._reader
        topic = reader.current_view().topic
        return {
            "status": self.status,
            "topic": reader.name.base,
            "partition": reader.name.partition,
            "read_compacted": reader.reads_compacted,
            "from": self._id(self._requested),
            "next": self.next_id,
            "messages": self._found,
            "horizon": None if topic.horizon is None else str(topic.horizon),
            "compacted_ledger": None if topic.manifest is None else topic.manifest.ledger,
            "horizons_read": reader.horizons,
            "last_message_id": reader.last_message_id(),
            "incomplete_chunks": reader.chunks.incomplete,
            "notes": msgspec.to_builtins(self.notes),
        }

    def _read(self) -> Iterator[Row]:
        reader = self._reader
        if self._limit is None or self._limit > 0:
            for found in reader.entries():
                first = reader.at.index if found.offset == reader.at.offset else 0
                for row in message_rows(found.entry, found.size, found.place, whole=True):
                    if row["compacted_out"] or 0 <= row["batch_index"] < first:
                        continue
                    if self._found == self._limit:
                        reader.at = Start(found.offset, row["batch_index"])
                        break
                    if row["problem"] is not None:
                        reader.note(row_problem(found.entry, row))
                    yield row
                else:
                    if self._found == self._limit:
                        reader.at = Start(found.offset + 1)
                if self._found == self._limit:
                    break
        self._is_limited = self._limit is not None and self._found >= self._limit
        reader.raise_damage()

    def _id(self, place: Start) -> str:
        if place.offset < 0:
            return EARLIEST_NAME
        said = str(Position.of(place.offset))
        return f"{said}:{self._reader.name.partition}:{place.index}" if place.index > 0 else said


def read_topic(
    path: str,
    topic: str | None,
    partition: int | None,
    start: str,
    limit: int | None,
    reads_compacted: bool,
) -> TopicReading:
    """The messages of the one topic at ``path``. Arguments as ``read.read``.

    Raises:
        NotALog, InvalidConfig: before the first message.
        CorruptLog: the compacted ledger cannot be read.
    """
    folders = find_topics(path, topic, partition)
    if len(folders) != 1:
        names = ", ".join(name_of(folder).full for folder in folders[:20])
        raise InvalidConfig(
            f"the path contains {len(folders)} topics",
            path=path,
            remedy=f"give one topic with its partition: {names}",
        )
    return TopicReading(TopicReader(folders[0], Start.parse(start), reads_compacted), limit)
