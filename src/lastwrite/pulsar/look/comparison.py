"""Check the result of a compaction by comparing a topic with its former state.

The former state is a log of messages: the former compacted ledger, if any, then the raw entries up
to the new horizon. For each message the check keeps the digest of its key, its position and a
digest of its content. The last live message of each key must be in the new compacted ledger, bit
for bit. (If messages are compared by event time, docs/formats/pulsar-compaction.md, "Event time",
defines which is the last.) No other message of that key may be there. Also required: all messages
without a key, or none; no data of an aborted transaction; unreadable batches unchanged; and every
raw ledger beyond the horizon. Entries are read by the format's slow readers, not by the engine's
kernels. If the last chunk of a message is present, all its chunks must be; otherwise the other
chunks may be present or not.

Memory: about 70 bytes per message, and twice as much during the sort. If that exceeds the memory
setting, the comparison is refused.

Source: Pulsar 4.2.4; docs/formats/pulsar-compaction.md; docs/formats/pulsar.md, "Compacted ledger".
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise, zip_longest

import numpy as np
import numpy.typing as npt
from msgspec import structs

from lastwrite.errors import CorruptLog, OutOfMemoryBudget, UnsupportedFormat, located
from lastwrite.model.log import ProblemKind
from lastwrite.pulsar.format.compacted import decode_record
from lastwrite.pulsar.format.entry import (
    COMPACTED_BATCH_INDEXES,
    TXN_ABORT,
    TXN_COMMIT,
    UNCOMPRESSED_SIZE,
    Entry,
    batch_parts,
    checked,
    decode_entry,
    plain_payload,
)
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.format.protobuf import without
from lastwrite.pulsar.store.manifest import EVENT_TIME, CompactionManifest
from lastwrite.pulsar.store.objects import read_entries
from lastwrite.pulsar.store.topic import Ledger, TopicFolder
from lastwrite.reports.verification import Comparison, Violation

_MOST_VIOLATIONS = 100  # maximum number of violations in a report; all violations are counted
_ALONE = -1  # batch index of a message outside of batches
_PIECE = 1 << 20

# Kinds of messages, as bits.
_KEYED, _DELETE, _SINGLE, _PART, _WHOLE, _ABORTED_DATA, _BROKERS_DELETE = 1, 2, 4, 8, 16, 32, 64

Mask = npt.NDArray[np.bool_]


@dataclass(slots=True)
class _Messages:
    """Messages in the log's order, in one column per property."""

    most: int
    places: array[int] = field(default_factory=lambda: array("q"))
    indexes: array[int] = field(default_factory=lambda: array("q"))
    kinds: array[int] = field(default_factory=lambda: array("B"))
    times: array[int] = field(default_factory=lambda: array("Q"))
    # by message: the number of its transaction, or -1 outside of transactions
    transactions: array[int] = field(default_factory=lambda: array("q"))
    # digests of the messages' keys, 16 bytes each
    keys: bytearray = field(default_factory=bytearray)
    # digests of the messages' contents, 8 bytes each
    contents: bytearray = field(default_factory=bytearray)
    # a number for each transaction, by the transaction's id
    numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    committed: set[int] = field(default_factory=set)
    # rows of each message's chunks, by the message's uuid
    parts: dict[str, list[int]] = field(default_factory=dict)
    last_parts: dict[str, int] = field(default_factory=dict)
    markers: int = 0

    def __len__(self) -> int:
        return len(self.places)

    def add(
        self,
        place: int,
        index: int,
        kind: int,
        key: bytes | None,
        time: int,
        transaction: int,
        content: bytes,
    ) -> None:
        if len(self) >= self.most:
            words = (
                f"the comparison has more messages than the {self.most} that the memory "
                "setting allows"
            )
            raise OutOfMemoryBudget(words, remedy="raise --memory")
        self.places.append(place)
        self.indexes.append(index)
        self.kinds.append(kind | (_KEYED if key is not None else 0))
        self.times.append(time)
        self.transactions.append(transaction)
        self.keys += hashlib.blake2b(key or b"", digest_size=16).digest()
        self.contents += hashlib.blake2b(content, digest_size=8).digest()

    def take(self, entry: Entry, is_raw: bool) -> None:
        """Add the messages of an entry.

        Transactions are only tracked with ``is_raw``: a compacted ledger has only committed
        messages.
        """
        meta, place = entry.metadata, Position(entry.ledger, entry.entry).offset
        if entry.is_marker:
            self.take_marker(entry)
            self.markers += 1
            return
        transaction = _ALONE
        if meta.transaction is not None and is_raw:
            transaction = self.number_of(meta.transaction)
        whole = entry.metadata_bytes + entry.payload
        if entry.is_readable_batch:
            try:
                members = batch_parts(meta, plain_payload(entry))
            except (CorruptLog, UnsupportedFormat):
                self.add(place, _ALONE, _WHOLE, None, 0, transaction, whole)
                return
            common = without(entry.metadata_bytes, UNCOMPRESSED_SIZE, COMPACTED_BATCH_INDEXES)
            for index, single, value, part in members:
                if not single.compacted_out:
                    kind = 0 if value else _DELETE | _BROKERS_DELETE
                    key, time = single.partition_key, _java_time(single.event_time)
                    self.add(place, index, kind, key, time, transaction, common + part)
        else:
            size = len(entry.payload) if meta.uncompressed_size is None else meta.uncompressed_size
            kind = _SINGLE | (0 if size else _BROKERS_DELETE)
            kind |= 0 if entry.value_bytes else _DELETE
            if meta.is_chunk and meta.uuid is not None:
                if meta.is_last_chunk:
                    self.last_parts[meta.uuid] = len(self)
                else:
                    kind |= _PART
                    self.parts.setdefault(meta.uuid, []).append(len(self))
            key, time = meta.partition_key, _java_time(meta.event_time)
            self.add(place, _ALONE, kind, key, time, transaction, whole)

    def take_marker(self, entry: Entry) -> None:
        """Record that a marker commits or aborts its transaction."""
        meta = entry.metadata
        if meta.transaction is not None and meta.marker_type in (TXN_COMMIT, TXN_ABORT):
            known = self.aborted if meta.marker_type == TXN_ABORT else self.committed
            known.add(self.number_of(meta.transaction))

    def number_of(self, transaction: tuple[int, int]) -> int:
        return self.numbers.setdefault(transaction, len(self.numbers))

    def column(self, values: array[int]) -> npt.NDArray[np.int64]:
        return np.array(values, dtype=np.int64)

    def undecided(self) -> Mask:
        """A mask of the messages whose transaction was neither committed nor aborted."""
        ended = self.committed | self.aborted
        open_ = [number for number in range(len(self.numbers)) if number not in ended]
        found: Mask = np.isin(self.column(self.transactions), open_)
        return found

    def flags(self, like_broker: bool) -> npt.NDArray[np.uint8]:
        """The kind of each message, as bits.

        With ``like_broker`` each chunk is a message, and the value length decides what is a
        tombstone.
        """
        found = np.array(self.kinds, dtype=np.uint8)
        if like_broker:
            found &= ~np.uint8(_PART | _DELETE)
            found |= np.where(found & _BROKERS_DELETE, np.uint8(_DELETE), np.uint8(0))
        if self.aborted:
            found[np.isin(self.column(self.transactions), list(self.aborted))] |= _ABORTED_DATA
        return found

    @property
    def ids(self) -> Iterator[tuple[int, int]]:
        return zip(self.places, self.indexes, strict=True)


