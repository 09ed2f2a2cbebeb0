"""Verify that a table equals its topic up to the table's offsets.

To be independent of the update's method, the verification uses no fingerprints, no election and no
index.

Every record of the log and every row of the table becomes an entry with two hashes: an MD5 of the
key, and an MD5 of key, partition, offset and value. Entries are divided into parts by the hash of
their key, in scratch files if there are many. In each part the log's entries are sorted, which
yields the last write of each key. A write must have a row with the same hashes, and a delete must
have no row::

    log     a@1  b@2  a@3        sorted   a@1 a@3 │ b@2
    table   a@3  b@2             sorted       a@3 │ b@2        proven

If a key was written again above the table's offsets, compaction may have removed its older records.
The log then neither proves nor refutes the row of the key. Such rows are counted separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import md5
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from lastwrite.encoding.slices import bytes_of
from lastwrite.errors import CommitConflict
from lastwrite.model.columns import RecordColumns
from lastwrite.model.log import PartitionLog
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.model.work import Limits
from lastwrite.reports.table_proof import Difference, TableProof
from lastwrite.rows.reading import read_records, row_units
from lastwrite.rows.system import RowSystem
from lastwrite.storage.run_folder import make_folder, remove_folder
from lastwrite.storage.scratch import ScratchReader, ScratchWriter
from lastwrite.tables.buckets import checksum_of, summed
from lastwrite.tables.columns import OFFSET, PARTITION, VALUE, as_bytes, identity_of
from lastwrite.tables.files import read_file
from lastwrite.tables.format import Head, TableFormat, TableState

_PARTS = 64
_FEW_BYTES = 4 << 20  # entries up to this size are not divided into parts
_COLUMNS = ("key", "value", "offset", "timestamp")
_ENTRY = np.dtype(
    [
        ("one", "<u8"),  # the key's hash, two words
        ("two", "<u8"),
        ("row_one", "<u8"),  # the hash of key, partition, offset and value, two words
        ("row_two", "<u8"),
        ("offset", "<i8"),
        ("time", "<i8"),
        ("partition", "<i4"),
        ("kind", "<i4"),
    ]
)
_WRITE, _DELETE, _LATER, _ROW = range(4)
_KINDS = ("missing", "beyond", "older", "value", "twice")


def verify(
    format: TableFormat,
    head: Head,
    system: RowSystem,
    logs: Sequence[PartitionLog],
    *,
    memory_bytes: int = 512 << 20,
    limit: int = 20,
    progress: Progress | None = None,
) -> TableProof:
    """Compare the table with the log. The result lists the first ``limit`` keys that differ.

    Raw values are compared, too. If the table has decoded values, only the partitions and offsets
    of rows are compared.

    Raises:
        CommitConflict: the log does not contain all offsets of the table.
        CorruptLog, UnsupportedFormat: a record or a file cannot be read.
    """
    state = head.state
    assert state is not None
    _check_there(system, logs, state)
    has_values = (
        VALUE in head.schema.names and head.schema.field(VALUE).type == pa.binary()
    ) and state.settings.get("value_format", "raw") == "raw"
    limits = Limits(plain_bytes=max(4 << 20, memory_bytes // 8))
    progress = progress or NoProgress()
    with _Parts(memory_bytes // 4) as parts:
        records = 0
        for found in _records(system, logs, limits, progress):
            entries = _of_records(*found, state.offsets, system, has_values)
            records += len(entries)
            parts.add(entries)
        rows, checksum = 0, 0
        progress.stage("read the table", sum(file.size_bytes for file in head.files))
        for table in _rows(format, head, has_values, progress):
            rows += len(table)
            parts.add(_of_rows(table, has_values))
            checksum += checksum_of(*_places(table))
        counts = dict.fromkeys(_KINDS, 0)
        named: dict[bytes, tuple[str, np.void, np.void]] = {}
        proven = unproven = 0
        progress.stage("compare", (records + rows) * _ENTRY.itemsize)
        for part in parts:
            progress.advance(part.nbytes)
            compared = _compared(part, has_values)
            proven += compared.proven
            unproven += compared.unproven
            for kind, pairs in compared.differences.items():
                counts[kind] += len(pairs)
                for row, record in pairs[: max(0, limit - len(named))]:
                    one = row if row["kind"] == _ROW else record
                    named[_key_hash(one)] = kind, row, record
    names = _names(format, head, system, logs, limits, set(named)) if named else {}
    return TableProof(
        path=format.address,
        format=format.name,
        head=head.token,
        topic=state.topic,
        offsets=dict(state.offsets),
        rows=rows,
        records=records,
        proven=proven,
        unproven=unproven,
        has_values=has_values,
        is_state_right=rows == state.rows and summed("", checksum) == state.checksum,
        counts={kind: count for kind, count in counts.items() if count},
        differences=[
            _difference(names.get(hash_), kind, row, record)
            for hash_, (kind, row, record) in named.items()
        ],
    )


def _check_there(system: RowSystem, logs: Sequence[PartitionLog], state: TableState) -> None:
    found = {log.name.partition: log for log in logs}
    for partition, offset in state.offsets.items():
        log = found.get(partition)
        if log is None or system.end_of(log, True) < offset or system.lost_after(log, offset):
            raise CommitConflict(
                f"the log lacks records of partition {partition} that the table has, up to "
                f"offset {offset}",
                path=state.topic if log is None else log.folder,
                remedy="give the log from which the table was created, or rebuild the table with "
                "--anew",
            )


# ---------------------------------------------------------------------- entries


def _records(
    system: RowSystem, logs: Sequence[PartitionLog], limits: Limits, progress: Progress
) -> Iterator[tuple[RecordColumns, int]]:
    """Yield all committed records, in blocks, each with its partition."""
    ordered = sorted(logs, key=lambda log: log.name.partition)
    units = [
        unit for log in ordered for unit in row_units(system, log, _COLUMNS, is_committed=True)
    ]
    progress.stage("read the log", sum(unit.piece.end - unit.piece.start for unit in units))
    for unit in units:
        for records in read_records(unit, limits):
            yield records, unit.name.partition
        progress.advance(unit.piece.end - unit.piece.start)


def _of_records(
    records: RecordColumns,
    partition: int,
    offsets: Mapping[int, int],
    system: RowSystem,
    has_values: bool,
) -> np.ndarray:
    """The comparison entries of the records that have keys."""
    records = records.take(np.flatnonzero(records.keys[1] >= 0))
    keys = bytes_of(records.data, *records.keys)
    lengths = records.values[1]
    is_delete = lengths < (1 if system.is_empty_delete else 0)
    values = bytes_of(records.data, *records.values) if has_values else None
    made = np.empty(records.rows, _ENTRY)
    made["offset"], made["time"] = records.offsets, records.times_ms
    made["partition"] = partition
    is_later = records.offsets >= offsets.get(partition, 0)
    made["kind"] = np.where(is_later, _LATER, np.where(is_delete, _DELETE, _WRITE))
    return _hashed(made, keys, values)


def _rows(
    format: TableFormat, head: Head, has_values: bool, progress: Progress
) -> Iterator[pa.Table]:
    """Yield the current rows of each file: all but the deleted rows."""
    identity = identity_of(head.schema)
    columns = [identity, PARTITION, OFFSET, *[VALUE] * has_values]
    for bucket, files in head.in_bucket().items():
        deleted = format.deleted(head, bucket)
        for file in files:
            table = read_file(file.path, file.size_bytes, columns).select(columns)
            stays = np.ones(len(table), np.bool_)
            stays[deleted.get(file.path, np.empty(0, np.int64))] = False
            yield table if stays.all() else table.filter(pa.array(stays))
            progress.advance(file.size_bytes)


def _places(table: pa.Table) -> tuple[pa.Array, np.ndarray, np.ndarray]:
    return as_bytes(table.column(0)), np.asarray(table.column(1)), np.asarray(table.column(2))


def _of_rows(table: pa.Table, has_values: bool) -> np.ndarray:
    keys, partitions, offsets = _places(table)
    made = np.empty(len(table), _ENTRY)
    made["offset"], made["partition"], made["time"] = offsets, partitions, 0
    made["kind"] = _ROW
    values = table.column(3).to_pylist() if has_values else None
    return _hashed(made, keys.to_pylist(), values)


def _hashed(
    made: np.ndarray, keys: Sequence[bytes], values: Sequence[bytes | None] | None
) -> np.ndarray:
    """Compute the hashes of entries. ``values`` is None if values are not compared."""
    made["one"], made["two"] = _digest_words([md5(key).digest() for key in keys])
    places = np.empty(len(made), np.dtype([("partition", "<i4"), ("offset", "<i8")]))
    places["partition"], places["offset"] = made["partition"], made["offset"]
    raw = places.tobytes()
    given = values if values is not None else [b""] * len(made)
    rows = [
        md5(b"%d:%b%b%b" % (len(key), key, raw[12 * n : 12 * n + 12], value or b"")).digest()
        for n, (key, value) in enumerate(zip(keys, given, strict=True))
    ]
    made["row_one"], made["row_two"] = _digest_words(rows)
    return made


def _digest_words(digests: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    words = np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)
    return words[:, 0], words[:, 1]


def _key_hash(entry: np.void) -> bytes:
    return bytes(entry["one"].tobytes() + entry["two"].tobytes())


class _Parts:
    """Comparison entries, divided into parts by the first bits of their keys' hashes.

    A part keeps the order in which entries were added. Entries beyond a memory limit are in scratch
    files.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit, self._held_bytes = limit_bytes, 0
        self._parts: list[list[np.ndarray]] = [[] for _ in range(_PARTS)]
        self._folder: Path | None = None
        self._writers: list[ScratchWriter] = []
        self._spilt: list[list[tuple[str, int, int]]] = [[] for _ in range(_PARTS)]

    def add(self, entries: np.ndarray) -> None:
        numbers = (entries["one"] >> np.uint64(58)).astype(np.int64)
        order = np.argsort(numbers, kind="stable")
        bounds = np.searchsorted(numbers[order], np.arange(_PARTS + 1))
        for part in np.flatnonzero(np.diff(bounds)).tolist():
            self._parts[part].append(entries[order[bounds[part] : bounds[part + 1]]])
        self._held_bytes += entries.nbytes
        if self._held_bytes > self._limit:
            self._spill()

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = make_folder()
            folder = str(self._folder)
            self._writers = [ScratchWriter(folder, f"part-{n}") for n in range(_PARTS)]
        for part, held in enumerate(self._parts):
            for block in held:
                path, position = self._writers[part].append(block.view(np.uint8))
                self._spilt[part].append((path, position, len(block)))
        self._parts, self._held_bytes = [[] for _ in range(_PARTS)], 0

    def __iter__(self) -> Iterator[np.ndarray]:
        if self._folder is None and self._held_bytes <= _FEW_BYTES:
            yield np.concatenate([np.empty(0, _ENTRY), *chain.from_iterable(self._parts)])
            return
        for spilt, held in zip(self._spilt, self._parts, strict=True):
            yield np.concatenate([np.empty(0, _ENTRY), *map(_read, spilt), *held])

    def __enter__(self) -> _Parts:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.close()
        if self._folder is not None:
            remove_folder(self._folder)


