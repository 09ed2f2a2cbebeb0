"""The state of a topic folder at one moment, for readers while others may change the folder.

The manifest is read once and names the compacted ledger that belongs to its horizon, so the two
always match. A listing is reused while the folder does not change.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from lastwrite.errors import CommitConflict, CorruptLog, LogError, UnsupportedFormat, located
from lastwrite.model.log import Problem, ProblemKind
from lastwrite.pulsar.format.entry import Entry, messages_of
from lastwrite.pulsar.format.missing import between, describe_ids
from lastwrite.pulsar.format.names import MANIFEST
from lastwrite.pulsar.format.position import MAX_ENTRY, Position
from lastwrite.pulsar.format.remedy import RESTORE
from lastwrite.pulsar.rules.horizon import NOT_BATCHED, LogPart, last_index, last_source
from lastwrite.pulsar.store.archived import is_archived
from lastwrite.pulsar.store.reading import (
    CompactedOffsets,
    LedgerMoved,
    LedgerReader,
    decoded,
    reader_of_parts,
)
from lastwrite.pulsar.store.survey import (
    DATA,
    LedgerSurvey,
    survey_of,
    transactions_of,
)
from lastwrite.pulsar.store.topic import Ledger, TopicFolder, list_topic
from lastwrite.storage.file_state import FileState
from lastwrite.storage.files import to_log_error
from lastwrite.storage.problems import problem_of


@dataclass(frozen=True, slots=True)
class TopicView:
    """A snapshot of a topic folder: the horizon, the compacted ledger up to it, and the backlog.

    ``undecided`` is the offset of the first entry of an undecided transaction. Readers stop before
    it.
    """

    topic: TopicFolder
    state: tuple[object, ...]  # values that are compared to detect a change of the folder
    horizon: int | None
    compacted: LedgerReader | None
    offsets: Sequence[int]  # offsets of the compacted ledger's entries
    backlog: tuple[LedgerReader, ...]
    surveys: Mapping[int, LedgerSurvey]  # surveys by ledger id
    undecided: int | None
    aborted: frozenset[int]  # numbers of the aborted transactions
    open_transactions: int
    problems: tuple[Problem, ...]

    @property
    def block_starts(self) -> Sequence[int]:
        return () if self.compacted is None else self.compacted.block_starts

    @property
    def end(self) -> int:
        """The offset after the last entry."""
        ends = [Position(one.ledger.id, one.count).offset for one in self.backlog if one.count]
        return max([*ends, 0 if self.horizon is None else self.horizon + 1])

    def check_pair(self) -> None:
        """Check that the compacted ledger can be read, if the folder should have one.

        Raises:
            CorruptLog: the manifest or its ledger is damaged or missing.
        """
        if self.compacted is not None:
            return
        for problem in self.problems:
            if problem.kind is ProblemKind.DAMAGED and (
                problem.path.endswith(MANIFEST)
                or self.topic.manifest is not None
                and (self.topic.manifest.object in problem.path or is_archived(self.topic.folder))
            ):
                raise CorruptLog(problem.message, problem.position, problem.path, problem.remedy)

    def backlog_at(self, offset: int) -> tuple[LedgerReader | None, int]:
        """The first backlog entry at or after ``offset``, as a ledger's reader and an entry number.

        (None, 0) if there is no such entry.
        """
        wanted = Position.of(max(offset, 0))
        for reader in self.backlog[bisect_left(self.backlog, wanted.ledger, key=_ledger_id) :]:
            number = wanted.entry if reader.ledger.id == wanted.ledger else 0
            if number < reader.count:
                return reader, number
        return None, 0

    def is_read(self, ledger: int, number: int) -> bool:
        """Whether readers receive the entry: it is neither a marker nor aborted data."""
        return self._run_unread(ledger, number) is None

    def _run_unread(self, ledger: int, number: int) -> int | None:
        found = self.surveys.get(ledger)
        return None if found is None else run_unread(found, number, self.aborted)

    def last_message_id(self, reads_compacted: bool) -> dict[str, int]:
        """The last message as a broker reports it, with or without ``readCompacted``.

        The answer has ledger, entry and, in a batch, the index; -1, -1 if there is no message.
        Errors as ``LedgerReader.read``.
        """
        last = self._last_readable()
        offset = None if last is None else Position(last.ledger, last.entry).offset
        source = last_source(offset, self.horizon, reads_compacted and self.compacted is not None)
        if source is LogPart.COMPACTED:
            assert self.compacted is not None
            if not self.compacted.count:
                return {"ledger": -1, "entry": -1, "batch_index": 0}
            last = _entry(self.compacted, self.compacted.count - 1, None)
        if source is None or last is None:
            return {"ledger": -1, "entry": -1, "batch_index": NOT_BATCHED}
        meta = last.metadata
        index = last_index(
            source, meta.num_messages_in_batch, meta.compacted_batch_indexes, _removed(last)
        )
        return {"ledger": last.ledger, "entry": last.entry, "batch_index": index}

    def _last_readable(self) -> Entry | None:
        """The backlog's last entry that readers receive."""
        for reader in reversed(self.backlog):
            number = reader.count - 1
            if self.undecided is not None:
                number = min(number, self.undecided - Position(reader.ledger.id, 0).offset - 1)
            while number >= 0:
                unread = self._run_unread(reader.ledger.id, number)
                if unread is None:
                    return _entry(reader, number, reader.ledger.id)
                number = unread - 1
        return None