def compare(before: TopicFolder, after: TopicFolder, most_messages: int) -> tuple[Comparison, bool]:
    """Compare ``after`` with its former state ``before``.

    If ``after`` violates Lastwrite's rules, a broker's rules (``--like-broker``) are checked.
    Returns the result, and whether ``after`` follows only a broker's rules.

    Raises:
        CorruptLog: ``before`` or ``after`` cannot be read.
        OutOfMemoryBudget: more than ``most_messages`` would be kept in memory.
    """
    for problem in before.problems:
        if problem.kind is ProblemKind.DAMAGED:
            raise CorruptLog(problem.message, problem.position, problem.path, problem.remedy)
    found = Comparison(folder=before.folder)
    broken = _Broken(found, after)
    _compare_ledgers(before, after, broken)
    manifest = after.manifest
    if manifest is None or after.compacted is None:
        if before.manifest is not None:
            broken.add(
                "compacted", "the copy before had a compacted ledger, and this topic has none"
            )
        return found, False
    if before.horizon is not None and before.horizon > manifest.horizon:
        broken.add(
            "horizon",
            f"the compaction horizon went back from {before.horizon} to {manifest.horizon}",
        )
        return found, False
    was = _before(before, manifest.horizon, most_messages)
    now = _Messages(most_messages)
    for entry in chain.from_iterable(map(_compacted_entries, after.compacted)):
        now.take(entry, False)
    so_far = found.violation_count
    like_broker = structs.replace(found, violations=list(found.violations))
    _judge(was, now, manifest, broken, False)
    if found.violation_count > so_far:
        _judge(was, now, manifest, _Broken(like_broker, after), True)
        if like_broker.violation_count == so_far:
            return like_broker, True
    return found, False