def _read(block: tuple[str, int, int]) -> np.ndarray:
    path, position, rows = block
    entries = np.empty(rows, _ENTRY)
    reader = ScratchReader(path)
    try:
        reader.read_into(entries.view(np.uint8), position)
    finally:
        reader.close()
    return entries


# ---------------------------------------------------------------------- a part


class _ComparedRows(NamedTuple):
    """The result of comparing one part of the log's and the table's entries.

    ``differences`` maps a kind of difference to pairs of a row and a record. If a key has only a
    row or only a record, the pair contains it twice.
    """

    proven: int
    unproven: int
    differences: dict[str, list[tuple[np.void, np.void]]]


def _compared(part: np.ndarray, has_values: bool) -> _ComparedRows:
    kinds = part["kind"]
    last = _last_writes(part[(kinds == _WRITE) | (kinds == _DELETE)])
    live = last[last["kind"] == _WRITE]
    rows = part[kinds == _ROW]
    # For each key: the last write, the row, and whether records above the table's offsets exist.
    whole = np.concatenate([live, rows, part[kinds == _LATER]])
    order = np.lexsort((whole["two"], whole["one"]))
    is_new = _is_new(whole[order], "one", "two")
    keys = np.empty(len(whole), np.int64)
    keys[order] = np.cumsum(is_new) - 1
    count = int(is_new.sum())
    record_of, row_of = np.full(count, -1), np.full(count, -1)
    of_rows = keys[len(live) : len(live) + len(rows)]
    record_of[keys[: len(live)]] = np.arange(len(live))
    row_of[of_rows] = np.arange(len(rows))
    is_later = np.zeros(count, np.bool_)
    is_later[keys[len(live) + len(rows) :]] = True
    has_row, has_record = row_of >= 0, record_of >= 0
    is_twice = np.bincount(of_rows, minlength=count) > 1
    row, record = np.zeros(count, _ENTRY), np.zeros(count, _ENTRY)
    row[has_row], record[has_record] = rows[row_of[has_row]], live[record_of[has_record]]
    both = has_row & has_record
    is_there = (row["partition"] == record["partition"]) & (row["offset"] == record["offset"])
    is_same = (row["row_one"] == record["row_one"]) & (row["row_two"] == record["row_two"])
    # If a later record has the key, compaction may have removed the row's record from the log.
    may_be = is_later & has_row & (~has_record | (both & (row["offset"] > record["offset"])))
    found = {
        "twice": is_twice,
        "missing": has_record & ~has_row,
        "beyond": has_row & ~has_record & ~may_be & ~is_twice,
        "older": both & ~is_there & ~may_be & ~is_twice,
        "value": both & is_there & ~is_same & ~is_twice,
    }
    return _ComparedRows(
        int((both & is_there & is_same & ~is_twice).sum()),
        int((may_be & ~is_twice).sum()),
        {
            kind: [
                (row[n] if has_row[n] else record[n], record[n] if has_record[n] else row[n])
                for n in np.flatnonzero(which).tolist()
            ]
            for kind, which in found.items()
            if which.any()
        },
    )


