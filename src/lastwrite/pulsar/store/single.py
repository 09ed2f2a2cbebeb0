"""Read the entries of one file of Pulsar, in or outside of a topic folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from lastwrite.encoding.layout import Buffer
from lastwrite.errors import LogError, located
from lastwrite.pulsar.format.entry_log import walk_entry_log, walk_journal
from lastwrite.pulsar.format.names import INDEX_SUFFIX, parse_map_file_name, parse_object_name
from lastwrite.pulsar.format.offload import walk_data
from lastwrite.pulsar.format.sequence_file import walk_sequence_file
from lastwrite.pulsar.store.objects import read_index
from lastwrite.pulsar.store.place import PulsarFileKind
from lastwrite.storage.mapping import mapped

NO_LEDGER = -1


class StoredIn(NamedTuple):
    """The position of an entry's bytes in a file, its number, and its ledger (-1 if unknown)."""

    ledger: int
    number: int
    position: int
    data: bytes


def entries_in(path: str, kind: PulsarFileKind) -> Iterator[StoredIn]:
    """The entries of a file, in the file's order.

    Raises:
        CorruptLog, UnsupportedFormat, OutOfMemoryBudget: after the intact entries; the position is
            a byte of the file.
        LogError: the file cannot be read.
    """
    with mapped(path) as data, located(path):
        yield from _entries(path, kind, memoryview(data))


def _entries(path: str, kind: PulsarFileKind, data: Buffer) -> Iterator[StoredIn]:
    if kind is PulsarFileKind.DATA_OBJECT:
        named = parse_object_name(os.path.basename(path).removesuffix(INDEX_SUFFIX))
        ledger = NO_LEDGER if named is None else named[1]
        for number, at, size in walk_data(data, _has_gaps(path)):
            yield StoredIn(ledger, number, at, bytes(data[at : at + size]))
    elif kind is PulsarFileKind.MAP_FILE:
        folder = parse_map_file_name(os.path.basename(os.path.dirname(os.path.abspath(path))))
        ledger = NO_LEDGER if folder is None else folder[0]
        for pair in walk_sequence_file(data):
            if pair.key >= 0:  # key -1 has the ledger's metadata, not an entry
                yield StoredIn(ledger, pair.key, pair.at, pair.value)
    elif kind is not PulsarFileKind.INDEX_OBJECT:
        walk = walk_entry_log if kind is PulsarFileKind.ENTRY_LOG else walk_journal
        for record in walk(data):
            body = bytes(data[record.at : record.at + record.size])
            yield StoredIn(record.ledger, record.entry, record.at, body)


def _has_gaps(path: str) -> bool:
    """Whether the index beside a data object, if there is one, lists missing entries."""
    with suppress(LogError):
        return bool(read_index(path).missing)
    return False
