"""Read and write ledgers on bookies, by BookKeeper's second wire protocol.

Pulsar's brokers use this protocol too.

    request   u32 length, u8 version 2, u8 operation, u16 flags, then
              read: i64 ledger, i64 entry            add: 20 bytes of master key, the packet
              batch read: i64 ledger, i64 first entry, i64 number of the request,
                          i32 entries at most, i64 bytes at most
    answer    u32 length, u8 version 2, u8 operation, u16 0, i32 code, i64 ledger, i64 entry, then
              for a read the packet; for a batch read the i64 of the request, and for each entry
              from the first on u32 length, the packet
    packet    as a record of an entry log: a RecordHead, digest of it and the payload, payload

The metadata name an ensemble of bookies for entry e. The entry is on the bookies e, e + 1 … of the
ensemble, modulo its size. The write quorum is the number of these bookies. A read asks one of them.
If it lacks the entry, cannot read it from its disk, or returns other bytes, the next bookie is
asked. Reading does not fence a ledger: a topic's open ledger is still written meanwhile.

Sending an answer costs a bookie more than reading an entry. If each bookie of an ensemble has all
entries, they are requested in batches. A bookie older than 4.17 then closes the connection and is
asked for one entry at a time.

Source: BookKeeper 4.17.3 ``BookieProtocol``, ``BookieProtoEncoding``, ``DigestManager``,
``BatchedReadEntryProcessor``, ``RoundRobinDistributionSchedule``;
docs/formats/pulsar-compaction.md, "The commit"; docs/formats/pulsar.md, "Ledger metadata" and
"Entry log".
"""

from __future__ import annotations

import hashlib
import ssl
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import google_crc32c

from lastwrite.errors import CorruptLog, RemoteFailed, UnsupportedFormat
from lastwrite.pulsar.format.entry_log import DIGEST_BYTES, RECORD_HEAD, digest_of
from lastwrite.pulsar.format.ledger_metadata import Digest, LedgerMetadata
from lastwrite.pulsar.network.link import TIMEOUT_SECONDS, Link, PulsarConnectionBroken
from lastwrite.pulsar.network.patience import go_on, retry_disconnects
from lastwrite.pulsar.network.start_tls import request_tls

_ADD, _READ, _BATCH_READ = 1, 2, 7
_VERSION = 2
_LAST = -1  # as the entry id of a read request, it selects the bookie's last entry
_READ_REQUEST = struct.Struct(">BBHqq")
_ADD_REQUEST = struct.Struct(">BBH")
_ANSWER = struct.Struct(">BBHiqq")
_BATCH_REQUEST = struct.Struct(">BBHqqqiq")
_REQUEST_BYTES = 8  # size of the request's number, which precedes the packets of a batch
_SIZE = struct.Struct(">I")
_USUAL = struct.Struct(">qqqqI")  # a packet before its payload: a RecordHead and a CRC-32C

_CODES = {
    1: "the bookie does not have the ledger",
    2: "the bookie does not have the entry",
    100: "the bookie does not support the request",
    101: "the bookie cannot read or write its disk",
    102: "the bookie refuses access",
    103: "the bookie uses another protocol version",
    104: "the ledger is fenced",
    105: "the bookie is read-only",
    106: "the bookie is overloaded",
    107: "the bookie has no state for the ledger",
}
_NOT_THERE = (1, 2)
# The bookie's code for a rejected request. A read also has this code if the disk works and the
# entry cannot be read, for example because its size field is damaged.
_FAILED = 100
_UNREADABLE = 101
_NO_LEDGER = (1 << 63) - 1
_NOT_LET_IN = 102

_FIRST_AHEAD = 16  # number of entries requested ahead until the first one shows their size
_MOST_AHEAD = 1024
# limit of the bytes requested ahead; each entry counts as the largest one received so far
_AHEAD_BYTES = 16 << 20
_BATCHES_AHEAD = 4  # number of batches requested ahead
_BATCH_BYTES = 1 << 20  # requested bytes of a batch; a bookie's frame has at most 5 MiB by default
_MOST_OUTSTANDING = 1000  # limit of entries that were sent and are not confirmed yet
_OUTSTANDING_BYTES = 8 << 20
_SEND_BYTES = 1 << 17


