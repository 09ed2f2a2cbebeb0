"""Tests with bookies that send false data, stop early or refuse.

The reader uses another bookie, and raises an error if no bookie has the entry. For real bookies see
``tests/system/test_pulsar_remote.py`` and ``test_pulsar_bookies.py``.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.errors import CorruptLog, LogError, RemoteFailed, UnsupportedFormat
from lastwrite.pulsar.format.entry_log import digest_of
from lastwrite.pulsar.format.ledger_metadata import Digest, Ensemble, LedgerMetadata, LedgerState
from lastwrite.pulsar.network import bookies as bookies_module
from lastwrite.pulsar.network.bookies import Bookies, LedgerWriter, LiveLedger

LEDGER = 7
used = Digest.CRC32
gives_batches = True
# The response to operation, ledger and entry: one packet or several. Empty bytes close the
# connection.
Answer = Callable[[int, int, int], bytes | list[bytes]]


@pytest.fixture(autouse=True, params=[Digest.CRC32, Digest.CRC32C], ids=str)
def _digest(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the digest that brokers use and with another one."""
    monkeypatch.setattr(sys.modules[__name__], "used", request.param)


@pytest.fixture(autouse=True, params=[True, False], ids=["batches", "older"])
def _batches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With bookies that support batch reads, and with older ones that close the connection."""
    monkeypatch.setattr(sys.modules[__name__], "gives_batches", request.param)


def packet(entry: int, payload: bytes, confirmed: int = -1, ledger: int = LEDGER) -> bytes:
    head = struct.pack(">qqqq", ledger, entry, confirmed, len(payload))
    return head + digest_of(used, head, payload) + payload


def answered(operation: int, code: int, ledger: int, entry: int, rest: bytes = b"") -> bytes:
    return struct.pack(">BBHiqq", 2, operation, 0, code, ledger, entry) + rest


def honest(operation: int, ledger: int, entry: int) -> bytes:
    if operation == 1:
        return answered(1, 0, ledger, entry)
    if ledger > LEDGER + 1:
        return answered(2, 1, ledger, entry)
    if entry == -1:
        return answered(2, 0, ledger, -1, packet(9, b"last", 5))
    return answered(2, 0, ledger, entry, packet(entry, b"%d" % entry))


def batch(
    answer: Answer, ledger: int, first: int, number: int, most: int, most_bytes: int
) -> bytes | list[bytes]:
    """The response to a batch read, built from the answers for single entries."""
    if not gives_batches:
        return b""
    packets = b""
    for entry in range(first, first + most):
        said = answer(2, ledger, entry)
        if isinstance(said, list) or said[:24] != answered(2, 0, ledger, entry):
            if packets:
                break
            if isinstance(said, list):
                return said
            if said[1:2] != b"\2":
                return said
            packet = struct.pack(">qi", number, len(said) - 24) + said[24:] if said[24:] else b""
            return said[:1] + b"\7" + said[2:24] + packet
        if packets and len(packets) + len(said) > most_bytes:
            break
        packets += struct.pack(">i", len(said) - 24) + said[24:]
    return answered(7, 0, ledger, first, struct.pack(">q", number) + packets)


@contextmanager
def bookie(answer: Answer, to_batches: Callable[..., bytes | list[bytes]] = batch) -> Iterator[str]:
    """The address of a bookie that answers every request by these functions."""
    server = socket.create_server(("127.0.0.1", 0))

    def talk(connection: socket.socket) -> None:
        data = b""
        with connection:
            while True:
                while len(data) >= 4 and len(data) >= 4 + (
                    size := struct.unpack_from(">i", data)[0]
                ):
                    frame, data = data[4 : 4 + size], data[4 + size :]
                    operation = frame[1]
                    ledger, entry = struct.unpack_from(">qq", frame, 24 if operation == 1 else 4)
                    if operation == 7:
                        said = to_batches(
                            answer, ledger, entry, *struct.unpack_from(">qiq", frame, 20)
                        )
                    else:
                        said = answer(operation, ledger, entry)
                    if said == b"":
                        return
                    for each in said if isinstance(said, list) else [said]:
                        connection.sendall(struct.pack(">i", len(each)) + each)
                part = connection.recv(1 << 16)
                if not part:
                    return
                data += part

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=_quietly, args=(talk, connection), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def _quietly(talk: Callable[[socket.socket], None], connection: socket.socket) -> None:
    try:
        talk(connection)
    except OSError:
        pass


def ledger(*bookies: str, quorum: int = 0, digest: int | None = None) -> LiveLedger:
    metadata = LedgerMetadata(
        quorum=quorum or len(bookies),
        ensemble=len(bookies),
        length=0,
        state=LedgerState.OPEN,
        digest=used if digest is None else digest,
        ensembles=(Ensemble(bookies=bookies, first_entry=0),),
    )
    return LiveLedger(LEDGER, metadata)


@given(
    ensembles=st.lists(
        st.tuples(st.integers(1, 30), st.lists(st.sampled_from("abcdef"), min_size=2, max_size=5)),
        max_size=4,
    ),
    first=st.integers(0, 60),
    count=st.integers(0, 60),
)
def test_entries_are_assigned_to_the_bookies_of_their_ensemble(
    ensembles: list[tuple[int, list[str]]], first: int, count: int
) -> None:
    known = ledger("a", "b")
    begins = accumulate(step for step, _ in ensembles)
    later = (
        Ensemble(bookies=tuple(names), first_entry=begin)
        for begin, (_, names) in zip(begins, ensembles, strict=True)
    )
    changed = replace(known.metadata, ensembles=(*known.metadata.ensembles, *later))
    tried = LiveLedger(LEDGER, changed)
    expected = [(entry, tried.bookies_of(entry)) for entry in range(first, first + count)]
    found = [
        (entry, turn[entry % len(turn)])
        for begin, behind, turn in tried.by_ensemble(first, first + count)
        for entry in range(begin, behind)
    ]
    assert found == expected


def read(*addresses: str, last: int = 40) -> list[bytes]:
    with Bookies(lambda address: address, timeout=1.0) as bookies:
        return [payload for _, payload in bookies.read(ledger(*addresses), 0, last)]


EXPECTED = [b"%d" % n for n in range(41)]

LIES: dict[str, Answer] = {
    "hangs up": lambda operation, ledger, entry: b"",
    "says nothing": lambda operation, ledger, entry: b"\0",
    "another ledger": lambda operation, ledger, entry: honest(operation, ledger + 1, entry),
    "another operation": lambda operation, ledger, entry: answered(1, 0, ledger, entry),
    "another protocol version": lambda operation, ledger, entry: (
        b"\3" + honest(operation, ledger, entry)[1:]
    ),
    "another entry": lambda operation, ledger, entry: answered(
        2, 0, ledger, entry + 1, packet(entry + 1, b"%d" % (entry + 1))
    ),
    "another entry inside": lambda operation, ledger, entry: answered(
        2, 0, ledger, entry, packet(entry + 1, b"x")
    ),
    "another ledger inside": lambda operation, ledger, entry: answered(
        2, 0, ledger, entry, packet(entry, b"x", ledger=8)
    ),
    "a changed byte": lambda operation, ledger, entry: honest(operation, ledger, entry)[:-1] + b"!",
    "no digest": lambda operation, ledger, entry: answered(2, 0, ledger, entry, bytes(39)),
    "no packet": lambda operation, ledger, entry: answered(2, 0, ledger, entry),
    "not there": lambda operation, ledger, entry: answered(2, 2, ledger, entry),
    "no such ledger": lambda operation, ledger, entry: answered(2, 1, ledger, entry),
    "a broken disk": lambda operation, ledger, entry: answered(2, 101, ledger, entry),
    "a failure": lambda operation, ledger, entry: answered(2, 100, ledger, entry),
    "not for us": lambda operation, ledger, entry: answered(2, 102, ledger, entry),
    "an unknown code": lambda operation, ledger, entry: answered(2, -77, ledger, entry),
}


@pytest.mark.parametrize("contradiction", LIES)
def test_failing_bookie_is_skipped_and_a_missing_entry_is_an_error(contradiction: str) -> None:
    with bookie(honest) as good, bookie(LIES[contradiction]) as bad:
        assert read(good) == EXPECTED
        for order in ((good, bad), (bad, good)):
            assert read(*order) == EXPECTED
        with pytest.raises(
            CorruptLog
            if contradiction in ("not there", "no such ledger", "a broken disk")
            else LogError
        ) as caught:
            read(bad)
    assert caught.value.remedy
    assert f"ledger {LEDGER}" in caught.value.problem


def test_bookie_that_fails_midway_is_skipped_from_there() -> None:
    asked: list[int] = []

    def until_ten(operation: int, number: int, entry: int) -> bytes:
        asked.append(entry)
        return honest(operation, number, entry) if entry < 10 else b""

    with bookie(honest) as good, bookie(until_ten) as bad:
        assert read(bad, good) == EXPECTED
    assert len(asked) < 41


def test_responses_may_arrive_out_of_order() -> None:
    held: list[bytes] = []

    def backwards(operation: int, number: int, entry: int) -> list[bytes]:
        held.append(honest(operation, number, entry))
        said = held[::-1] if len(held) == 16 else []
        held[:] = held if not said else []
        return said

    with (
        bookie(backwards) as address,
        Bookies(lambda address: address, timeout=1.0) as bookies,
    ):
        # batch reads are used only for ledgers that are not striped
        striped = ledger(address, address, quorum=1)
        assert [payload for _, payload in bookies.read(striped, 0, 15)] == EXPECTED[:16]


def test_batch_responses_may_arrive_out_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "gives_batches", True)
    held: list[bytes] = []

    def backwards(answer: Answer, ledger: int, *asked: int) -> list[bytes]:
        said = batch(answer, ledger, *asked)
        assert isinstance(said, bytes)
        held.append(said)
        return held[::-1] if len(held) == 4 else []

    with bookie(honest, backwards) as address:
        assert read(address, last=15) == EXPECTED[:16]
    assert len(held) == 4


def test_batch_may_end_before_the_requested_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bookies_module, "_BATCH_BYTES", 200)

    def large(operation: int, ledger: int, entry: int) -> bytes:
        return answered(2, 0, ledger, entry, packet(entry, b"%d" % entry * 30))

    with bookie(large) as one, bookie(large) as two:
        assert read(one, two, last=400) == [b"%d" % entry * 30 for entry in range(401)]


@pytest.mark.parametrize(
    "lie",
    [
        lambda packets: b"",
        lambda packets: packets[:-1],
        lambda packets: packets + b"\0\0",
        lambda packets: packets + struct.pack(">I", 1 << 31),
        lambda packets: packets * 2,
        lambda packets: packets + 100 * (struct.pack(">I", 41) + packet(99, b"x" * 5)),
    ],
)
def test_malformed_batch_is_refused(
    lie: Callable[[bytes], bytes],
) -> None:
    def lying(answer: Answer, ledger: int, first: int, number: int, most: int, size: int) -> bytes:
        packets = b"".join(
            struct.pack(">I", len(each)) + each
            for each in (packet(entry, b"%d" % entry) for entry in range(first, first + most))
        )
        return answered(7, 0, ledger, first, struct.pack(">q", number) + lie(packets))

    with bookie(honest, lying) as liar:  # without a batch read, the liar is asked for each entry
        assert read(liar, last=3) == EXPECTED[:4]


def test_end_of_an_open_ledger_is_the_highest_of_its_bookies() -> None:
    def behind(operation: int, number: int, entry: int) -> bytes:
        return answered(2, 0, number, -1, packet(7, b"older", 6))

    with bookie(honest) as ahead, bookie(behind) as late, bookie(LIES["not there"]) as empty:
        with Bookies(lambda address: address, timeout=1.0) as bookies:
            end = bookies.last_entry(ledger(late, ahead, empty, "127.0.0.1:1"))
            assert (end.entry, end.confirmed, end.payload) == (9, 6, b"last")
            nothing = bookies.last_entry(ledger(empty))
            assert (nothing.entry, nothing.confirmed, nothing.payload) == (-1, -1, b"")
            with pytest.raises(RemoteFailed, match="the end of ledger 7 cannot be read"):
                bookies.last_entry(ledger("127.0.0.1:1"))


def test_unreadable_end_is_damage_only_if_every_bookie_answers() -> None:
    with bookie(LIES["a broken disk"]) as broken, bookie(honest) as good:
        with Bookies(lambda address: address, timeout=1.0) as bookies:
            assert bookies.last_entry(ledger(broken, good)).entry == 9
            with pytest.raises(
                CorruptLog, match=r"the end of ledger 7.*cannot read the entry \(code 101\)"
            ):
                bookies.last_entry(ledger(broken))
            with pytest.raises(RemoteFailed, match="the end of ledger 7 cannot be read"):
                bookies.last_entry(ledger(broken, "127.0.0.1:1"))


@pytest.mark.parametrize("code", [101, 102, 104, 105, 106, 999])
def test_bookie_that_refuses_an_entry_is_named(code: int) -> None:
    def refusing(operation: int, number: int, entry: int) -> bytes:
        return answered(1, code if entry == 3 else 0, number, entry)

    with (
        bookie(honest) as good,
        bookie(refusing) as bad,
        Bookies(lambda address: address, timeout=1.0) as bookies,
    ):
        writer = LedgerWriter(bookies, ledger(good, bad))
        for _ in range(6):
            writer.add(b"x" * 100)
        with pytest.raises(RemoteFailed, match=f"code {code}"):
            writer.flush()
        assert writer.failed == bad
        writer.abandon()
        # the new writer ignores responses to the abandoned one
        again = LedgerWriter(bookies, ledger(good))
        for _ in range(6):
            again.add(b"x")
        again.flush()
        assert (again.entries, again.bytes) == (6, 6)


def test_impossible_ledger_metadata_is_refused() -> None:
    with bookie(honest) as good, Bookies(lambda address: address, timeout=1.0) as bookies:
        for strange in (ledger(good, quorum=2), ledger()):
            with pytest.raises(CorruptLog, match="write quorum"):
                list(bookies.read(strange, 0, 1))
        with pytest.raises(UnsupportedFormat, match="digest type 9"):
            list(bookies.read(ledger(good, digest=9), 0, 1))


@pytest.mark.parametrize(
    "contradiction",
    ["a changed byte", "another entry inside", "not there", "a broken disk", "a failure"],
)
@pytest.mark.parametrize("lost", [{0}, {3, 4, 17}, {40}, set(range(41))])
def test_entry_that_no_bookie_has_intact_is_skipped(contradiction: str, lost: set[int]) -> None:
    def damaged(operation: int, ledger: int, entry: int) -> bytes:
        return (LIES[contradiction] if entry in lost and ledger == LEDGER else honest)(
            operation, ledger, entry
        )

    with (
        bookie(damaged) as one,
        bookie(damaged) as two,
        Bookies(lambda address: address, timeout=1.0) as bookies,
    ):
        with pytest.raises(CorruptLog):
            list(bookies.read(ledger(one, two), 0, 40))
        found = dict(bookies.read_intact(ledger(one, two), 0, 40))
    assert found == {entry: data for entry, data in enumerate(EXPECTED) if entry not in lost}


@pytest.mark.parametrize(
    "contradiction", ["hangs up", "an unknown code", "a failure", "not for us"]
)
@pytest.mark.parametrize("damage", ["a changed byte", "not there", "a broken disk"])
def test_entry_on_an_unavailable_bookie_is_not_a_gap(contradiction: str, damage: str) -> None:
    def damaged(operation: int, ledger: int, entry: int) -> bytes:
        return (LIES[damage] if entry == 7 else honest)(operation, ledger, entry)

    with (
        bookie(damaged) as one,
        bookie(LIES[contradiction]) as two,
        Bookies(lambda address: address, timeout=1.0) as bookies,
    ):
        for quorum in (one, two), (two, one), (one, "127.0.0.1:1"):
            found: list[int] = []
            with pytest.raises(RemoteFailed, match="entry 7 of ledger 7 cannot be read"):
                found.extend(entry for entry, _ in bookies.read_intact(ledger(*quorum), 0, 40))
            assert found == list(range(7))


def test_damaged_entry_keeps_the_connection_open() -> None:
    talks: set[int] = set()

    def damaged(operation: int, ledger: int, entry: int) -> bytes:
        talks.add(threading.get_ident())
        return (LIES["a changed byte"] if entry == 3 else honest)(operation, ledger, entry)

    with bookie(damaged) as one, Bookies(lambda address: address, timeout=1.0) as bookies:
        assert len(list(bookies.read_intact(ledger(one), 0, 40))) == 40
    # One for reading ahead, and one to read entry 3 again.
    assert len(talks) == 2


def test_metadata_without_bookies_is_refused() -> None:
    with Bookies(lambda address: address, timeout=1.0) as bookies:
        with pytest.raises(CorruptLog, match="write quorum"):
            list(bookies.read_intact(ledger(), 0, 3))
