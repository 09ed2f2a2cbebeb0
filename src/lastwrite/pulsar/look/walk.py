"""The entries of a Pulsar ledger in order, with damage skipped.

An entry that cannot be decoded is skipped by its length. If the framing of a block is lost, the
walk continues with the next block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from lastwrite.errors import CorruptLog, LogError
from lastwrite.model.log import Problem
from lastwrite.pulsar.format.entry import Entry
from lastwrite.pulsar.format.remedy import RESTORE
from lastwrite.pulsar.store.reading import LedgerMoved, LedgerReader, decoded
from lastwrite.storage.problems import problem_of

_READ_ENTRIES = 4096


class WalkedEntry(NamedTuple):
    """An entry with its first byte in the file, its size, and its number in the ledger.

    In a compacted ledger, position and size are of the entry inside the record.
    """

    entry: Entry
    position: int
    size: int
    number: int


def walk(
    reader: LedgerReader, is_compacted: bool, note: Callable[[Problem], None], first: int = 0
) -> Iterator[WalkedEntry]:
    """The entries of a ledger from number ``first`` on.

    For a compacted ledger, returns the entries in its records. An entry with a wrong checksum is
    included. Other damage is passed to ``note``.

    Raises:
        CorruptLog: the file was replaced meanwhile.
    """
    path = reader.ledger.path
    ledger = None if is_compacted else reader.ledger.id
    number = first
    while number < reader.count:
        try:
            stored = reader.read(number, _READ_ENTRIES)
        except LedgerMoved:
            raise _replaced(path) from None
        except CorruptLog as error:
            note(problem_of(error, path, remedy=RESTORE))
            number = reader.next_after_damage(number)
            continue
        for each in stored:
            try:
                entry, body = decoded(each, ledger)
            except LogError as error:
                note(problem_of(error, path, each.position, RESTORE))
                continue
            yield WalkedEntry(
                entry, each.position + len(each.data) - len(body), len(body), each.number
            )
        number = stored[-1].number + 1 if stored else reader.count
    try:
        reader.check_end()
    except LedgerMoved:
        raise _replaced(path) from None
    except CorruptLog as error:
        note(problem_of(error, path, remedy=RESTORE))


def _replaced(path: str) -> CorruptLog:
    return CorruptLog("the object was replaced while it was read", path=path, remedy="run it again")


def checksum_problem(entry: Entry, path: str, position: int) -> CorruptLog:
    """The problem that reports an entry with a wrong checksum."""
    return CorruptLog(
        f"the checksum {entry.checksum or 0:08x} of entry {entry.ledger}:{entry.entry} does not "
        "match",
        position,
        path,
    )
