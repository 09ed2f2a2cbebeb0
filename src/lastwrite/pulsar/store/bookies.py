"""Ledgers as bookies store them: entry logs and journals of several bookies, read together.

The entries of a ledger are spread over several bookies; the write quorum is the number of bookies
that store an entry. A bookie's entry logs mix all ledgers of all topics, including deleted ledgers.
The caller therefore names the wanted ledgers. Each log is walked once, and for each entry one copy
with a matching digest is used::

    bookie 1   10:0 10:2 77:0 10:3        wanted 10:  10:0 10:1 10:2 10:3
    bookie 2   10:0 10:1 12:0 10:3

Entries that a killed bookie had not flushed are only in its journal. Journals in the same folders,
or given as folders of their own, are read in the same way.

Source: BookKeeper 4.17.3 ``DefaultEntryLogger``, ``Journal``; docs/formats/pulsar.md, "Entry log".
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from lastwrite.errors import CorruptLog
from lastwrite.model.columns import ByteArray
from lastwrite.model.log import Problem, ProblemKind
from lastwrite.pulsar.format import entry_log_kernels as kernels
from lastwrite.pulsar.format.names import parse_entry_log_name
from lastwrite.pulsar.store.objects import OffloadWriter
from lastwrite.storage.files import to_log_error
from lastwrite.storage.mapping import mapped

Rows = npt.NDArray[np.void]  # rows of type kernels.STORED

_CURRENT = "current"
_JOURNAL_SUFFIX = ".txn"
# suffix of a new entry log that the bookie's garbage collection has not renamed yet
_COMPACTED_SUFFIX = ".compacted"
_LOG_MAGIC, _JOURNAL_MAGIC = b"BKLO", b"BKLG"
_LOG_HEADER_BYTES = 1024
_JOURNAL_HEADER_BYTES = 512  # header size from journal version 5 on; 8 in older versions
_VERSIONS = {_LOG_MAGIC: (0, 1), _JOURNAL_MAGIC: (1, 6)}
_TABLE_ROWS = 1 << 14
_SCRATCH_BYTES = 1 << 20
_WINDOW_BYTES = 8 << 20
_MOST_NAMED = 5  # maximum number of damaged entries that a problem lists for a ledger
_BRING_ALL = "give the folders of all bookies that had the ledger, and their journals"


@dataclass(frozen=True, slots=True)
class BookieFile:
    """An entry log or a journal of a bookie."""

    path: str
    is_journal: bool


@dataclass(frozen=True, slots=True)
class BookieLedger:
    """The entries of one ledger on bookies, with one copy of each, by ascending ids."""

    ledger: int
    rows: Rows
    confirmed: int  # the highest entry that a writer has confirmed; -1: none
    damaged: tuple[Problem, ...]  # problems for copies of entries whose digest does not match
    broken: tuple[int, ...] = ()  # entries that have only damaged copies, by ascending ids

    @property
    def end(self) -> int:
        """The first entry id without an intact copy."""
        entries = self.rows["entry"]
        holes = np.flatnonzero(entries != np.arange(len(entries)))
        return int(holes[0]) if len(holes) else len(entries)

    def end_beyond(self, first: int) -> int:
        """The end of the run of intact or broken entries from ``first`` on.

        Broken entries at the end of the run do not count.
        """
        known = np.union1d(self.rows["entry"], np.array(self.broken, np.int64))
        known = known[known >= first]
        end = first + int(np.argmin(np.append(known == first + np.arange(len(known)), False)))
        whole = self.rows["entry"][self.rows["entry"] < end]
        return max(first, int(whole[-1]) + 1 if len(whole) else 0)


NOTHING = BookieLedger(-1, np.empty(0, kernels.STORED), -1, ())


class BookieFolders:
    """The entry logs and journals of some bookies, read together.

    ``problems`` has a problem for each file that cannot be used.

    Raises:
        LogError: a folder cannot be read.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        self.files = [file for folder in folders for file in _files_of(folder)]
        self.problems: list[Problem] = []

    def find(self, wanted: Iterable[int]) -> dict[int, BookieLedger]:
        """The stored entries of each wanted ledger. A ledger without entries is absent.

        Uses 64 bytes of memory per entry.
        """
        ids = np.unique(np.array(list(wanted), np.int64))
        if not len(ids):
            return {}
        self.problems.clear()
        with ThreadPoolExecutor(max_workers=min(os.cpu_count() or 1, 8)) as threads:
            found = list(threads.map(partial(self._walk, ids=ids), range(len(self.files))))
        rows = np.concatenate([np.empty(0, kernels.STORED), *(table for table, _ in found)])
        self.problems += [problem for _, problems in found for problem in problems]
        return {
            int(ledger): self._stored(int(ledger), rows[rows["ledger"] == ledger])
            for ledger in np.unique(rows["ledger"])
        }

    def _walk(self, number: int, ids: npt.NDArray[np.int64]) -> tuple[Rows, list[Problem]]:
        file = self.files[number]
        with mapped(file.path) as data:
            at, is_closed, problem = _begin(file, data)
            if at < 0:
                return np.empty(0, kernels.STORED), [problem] if problem else []
            tables: list[Rows] = []
            scratch = np.empty(_SCRATCH_BYTES, np.uint8)
            must_prove = False
            while True:
                table = np.empty(_TABLE_ROWS, kernels.STORED)
                count, at, must_prove, why = kernels.walk(
                    data, at, must_prove, ids, file.is_journal, table, scratch
                )
                tables.append(table[:count])
                if why == kernels.SCRATCH_FULL:
                    # The size can be trusted: the kernel has checked that the record is inside the
                    # file.
                    size = int.from_bytes(data[at : at + 4].tobytes(), "big")
                    scratch = np.empty(size, np.uint8)
                elif why != kernels.TABLE_FULL:
                    break
        rows = np.concatenate(tables)
        rows["file"] = number
        if why != kernels.TORN:
            return rows, []
        kind = ProblemKind.DAMAGED if is_closed else ProblemKind.RECOVERED
        words = (
            "a record does not end in this file; Lastwrite did not read it, nor the bytes after it"
        )
        return rows, [Problem(kind, words, file.path, int(at))]

    def _stored(self, ledger: int, rows: Rows) -> BookieLedger:
        is_whole = rows["digest"] != kernels.NO_DIGEST_HELD
        whole, broken = rows[is_whole], rows[~is_whole]
        order = np.lexsort((whole["file"], whole["entry"]))
        whole = whole[order]
        is_first = np.ones(len(whole), bool)
        is_first[1:] = whole["entry"][1:] != whole["entry"][:-1]
        copies_differ = ~is_first[1:] & (whole["size"][1:] != whole["size"][:-1])
        if copies_differ.any():
            row = whole[1:][copies_differ][0]
            raise CorruptLog(
                f"two bookies have different sizes for entry {row['entry']} of ledger {ledger}",
                int(row["at"]),
                self.files[int(row["file"])].path,
                "give only folders of bookies of one cluster",
            )
        chosen = whole[is_first]
        confirmed = int(whole["confirmed"].max(initial=-1))
        lost = tuple(np.setdiff1d(broken["entry"], chosen["entry"]).tolist())
        damage = tuple(self._damage(ledger, chosen, broken))
        return BookieLedger(ledger, chosen, confirmed, damage, lost)

    def _damage(self, ledger: int, chosen: Rows, broken: Rows) -> Iterator[Problem]:
        """Problems for the copies with a wrong digest.

        Only the first few are listed, all are counted.
        """
        if len(broken) and not len(chosen):
            yield self._problem(
                ProblemKind.DAMAGED,
                f"no entry of ledger {ledger} has a matching digest, neither CRC-32C nor CRC-32",
                broken[0],
            )
            return
        has_other = np.isin(broken["entry"], chosen["entry"])
        sorts = (
            (broken[~has_other], ProblemKind.DAMAGED, ""),
            (broken[has_other], ProblemKind.RECOVERED, "; Lastwrite used another copy"),
        )
        for rows, kind, note in sorts:
            for row in rows[:_MOST_NAMED]:
                words = f"the digest of entry {ledger}:{row['entry']} does not match{note}"
                yield self._problem(kind, words, row)
        for rows, kind, _ in sorts:
            if len(rows) > _MOST_NAMED:
                more = len(rows) - _MOST_NAMED
                words = f"{more} more entries of ledger {ledger} have no matching digest"
                yield self._problem(kind, words, rows[_MOST_NAMED])

    def _problem(self, kind: ProblemKind, message: str, row: np.void) -> Problem:
        remedy = _BRING_ALL if kind is ProblemKind.DAMAGED else None
        return Problem(kind, message, self.files[int(row["file"])].path, int(row["at"]), remedy)

    def entry(self, stored: BookieLedger, entry: int) -> bytes:
        """The payload of one stored entry."""
        row = stored.rows[int(np.searchsorted(stored.rows["entry"], entry))]
        with mapped(self.files[int(row["file"])].path) as data:
            return data[int(row["at"]) : int(row["at"] + row["size"])].tobytes()

    def entries(self, stored: BookieLedger, end: int) -> Iterator[tuple[int, bytes]]:
        """The stored entries before ``end``, with their ids."""
        with ExitStack() as stack:
            maps: dict[int, ByteArray] = {}
            for row in stored.rows[: int(np.searchsorted(stored.rows["entry"], end))]:
                number, at = int(row["file"]), int(row["at"])
                if number not in maps:
                    maps[number] = stack.enter_context(mapped(self.files[number].path))
                yield int(row["entry"]), maps[number][at : at + int(row["size"])].tobytes()
            maps.clear()

    def write(self, stored: BookieLedger, end: int, writer: OffloadWriter) -> None:
        """Write the entries before ``end`` to a data object. Uses 8 MiB of memory."""
        rows = stored.rows[: int(np.searchsorted(stored.rows["entry"], end))]
        end = len(rows)
        framed = rows["size"] + kernels.FRAME_BYTES
        ends = np.cumsum(framed)
        done = 0
        with ExitStack() as stack:
            maps: dict[int, ByteArray] = {}
            while done < end:
                begun = int(ends[done - 1]) if done else 0
                stop = max(int(np.searchsorted(ends, begun + _WINDOW_BYTES, "right")), done + 1)
                out = np.empty(int(ends[stop - 1]) - begun, np.uint8)
                window = rows[done:stop]
                places = ends[done:stop] - framed[done:stop] - begun
                for number in np.unique(window["file"]):
                    if number not in maps:
                        maps[number] = stack.enter_context(mapped(self.files[int(number)].path))
                    mine = window["file"] == number
                    kernels.frame(maps[number], window[mine], places[mine], out)
                writer.append_framed(out, places, window["entry"].astype(np.int64))
                done = stop
            maps.clear()