@dataclass(frozen=True, slots=True)
class LiveLedger:
    """The id of a ledger, and its metadata in the metadata store."""

    id: int
    metadata: LedgerMetadata

    def ensemble_of(self, entry: int) -> tuple[str, ...]:
        """The ensemble of the entry: the bookies that store this part of the ledger, in order.

        Raises:
            CorruptLog: the metadata name no bookies.
        """
        found: tuple[str, ...] = ()
        for segment in self.metadata.ensembles:
            if segment.first_entry <= entry or not found:
                found = segment.bookies
        if not found or not 0 < self.metadata.quorum <= len(found):
            raise CorruptLog(
                f"the metadata of ledger {self.id} contradict each other: a write quorum of "
                f"{self.metadata.quorum}, and {len(found)} bookies",
                remedy="print the metadata with bookkeeper shell ledgermetadata -ledgerid "
                f"{self.id}",
            )
        return found

    def bookies_of(self, entry: int) -> list[str]:
        """The bookies that have the entry, in the order in which they are asked."""
        ensemble = self.ensemble_of(max(entry, 0))
        return [ensemble[(entry + n) % len(ensemble)] for n in range(self.metadata.quorum)]

    def by_ensemble(self, first: int, end: int) -> Iterator[tuple[int, int, list[list[str]]]]:
        """Split the entries from ``first`` to before ``end`` by ensemble.

        Yields (first entry, end, bookies) for each ensemble. Item n of ``bookies`` is the result of
        ``bookies_of`` for the n-th of these entries. The list has as many items as the ensemble has
        bookies, and repeats for further entries.
        """
        changes = sorted({segment.first_entry for segment in self.metadata.ensembles})
        borders = [first, *(place for place in changes if first < place < end), end]
        for begin, behind in pairwise(borders):
            size = len(self.ensemble_of(begin))
            turn = [self.bookies_of(begin + (n - begin) % size) for n in range(size)]
            yield begin, behind, turn


class LastEntry(NamedTuple):
    """An entry of a ledger on a bookie, usually the last entry."""

    entry: int  # the highest entry that any bookie has, or -1
    # last confirmed entry, up to which readers may read; usually the entry before the last
    confirmed: int
    payload: bytes = b""
    ledger_bytes: int = 0  # bytes of all payloads up to this entry


class _Answer(NamedTuple):
    """A bookie's answer to a request. Code 0 is success.

    A read may also have code 1 (no such ledger), 2 (no such entry), 100 (failed or refused) or 101
    (disk error). Any other code raises an error instead.
    """

    entry: int
    code: int
    packet: bytes


