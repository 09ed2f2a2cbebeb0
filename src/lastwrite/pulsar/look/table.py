"""The writes of a Pulsar topic for ``latest``: what a TableView gets that reads compacted from the
begin.

Source: Pulsar 4.2.4 ``TableViewImpl``; docs/formats/pulsar-compaction.md, "Clients".
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from lastwrite.errors import (
    CommitConflict,
    InvalidConfig,
    LogError,
    UnsupportedFormat,
    located,
)
from lastwrite.pulsar.format.entry import Entry, Message, checked, messages_of
from lastwrite.pulsar.format.names import TopicName
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.look.reader import Start, TopicReader
from lastwrite.pulsar.look.rows import VALUE_LIMIT_BYTES, key_text
from lastwrite.pulsar.rules.horizon import EARLIEST
from lastwrite.pulsar.store.place import name_of
from lastwrite.pulsar.store.reading import LedgerMoved, LedgerReader, decoded
from lastwrite.pulsar.store.survey import survey_of
from lastwrite.pulsar.store.topic import Ledger, find_topics
from lastwrite.pulsar.store.view import run_unread
from lastwrite.reports.table import READ_LATER, ROWS_AT_ONCE, Write, column_names

PULSAR_SCHEMA = (
    "topic STRING, partition INT, ledger BIGINT, entry BIGINT, batch_index INT, key STRING, value BINARY, "
    "event_time BIGINT, publish_time BIGINT, properties MAP<STRING, STRING>"
)

_ENTRIES_AT_ONCE = 1024


def pulsar_topics(path: str, topic: str | None) -> list[str]:
    """The folders of the one topic at ``path``, a partition each.

    Raises:
        NotALog: there is none.
        InvalidConfig: there are several, or only some partitions of one.
    """
    folders = find_topics(path, topic)
    topics = sorted({name_of(folder).base for folder in folders})
    if len(topics) != 1:
        remedy = f"name one: {', '.join(topics[:20])}"
        raise InvalidConfig(f"{len(topics)} topics are there", path=path, remedy=remedy)
    name = name_of(folders[0])
    if len(folders) < len(find_topics(os.path.dirname(folders[0]), name.base)):
        remedy = "give the archive, and the topic's name"
        raise InvalidConfig("a table is of a whole topic", path=path, remedy=remedy)
    return folders


def topic_end(folder: str) -> str:
    """The first message id that no reader of the topic gets: of an open transaction, or behind the
    last entry.

    Raises:
        CorruptLog: the compacted ledger cannot be read.
    """
    view = TopicReader(folder, Start(EARLIEST), reads_compacted=True).looked()
    end = view.end if view.undecided is None else min(view.end, view.undecided)
    return str(Position.of(end))


def pulsar_writes(folder: str) -> Iterator[Write]:
    """The writes of one topic folder, in order, as a reader of the compacted topic gets them.

    Raises:
        CorruptLog: something is missing, before the first write; or cannot be read, after the last
            one.
        UnsupportedFormat: an encrypted message, which nobody can look into.
    """
    reader = TopicReader(folder, Start(EARLIEST), reads_compacted=True)
    reader.looked()
    reader.raise_damage()
    for found in reader.entries():
        with located(found.place.file, found.place.position):
            writes = entry_writes(found.entry, found.offset)
        yield from writes
    reader.raise_damage()


def entry_writes(entry: Entry, offset: int) -> list[Write]:
    """The writes that an entry holds; errors as ``keyed_messages``."""
    return [
        Write(key_text(message.key or b""), offset, message.publish_time, message.value or None)
        for message in keyed_messages(entry)
    ]


def keyed_messages(entry: Entry) -> list[Message]:
    """The keyed messages; errors as ``messages_of``, UnsupportedFormat of an encrypted entry."""
    if entry.is_encrypted:
        raise UnsupportedFormat(
            "an encrypted message", remedy="decrypt the topic into another one first"
        )
    found = messages_of(checked(entry), VALUE_LIMIT_BYTES)
    return [message for message in found if message.key is not None and not message.compacted_out]


# ---------------------------------------------------------------------- ledger by ledger


class LedgerUnit(NamedTuple):
    """What one ledger adds to the table of its topic, as it was listed."""

    name: TopicName
    ledger: Ledger
    is_compacted: bool
    first: int  # number of the first entry
    end: int  # behind the last
    aborted: frozenset[int]


def ledger_units(folder: str) -> list[LedgerUnit]:
    """The ledgers of a topic folder that a reader of the compacted topic reads.

    Raises:
        CorruptLog: a ledger cannot be read.
    """
    reader = TopicReader(folder, Start(EARLIEST), reads_compacted=True)
    view = reader.looked()
    reader.raise_damage()
    units = []
    for part in view.topic.compacted or ():
        units.append(LedgerUnit(reader.name, part, True, 0, part.entries, frozenset()))
    behind = 0 if view.horizon is None else view.horizon + 1
    for one in view.backlog:
        base = Position(one.ledger.id, 0).offset
        end = one.count if view.undecided is None else min(one.count, view.undecided - base)
        first = max(behind - base, 0)
        if first < end:
            units.append(LedgerUnit(reader.name, one.ledger, False, first, end, view.aborted))
    return units


def unit_messages(unit: LedgerUnit) -> Iterator[tuple[Entry, Message]]:
    """The keyed messages of a ledger that readers get.

    Raises:
        CommitConflict: it is not the object that was listed.
        CorruptLog: it cannot be read.
        UnsupportedFormat: a message that is encrypted, or in parts, which need not lie in one
            ledger.
    """
    reader = LedgerReader(unit.ledger)
    runs = None if unit.is_compacted else survey_of(unit.ledger)
    number = unit.first
    while number < unit.end:
        try:
            some = reader.read(number, min(_ENTRIES_AT_ONCE, unit.end - number))
        except LedgerMoved:
            path = unit.ledger.path
            raise CommitConflict("the object has changed", path=path, remedy=READ_LATER) from None
        for stored in some:
            try:
                entry, _ = decoded(stored, None if unit.is_compacted else unit.ledger.id)
                if entry.is_marker or (
                    runs is not None and run_unread(runs, stored.number, unit.aborted) is not None
                ):
                    continue
                if entry.metadata.is_chunk:
                    remedy = "take a dictionary: no spark="
                    raise UnsupportedFormat("a message in parts", remedy=remedy)
                yield from ((entry, message) for message in keyed_messages(entry))
            except LogError as error:
                raise error.located(unit.ledger.path, stored.position) from error
        number = some[-1].number + 1 if some else unit.end


def pulsar_batches(unit: LedgerUnit) -> Iterator[Any]:
    """The keyed messages of one ledger, as Arrow record batches of ``PULSAR_SCHEMA``.

    Raises:
        CommitConflict: it is not the object that was listed.
        CorruptLog, UnsupportedFormat: a message cannot be read.
    """
    import pyarrow as pa

    name, messages = unit.name, unit_messages(unit)
    properties = pa.map_(pa.string(), pa.string())
    while some := list(islice(messages, ROWS_AT_ONCE)):
        entries, found = zip(*some, strict=True)
        columns = [
            pa.array([name.base] * len(some), pa.string()),
            pa.array([name.partition] * len(some), pa.int32()),
            pa.array([entry.ledger for entry in entries], pa.int64()),
            pa.array([entry.entry for entry in entries], pa.int64()),
            pa.array([-1 if each.index is None else each.index for each in found], pa.int32()),
            pa.array([key_text(each.key or b"") for each in found], pa.string()),
            pa.array([each.value or None for each in found], pa.binary()),
            pa.array([each.event_time for each in found], pa.int64()),
            pa.array([each.publish_time for each in found], pa.int64()),
            pa.array([list(dict(each.properties).items()) for each in found], properties),
        ]
        yield pa.RecordBatch.from_arrays(columns, column_names(PULSAR_SCHEMA))
