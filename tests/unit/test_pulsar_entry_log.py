"""Tests of entry logs and journals of bookies: records, digests, gaps and torn ends."""

from __future__ import annotations

import pytest

from lastwrite.errors import CorruptLog, TruncatedLog, UnsupportedFormat
from lastwrite.pulsar.format.entry_log import (
    ALIGNMENT,
    HEADER_BYTES,
    LogRecord,
    decode_header,
    decode_map,
    encode_header,
    encode_map,
    encode_record,
    walk_entry_log,
    walk_journal,
)
from lastwrite.pulsar.format.ledger_metadata import Digest
from tests.support.pulsar.bytes import EXAMPLES

FIRST = encode_record(10, 0, b"first")
SECOND = encode_record(11, 3, b"", digest=Digest.CRC32)
THIRD = encode_record(10, 1, b"x" * 300)
BOOKIE_S_OWN = (
    bytes.fromhex("00000018")
    + (10).to_bytes(8, "big")
    + (-4096).to_bytes(8, "big", signed=True)
    + bytes(8)
)


def found(data: bytes, digests: dict[int, Digest] | None = None) -> list[tuple[int, int, bytes]]:
    return [
        (one.ledger, one.entry, data[one.at : one.at + one.size])
        for one in walk_entry_log(data, digests)
    ]


def test_documented_records_round_trip() -> None:
    data = encode_header() + EXAMPLES["Q"] + EXAMPLES["R"]
    first, second = walk_entry_log(data)
    assert first == LogRecord(HEADER_BYTES, 10, 0, -1, 32, Digest.CRC32C, HEADER_BYTES + 40, 32)
    assert second == LogRecord(
        HEADER_BYTES + 72, 77, 0, -1, 70, Digest.CRC32, HEADER_BYTES + 72 + 44, 70
    )
    assert found(data) == [(10, 0, EXAMPLES["A"]), (77, 0, EXAMPLES["F2"])]
    assert encode_record(10, 0, EXAMPLES["A"]) == EXAMPLES["Q"]
    assert encode_record(77, 0, EXAMPLES["F2"], digest=Digest.CRC32) == EXAMPLES["R"]


def test_preallocated_log_has_no_records() -> None:
    assert found(b"") == [] and found(encode_header()) == []
    assert found(encode_header() + bytes(9000)) == []


ENTRIES = [(10, 0, b"first"), (11, 3, b""), (10, 1, b"x" * 300)]


@pytest.mark.parametrize(
    "gap",
    [
        b"",
        BOOKIE_S_OWN,
        encode_map({10: 5}),
        bytes(1),
        bytes(3),
        bytes(5000),
        bytes(3 * ALIGNMENT),
        b"\xff" * 7,
        b"\xff\0\0\1\0\0",
        b"\xff\xff\xff\xff\0\0\0\x44" + bytes(30),
    ],
)
def test_gaps_between_records_are_skipped(gap: bytes) -> None:
    assert found(encode_header() + FIRST + gap + SECOND + gap + THIRD + gap) == ENTRIES


def test_padding_of_the_direct_writer_is_skipped() -> None:
    out = encode_header()
    for record in (FIRST, SECOND, THIRD):
        out += record
        out += b"\xf0" * (-len(out) % ALIGNMENT)
    assert found(out + bytes(ALIGNMENT)) == ENTRIES


def test_ledger_map_of_a_closed_log_is_decoded() -> None:
    body = encode_header(HEADER_BYTES + len(FIRST), 3) + FIRST
    data = body + encode_map({10: len(FIRST)}) + encode_map({11: 7, 12: 8})
    assert decode_map(data) == {10: len(FIRST), 11: 7, 12: 8} and found(data) == ENTRIES[:1]
    assert decode_map(encode_header() + FIRST) == {}
    for cut in range(len(body) + 4, len(body) + 40):
        with pytest.raises(TruncatedLog):
            decode_map(data[:cut])
    with pytest.raises(CorruptLog, match="a ledger map of"):
        decode_map(body + SECOND)


def test_torn_end_is_reported() -> None:
    for cut in range(1, len(THIRD)):
        data = encode_header() + FIRST + THIRD[:cut]
        if cut < 4:
            assert found(data) == ENTRIES[:1]
            continue
        seen = []
        with pytest.raises(TruncatedLog) as raised:
            for record in walk_entry_log(data):
                seen.append((record.ledger, record.entry))
        assert seen == [(10, 0)] and raised.value.at == HEADER_BYTES + len(FIRST)