class Bookies:
    """Connections to bookies, for reading ledgers.

    ``address_of`` returns the ``HOST:PORT`` of a bookie's id, or raises ``RemoteFailed``. Not
    thread-safe. ``timeout`` is in seconds, for every single request. ``tls`` wraps the connections;
    None means no TLS. Interrupted requests are repeated for ``patience_s`` seconds; ``check`` may
    raise to end the work.
    """

    def __init__(
        self,
        address_of: Callable[[str], str],
        timeout: float = TIMEOUT_SECONDS,
        tls: ssl.SSLContext | None = None,
        patience_s: float = 0.0,
        check: Callable[[], None] = go_on,
    ) -> None:
        self._timeout_s, self._check = patience_s, check
        self._address_of = address_of
        self._timeout = timeout
        self._tls = tls
        self._links: dict[str, Link] = {}
        # bookies that failed, with the error; later requests are sent to them last
        self._failed: dict[str, RemoteFailed] = {}
        self._with_batches: set[str] = set()  # bookies that returned a batch
        # bookies that closed the connection after a batch request
        self._without_batches: set[str] = set()

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()

    def __enter__(self) -> Bookies:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ reading

    def read(self, ledger: LiveLedger, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """The entries ``first`` to ``last`` in order, as number and payload, with verified digests.

        Keeps one entry in memory, and the entries that arrive out of order.

        Raises:
            CorruptLog: every bookie of an entry answers that it lacks the entry or cannot read it,
                or returns other bytes.
            RemoteFailed: a bookie that may have an entry does not answer, and no other returns it.
            UnsupportedFormat: the digest is not supported.
        """
        return self._read(ledger, first, last, skips=False)

    def read_intact(self, ledger: LiveLedger, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """As ``read``, but skips an entry if all its bookies answer and none returns it undamaged.

        Raises:
            CorruptLog: the ledger's metadata name no bookies.
            RemoteFailed, UnsupportedFormat: as ``read``.
        """
        for entry in (first, *(segment.first_entry for segment in ledger.metadata.ensembles)):
            ledger.ensemble_of(entry)
        return self._read(ledger, first, last, skips=True)

    def _read(
        self, ledger: LiveLedger, first: int, last: int, skips: bool
    ) -> Iterator[tuple[int, bytes]]:
        reading = _LedgerReadAhead(self, ledger, first, last)
        try:
            for entry in range(first, last + 1):
                try:
                    payload = reading.take(entry)
                except CorruptLog:
                    if skips:
                        continue
                    raise
                yield entry, payload
        finally:
            reading.end()

    def last_entry(self, ledger: LiveLedger) -> LastEntry:
        """The last entry of an open ledger, read without fencing the ledger.

        Raises:
            CorruptLog: all of its bookies answer, and none returns an undamaged entry.
            RemoteFailed: some bookies do not answer, and no other returns the entry.
            UnsupportedFormat: the digest is not supported.
        """
        digest = _digest_of(ledger)
        newest = max((segment.first_entry for segment in ledger.metadata.ensembles), default=0)
        best, confirmed = LastEntry(-1, -1), newest - 1
        answered = 0
        troubles: list[RemoteFailed] = []
        damage: CorruptLog | None = None
        for bookie in dict.fromkeys(ledger.ensemble_of(newest)):
            try:
                packet = self._query_one(bookie, ledger.id, _LAST)
                there = (
                    LastEntry(-1, -1)
                    if packet is None
                    else _opened(packet, ledger.id, None, digest, bookie)
                )
            except RemoteFailed as error:
                troubles.append(error)
                continue
            except CorruptLog as error:
                damage = error
                continue
            answered += 1
            confirmed = max(confirmed, there.confirmed)
            if there.entry > best.entry:
                best = there
        if not answered and damage is not None and not troubles:
            raise damage
        if not answered:
            raise self._none_answers(f"the end of ledger {ledger.id}", troubles)
        # The newest ensemble has no entry yet: ask the bookies of the previous ensemble.
        if best.entry < confirmed:
            best = self._query_each(ledger, confirmed, digest)
        return best._replace(confirmed=confirmed)

    def _query_each(self, ledger: LiveLedger, entry: int, digest: Digest) -> LastEntry:
        """Ask the bookies of an entry one after the other."""
        troubles: list[RemoteFailed] = []
        damage: CorruptLog | None = None
        for bookie in sorted(ledger.bookies_of(entry), key=lambda bookie: bookie in self._failed):
            try:
                packet = self._query_one(bookie, ledger.id, entry)
                if packet is not None:
                    return _opened(packet, ledger.id, entry, digest, bookie)
            except RemoteFailed as error:
                troubles.append(error)
            except CorruptLog as error:
                damage = error
        if troubles:
            raise self._none_answers(f"entry {entry} of ledger {ledger.id}", troubles)
        raise damage or CorruptLog(
            f"none of its bookies has entry {entry} of ledger {ledger.id}: "
            f"{', '.join(ledger.bookies_of(entry))}",
            remedy="run the command again, since the topic may have deleted the ledger during the "
            "command; if the error remains, start all bookies of the cluster, and see "
            "their logs",
        )

    def _query_one(self, bookie: str, ledger: int, entry: int) -> bytes | None:
        """The packet of one entry. None if the bookie answers that it does not have the entry.

        Raises:
            CorruptLog: the bookie cannot read this entry.
            RemoteFailed: no answer, or a refusal.
        """
        doing = (
            f"reading entry {entry} of ledger {ledger}"
            if entry >= 0
            else f"reading the end of ledger {ledger}"
        )
        with self._connection(bookie) as link:
            link.send([_READ_REQUEST.pack(_VERSION, _READ, 0, ledger, entry)], doing)
            _, code, packet = self._answer(link, _READ, ledger, doing)
            if code == _FAILED and not self._is_answered(link):
                raise _rejected_error(link, doing, code)
        if code in (_FAILED, _UNREADABLE):
            raise CorruptLog(
                f"{doing}: bookie {bookie} cannot read the entry (code {code})",
                remedy="see the bookie's log and its disks",
            )
        return None if code in _NOT_THERE else packet

    def _is_answered(self, link: Link) -> bool:
        """Whether the bookie still answers read requests.

        The test is a read of an impossible ledger, which a working bookie answers with "no such
        ledger".
        """
        doing = "checking whether the bookie answers reads"
        link.send([_READ_REQUEST.pack(_VERSION, _READ, 0, _NO_LEDGER, 0)], doing)
        return self._answer(link, _READ, _NO_LEDGER, doing).code in _NOT_THERE

    def _answer(self, link: Link, operation: int, ledger: int, doing: str) -> _Answer:
        """The next answer that the bookie sends."""
        frame = link.receive(doing)
        assert frame is not None
        return self._answer_in(frame, link, operation, ledger, doing)

    def _answer_in(
        self, frame: bytes, link: Link, operation: int, ledger: int, doing: str
    ) -> _Answer:
        if len(frame) < _ANSWER.size:
            raise _malformed_error(link, doing, f"the answer has only {len(frame)} bytes")
        version, said, _, code, answered, entry = _ANSWER.unpack_from(frame)
        if version != _VERSION or said != operation or answered != ledger:
            raise _malformed_error(
                link, doing, f"the answer belongs to another request: {frame[: _ANSWER.size].hex()}"
            )
        if code != 0 and not (operation != _ADD and code in (*_NOT_THERE, _FAILED, _UNREADABLE)):
            raise _rejected_error(link, doing, code)
        return _Answer(entry, code, frame[_ANSWER.size :])

    # ------------------------------------------------------------------ connections

    def _link(self, bookie: str) -> Link:
        if bookie not in self._links:
            self._links[bookie] = self._connection(bookie)
        return self._links[bookie]

    def _connection(self, bookie: str) -> Link:
        return Link(self._address_of(bookie), "bookie", self._timeout, self._tls, request_tls)

    def release(self, bookies: Iterable[str]) -> None:
        """Close the connections to these bookies. Their unanswered requests are lost."""
        for bookie in bookies:
            link = self._links.pop(bookie, None)
            if link is not None:
                link.close()

    def _mark_failed(self, bookie: str, error: RemoteFailed) -> None:
        self._failed[bookie] = error
        self.release([bookie])

    def _none_answers(self, what: str, troubles: list[RemoteFailed]) -> RemoteFailed:
        text = "; ".join(f"{error.path}: {error.problem}" for error in troubles)
        is_broken = any(isinstance(error, PulsarConnectionBroken) for error in troubles)
        kind = PulsarConnectionBroken if is_broken else RemoteFailed
        return kind(
            f"{what} cannot be read: {text}", path=troubles[0].path, remedy=troubles[0].remedy
        )


class _LedgerReadAhead:
    """Requests entries of a ledger ahead, each from one of its bookies, and returns them in order.

    If a bookie does not return an entry, the other bookies are asked when ``take`` reaches that
    entry. A bookie that failed or returned a damaged entry gets requests ahead only if there is no
    other.
    """

    def __init__(self, bookies: Bookies, ledger: LiveLedger, first: int, last: int) -> None:
        self._bookies = bookies
        self._ledger = ledger
        self._digest = _digest_of(ledger)
        self._doing = f"reading ledger {ledger.id}"
        self._last = last
        self._next = first  # next entry to request
        self._ahead = _FIRST_AHEAD
        self._requested: dict[int, tuple[str, Link]] = {}
        # end (exclusive) of each requested batch of entries, by the batch's first entry
        self._batches: dict[int, int] = {}
        # payloads that arrived out of order; None if the bookie does not have the entry
        self._found: dict[int, bytes | None] = {}
        self._largest = 0

    def take(self, entry: int) -> bytes:
        """The next entry.

        Errors as ``Bookies.read``. The caller may continue after ``CorruptLog``.
        """
        if self._next <= self._last and entry + self._ahead // 2 >= self._next:
            self._request(min(entry + self._ahead, self._last + 1))
        payload = self._received(entry)
        if payload is None:
            payload = retry_disconnects(
                lambda: self._bookies._query_each(self._ledger, entry, self._digest),
                self._bookies._timeout_s,
                f"no bookie returned an entry of ledger {self._ledger.id} from entry {entry} on",
                self._bookies._check,
            ).payload
        return payload

    def end(self) -> None:
        """Close connections with unread answers, which later requests would receive."""
        self._bookies.release({bookie for bookie, _ in self._requested.values()})

    def _request(self, end: int) -> None:
        wanted: dict[str, list[tuple[int, int]]] = {}
        for begin, behind, turn in self._ledger.by_ensemble(self._next, end):
            many = max(1, self._ahead // _BATCHES_AHEAD) if self._supports_batches(turn) else 1
            for first in range(begin, behind, many):
                bookies = turn[first // many % len(turn)]
                chosen = next(
                    (one for one in bookies if one not in self._bookies._failed), bookies[0]
                )
                wanted.setdefault(chosen, []).append((first, min(first + many, behind)))
        self._next = end
        for bookie, stretches in wanted.items():
            self._begin(bookie, stretches)

    def _begin(self, bookie: str, stretches: Sequence[tuple[int, int]]) -> None:
        try:
            self._send(bookie, self._bookies._link(bookie), stretches)
        except RemoteFailed as error:
            self._bookies._mark_failed(bookie, error)

    def _supports_batches(self, turn: list[list[str]]) -> bool:
        """Whether entries can be read in batches.

        Each bookie must have all entries, and none may have rejected a batch before.
        """
        refused = self._bookies._without_batches
        return len(turn[0]) == len(turn) and refused.isdisjoint(turn[0])

    def _send(self, bookie: str, link: Link, stretches: Sequence[tuple[int, int]]) -> None:
        """Request ranges of entries. A range of one entry is a plain read."""
        ledger = self._ledger.id
        frames = [
            _READ_REQUEST.pack(_VERSION, _READ, 0, ledger, first)
            if end == first + 1
            else _BATCH_REQUEST.pack(
                _VERSION, _BATCH_READ, 0, ledger, first, first, end - first, _BATCH_BYTES
            )
            for first, end in stretches
        ]
        link.send(frames, self._doing)
        for first, end in stretches:
            self._requested.update(dict.fromkeys(range(first, end), (bookie, link)))
            if end > first + 1:
                self._batches[first] = end

    def _received(self, entry: int) -> bytes | None:
        """The entry's payload from the bookie to which its request was sent ahead.

        None if that bookie does not return it.
        """
        while entry not in self._found:
            bookie, link = self._requested.get(entry, ("", None))
            # The entry was not requested ahead, or the connection to its bookie was closed since.
            if link is None or self._bookies._links.get(bookie) is not link:
                self._requested.pop(entry, None)
                return None
            try:
                frame = link.receive(self._doing)
                assert frame is not None
                self._take_in(frame, bookie, link)
            except RemoteFailed as error:
                if self._may_be_older(bookie, error):
                    self._request_singly(bookie)
                else:
                    self._bookies._mark_failed(bookie, error)
                    self._ahead = max(1, self._ahead // 2)
        return self._found.pop(entry)

    def _may_be_older(self, bookie: str, error: RemoteFailed) -> bool:
        """Whether the bookie closed the connection after its first batch request."""
        known = self._bookies._with_batches | self._bookies._without_batches
        return (
            isinstance(error.__cause__, ConnectionError)
            and bookie not in known
            and any(self._requested.get(first, ("",))[0] == bookie for first in self._batches)
        )

    def _request_singly(self, bookie: str) -> None:
        """Request the unanswered entries again, one by one."""
        self._bookies._without_batches.add(bookie)
        self._bookies.release([bookie])
        again = [entry for entry, (asked, _) in self._requested.items() if asked == bookie]
        self._begin(bookie, [(entry, entry + 1) for entry in again])

    def _take_in(self, frame: bytes, bookie: str, link: Link) -> None:
        """Handle a bookie's answer.

        Raises:
            RemoteFailed: the answer does not match a request, or is a refusal.
        """
        is_batch = frame[1:2] == bytes([_BATCH_READ])
        first, code, rest = self._bookies._answer_in(
            frame, link, _BATCH_READ if is_batch else _READ, self._ledger.id, self._doing
        )
        end = self._batches.pop(first, first) if is_batch else first + 1
        packets = [rest] if code == 0 else []
        if is_batch and code == 0:
            packets = self._packets(rest, link)
            self._bookies._with_batches.add(bookie)
        behind = first + max(1, len(packets))
        if behind > end or self._requested.get(first, ("", None))[1] is not link:
            raise _malformed_error(link, self._doing, f"the answer is for entry {first}")
        if not packets:
            self._found[first] = None
            del self._requested[first]
        if code == _UNREADABLE:
            self._bookies._failed[bookie] = _rejected_error(link, self._doing, code)
        for entry, packet in enumerate(packets, first):
            del self._requested[entry]
            self._found[entry] = self._payload(packet, entry, bookie, link)
        if behind < end:  # request the missing entries: the answer has only a part of the batch
            self._send(bookie, link, [(behind, end)])
        if packets and (largest := max(map(len, packets))) > self._largest:
            self._largest = largest
            self._ahead = max(1, min(_MOST_AHEAD, _AHEAD_BYTES // largest))

    def _packets(self, rest: bytes, link: Link) -> list[bytes]:
        """The packets of a batch."""
        found = []
        at = _REQUEST_BYTES
        while at + _SIZE.size <= len(rest):
            begin = at + _SIZE.size
            at = begin + _SIZE.unpack_from(rest, at)[0]
            found.append(rest[begin:at])
        if at != len(rest) or not found:
            raise _malformed_error(
                link, self._doing, f"the answer states {at} bytes of entries, but has {len(rest)}"
            )
        return found

    def _payload(self, packet: bytes, entry: int, bookie: str, link: Link) -> bytes | None:
        """The payload in the entry's packet. None if the packet is damaged."""
        # Check CRC-32C first, because brokers write ledgers with this digest.
        if self._digest is Digest.CRC32C and len(packet) >= _USUAL.size:
            ledger, number, _, _, digest = _USUAL.unpack_from(packet)
            payload = packet[_USUAL.size :]
            head = google_crc32c.value(packet[: RECORD_HEAD.size])
            is_asked = ledger == self._ledger.id and number == entry
            if is_asked and google_crc32c.extend(head, payload) == digest:
                return payload
        try:
            return _opened(packet, self._ledger.id, entry, self._digest, bookie).payload
        except CorruptLog as error:  # the entry may be intact on another bookie
            self._bookies._failed[bookie] = RemoteFailed(
                error.problem, path=link.address, remedy=error.remedy
            )
            return None


class LedgerWriter:
    """Adds entries to a new ledger that this process created.

    The ledger's metadata are in state open; the caller closes them. Many entries are in flight at
    once. An entry is written when all bookies of its write quorum have it on disk. An error of one
    bookie ends writing: ``failed`` names the bookie, and the ledger must be abandoned.
    """

    def __init__(self, bookies: Bookies, ledger: LiveLedger, password: bytes = b"") -> None:
        self.failed: str | None = None
        self.entries = 0
        self.bytes = 0
        self._bookies = bookies
        self._ledger = ledger
        self._digest = _digest_of(ledger)
        self._password = password
        self._master_key = hashlib.sha1(b"ledger" + password).digest()
        self._write_sets = [ledger.bookies_of(n) for n in range(len(ledger.ensemble_of(0)))]
        self._confirmed = -1
        self._frames: dict[str, list[bytes]] = {}
        self._waited: dict[str, set[int]] = {}
        self._unsent = 0
        self._outstanding = 0

    def add(self, payload: bytes) -> int:
        """Append an entry. Returns its number.

        Raises:
            RemoteFailed: a bookie does not accept this or an earlier entry.
        """
        entry = self.entries
        self.entries += 1
        self.bytes += len(payload)
        head = RECORD_HEAD.pack(self._ledger.id, entry, self._confirmed, self.bytes)
        digest = digest_of(self._digest, head, payload, self._password)
        packet = b"".join(
            (_ADD_REQUEST.pack(_VERSION, _ADD, 0), self._master_key, head, digest, payload)
        )
        for bookie in self._write_sets[entry % len(self._write_sets)]:
            self._frames.setdefault(bookie, []).append(packet)
            self._waited.setdefault(bookie, set()).add(entry)
        self._unsent += len(packet)
        self._outstanding += len(packet)
        if self._unsent >= _SEND_BYTES:
            self._send()
        if entry - self._confirmed >= _MOST_OUTSTANDING or self._outstanding >= _OUTSTANDING_BYTES:
            self.flush()
        return entry

    def flush(self) -> None:
        """Wait until all added entries are on the bookies' disks.

        Raises:
            RemoteFailed: a bookie does not accept an entry.
        """
        self._send()
        doing = f"adding entries to ledger {self._ledger.id}"
        for bookie, waited in self._waited.items():
            try:
                link = self._bookies._link(bookie)
                while waited:
                    entry = self._bookies._answer(link, _ADD, self._ledger.id, doing).entry
                    if entry not in waited:
                        raise _malformed_error(link, doing, f"the answer is for entry {entry}")
                    waited.discard(entry)
            except RemoteFailed as error:
                self._fail(bookie, error)
        self._confirmed = self.entries - 1
        self._outstanding = 0

    def abandon(self) -> None:
        """Close the connections. Unconfirmed entries are lost."""
        self._bookies.release([bookie for bookie, waited in self._waited.items() if waited])
        self._frames.clear()
        self._waited.clear()

    def _send(self) -> None:
        for bookie, frames in self._frames.items():
            try:
                self._bookies._link(bookie).send(
                    frames, f"adding entries to ledger {self._ledger.id}"
                )
            except RemoteFailed as error:
                self._fail(bookie, error)
        self._frames.clear()
        self._unsent = 0

    def _fail(self, bookie: str, error: RemoteFailed) -> None:
        self.failed = bookie
        self._bookies._mark_failed(bookie, error)
        raise error


def _digest_of(ledger: LiveLedger) -> Digest:
    try:
        return Digest(ledger.metadata.digest or 0)
    except ValueError:
        raise UnsupportedFormat(
            f"the digest type {ledger.metadata.digest} of ledger {ledger.id} is not supported",
            remedy="the supported digest types are CRC32, CRC32C, HMAC and none (DUMMY)",
        ) from None


def _opened(
    packet: bytes, ledger: int, entry: int | None, digest: Digest, bookie: str
) -> LastEntry:
    """Decode the packet of an entry. ``entry`` None accepts any entry.

    Raises:
        CorruptLog: the packet has another entry, or its digest is wrong.
    """
    size = RECORD_HEAD.size + DIGEST_BYTES[digest]
    where = f"ledger {ledger}" if entry is None else f"entry {entry} of ledger {ledger}"
    remedy = "check the disks of this bookie"
    if len(packet) < size:
        raise CorruptLog(
            f"{where}: bookie {bookie} returned only {len(packet)} bytes", remedy=remedy
        )
    found, number, confirmed, ledger_bytes = RECORD_HEAD.unpack_from(packet)
    if found != ledger or (entry is not None and number != entry) or number < 0:
        words = f"{where}: bookie {bookie} returned entry {number} of ledger {found}"
        raise CorruptLog(words, remedy=remedy)
    head, stored = packet[: RECORD_HEAD.size], packet[RECORD_HEAD.size : size]
    payload = packet[size:]
    if stored != digest_of(digest, head, payload):
        words = f"{where}: the entry from bookie {bookie} has a wrong digest"
        raise CorruptLog(words, remedy=remedy)
    return LastEntry(number, confirmed, payload, ledger_bytes)


def _rejected_error(link: Link, doing: str, code: int) -> RemoteFailed:
    said = _CODES.get(code, "the bookie refuses the request")
    remedy = (
        "set bookkeeperTLSClientAuthentication=true with its certificate files; SASL is not "
        "supported"
        if code == _NOT_LET_IN
        else "see the bookie's log"
    )
    return RemoteFailed(f"{doing}: {said} (code {code})", path=link.address, remedy=remedy)


def _malformed_error(link: Link, doing: str, what: str) -> RemoteFailed:
    return RemoteFailed(
        f"{doing}: {what}", path=link.address, remedy="check that this address is a bookie's"
    )