def is_bookie(folder: str) -> bool:
    """Whether the folder, or ``current`` in it, contains files of a bookie."""
    return next(_files_of(folder), None) is not None


def _files_of(folder: str) -> Iterator[BookieFile]:
    for place in (folder, os.path.join(folder, _CURRENT)):
        try:
            names = sorted(os.listdir(place))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise to_log_error(error, place, "list the folder") from error
        for name in names:
            path = os.path.join(place, name)
            if name.endswith(_JOURNAL_SUFFIX) and _magic(path) == _JOURNAL_MAGIC:
                yield BookieFile(path, True)
            elif parse_entry_log_name(name) is not None or name.endswith(_COMPACTED_SUFFIX):
                if os.path.isfile(path):
                    yield BookieFile(path, False)


def _magic(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(4)
    except OSError as error:
        raise to_log_error(error, path, "read the file") from error


def _begin(file: BookieFile, data: ByteArray) -> tuple[int, bool, Problem | None]:
    """The position of a file's first record, whether the file was closed, and a problem.

    The position is -1 without records.
    """
    head = data[:20].tobytes()
    magic = _JOURNAL_MAGIC if file.is_journal else _LOG_MAGIC
    if not head.strip(b"\0"):
        return -1, False, None  # a file that the bookie has created in advance, without records
    version = int.from_bytes(head[4:8], "big", signed=True)
    if head[:4] != magic:
        words = "the file is not a bookie's: its first bytes differ"
        return -1, False, Problem(ProblemKind.DAMAGED, words, file.path, 0)
    low, high = _VERSIONS[magic]
    if not low <= version <= high:
        words = f"the file version {version} is not supported"
        return -1, False, Problem(ProblemKind.UNSUPPORTED, words, file.path, 4)
    if file.is_journal:
        return (_JOURNAL_HEADER_BYTES if version >= 5 else 8), False, None
    return _LOG_HEADER_BYTES, int.from_bytes(head[8:16], "big") != 0, None