@pytest.mark.parametrize("digest", list(Digest))
def test_each_digest_is_verified(digest: Digest) -> None:
    data = encode_header() + encode_record(5, 0, b"payload", digest=digest)
    assert found(data, {5: digest}) == [(5, 0, b"payload")]
    for at in range(HEADER_BYTES + 20, len(data)):
        harmed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        if digest is Digest.DUMMY:
            assert len(found(harmed, {5: digest})) == 1
        else:
            with pytest.raises(CorruptLog, match="does not match its digest"):
                found(harmed, {5: digest})


def test_hmac_digest_needs_its_password() -> None:
    data = encode_header() + encode_record(5, 0, b"payload", digest=Digest.HMAC, password=b"secret")
    assert len(list(walk_entry_log(data, {5: Digest.HMAC}, {5: b"secret"}))) == 1
    with pytest.raises(CorruptLog):
        list(walk_entry_log(data, {5: Digest.HMAC}))


def test_entry_with_an_unknown_digest_is_returned_unverified() -> None:
    data = bytearray(encode_header() + FIRST)
    data[-1] ^= 1
    (record,) = walk_entry_log(bytes(data))
    assert record.digest is None and (record.ledger, record.entry, record.size) == (
        10,
        0,
        4 + len(b"first"),
    )


@pytest.mark.parametrize(
    ("head", "error"),
    [
        (b"BKLX", CorruptLog),
        (b"BKLO\0\0\0\2", UnsupportedFormat),
        (b"BKLO\xff\xff\xff\xff", UnsupportedFormat),
        (b"BKLO\0\0\0\1\0\0\0\0\0\0\0\1", CorruptLog),
        (b"BKLO\0\0\0\1\xff\0\0\0\0\0\0\1", CorruptLog),
        (b"BKLO\0\0\0\1\0\0\0\0\0\1\0\0", CorruptLog),
    ],
)
def test_file_that_is_not_an_entry_log_is_refused(head: bytes, error: type[CorruptLog]) -> None:
    with pytest.raises(error):
        decode_header(head.ljust(HEADER_BYTES, b"\0"))
    with pytest.raises(TruncatedLog):
        decode_header(head)


def test_entry_too_short_for_its_fields_is_refused() -> None:
    with pytest.raises(CorruptLog, match="the record of entry 0:0 has only 31"):
        found(encode_header() + (31).to_bytes(4, "big") + bytes(100))


# ---------------------------------------------------------------- journals

JOURNAL = b"BKLG" + (6).to_bytes(4, "big") + bytes(504)


def padded(record: bytes) -> bytes:
    room = -(len(record) + 8) % 512
    return record + bytes.fromhex("ffffff00") + room.to_bytes(4, "big") + bytes(room)


def test_journal_records_are_decoded() -> None:
    data = JOURNAL + padded(BOOKIE_S_OWN + FIRST) + padded(SECOND) + THIRD + bytes(4096)
    entries = [
        (one.ledger, one.entry, data[one.at : one.at + one.size]) for one in walk_journal(data)
    ]
    assert entries == ENTRIES
    assert list(walk_journal(JOURNAL)) == [] and list(walk_journal(JOURNAL + bytes(3))) == []


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (JOURNAL[:511], TruncatedLog),
        (b"BKLX" + JOURNAL[4:], CorruptLog),
        (b"BKLG\0\0\0\4" + JOURNAL[8:], UnsupportedFormat),
        (b"BKLG\0\0\0\7" + JOURNAL[8:], UnsupportedFormat),
        (JOURNAL + THIRD[:-1], TruncatedLog),
        (JOURNAL + bytes.fromhex("ffffff00"), TruncatedLog),
        (JOURNAL + bytes.fromhex("ffffff0000000001"), TruncatedLog),
        (JOURNAL + bytes.fromhex("ffffffff"), TruncatedLog),
        (JOURNAL + bytes.fromhex("00000001ff"), CorruptLog),
    ],
)
def test_file_that_is_not_a_journal_is_refused(data: bytes, error: type[CorruptLog]) -> None:
    with pytest.raises(error):
        list(walk_journal(data))