def _last_writes(entries: np.ndarray) -> np.ndarray:
    """The last write of each key.

    Within a partition the log's order decides. Between partitions the later time decides, and at
    equal times the larger partition number.
    """
    order = np.lexsort((entries["partition"], entries["two"], entries["one"]))
    entries = entries[order]  # lexsort is stable: entries of a key and partition stay in log order
    entries = entries[np.roll(_is_new(entries, "one", "two", "partition"), -1)]
    order = np.lexsort((entries["partition"], entries["time"], entries["two"], entries["one"]))
    entries = entries[order]
    found: np.ndarray = entries[np.roll(_is_new(entries, "one", "two"), -1)]
    return found


def _is_new(entries: np.ndarray, *names: str) -> np.ndarray:
    """Whether each entry differs from the previous one in the fields ``names``, or is the first."""
    is_new = np.zeros(len(entries), np.bool_)
    is_new[:1] = True
    for name in names:
        is_new[1:] |= entries[name][1:] != entries[name][:-1]
    return is_new


# ---------------------------------------------------------------------- names


def _names(
    format: TableFormat,
    head: Head,
    system: RowSystem,
    logs: Sequence[PartitionLog],
    limits: Limits,
    wanted: set[bytes],
) -> dict[bytes, bytes]:
    """The keys with the ``wanted`` hashes, by hash.

    Rows and records are read again to find them.
    """
    found: dict[bytes, bytes] = {}

    def keys_of_rows() -> Iterator[list[bytes]]:
        return (
            as_bytes(table.column(0)).to_pylist()
            for table in _rows(format, head, False, NoProgress())
        )

    def keys_of_records() -> Iterator[list[bytes]]:
        for records, _ in _records(system, logs, limits, NoProgress()):
            yield bytes_of(records.data, *records.keys)

    sources: tuple[Callable[[], Iterator[list[bytes]]], ...] = (keys_of_rows, keys_of_records)
    for source in sources:
        for keys in source():
            for key in keys:
                if (hash_ := md5(key).digest()) in wanted:
                    found[hash_] = key
            if len(found) == len(wanted):
                return found
    return found


def _difference(key: bytes | None, kind: str, row: np.void, record: np.void) -> Difference:
    is_row, is_record = row["kind"] == _ROW, record["kind"] == _WRITE
    return Difference(
        kind=kind,
        key=None if key is None else key.decode("utf-8", "backslashreplace"),
        partition=int((record if is_record else row)["partition"]),
        row_offset=int(row["offset"]) if is_row else None,
        log_offset=int(record["offset"]) if is_record else None,
    )