# ---------------------------------------------------------------------- reading


def _before(topic: TopicFolder, horizon: Position, most: int) -> _Messages:
    """The messages of the former state up to the new horizon.

    Beyond that horizon only markers are read.
    """
    found = _Messages(most)
    for entry in chain.from_iterable(map(_compacted_entries, topic.compacted or ())):
        found.take(entry, False)
    begin = topic.horizon
    for ledger in topic.ledgers:
        first = begin.entry + 1 if begin is not None and begin.ledger == ledger.id else 0
        if begin is not None and ledger.id < begin.ledger:
            continue
        for number, data in read_entries(ledger.path, first):
            with located(ledger.path):
                entry = checked(decode_entry(data, ledger.id, number))
            if Position(ledger.id, number) <= horizon:
                found.take(entry, True)
            elif entry.is_marker:
                found.take_marker(entry)
    return found


def _compacted_entries(ledger: Ledger) -> Iterator[Entry]:
    for _, data in read_entries(ledger.path):
        with located(ledger.path):
            place, _, body = decode_record(data)
            entry = checked(decode_entry(body, place.ledger, place.entry))
        yield entry


# ---------------------------------------------------------------------- promises


class _Broken:
    """Collects the violations of the rules of compaction."""

    def __init__(self, found: Comparison, topic: TopicFolder) -> None:
        self.found = found
        self._folder = topic.folder
        self._path = topic.compacted[0].path if topic.compacted else topic.folder

    def add(
        self, promise: str, message: str, offset: int | None = None, path: str | None = None
    ) -> None:
        self.found.violation_count += 1
        if len(self.found.violations) < _MOST_VIOLATIONS:
            where = path or self._folder
            self.found.violations.append(Violation(promise, message, offset, where))

    def each(self, promise: str, message: str, messages: _Messages, those: Mask) -> None:
        for row in np.flatnonzero(those).tolist():
            place, index = messages.places[row], messages.indexes[row]
            name = str(Position.of(place))
            name += f", message {index} of the batch" if index >= 0 else ""
            self.add(promise, f"{name}: {message}", place, self._path)


