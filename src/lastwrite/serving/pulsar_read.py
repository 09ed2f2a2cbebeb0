"""``read`` of a Pulsar topic folder: what a consumer gets of the topic, with or without ``readCompacted``.

A consumer reads some entries at its position, and then behind them. ``read`` does the same on the objects of the
folder; where each read looks is ``compaction.horizon.step``. Horizon and compacted ledger come from one manifest, and
the folder is looked at again before each read: where a newer manifest lies there, the next read asks the newer pair. A
pair that was replaced while it was opened is looked for again.

Source: Pulsar 4.2.4; spec/pulsar.md sections 4.7, 14, 15.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from lastwrite.audit.pulsar_rows import VALUE_LIMIT_BYTES, Place, Row, message_rows
from lastwrite.audit.window import problem_of
from lastwrite.compaction.horizon import EARLIEST, NOT_BATCHED, Source, step
from lastwrite.errors import CorruptLog, InvalidConfig, LogError
from lastwrite.formats.pulsar.entry import Entry
from lastwrite.formats.pulsar.position import Position
from lastwrite.logstore.pulsar.reading import CompactedOffsets, LedgerMoved, LedgerReader, decoded
from lastwrite.logstore.pulsar.topic import find_topics, name_of
from lastwrite.logstore.pulsar.view import TopicView, look
from lastwrite.model.log import Problem, ProblemKind
from lastwrite.serving.pulsar_chunks import ChunkGroups

EARLIEST_NAME, LATEST_NAME = "earliest", "latest"

END, LIMIT, OPEN_TRANSACTION = "END_OF_TOPIC", "LIMIT", "OPEN_TRANSACTION"

_LOOKS = 20  # at a folder in which things vanish, before that is taken for damage
_MESSAGE_ID = re.compile(r"(\d{1,10}:(?:-1|\d{1,10}))(?::(-1|\d{1,9}))?(?::(-1|\d{1,9}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Start:
    """Where a reader begins: at a place in the log, and of the batch that lies there at an index."""

    offset: int
    index: int = 0

    @classmethod
    def parse(cls, text: str) -> Start | None:
        """The start of ``earliest`` or of a message id as clients print it, ``LEDGER:ENTRY[:PARTITION[:INDEX]]``; None
        for ``latest``.

        Raises:
            InvalidConfig: another text.
            UnsupportedFormat: an id beyond what is compacted here.
        """
        if text == LATEST_NAME:
            return None
        if text == EARLIEST_NAME:
            return cls(EARLIEST)
        found = _MESSAGE_ID.fullmatch(text)
        if found is None:
            raise InvalidConfig(
                f"{text!r} is no place in a topic",
                remedy=f"give {EARLIEST_NAME}, {LATEST_NAME} or a message id, LEDGER:ENTRY[:PARTITION[:INDEX]]",
            )
        return cls(Position.parse(found[1]).offset, max(int(found[3] or 0), 0))


class Found(NamedTuple):
    """An entry that was read, where it lies, and its size there."""

    entry: Entry
    place: Place
    size: int


class TopicReading(Iterator[Row]):
    """The messages, one dictionary each, with the fields of ``dump``; and, once they end, how.

    ``status``: ``END_OF_TOPIC``, ``LIMIT``, or ``OPEN_TRANSACTION`` where nobody reads on before a transaction ends;
    None while messages come. ``notes``: what is not as it should be, and what was done about it.
    """

    def __init__(self, folder: str, start: Start | None, limit: int | None, reads_compacted: bool) -> None:
        self._folder = folder
        self._name = name_of(folder)
        self._limit = limit
        self._reads_compacted = reads_compacted
        self._chunks = ChunkGroups(VALUE_LIMIT_BYTES)
        self._notes: dict[tuple[str, int | None, str], Problem] = {}
        self._view: TopicView | None = None
        self._found = 0
        self.horizons: list[str] = []  # of all pairs that were read from, in their order
        self.status: str | None = None
        if start is None:
            start = Start(self._looked().end)
        self._asked = self._at = start
        self._rows = self._read()

    @property
    def notes(self) -> list[Problem]:
        return list(self._notes.values())

    @property
    def next_id(self) -> str:
        """Where a reader goes on, as ``--from`` takes it."""
        return self._id(self._at)

    def __next__(self) -> Row:
        row = next(self._rows)
        self._found += 1
        return row

    def summary(self) -> Row:
        """How it ended; the names of fields are a contract."""
        view = self._looked()
        return {
            "status": self.status,
            "topic": self._name.base,
            "partition": self._name.partition,
            "read_compacted": self._reads_compacted,
            "from": self._id(self._asked),
            "next": self.next_id,
            "messages": self._found,
            "horizon": None if view.horizon is None else str(view.topic.horizon),
            "compacted_ledger": None if view.topic.manifest is None else view.topic.manifest.ledger,
            "horizons_read": self.horizons,
            "last_message_id": self.last_message_id(),
            "incomplete_chunks": self._chunks.incomplete,
            "notes": [note.to_dict() for note in self.notes],
        }

    def last_message_id(self) -> Row:
        """What a broker answers to this reader when it asks for the topic's last message; -1, -1: there is none.

        Raises:
            CorruptLog: what it would answer from cannot be read.
        """
        for _ in range(_LOOKS):
            try:
                return self._looked().last_message_id(self._reads_compacted)
            except LedgerMoved:
                self._view = None
        raise self._unsteady()

    # ------------------------------------------------------------------ looking

    def _looked(self) -> TopicView:
        """The folder as it is now."""
        for _ in range(_LOOKS):
            try:
                self._view = look(self._folder, self._reads_compacted, self._view)
            except LedgerMoved:
                self._view = None
                continue
            for problem in self._view.problems:
                self._note(problem)
            if self._reads_compacted:
                self._view.check_pair()
            return self._view
        raise self._unsteady()

    def _unsteady(self) -> CorruptLog:
        return CorruptLog("its objects vanish as fast as they are named", path=self._folder, remedy="read it again")

    def _note(self, problem: Problem) -> None:
        self._notes.setdefault((problem.path, problem.position, problem.message), problem)

    def _id(self, place: Start) -> str:
        if place.offset < 0:
            return EARLIEST_NAME
        said = str(Position.of(place.offset))
        return f"{said}:{self._name.partition}:{place.index}" if place.index else said

    # ------------------------------------------------------------------ reads

    def _read(self) -> Iterator[Row]:
        moves = 0
        while self.status is None:
            try:
                found = self._read_once()
            except LedgerMoved:
                self._view, moves = None, moves + 1
                if moves == _LOOKS:
                    raise self._unsteady() from None
                continue
            moves = 0
            for each in found:
                yield from self._messages(*each)
                if self.status is not None:
                    break
        for problem in self.notes:
            if problem.kind is ProblemKind.DAMAGED:
                raise CorruptLog(problem.message, problem.position, problem.path, problem.remedy)

    def _read_once(self) -> list[Found]:
        """The entries of one read; none where the reader was only moved, or is at an end."""
        if self._limit is not None and self._found >= self._limit:
            self.status = LIMIT
            return []
        view = self._looked()
        horizon = view.horizon if self._reads_compacted else None
        said = step(self._at.offset, horizon, view.offsets, view.borders)
        if said.source is Source.COMPACTED:
            assert view.compacted is not None
            if not self.horizons or self.horizons[-1] != str(view.topic.horizon):
                self.horizons.append(str(view.topic.horizon))
            if said.first is None:
                self._at = Start(said.position)
                return []
            return self._entries(view.compacted, said.first, Source.COMPACTED)
        if view.undecided is not None and said.position >= view.undecided:
            self.status = OPEN_TRANSACTION
            return []
        reader, number = view.backlog_at(said.position)
        if reader is None:
            self.status = END
            return []
        return self._entries(reader, number, Source.BACKLOG)

    def _entries(self, reader: LedgerReader, first: int, source: Source) -> list[Found]:
        """The entries of one read. What is damaged is noted and left out."""
        path = reader.ledger.path
        try:
            stored = reader.read(first)
        except CorruptLog as error:
            self._note(problem_of(error, path))
            self._go_behind(reader, reader.behind(first), source)
            return []
        found = []
        for each in stored:
            try:
                entry, body = decoded(each, None if source is Source.COMPACTED else reader.ledger.id)
            except LogError as error:
                self._note(problem_of(error, path, each.position))
                continue
            position = each.position + len(each.data) - len(body)
            found.append(Found(entry, Place(self._name, path, position, source), len(body)))
        if not found:
            self._go_behind(reader, first + len(stored), source)
        return found

    def _go_behind(self, reader: LedgerReader, number: int, source: Source) -> None:
        """Move the reader to entry ``number`` of this ledger, or behind all of it."""
        view = self._looked()
        if source is Source.BACKLOG:
            self._at = Start(Position(reader.ledger.id, number).offset)
        elif number < reader.count:
            self._at = Start(max(CompactedOffsets(reader)[number], self._at.offset + 1))
        elif view.horizon is not None:
            self._at = Start(view.horizon + 1)

    def _messages(self, entry: Entry, place: Place, size: int) -> Iterator[Row]:
        offset = Position(entry.ledger, entry.entry).offset
        view = self._view
        if view is not None and view.undecided is not None and offset >= view.undecided:
            self.status = OPEN_TRANSACTION
            return
        first = self._at.index if offset == self._at.offset else 0
        is_read = not entry.is_marker and (
            place.source is Source.COMPACTED or view is None or not not view.is_read(entry.ledger, entry.entry)
        )
        whole: Entry | None = entry
        if is_read and entry.metadata.is_chunk:
            whole = self._chunks.add(entry)
        if is_read and whole is not None:
            for row in message_rows(whole, size, place, whole=True):
                if row["compacted_out"] or row["batch_index"] < first and row["batch_index"] != NOT_BATCHED:
                    continue
                if self._limit is not None and self._found >= self._limit:
                    self._at = Start(offset, max(row["batch_index"], 0))
                    self.status = LIMIT
                    return
                if row["problem"] is not None:
                    self._note(Problem(ProblemKind.DAMAGED, row["problem"], place.file, place.position))
                yield row
        self._at = Start(offset + 1)


def read_topic(
    path: str, topic: str | None, partition: int | None, start: str, limit: int | None, reads_compacted: bool
) -> TopicReading:
    """The messages of the one topic at ``path``; arguments as ``read.read``.

    Raises:
        NotALog, InvalidConfig: before the first message.
    """
    folders = find_topics(path, topic, partition)
    if len(folders) != 1:
        names = ", ".join(name_of(folder).full for folder in folders[:20])
        raise InvalidConfig(
            f"{len(folders)} topics lie there", path=path, remedy=f"give one with --topic and --partition: {names}"
        )
    return TopicReading(folders[0], Start.parse(start), limit, reads_compacted)
