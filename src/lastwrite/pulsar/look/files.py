"""``dump`` and ``inspect`` of one file of Pulsar outside of a topic folder.

The file is an object, a bookie's entry log or journal, or a map file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from lastwrite.errors import LogError
from lastwrite.model.log import Problem
from lastwrite.pulsar.format.compacted import is_record
from lastwrite.pulsar.format.entry import Entry
from lastwrite.pulsar.format.names import INDEX_SUFFIX
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.look.rows import EntryPointer, batch_row, is_of, message_rows, row_problem
from lastwrite.pulsar.rules.horizon import LogPart
from lastwrite.pulsar.store.objects import read_index
from lastwrite.pulsar.store.place import PulsarFileKind
from lastwrite.pulsar.store.reading import decoded
from lastwrite.pulsar.store.single import StoredIn, entries_in
from lastwrite.reports.table import Row
from lastwrite.storage.problems import problem_of


def decoded_in(stored: StoredIn) -> tuple[Entry, int, LogPart]:
    """Decode a stored entry.

    Returns the entry, its position in the stored bytes, and whether it is of a raw or a compacted
    ledger.

    Raises:
        CorruptLog: the bytes are not an entry. Positions count from the stored entry's start.
    """
    source = LogPart.COMPACTED if is_record(stored.data) else LogPart.BACKLOG
    entry, body = decoded(stored, None if source is LogPart.COMPACTED else stored.ledger)
    return entry, len(stored.data) - len(body), source


def walk_file(
    path: str, kind: PulsarFileKind, note: Callable[[Problem], None]
) -> Iterator[tuple[Entry, int, int, LogPart, StoredIn]]:
    """The entries of a file, each with its position, its size, its kind and its stored form.

    An entry log may contain a cursor's ledger, whose entries are not messages. Entries of an entry
    log that cannot be decoded are skipped.
    """
    try:
        for stored in entries_in(path, kind):
            try:
                entry, shift, source = decoded_in(stored)
            except LogError as error:
                if kind in (PulsarFileKind.DATA_OBJECT, PulsarFileKind.MAP_FILE):
                    note(problem_of(error, path, stored.position))
                continue
            yield entry, stored.position + shift, len(stored.data) - shift, source, stored
    except LogError as error:
        note(problem_of(error, path))


def file_rows(
    path: str,
    kind: PulsarFileKind,
    start: Position | None,
    key: bytes | None,
    whole_batches: bool,
    note: Callable[[Problem], None],
) -> Iterator[Row]:
    """Rows of a file's messages or entries. An index object has a row per block."""
    if kind is PulsarFileKind.INDEX_OBJECT:
        yield from index_rows(path)
        return
    for entry, position, size, source, stored in walk_file(path, kind, note):
        if start is not None and Position(entry.ledger, entry.entry) < start:
            continue
        place = EntryPointer(None, path, position, source)
        rows = message_rows(entry, size, place, whole=True, key=key)
        for row in [batch_row(entry, size, place)] if whole_batches else rows:
            if row["problem"] is not None:
                note(row_problem(entry, row))
            if key is None or is_of(entry, row, key):
                yield row | {"stored_ledger": stored.ledger, "stored_entry": stored.number}


def index_rows(path: str) -> Iterator[Row]:
    """The blocks in an index object.

    Raises:
        CorruptLog, UnsupportedFormat: the index is broken, or of layout V2.
    """
    index = read_index(os.path.abspath(path).removesuffix(INDEX_SUFFIX))
    for block in index.blocks:
        yield {
            "index": "offload",
            "first_entry": block.first_entry,
            "part": block.part,
            "position": block.offset,
            "end": index.block_end(block),
            "file": path,
        }