def _judge(
    was: _Messages, now: _Messages, manifest: CompactionManifest, broken: _Broken, like_broker: bool
) -> None:
    """Check the former messages ``was`` and the current messages ``now``, and count violations."""
    found = broken.found
    flags = was.flags(like_broker)
    keyed, part, whole, delete, aborted = (
        flags & bit != 0 for bit in (_KEYED, _PART, _WHOLE, _DELETE, _ABORTED_DATA)
    )
    competes = keyed & ~part & ~aborted
    keyless = ~keyed & ~whole & ~aborted
    unread = whole & ~aborted
    keys = np.frombuffer(bytes(was.keys), dtype=">u8").reshape(-1, 2).astype(np.uint64)
    by_event_time = manifest.order == EVENT_TIME
    winners = np.zeros(len(was), dtype=bool)
    winners[_winners(keys, np.flatnonzero(competes), flags, was.times, by_event_time)] = True
    kept = winners | (keyless & manifest.retain_null_key) | unread
    place_of, is_known = _joined(was, now)
    there = np.zeros(len(was), dtype=bool)
    there[place_of[is_known]] = True
    gone, extra = ~there, there & ~kept
    if not like_broker:
        _judge_parts(was, kept, there, broken)
    broken.each("unknown", "the log before had no such message", now, ~is_known)
    for promise, message, those in (
        ("lost", "the last write of its key is missing", winners & gone),
        (
            "lost",
            "compaction retains messages without a key, but this one is missing",
            kept & ~winners & keyless & gone,
        ),
        ("lost", "an unreadable batch must be kept complete, but a part is missing", unread & gone),
        ("aborted", "the message is kept, although its transaction was aborted", there & aborted),
        (
            "undecided",
            "the message is kept, although its transaction is still open",
            there & was.undecided(),
        ),
        (
            "keyless",
            "the message is kept, although compaction removes messages without a key",
            extra & keyless,
        ),
        (
            "superseded",
            "the message is kept, although it is a tombstone or not the last write of its key",
            extra & competes,
        ),
    ):
        broken.each(promise, message, was, those)
    _judge_contents(was, now, place_of, is_known, broken)
    found.records_before, found.records_after = len(was), len(now)
    found.superseded = int(np.count_nonzero(competes & ~delete & gone))
    found.expired = int(np.count_nonzero(competes & delete))
    found.keyless = int(np.count_nonzero(keyless & gone))
    if found.keyless:
        found.first_keyless_offset = was.places[int(np.argmax(keyless & gone))]
    found.aborted = int(np.count_nonzero(aborted & gone))
    found.markers = was.markers
    found.keys = len(np.unique(keys[competes], axis=0))
    found.keys_alive = int(np.count_nonzero(winners & there))


def _judge_contents(
    was: _Messages,
    now: _Messages,
    place_of: npt.NDArray[np.int64],
    is_known: npt.NDArray[np.bool_],
    broken: _Broken,
) -> None:
    """Check that the messages of ``now`` have their former content and order.

    ``place_of`` has the row in ``was`` of each message of ``now``. A row is only valid where
    ``is_known`` is true.
    """
    before, after = (np.frombuffer(bytes(each.contents), dtype=np.uint64) for each in (was, now))
    changed = np.zeros(len(now), dtype=bool)
    changed[is_known] = before[place_of[is_known]] != after[is_known]
    broken.each("changed", "the content of the message has changed", now, changed)
    if any(low >= high for low, high in pairwise(now.ids)):
        broken.add("order", "the messages of the compacted ledger are not in the log's order", None)


def _java_time(event_time: int | None) -> int:
    """An event time as Java's signed long. 0 if it is absent or negative in Java."""
    return event_time if event_time is not None and event_time < 1 << 63 else 0


