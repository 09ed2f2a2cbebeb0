"""A consumer of a Pulsar topic folder: entry after entry, as brokers dispatch them, with or without
``readCompacted``.

A consumer reads some entries at its position, and then behind them. The reader does the same on the
objects of the folder; where each read looks is ``pulsar.rules.horizon.step``. Horizon and compacted
ledger come from one manifest, and the folder is looked at again before each read: where a newer
manifest lies there, the next read asks the newer pair. A pair that was replaced while it was opened
is looked for again.

Source: Pulsar 4.2.4; docs/formats/pulsar-compaction.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from lastwrite.errors import CorruptLog, InvalidConfig, LogError
from lastwrite.model.log import Problem, ProblemKind, any_damaged
from lastwrite.pulsar.format.entry import Entry
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.format.remedy import RESTORE
from lastwrite.pulsar.look.chunks import ChunkGroups
from lastwrite.pulsar.look.rows import VALUE_LIMIT_BYTES, MessagePlace, Place
from lastwrite.pulsar.rules.horizon import EARLIEST, LogPart, step
from lastwrite.pulsar.store.place import name_of
from lastwrite.pulsar.store.reading import CompactedOffsets, LedgerMoved, LedgerReader, decoded
from lastwrite.pulsar.store.view import TopicView, look
from lastwrite.storage.problems import problem_of

EARLIEST_NAME, LATEST_NAME = "earliest", "latest"

END, OPEN_TRANSACTION = "END_OF_TOPIC", "OPEN_TRANSACTION"

_LOOKS = 20  # at a folder in which things vanish, before that is taken for damage


@dataclass(frozen=True, slots=True)
class Start:
    """Where a reader begins: at a place in the log, and of the batch that lies there at an index."""

    offset: int
    index: int = 0

    @classmethod
    def parse(cls, text: str) -> Start | None:
        """The start of ``earliest`` or of a message id, ``LEDGER:ENTRY[:PARTITION[:INDEX]]``; None
        for ``latest``.

        Raises:
            InvalidConfig: another text.
            UnsupportedFormat: an id beyond what is compacted here.
        """
        if text == LATEST_NAME:
            return None
        if text == EARLIEST_NAME:
            return cls(EARLIEST)
        try:
            place = MessagePlace.parse(text)
        except InvalidConfig as error:
            remedy = f"give {EARLIEST_NAME}, {LATEST_NAME} or a message id, LEDGER:ENTRY[:PARTITION[:INDEX]]"
            raise InvalidConfig(f"{text!r} is no place in a topic", remedy=remedy) from error
        return cls(place.position.offset, place.index or 0)


class ReadEntry(NamedTuple):
    """An entry that was read, where it lies, and its size there. Of a message in parts the last
    part, with the payloads of all."""

    entry: Entry
    place: Place
    size: int

    @property
    def offset(self) -> int:
        return Position(self.entry.ledger, self.entry.entry).offset


class TopicReader:
    """Reads from ``at`` on; ``start`` None: from the topic's end.

    ``status``: ``END_OF_TOPIC``, or ``OPEN_TRANSACTION`` where nobody reads on before a transaction
    ends; None before that. ``notes``: what is not as it should be. ``horizons``: of all pairs that
    were read from, in their order.
    """

    def __init__(self, folder: str, start: Start | None, reads_compacted: bool) -> None:
        self.folder = folder
        self.name = name_of(folder)
        self.reads_compacted = reads_compacted
        self.chunks = ChunkGroups(VALUE_LIMIT_BYTES)
        self.horizons: list[str] = []
        self.status: str | None = None
        self._notes: dict[tuple[str, int | None, str], Problem] = {}
        self._view: TopicView | None = None
        self.at = Start(self.looked().end) if start is None else start

    @property
    def notes(self) -> list[Problem]:
        """What was met on the way, and what is wrong with the folder as it was seen last."""
        return [
            *({} if self._view is None else dict.fromkeys(self._view.problems)),
            *self._notes.values(),
        ]

    def note(self, problem: Problem) -> None:
        """Take down what is wrong, once."""
        self._notes.setdefault((problem.path, problem.position, problem.message), problem)

    @property
    def is_damaged(self) -> bool:
        """Whether anything that was met is damaged or missing."""
        return any_damaged(self.notes)

    def raise_damage(self) -> None:
        """Raise the first damage that was met, if any was."""
        for problem in self.notes:
            if problem.kind is ProblemKind.DAMAGED:
                raise CorruptLog(problem.message, problem.position, problem.path, problem.remedy)

    def looked(self) -> TopicView:
        """The folder as it is now.

        Raises:
            CorruptLog: the compacted ledger is missing or damaged, and would be read.
        """
        for _ in range(_LOOKS):
            try:
                self._view = look(self.folder, self.reads_compacted, self._view)
            except LedgerMoved:
                self._view = None
                continue
            if self.reads_compacted:
                self._view.check_pair()
            return self._view
        raise self._unsteady()

    def last_message_id(self) -> dict[str, int]:
        """What a broker answers to this reader when it asks for the topic's last message; -1, -1:
        there is none.

        Raises:
            CorruptLog: what it would answer from cannot be read.
        """
        for _ in range(_LOOKS):
            try:
                return self.looked().last_message_id(self.reads_compacted)
            except LedgerMoved:
                self._view = None
        raise self._unsteady()

    def _unsteady(self) -> CorruptLog:
        return CorruptLog(
            "its objects vanish as fast as they are named", path=self.folder, remedy="read it again"
        )

    # ------------------------------------------------------------------ reads

    def entries(self) -> Iterator[ReadEntry]:
        """The entries from ``at`` on that a consumer gets, messages in parts put together; ``at``
        goes behind an entry when the next is asked for."""
        moves = 0
        while self.status is None:
            try:
                some = self._read()
            except LedgerMoved:
                self._view, moves = None, moves + 1
                if moves == _LOOKS:
                    raise self._unsteady() from None
                continue
            moves = 0
            for found in some:
                whole = self._delivered(found)
                if self.status is not None:
                    break
                if whole is not None:
                    yield whole
                self.at = Start(found.offset + 1)

    def _read(self) -> list[ReadEntry]:
        """The entries of one read; none where the reader was only moved, or is at an end."""
        view = self.looked()
        horizon = view.horizon if self.reads_compacted else None
        said = step(self.at.offset, horizon, view.offsets, view.borders)
        if said.source is LogPart.COMPACTED:
            assert view.compacted is not None
            if not self.horizons or self.horizons[-1] != str(view.topic.horizon):
                self.horizons.append(str(view.topic.horizon))
            if said.first is None:
                self.at = Start(said.position)
                return []
            return self._entries(view, view.compacted, said.first, LogPart.COMPACTED)
        if view.undecided is not None and said.position >= view.undecided:
            self.status = OPEN_TRANSACTION
            return []
        reader, number = view.backlog_at(said.position)
        if reader is None:
            self.status = END
            return []
        return self._entries(view, reader, number, LogPart.BACKLOG)

    def _entries(
        self, view: TopicView, reader: LedgerReader, first: int, source: LogPart
    ) -> list[ReadEntry]:
        """The entries of one read. What is damaged is noted and left out."""
        path = reader.path_of(first)
        try:
            stored = reader.read(first)
        except CorruptLog as error:
            self.note(problem_of(error, path, remedy=RESTORE))
            self._go_on(view, reader, reader.behind(first), source)
            return []
        found: list[ReadEntry] = []
        for each in stored:
            try:
                entry, body = decoded(
                    each, None if source is LogPart.COMPACTED else reader.ledger.id
                )
                if found and Position(entry.ledger, entry.entry).offset <= found[-1].offset:
                    raise CorruptLog(
                        f"entry {entry.ledger}:{entry.entry} out of turn", 0, remedy=RESTORE
                    )
            except LogError as error:
                self.note(problem_of(error, path, each.position, RESTORE))
                continue
            position = each.position + len(each.data) - len(body)
            found.append(ReadEntry(entry, Place(self.name, path, position, source), len(body)))
        if not found:
            self._go_on(view, reader, first + len(stored), source)
        return found

    def _go_on(self, view: TopicView, reader: LedgerReader, number: int, source: LogPart) -> None:
        """Move on to entry ``number`` of this ledger, or behind all of it."""
        if source is LogPart.BACKLOG:
            self.at = Start(Position(reader.ledger.id, number).offset)
        elif number < reader.count:
            self.at = Start(max(CompactedOffsets(reader)[number], self.at.offset + 1))
        elif view.horizon is not None:
            self.at = Start(view.horizon + 1)

    def _delivered(self, found: ReadEntry) -> ReadEntry | None:
        """What a consumer gets of an entry: no marker, no aborted data, of parts the last."""
        entry, view = found.entry, self._view
        if found.place.source is LogPart.BACKLOG and view is not None:
            if view.undecided is not None and found.offset >= view.undecided:
                self.status = OPEN_TRANSACTION
                return None
            if not view.is_read(entry.ledger, entry.entry):
                return None
        if entry.is_marker:
            return None
        if not entry.metadata.is_chunk:
            return found
        whole = self.chunks.add(entry)
        return None if whole is None else found._replace(entry=whole)
