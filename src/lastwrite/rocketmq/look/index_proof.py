"""Compares the indexes of a RocketMQ store with the records that they point to, for ``inspect``.

Units of a queue and entries of index files are compared with the records of the commit log, which
is read in order. Units of a compaction index are compared with the records of its log file.
``note`` is called with each problem.

Source: RocketMQ 5.5.0; docs/formats/rocketmq.md, "Units" and "Index file".
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lastwrite.errors import LogError
from lastwrite.model.columns import Int64Array
from lastwrite.model.log import Problem, TopicPartition
from lastwrite.rocketmq.format import kernels, names, units
from lastwrite.rocketmq.format.index_file import INDEX_HEADER, IndexFile
from lastwrite.rocketmq.look.inspection import FileOfLog, IndexOfQueue
from lastwrite.rocketmq.look.walk import RecordWindow
from lastwrite.rocketmq.store.dispatched import MAKE_ANEW
from lastwrite.rocketmq.store.reading import (
    INDEX_LIMIT_BYTES,
    LogReader,
    MappedFile,
    MappedLog,
    RocketmqFileKind,
    StoreFolder,
    map_file,
    read_file,
)
from lastwrite.storage.problems import damaged, recovered

_ENTRIES_AT_ONCE = 1 << 18
_HASHES = 1 << 31  # number of possible key hashes
_LEAST_HASH = -(1 << 31)  # a tags code below this value is the address of an extension unit
INDEX_ANEW = (
    "move the folder index out of the store, keep it, and run lastwrite dispatch STORE, which "
    "rebuilds it; Lastwrite also finds keys without it"
)

Note = Callable[[Problem], None]
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]


class QueueProof:
    """Compares a queue's units with the records of the commit log."""

    def __init__(
        self, name: TopicPartition, folder: str, files: MappedLog, found: IndexOfQueue, note: Note
    ) -> None:
        self._name = name
        self._folder = folder
        self._files = files
        self._found = found
        self._note = note
        self._is_batch = found.kind == StoreFolder.BATCH_QUEUE
        self._batches = self._read_batches() if self._is_batch else np.empty(0, units.BATCH_DTYPE)
        self._reader = LogReader(files)
        self._matched = self._lacking = self._wrong = 0
        self._light_lacking = 0
        # all units of a light queue, and their numbers
        self._light: tuple[units.Units, Int64Array] | None = None
        self._strange_tags = 0
        # The first unit with a wrong tags code: its offset, the code, and the right code.
        self._tag: tuple[int, int, int] | None = None

    def _read_batches(self) -> units.Units:
        parts = [
            units.batch_units(read_file(file, INDEX_LIMIT_BYTES)) for file in self._files.files
        ]
        valid = [part[: units.valid_count(part)] for part in parts]
        return np.concatenate(valid) if valid else np.empty(0, units.BATCH_DTYPE)

    def compare(self, chunk: RecordWindow, rows: Int64Array) -> None:
        """Compare the next records of the queue with its units."""
        table = chunk.table[rows[chunk.is_dispatched(rows)]]
        if self._is_batch and len(table):
            self._compare_batches(table)
            return
        size = units.CONSUME_QUEUE_UNIT.size
        cuts = np.flatnonzero(np.diff(table["queue_offset"]) != 1) + 1
        for stretch in np.split(table, cuts) if len(table) else ():
            first = int(stretch["queue_offset"][0])
            read = b""
            if 0 <= first < 1 << 56:
                read = self._reader.read_over(first * size, len(stretch) * size)
            there = np.zeros(len(stretch), units.CONSUME_QUEUE_DTYPE)
            there[: len(read) // size] = units.consume_queue_units(read)
            self._judge(stretch, there, there["size"] <= 0)

    def compare_light(self, table: kernels.MessageTable) -> None:
        """Compare the next records of other topics that a broker dispatches to this light queue.

        Units are found by address. A record that names the queue twice has two of the queue's
        offsets but only one unit, so later units have lower numbers than the offsets in their
        records.
        """
        if self._light is None:
            self._light = self._read_light()
        all_units, numbers = self._light
        places = np.searchsorted(all_units["physical_offset"], table["physical_offset"])
        inside = places < len(all_units)
        there = np.zeros(len(table), units.CONSUME_QUEUE_DTYPE)
        there[inside] = all_units[places[inside]]
        absent = ~inside | (there["physical_offset"] != table["physical_offset"])
        self._light_lacking += int(absent.sum())
        late = np.zeros(len(table), np.bool_)
        late[inside] = numbers[places[inside]] > table["queue_offset"][inside]
        if (late & ~absent).any():
            row = int(np.argmax(late & ~absent))
            wrong = (
                f"the record at physical offset {int(table['physical_offset'][row])} has offset "
                f"{int(table['queue_offset'][row])} in this light queue, but its unit has "
                f"number {int(numbers[places[row]])}"
            )
            self._note(damaged(wrong, self._files.files[0].path, None, MAKE_ANEW))
        self._judge(table[~absent], there[~absent], absent[~absent])

    def _read_light(self) -> tuple[units.Units, Int64Array]:
        parts, numbers = [], []
        for file in self._files.files:
            table = units.consume_queue_units(read_file(file, INDEX_LIMIT_BYTES))
            table = table[: units.valid_count(table)]
            first = file.start // units.CONSUME_QUEUE_UNIT.size
            real = np.flatnonzero(table["size"] != units.FILLER_SIZE)
            parts.append(table[real])
            numbers.append(first + real)
        if not parts:
            return np.empty(0, units.CONSUME_QUEUE_DTYPE), np.empty(0, np.int64)
        return np.concatenate(parts), np.concatenate(numbers)

    def _compare_batches(self, table: kernels.MessageTable) -> None:
        # A record that is not an inner batch gets a unit with number 1 (observed with 5.5.0).
        bases = np.where(table["inner_base"] >= 0, table["inner_base"], table["queue_offset"])
        places = np.searchsorted(self._batches["base"], bases)
        inside = places < len(self._batches)
        there = np.zeros(len(table), units.BATCH_DTYPE)
        there[inside] = self._batches[places[inside]]
        self._judge(table, there, ~inside | (there["base"] != bases))

    def _judge(self, table: kernels.MessageTable, there: units.Units, absent: Flags) -> None:
        addresses = there["physical_offset"]
        good = (addresses == table["physical_offset"]) & (there["size"] == table["size"])
        wrong = ~good & ~absent
        self._compare_tags(table, there, good)
        self._matched += int(good.sum())
        self._lacking += int((absent & ~good).sum())
        self._wrong += int(wrong.sum())
        if wrong.any():
            row = int(np.argmax(wrong))
            offset = int(table["queue_offset"][row])
            at = offset * units.CONSUME_QUEUE_UNIT.size
            file = None if self._is_batch else self._files.find(at)
            self._note(
                damaged(
                    f"the unit of queue offset {offset} points to physical offset "
                    f"{int(addresses[row])}, but its record is at "
                    f"{int(table['physical_offset'][row])}",
                    self._files.files[0].path if file is None else file.path,
                    None if file is None else at - file.start,
                    MAKE_ANEW,
                )
            )

    def _compare_tags(self, table: kernels.MessageTable, there: units.Units, good: Flags) -> None:
        codes = there["tags_code"]
        strange = good & (codes != table["tags_code"]) & (codes >= _LEAST_HASH)
        if self._name.topic == names.SCHEDULE_TOPIC:  # the tags code is the time of delivery
            strange &= (table["marks"] & kernels.HAS_DELAY) == 0
        self._strange_tags += int(strange.sum())
        if self._tag is None and strange.any():
            row = int(np.argmax(strange))
            told = int(codes[row]), int(table["tags_code"][row])
            self._tag = int(table["queue_offset"][row]), *told

    def end(self, is_whole: bool) -> None:
        """Report problems after the last record.

        ``is_whole`` means that no record of the log was lost.
        """
        self._reader.close()
        if self._tag is not None:
            offset, code, wanted = self._tag
            wrong = (
                f"{self._strange_tags} units have a wrong tags code, the first at queue offset "
                f"{offset}: {code} instead of {wanted}; consumers that filter by tag miss these "
                "messages"
            )
            self._note(damaged(wrong, self._files.files[0].path, None, MAKE_ANEW))
        found, lacking = self._found, self._lacking
        found.lacking, found.wrong = lacking + self._light_lacking, self._wrong
        if self._light_lacking:
            wrong = (
                f"{self._light_lacking} records of the commit log name the light queue "
                f"{self._name}, but have no unit in it; its consumers do not receive them"
            )
            self._note(damaged(wrong, self._folder, None, MAKE_ANEW))
        if not self._files.files:
            if lacking:
                wrong = (
                    f"the consume queue of {self._name} has no file, but the commit log has "
                    f"{lacking} of its messages"
                )
                self._note(
                    recovered(
                        wrong,
                        self._folder,
                        None,
                        "run lastwrite dispatch STORE --whole-log, which builds the consume queue",
                    )
                )
            return
        path = self._files.files[-1].path
        if lacking:
            wrong = f"{lacking} messages of the commit log have no unit in the consume queue"
            remedy = (
                "run lastwrite dispatch STORE --whole-log, which adds the units; if the broker "
                "was killed, its next start adds them too"
            )
            self._note(recovered(wrong, path, None, remedy))
        dangling = found.units - found.expired - self._matched - self._wrong
        if dangling > 0 and is_whole:
            remedy = (
                "run lastwrite dispatch STORE --whole-log, which reports the lost queue "
                "offsets; copy the store before you start a broker, because the broker removes "
                "these units"
            )
            self._note(
                damaged(
                    f"{dangling} units of the consume queue have no record in the commit log",
                    path,
                    None,
                    remedy,
                )
            )


class KeyProof:
    """Compares the entries of all index files with the records' keys, in order."""

    def __init__(self, files: MappedLog, note: Note, *, is_open: bool = False) -> None:
        self._note = note
        # whether a broker has the store open; it may not have indexed the last message yet
        self._is_open = is_open
        self._files: list[tuple[MappedFile, IndexFile, units.Units]] = []
        for file in files.files:
            try:
                index = IndexFile.of(map_file(file))
            except LogError:
                continue  # ``inspect`` notes the problem when it counts the file
            if index.header.count > 1:
                self._files.append((file, index, index.entries()))
        self._first = self._files[0][1].header.first_physical_offset if self._files else 0
        self._last = self._files[-1][1].header.last_physical_offset if self._files else -1
        self._last -= is_open
        self._lacking = self._late = self._wrong = 0
        # file, byte and address of the first wrong entry
        self._place: tuple[str, int, int] | None = None
        self._untimely = 0
        # file, byte and message of the first entry with wrong seconds
        self._time: tuple[str, int, str] | None = None
        # file, byte and message for each header with wrong times
        self._headers: list[tuple[str, int, str]] = []

    def compare(self, chunk: RecordWindow) -> None:
        """Compare the next records."""
        if not self._files:
            return
        table = chunk.table
        first, last = int(table["physical_offset"][0]), int(table["physical_offset"][-1])
        must, may = self._keys(chunk, first, False), self._keys(chunk, first, True)
        got: list[Int64Array] = []
        for file, index, entries in self._files:
            addresses = entries["physical_offset"]
            low, high = (
                units.lower_bound(addresses, wanted, len(entries)) for wanted in (first, last + 1)
            )
            some = entries[low:high]
            pairs = (some["physical_offset"].astype(np.int64) - first) * _HASHES + some["hash"]
            strange = ~np.isin(pairs, may)
            self._wrong += int(strange.sum())
            if strange.any() and self._place is None:
                n = low + int(np.argmax(strange))
                self._place = file.path, index.entry_at(n + 1), int(addresses[n])
            got.append(pairs)
            self._compare_times(file, index, some, low, table)
        lost = must[~np.isin(must, np.concatenate(got))] // _HASHES + first
        self._late += int((lost > self._last).sum())
        self._lacking += int(((lost >= self._first) & (lost <= self._last)).sum())

    def _compare_times(
        self,
        file: MappedFile,
        index: IndexFile,
        some: units.Units,
        low: int,
        table: kernels.MessageTable,
    ) -> None:
        """Compare the times of the index entries ``some`` with their records.

        The first of these entries has index ``low``.

        The header's times are compared as well if the first or last entry of the file is included.
        """
        if not len(some):
            return
        rows = np.searchsorted(table["physical_offset"], some["physical_offset"])
        rows = np.minimum(rows, len(table) - 1)
        there = table["physical_offset"][rows] == some["physical_offset"]
        stored = table["store_time"][rows]
        header = index.header
        begin, last = header.first_store_time_ms, header.count - 2
        wanted = np.clip((stored - begin) // 1000, 0, _HASHES - 1) if begin > 0 else 0 * stored
        strange = there & (some["seconds"] != wanted)
        # The first entry is skipped, because its seconds are relative to the last store time of the
        # previous file.
        if low == 0:
            strange[0] = False
        self._untimely += int(strange.sum())
        if self._time is None and strange.any():
            n = int(np.argmax(strange))
            text = (
                f"entry {low + n + 1} has {int(some['seconds'][n])} seconds instead of "
                f"{int(wanted[n])}"
            )
            self._time = file.path, index.entry_at(low + n + 1), text
        for place, at, told in (
            (0, 0, header.first_store_time_ms),
            (last, 8, header.last_store_time_ms),
        ):
            n = place - low
            if at and self._is_open and file is self._files[-1][0]:
                continue  # the header may be stale: a broker writes it some time after the entry
            if 0 <= n < len(some) and there[n] and int(stored[n]) != told:
                which = "first" if not at else "last"
                text = (
                    f"the header's {which} time is {told}, but the {which} entry's message has "
                    f"{int(stored[n])}"
                )
                self._headers.append((file.path, at, text))

    @staticmethod
    def _keys(chunk: RecordWindow, first: int, tags: bool) -> Int64Array:
        """The address and the hash of each key of the records, combined into one number."""
        table = chunk.table
        lengths = np.maximum(table["key_length"], table["marks"] >> kernels.KEY_LENGTH_SHIFT)
        room = int((np.maximum(lengths, 0) // 2 + 4).sum())
        hashes, places, times = (np.empty(room, np.int64) for _ in range(3))
        filled, _ = kernels.index_keys(
            chunk.buffer, table, 0, len(table), hashes, places, times, tags
        )
        pairs: Int64Array = (places[:filled] - first) * _HASHES + hashes[:filled]
        return pairs

    def end(self) -> None:
        """Note problems after the last record."""
        if not self._files:
            return
        path = self._files[-1][0].path
        if self._late and not self._is_open:
            wrong = (
                f"the index file ends at physical offset {self._last}, and {self._late} keys of "
                "later messages are missing"
            )
            remedy = "nothing to do: if the broker was killed, its next start adds these keys"
            self._note(recovered(wrong, path, None, remedy))
        if self._lacking:
            wrong = f"the index files lack {self._lacking} keys of messages"
            self._note(damaged(wrong, path, None, INDEX_ANEW))
        if self._place is not None:
            file, at, address = self._place
            wrong = (
                f"{self._wrong} entries point to messages without their key, the first entry to "
                f"physical offset {address}"
            )
            self._note(damaged(wrong, file, at, INDEX_ANEW))
        for file, at, wrong in self._headers:
            self._note(damaged(wrong, file, at, INDEX_ANEW))
        if self._time is not None and not self._headers:  # seconds count from the header's time
            file, at, wrong = self._time
            wrong = f"{self._untimely} entries have another time than their messages; {wrong}"
            self._note(damaged(wrong, file, at, INDEX_ANEW))


class PairProof:
    """Compares the index file of one compaction log file with the file's records.

    ``file`` is the report on the index file. ``pair`` is the index file, or None if there is none.
    """

    def __init__(self, log: MappedFile, pair: MappedFile | None, note: Note, is_last: bool) -> None:
        self._log = log
        self._note = note
        self._next = 0
        self._is_noted = False
        self.file = FileOfLog(file="", kind=RocketmqFileKind.COMPACTION_INDEX, bytes=0)
        self._units: units.Units | None = None
        if pair is not None:
            entries = units.batch_units(read_file(pair, INDEX_LIMIT_BYTES))
            count = units.valid_count(entries)
            self._units = entries[:count]
            self.file = FileOfLog(
                file=pair.path,
                kind=RocketmqFileKind.COMPACTION_INDEX,
                bytes=pair.size_bytes,
                start=pair.start,
                entries=count,
                end_position=count * units.BATCH_UNIT.size,
                ending="full" if count == len(entries) else "open",
                first_offset=int(entries["base"][0]) if count else None,
                last_offset=int(entries["base"][count - 1]) if count else None,
            )
            if not count and not is_last:
                remedy = (
                    "a broker serves nothing from such a queue; run lastwrite compact, which "
                    "removes the log file and the index file if they have no record"
                )
                note(
                    damaged(
                        "the index file has no unit, but is not the last index file",
                        pair.path,
                        None,
                        remedy,
                    )
                )

    @property
    def end_address(self) -> int | None:
        """The address after the last record with a unit, if the log file is still growing.

        Otherwise None.
        """
        if not self._log.is_growing or self._units is None:
            return None
        if not len(self._units):
            return self._log.start
        return int(self._units["physical_offset"][-1]) + int(self._units["size"][-1])

    def compare(self, chunk: RecordWindow) -> Int64Array:
        """Compare the records of the chunk. Returns the rows that have a unit.

        A broker serves only records that have a unit.
        """
        table = chunk.table
        if self._units is None:
            return np.arange(len(table), dtype=np.int64)
        mine = self._units[self._next : self._next + len(table)]
        rows = len(mine)
        addresses = (self._log.start + chunk.base + table["position"])[:rows]
        wrong = (
            (mine["physical_offset"] != addresses)
            | (mine["size"] != table["size"][:rows])
            | (mine["base"] != table["queue_offset"][:rows])
        )
        strange = ~wrong & (mine["tags_code"] != table["tags_code"][:rows])
        if strange.any() and not self._is_noted:
            self._is_noted = True
            n = int(np.argmax(strange))
            codes = f"{int(mine['tags_code'][n])} instead of {int(table['tags_code'][n])}"
            text = f"the unit of queue offset {int(mine['base'][n])} has a wrong tags code: {codes}"
            at = (self._next + n) * units.BATCH_UNIT.size
            self._note(damaged(text, self.file.file, at, names.RESTORE_QUEUE))
        if wrong.any() and not self._is_noted:
            self._is_noted = True
            n = int(np.argmax(wrong))
            text = (
                f"the unit of queue offset {int(mine['base'][n])} points to "
                f"{int(mine['physical_offset'][n])}, but the record of queue offset "
                f"{int(table['queue_offset'][n])} is at {int(addresses[n])}"
            )
            at = (self._next + n) * units.BATCH_UNIT.size
            self._note(damaged(text, self.file.file, at, names.RESTORE_QUEUE))
        self._next += rows
        elsewhere = table["physical_offset"][:rows] != addresses
        if elsewhere.any():
            position = chunk.position(int(np.argmax(elsewhere)))
            remedy = (
                "nothing to do: brokers serve these records, and the broker's next compaction "
                "corrects the addresses"
            )
            text = "records contain another address than their own"
            self._note(recovered(text, self._log.path, position, remedy))
        return np.arange(rows, dtype=np.int64)

    def end(self) -> None:
        """Note problems after the last record."""
        if self._units is not None and self._next < len(self._units):
            wrong = f"{len(self._units) - self._next} units of the index have no record"
            at = self._next * units.BATCH_UNIT.size
            self._note(damaged(wrong, self.file.file, at, names.RESTORE_QUEUE))


def bad_slot(index: IndexFile, *, is_growing: bool = False) -> tuple[int, str] | None:
    """The byte and the defect of the first wrong slot: keys of that slot are not found.

    A slot must have its newest entry, and the header must have the number of slots in use.
    ``is_growing`` means that a broker adds entries meanwhile, so slots may point to entries that
    the header does not count yet.
    """
    entries = index.entries()
    slots = np.frombuffer(index.data, ">i4", index.slots, INDEX_HEADER.size)
    newest = np.zeros(index.slots, np.int32)
    for first in range(0, len(entries), _ENTRIES_AT_ONCE):
        hashes = entries["hash"][first : first + _ENTRIES_AT_ONCE].astype(np.int64)
        places = np.abs(hashes) % index.slots
        # several entries may have the same slot; the assignment stores the last of them
        newest[places] = np.arange(first + 1, first + 1 + len(places))
    wrong = slots != newest
    if is_growing:
        wrong &= slots < index.header.count
    if wrong.any():
        n = int(np.argmax(wrong))
        text = (
            f"slot {n} points to entry {int(slots[n])}, but the newest entry of the slot is "
            f"{int(newest[n])}"
        )
        return INDEX_HEADER.size + 4 * n, text
    used, counted = int(np.count_nonzero(newest)), index.header.used_slots
    if not used <= counted <= len(entries) + is_growing:  # old brokers count a slot for each entry
        return 32, f"the header counts {counted} used slots, but {used} are used"
    return None


def first_bad_entry(index: IndexFile, log: MappedLog | None) -> tuple[int, str] | None:
    """The number and the defect of the first invalid entry.

    An entry is invalid if it contradicts other entries or refers to a record after the end of
    ``log``.
    """
    count = index.header.count
    entries = index.entries()  # the entries from number 1 on
    for first in range(1, count, _ENTRIES_AT_ONCE):
        some = entries[first - 1 : first - 1 + _ENTRIES_AT_ONCE]
        numbers = np.arange(first, first + len(some))
        hashes, previous = some["hash"].astype(np.int64), some["previous"].astype(np.int64)
        known = (previous > 0) & (previous < numbers)
        ahead = entries["hash"][np.where(known, previous, first) - 1].astype(np.int64)
        checks = {
            "its hash is negative": hashes < 0,
            "its previous entry is not before it": (previous < 0) | (previous >= numbers),
            "its previous entry belongs to another slot": known
            & (ahead % index.slots != hashes % index.slots),
        }
        if log is not None and log.files:
            late = some["physical_offset"] >= log.end
            checks["its physical offset is after the end of the commit log"] = late
        for wrong, where in checks.items():
            if where.any():
                return first + int(np.argmax(where)), wrong
    return None
