"""A consumer of a Pulsar topic folder: entries in the order in which brokers dispatch them.

It reads with or without ``readCompacted``.

A consumer reads some entries at its position, then the following entries. The reader does the same
with the objects of the folder; ``pulsar.rules.horizon.step`` decides which part each read uses.
Each read uses the horizon and the compacted ledger of the newest manifest. If the manifest is
replaced while its ledger is opened, the folder is listed again.

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
from lastwrite.pulsar.look.rows import VALUE_LIMIT_BYTES, EntryPointer, MessagePlace
from lastwrite.pulsar.rules.horizon import EARLIEST, LogPart, step
from lastwrite.pulsar.store.place import name_of
from lastwrite.pulsar.store.reading import CompactedOffsets, LedgerMoved, LedgerReader, decoded
from lastwrite.pulsar.store.view import TopicView, read_view
from lastwrite.storage.problems import problem_of

EARLIEST_NAME, LATEST_NAME = "earliest", "latest"

END, OPEN_TRANSACTION = "END_OF_TOPIC", "OPEN_TRANSACTION"

# Maximum number of attempts to list a folder whose files disappear during the listing. If all
# attempts fail, this is reported as damage.
_LOOKS = 20


@dataclass(frozen=True, slots=True)
class Start:
    """The position where a reader starts: an entry's offset, and an index in the entry's batch."""

    offset: int
    index: int = 0

    @classmethod
    def parse(cls, text: str) -> Start | None:
        """Parse ``earliest``, ``latest`` or a message id, ``LEDGER:ENTRY[:PARTITION[:INDEX]]``.

        None for ``latest``.

        Raises:
            InvalidConfig: another text.
            UnsupportedFormat: an id above the supported maximum.
        """
        if text == LATEST_NAME:
            return None
        if text == EARLIEST_NAME:
            return cls(EARLIEST)
        try:
            place = MessagePlace.parse(text)
        except InvalidConfig as error:
            remedy = (
                f"give {EARLIEST_NAME}, {LATEST_NAME} or a message id, "
                "LEDGER:ENTRY[:PARTITION[:INDEX]]"
            )
            raise InvalidConfig(
                f"{text!r} is not a start position in a topic", remedy=remedy
            ) from error
        return cls(place.position.offset, place.index or 0)


class ReadEntry(NamedTuple):
    """An entry that a reader returned, with its position and its stored size.

    A chunked message is its last chunk's entry, with the payloads of all chunks.
    """

    entry: Entry
    place: EntryPointer
    size: int

    @property
    def offset(self) -> int:
        return Position(self.entry.ledger, self.entry.entry).offset


class TopicReader:
    """Reads a topic as a consumer does.

    ``start`` is the first position; None means the topic's end. ``at`` is the current position.

    ``status`` is ``END_OF_TOPIC``, or ``OPEN_TRANSACTION`` if readers have to wait for a
    transaction to end; None before that. ``notes`` are problems. ``horizons`` are the horizons of
    all compacted ledgers that were read from, in order.
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
        self.at = Start(self.current_view().end) if start is None else start

    @property
    def notes(self) -> list[Problem]:
        """The problems found so far, and the problems of the folder's last listing."""
        return [
            *({} if self._view is None else dict.fromkeys(self._view.problems)),
            *self._notes.values(),
        ]

    def note(self, problem: Problem) -> None:
        """Record a problem, once."""
        self._notes.setdefault((problem.path, problem.position, problem.message), problem)

    @property
    def is_damaged(self) -> bool:
        """Whether damaged or missing entries or files were found."""
        return any_damaged(self.notes)

    def raise_damage(self) -> None:
        """Raise the first damage that was found, if any."""
        for problem in self.notes:
            if problem.kind is ProblemKind.DAMAGED:
                raise CorruptLog(problem.message, problem.position, problem.path, problem.remedy)

    def current_view(self) -> TopicView:
        """The current state of the folder.

        Raises:
            CorruptLog: the compacted ledger is needed, and it is missing or damaged.
        """
        for _ in range(_LOOKS):
            try:
                self._view = read_view(self.folder, self.reads_compacted, self._view)
            except LedgerMoved:
                self._view = None
                continue
            if self.reads_compacted:
                self._view.check_pair()
            return self._view
        raise self._unsteady()

    def last_message_id(self) -> dict[str, int]:
        """The id of the last message, as a broker reports it.

        Ledger and entry are -1 if there is no message.

        Raises:
            CorruptLog: the entries needed for the answer cannot be read.
        """
        for _ in range(_LOOKS):
            try:
                return self.current_view().last_message_id(self.reads_compacted)
            except LedgerMoved:
                self._view = None
        raise self._unsteady()

    def _unsteady(self) -> CorruptLog:
        return CorruptLog(
            "the objects of the topic are replaced faster than Lastwrite can read them",
            path=self.folder,
            remedy="run the command again",
        )

    # ------------------------------------------------------------------ reads

    def entries(self) -> Iterator[ReadEntry]:
        """The entries from ``at`` on that a consumer gets, with chunked messages joined.

        ``at`` moves beyond an entry when the next entry is requested.
        """
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
        """The entries of one read. Empty if only the position changed, or at the end."""
        view = self.current_view()
        horizon = view.horizon if self.reads_compacted else None
        said = step(self.at.offset, horizon, view.offsets, view.block_starts)
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
        """The entries of one read from number ``first`` of a ledger on.

        Damage is recorded and skipped.
        """
        path = reader.path_of(first)
        try:
            stored = reader.read(first)
        except CorruptLog as error:
            self.note(problem_of(error, path, remedy=RESTORE))
            self._continue_at(view, reader, reader.next_after_damage(first), source)
            return []
        found: list[ReadEntry] = []
        for each in stored:
            try:
                entry, body = decoded(
                    each, None if source is LogPart.COMPACTED else reader.ledger.id
                )
                if found and Position(entry.ledger, entry.entry).offset <= found[-1].offset:
                    raise CorruptLog(
                        f"entry {entry.ledger}:{entry.entry} is not in ascending order",
                        0,
                        remedy=RESTORE,
                    )
            except LogError as error:
                self.note(problem_of(error, path, each.position, RESTORE))
                continue
            position = each.position + len(each.data) - len(body)
            found.append(
                ReadEntry(entry, EntryPointer(self.name, path, position, source), len(body))
            )
        if not found:
            self._continue_at(view, reader, first + len(stored), source)
        return found

    def _continue_at(
        self, view: TopicView, reader: LedgerReader, number: int, source: LogPart
    ) -> None:
        """Set the reader's position to entry ``number`` of the ledger, or after its last entry."""
        if source is LogPart.BACKLOG:
            self.at = Start(Position(reader.ledger.id, number).offset)
        elif number < reader.count:
            self.at = Start(max(CompactedOffsets(reader)[number], self.at.offset + 1))
        elif view.horizon is not None:
            self.at = Start(view.horizon + 1)

    def _delivered(self, found: ReadEntry) -> ReadEntry | None:
        """The entry as a consumer gets it.

        None for a marker, aborted data, or a chunk before the last.
        """
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