def _entry(reader: LedgerReader, number: int, ledger: int | None) -> Entry:
    (stored,) = reader.read(number, 1)
    with located(reader.path_of(number), stored.position):
        return decoded(stored, ledger)[0]


def _removed(entry: Entry) -> Iterator[bool]:
    """A flag for each message of a batch: whether compaction removed it.

    Empty for an unreadable batch.
    """
    if not entry.is_encrypted:
        with suppress(LogError):
            yield from (message.compacted_out for message in messages_of(entry))


def _ledger_id(reader: LedgerReader) -> int:
    return reader.ledger.id


def read_view(folder: str, reads_compacted: bool, before: TopicView | None = None) -> TopicView:
    """A view of the topic folder in its current state.

    Returns ``before`` if nothing has changed since.

    With ``reads_compacted``, ledgers up to the horizon are not surveyed (see ``store.survey``), and
    may lack entries.

    Raises:
        LedgerMoved: the folder changed meanwhile.
        LogError: the folder cannot be read.
    """
    seen = _identity(folder)
    if before is not None and before.state == seen:
        return before
    try:
        topic = list_topic(folder)
        problems = list(topic.problems)
        if not reads_compacted:
            problems += _missing_below(topic)
        surveys = _surveys(topic, topic.horizon if reads_compacted else None, problems)
    except LogError:
        if _identity(folder) != seen:
            raise LedgerMoved from None
        raise
    # Repeat if the manifest was replaced: the new one may name an object that was not listed.
    if _identity(folder)[0] != seen[0]:
        raise LedgerMoved
    known = {} if before is None else {_key(one.ledger): one for one in before.backlog}
    backlog = tuple(known.get(_key(ledger)) or LedgerReader(ledger) for ledger in topic.ledgers)
    compacted = None if topic.compacted is None else reader_of_parts(topic.compacted)
    found = transactions_of(surveys)
    undecided = found.first_undecided
    return TopicView(
        topic=topic,
        state=seen,
        horizon=None if topic.horizon is None else topic.horizon.offset,
        compacted=compacted,
        offsets=() if compacted is None else CompactedOffsets(compacted),
        backlog=backlog,
        surveys=surveys,
        undecided=None if undecided is None else undecided.offset,
        aborted=found.aborted,
        open_transactions=len(found.undecided),
        problems=tuple(problems),
    )


def _missing_below(topic: TopicFolder) -> Iterator[Problem]:
    """The missing entries up to the horizon, which readers of the backlog need.

    Compaction does not need them.
    """
    horizon = topic.horizon
    if horizon is None:
        return
    for ledger, ranges in topic.missing:
        end = 0 if ledger > horizon.ledger else MAX_ENTRY + 1
        below = between(ranges, 0, horizon.entry + 1 if ledger == horizon.ledger else end)
        if below:
            what = f"the log lacks {describe_ids(ledger, below)}; compaction no longer needs them"
            yield Problem(ProblemKind.RECOVERED, what, topic.folder)


def _surveys(
    topic: TopicFolder, horizon: Position | None, problems: list[Problem]
) -> dict[int, LedgerSurvey]:
    """The surveys, which list markers and transactions, of the ledgers beyond ``horizon``.

    Damage of a ledger is added to ``problems``.
    """
    found: dict[int, LedgerSurvey] = {}
    for ledger in topic.ledgers:
        if horizon is not None and Position(ledger.id, ledger.entries - 1) <= horizon:
            continue
        try:
            found[ledger.id] = survey_of(ledger)
        except CommitConflict:
            raise LedgerMoved from None
        except (CorruptLog, UnsupportedFormat) as error:
            problems.append(problem_of(error, ledger.path, remedy=RESTORE))
    return found


def run_unread(survey: LedgerSurvey, number: int, aborted: Set[int]) -> int | None:
    """The first entry of the run of markers or aborted data that includes entry ``number``.

    Returns None if readers receive the entry.
    """
    row = int(np.searchsorted(survey.runs[:, 0], number, side="right")) - 1
    if row < 0:
        return None
    first, last, what, transaction = survey.runs[row].tolist()
    if number > last or (what == DATA and transaction not in aborted):
        return None
    return int(first)


def _key(ledger: Ledger) -> tuple[object, ...]:
    return ledger.path, ledger.size_bytes, ledger.mtime_ns


def _identity(folder: str) -> tuple[object, ...]:
    """Values that change if a file of the folder is added, deleted or replaced.

    For a topic in an archive they never change: its objects are immutable, so a manifest stays
    valid until an object is deleted.
    """
    if is_archived(folder):
        return (folder,)
    found: list[object] = []
    for path in (os.path.join(folder, MANIFEST), folder):
        try:
            found.append(FileState.of(os.stat(path)))
        except FileNotFoundError:
            found.append(None)
        except OSError as error:
            raise to_log_error(error, path, "read the file's state") from error
    return tuple(found)