def _winners(
    keys: npt.NDArray[np.uint64],
    rows: npt.NDArray[np.int64],
    flags: npt.NDArray[np.uint8],
    times: array[int],
    by_event_time: bool,
) -> list[int]:
    """The rows of the messages that must remain: at most one per key.

    A key whose last write is a tombstone has no row.
    """
    in_order = rows[np.lexsort((rows, keys[rows, 1], keys[rows, 0]))]
    same = (keys[in_order[1:]] == keys[in_order[:-1]]).all(axis=1)
    found = []
    for each in np.split(in_order, np.flatnonzero(~same) + 1) if len(in_order) else ():
        some = each.tolist()
        holder = _folded(some, flags, times) if by_event_time else some[-1]
        if holder >= 0 and not flags[holder] & _DELETE:
            found.append(holder)
    return found


def _folded(rows: Sequence[int], flags: npt.NDArray[np.uint8], times: array[int]) -> int:
    """The row of a key's last write by event time. -1 if it is a tombstone.

    Source: docs/formats/pulsar-compaction.md, "Event time".
    """
    holder = -1
    for row in rows:
        wins_tie = flags[row] & _SINGLE != 0
        if holder < 0 or times[row] > times[holder] or (wins_tie and times[row] == times[holder]):
            holder = -1 if flags[row] & _DELETE else row
    return holder


def _judge_parts(was: _Messages, kept: Mask, there: Mask, broken: _Broken) -> None:
    """Check that each chunked message in the compacted ledger has all its chunks."""
    needed = np.zeros(len(was), dtype=bool)
    for uuid, last in was.last_parts.items():
        if kept[last]:
            needed[was.parts.get(uuid, [])] = True
    message = "this chunk is missing, although the last chunk of its message is kept"
    broken.each("lost", message, was, needed & ~there)


def _joined(was: _Messages, now: _Messages) -> tuple[npt.NDArray[np.int64], Mask]:
    """The row in ``was`` of each message in ``now``, and whether ``was`` has that message."""
    entries = np.unique(was.column(was.places))

    def ids(messages: _Messages) -> tuple[npt.NDArray[np.int64], Mask]:
        places = messages.column(messages.places)
        rank = np.searchsorted(entries, places)
        known = entries[np.minimum(rank, len(entries) - 1)] == places
        return (rank << 32) + messages.column(messages.indexes) + 1, known

    if not len(was):
        return np.zeros(len(now), dtype=np.int64), np.zeros(len(now), dtype=bool)
    before, _ = ids(was)
    after, known = ids(now)
    rows = np.minimum(np.searchsorted(before, after), len(before) - 1)
    return rows, known & (before[rows] == after)


# ---------------------------------------------------------------------- raw ledgers


def _compare_ledgers(before: TopicFolder, after: TopicFolder, broken: _Broken) -> None:
    """Check that ledgers beyond the horizon are present, and that present ledgers are unchanged."""
    here = {ledger.id: ledger for ledger in after.ledgers}
    for ledger in before.ledgers:
        now = here.get(ledger.id)
        if now is None:
            if ledger.is_beyond(after.horizon):
                broken.add(
                    "backlog", f"raw ledger {ledger.id} is beyond the horizon, but it is missing"
                )
        elif not _is_same(ledger, now):
            broken.add("backlog", f"raw ledger {ledger.id} has changed", None, now.path)


def _is_same(one: Ledger, other: Ledger) -> bool:
    """Whether ``other`` is the same ledger.

    It then has equal bytes, or the entries of ``one`` and further entries.
    """
    if other.entries > one.entries:
        some = (each for each in read_entries(other.path) if each[0] < one.entries)
        return all(was == now for was, now in zip_longest(read_entries(one.path), some))
    if one.size_bytes != other.size_bytes:
        return False
    pieces = np.empty((2, _PIECE), dtype=np.uint8)
    with (
        one.reader() as first,
        other.reader() as second,
    ):
        for at in range(0, one.size_bytes, _PIECE):
            size = min(_PIECE, one.size_bytes - at)
            first.read_into(pieces[0, :size], at)
            second.read_into(pieces[1, :size], at)
            if not np.array_equal(pieces[0, :size], pieces[1, :size]):
                return False
    return True
