"""``dump`` of Pulsar topic folders: rows of messages, entries, blocks and metadata files.

Rows are returned while files are read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from lastwrite.errors import InvalidConfig
from lastwrite.model.log import Problem, ProblemKind
from lastwrite.pulsar.format.names import (
    INDEX_SUFFIX,
    MANAGED_LEDGER,
    MANAGED_LEDGER_JSON,
    MANIFEST,
)
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.look.files import file_rows
from lastwrite.pulsar.look.rows import (
    EntryPointer,
    MessagePlace,
    batch_row,
    is_of,
    message_rows,
    row_problem,
)
from lastwrite.pulsar.look.walk import walk
from lastwrite.pulsar.rules.horizon import LogPart
from lastwrite.pulsar.store.place import is_topic_folder, kind_of
from lastwrite.pulsar.store.reading import LedgerReader
from lastwrite.pulsar.store.topic import Ledger, TopicFolder, find_topics, list_topic
from lastwrite.reports.table import Row, last_of
from lastwrite.storage.problems import limited


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDumpRequest:
    """The criteria by which one call selects rows. None means that a criterion is not used."""

    topic: str | None = None
    partition: int | None = None
    start: Position | None = None
    only: Position | None = None  # the only entry to print
    index: int | None = None  # batch index of the only message to print
    key: bytes | None = None
    time_ms: int | None = None
    whole_batches: bool = False
    blocks: bool = False
    compacted: bool = False
    last: int | None = None  # how many of the last rows to return, per topic and partition

    @classmethod
    def parse(cls, *, start: str | None, message_id: str | None, **others: Any) -> TopicDumpRequest:
        """A request with message ids given as text, ``LEDGER:ENTRY[:PARTITION[:INDEX]]``.

        Raises:
            InvalidConfig: a text is not a message id, or options exclude each other.
        """
        only = None if message_id is None else MessagePlace.parse(message_id)
        return cls(
            start=None if start is None else MessagePlace.parse(start).position,
            only=None if only is None else only.position,
            index=None if only is None else only.index,
            **others,
        )

    def __post_init__(self) -> None:
        picks = (self.key, self.time_ms, self.only)
        if self.blocks and any(each is not None for each in picks):
            words = (
                "--index prints blocks, and cannot be combined with a key, a time or an id, which "
                "select messages"
            )
            raise InvalidConfig(words)
        if self.blocks and self.last is not None:
            raise InvalidConfig(
                "--last selects messages or entries, and cannot be combined with --index"
            )
        if self.whole_batches and self.key is not None:
            raise InvalidConfig("a key selects messages, not entries")
        if self.start is not None and self.only is not None:
            raise InvalidConfig("--from and --message-id exclude each other")

    def holds(self, row: Row) -> bool:
        """Whether a row, read from a single file, meets the criteria."""
        if "ledger" not in row:
            return True
        if self.only is not None and (row["ledger"], row["entry"]) != self.only:
            return False
        if self.index is not None and row["batch_index"] != self.index:
            return False
        return self.time_ms is None or row["publish_time"] >= self.time_ms


def dump_topics(
    path: str, request: TopicDumpRequest, limit: int | None, note: Callable[[str], None]
) -> Iterator[Row]:
    """The rows of the topic folders at ``path``, or of a file outside of topic folders.

    ``note`` is called with notes on missing entries that compaction does not need.

    Raises:
        NotALog, InvalidConfig: before the first row.
        CorruptLog: after the last row, for the first damage. All intact rows are returned before.
    """
    kind = kind_of(path)
    if kind is not None and not is_topic_folder(os.path.dirname(os.path.abspath(path))):
        problems: list[Problem] = []
        begin = request.start or request.only
        rows = file_rows(path, kind, begin, request.key, request.whole_batches, problems.append)
        held: Iterator[Row] = (row for row in rows if request.holds(row))
        if request.last is not None:
            held = iter(last_of([held], request.last))
        return limited(held, limit, problems)
    folders = find_topics(path, request.topic, request.partition)
    only = os.path.abspath(path) if os.path.isfile(path) else None
    job = _TopicDump(request, note, only)
    return limited(job.rows(folders), limit, job.problems)


class _TopicDump:
    def __init__(
        self, request: TopicDumpRequest, note: Callable[[str], None], only: str | None
    ) -> None:
        self._request = request
        self._note = note
        self._only = only
        self.problems: list[Problem] = []

    def note(self, problem: Problem) -> None:
        if problem.kind in (ProblemKind.RECOVERED, ProblemKind.GAP):
            self._note(str(problem))
        else:
            self.problems.append(problem)

    def rows(self, folders: list[str]) -> Iterator[Row]:
        for folder in folders:
            topic = list_topic(folder)
            for problem in topic.problems:
                self.note(problem)
            name = "" if self._only is None else os.path.basename(self._only)
            if name in (MANIFEST, MANAGED_LEDGER, MANAGED_LEDGER_JSON):
                yield from side_rows(topic, name)
                continue
            if self._request.last is not None and not name.endswith(INDEX_SUFFIX):
                newest_first = reversed(list(self._ledgers(topic)))
                parts = (self._entries(topic, *each) for each in newest_first)
                yield from last_of(parts, self._request.last)
                continue
            for ledger, source in self._ledgers(topic):
                if self._request.blocks or name.endswith(INDEX_SUFFIX):
                    yield from self._blocks(topic, ledger, source)
                else:
                    yield from self._entries(topic, ledger, source)

    def _ledgers(self, topic: TopicFolder) -> Iterator[tuple[Ledger, LogPart]]:
        if self._only is not None:
            path = self._only.removesuffix(INDEX_SUFFIX)
            for ledger in (*topic.all_ledgers, *topic.strays):
                if ledger.path == path:
                    is_raw = ledger in topic.ledgers
                    yield ledger, LogPart.BACKLOG if is_raw else LogPart.COMPACTED
        elif self._request.compacted:
            if topic.compacted is None:
                self._note(f"{topic.name} has no compacted ledger in this folder")
            else:
                for part in topic.compacted:
                    yield part, LogPart.COMPACTED
        else:
            if topic.horizon is not None and not topic.ledgers:
                words = (
                    "has no raw ledger in this folder; add --compacted to print its compacted "
                    "ledger"
                )
                self._note(f"{topic.name} {words}")
            for ledger in topic.ledgers:
                if self._request.only is not None and ledger.id != self._request.only.ledger:
                    continue
                yield ledger, LogPart.BACKLOG

    def _entries(self, topic: TopicFolder, ledger: Ledger, source: LogPart) -> Iterator[Row]:
        wanted = self._request
        first = self._first(ledger, source)
        for entry, position, size, _ in walk(
            LedgerReader(ledger), source is LogPart.COMPACTED, self.note, first
        ):
            place = Position(entry.ledger, entry.entry)
            if wanted.only is not None and place != wanted.only:
                if place > wanted.only:
                    return
                continue
            if wanted.start is not None and place < wanted.start:
                continue
            if wanted.time_ms is not None and entry.metadata.publish_time < wanted.time_ms:
                continue
            where = EntryPointer(topic.name, ledger.path, position, source)
            rows = message_rows(entry, size, where, whole=True, key=wanted.key)
            for row in [batch_row(entry, size, where)] if wanted.whole_batches else rows:
                if row["problem"] is not None:
                    self.note(row_problem(entry, row))
                if wanted.index is not None and row["batch_index"] != wanted.index:
                    continue
                if wanted.key is None or is_of(entry, row, wanted.key):
                    yield row

    def _first(self, ledger: Ledger, source: LogPart) -> int:
        """The number of the first entry to read.

        The ids of a compacted ledger are not its entry numbers.
        """
        begin = self._request.only or self._request.start
        if begin is None or source is LogPart.COMPACTED or ledger.id > begin.ledger:
            return 0
        return ledger.entries if ledger.id < begin.ledger else max(begin.entry, 0)

    def _blocks(self, topic: TopicFolder, ledger: Ledger, source: LogPart) -> Iterator[Row]:
        for block in ledger.index.blocks:
            yield {
                "topic": topic.name.base,
                "partition": topic.name.partition,
                "ledger": ledger.id,
                "index": "offload",
                "first_entry": block.first_entry,
                "part": block.part,
                "position": block.offset,
                "end": ledger.index.block_end(block),
                "source": str(source),
                "file": ledger.path,
            }


def side_rows(topic: TopicFolder, file: str) -> Iterator[Row]:
    """Rows of a topic's metadata files: the manifest's content, or a row per listed ledger."""
    head: Row = {"topic": topic.name.base, "partition": topic.name.partition}
    if file == MANIFEST:
        if topic.manifest is not None:
            yield head | json.loads(topic.manifest.encode()) | head
        return
    if topic.info is None:
        return
    for ledger in topic.info.ledgers:
        offloaded = ledger.offloaded_as
        yield head | {
            "ledger": ledger.ledger,
            "entries": ledger.entries,
            "bytes": ledger.size_bytes,
            "closed_timestamp": ledger.closed_ms,
            "offloaded": None if offloaded is None else str(offloaded),
            "properties": {item.name: item.value for item in ledger.properties},
        }
