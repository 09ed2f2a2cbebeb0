"""A bookie's entry log: the entries of all its ledgers in order of arrival.

This module also decodes the bookie's journal, to which entries are written first.

A log begins with 1024 bytes: ``BKLO``, a version, the position of the ledger map (0 if the log was
not closed for its size) and the number of ledgers. Records follow: ``i32 size``, then ``size``
bytes. These are the ids of ledger and entry, the last entry that was confirmed at that time, the
payload bytes of the ledger up to this entry, a digest and the payload. The digest covers the other
five fields. For example ``00000044 …0a …00 …ffff …20 705f6c99 0e01…`` is entry 0 of ledger 10 with
CRC-32C. Details:

- The ledger's metadata state the kind of digest; the record does not. Without metadata, CRC-32C is
  tried, then CRC-32. The wrong kind matches by chance in one of 4 billion records.
- Records with a negative ledger or entry id are written by the bookie itself: the map, or padding
  of the direct I/O writer.
- Between records there may be padding: a size of 0 or below. ``f0`` bytes fill up to the next
  multiple of 4096; zeros to the end are unwritten space. After any other gap a record is accepted
  only if its digest matches.
- A killed bookie leaves a torn record at the end. Replication and garbage collection can store an
  entry several times, with equal ids and equal payloads. Deleted ledgers remain until garbage
  collection.

A bookie creates the next log in advance, with 0 bytes. A journal (``BKLG``, records from byte 512)
has the same bytes after each size, the size -256 for padding, and zeros after the last record.

Source: BookKeeper 4.17.3 ``DefaultEntryLogger``, ``LogReaderScan``, ``DigestManager``, ``Journal``;
docs/formats/pulsar.md, "Entry log".
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Annotated, NamedTuple

import google_crc32c

from lastwrite.encoding.layout import I32, I64, U32, At, Buffer, layout
from lastwrite.errors import CorruptLog, TruncatedLog, UnsupportedFormat
from lastwrite.pulsar.format.ledger_metadata import Digest

MAGIC = int.from_bytes(b"BKLO", "big")
JOURNAL_MAGIC = int.from_bytes(b"BKLG", "big")
HEADER_BYTES = 1024
JOURNAL_HEADER_BYTES = 512
ALIGNMENT = 4096
PADDING_BYTE = 0xF0
JOURNAL_PADDING = -0x100  # value of the size field that marks padding in a journal

MAP_LEDGER = -1
MAP_ENTRY = -2

DIGEST_BYTES = {Digest.CRC32C: 4, Digest.CRC32: 8, Digest.HMAC: 20, Digest.DUMMY: 0}
_FIRST_JOURNAL_WITH_PADDING = 5
_LAST_JOURNAL_VERSION = 6
_MAX_VERSION = 1
_IDS_BYTES = 16


class LogHeader(NamedTuple):
    """The header of an entry log."""

    # fmt: off
    magic:   Annotated[int, At(0,  U32)]
    version: Annotated[int, At(4,  I32)]
    map_at:  Annotated[int, At(8,  I64)]  # position of the ledger map in the log; 0 without a map
    ledgers: Annotated[int, At(16, I32)]  # number of ledgers in the map
    # fmt: on


class EntryRecordHead(NamedTuple):
    """The fields between a record's size and its digest. The digest covers them and the payload."""

    # fmt: off
    ledger:         Annotated[int, At(0,  I64)]
    entry:          Annotated[int, At(8,  I64)]
    last_confirmed: Annotated[int, At(16, I64)]
    # payload bytes of the ledger's entries, up to and including this entry
    length:         Annotated[int, At(24, I64)]
    # fmt: on


HEADER = layout(LogHeader, byte_order=">", size=20)
RECORD_HEAD = layout(EntryRecordHead, byte_order=">", size=32)


class LogRecord(NamedTuple):
    """An entry of a log. Its payload has ``size`` bytes and begins at byte ``at`` of the log."""

    record_at: int  # position of the record's size field in the log
    ledger: int
    entry: int
    last_confirmed: int
    length: int
    # the kind of digest that matches; None if the ledger's kind is unknown and no CRC matches
    digest: Digest | None
    at: int
    size: int


def decode_header(data: Buffer) -> LogHeader:
    """Decode the header of an entry log.

    Raises:
        TruncatedLog: fewer than 1024 bytes. A log of 0 bytes was created in advance and has no
            entries.
        CorruptLog: another magic, or a map outside the log.
        UnsupportedFormat: a version above 1.
    """
    if len(data) < HEADER_BYTES:
        raise TruncatedLog(f"the entry log has only {len(data)} bytes, less than its header", 0)
    header = LogHeader._make(HEADER.unpack_from(data))
    if header.magic != MAGIC:
        raise CorruptLog(f"the file is not an entry log: its magic is {header.magic:08x}", 0)
    if not 0 <= header.version <= _MAX_VERSION:
        raise UnsupportedFormat(f"entry log version {header.version} is not supported", 4)
    if header.map_at and not HEADER_BYTES <= header.map_at <= len(data):
        raise CorruptLog(
            f"the header places the ledger map at byte {header.map_at}, outside the entry log's "
            f"{len(data)} bytes",
            8,
        )
    return header


def walk_entry_log(
    data: Buffer,
    digests: Mapping[int, Digest] | None = None,
    passwords: Mapping[int, bytes] | None = None,
) -> Iterator[LogRecord]:
    """The entries of a log in the order of writing. A log of 0 bytes has none.

    ``digests`` has the kind of digest of each ledger with known metadata. ``passwords`` has the
    password of each ledger with HMAC digests.

    Raises:
        TruncatedLog, CorruptLog, UnsupportedFormat: as ``decode_header``.
        TruncatedLog: a record exceeds the log's end, as in a log that was not closed.
        CorruptLog: an impossible record, or an entry whose known digest does not match.
    """
    if not len(data):
        return
    decode_header(data)
    at, end = HEADER_BYTES, len(data)
    behind_gap = False
    while end - at >= 4:
        size = _i32(data, at)
        if size < _IDS_BYTES:
            at, behind_gap = _behind_padding(data, at, end, behind_gap)
            continue
        if behind_gap and not _is_record(data, at, end, size, digests or {}, passwords or {}):
            at += 1
            continue
        behind_gap = False
        if size > end - at - 4:
            raise TruncatedLog(f"record of {size} bytes, {end - at - 4} are left", at)
        record = _record(data, at, size, digests or {}, passwords or {})
        if record is not None:
            yield record
        at += 4 + size


def _behind_padding(data: Buffer, at: int, end: int, behind_gap: bool) -> tuple[int, bool]:
    """The position after padding where a record may begin, and whether its digest must match."""
    if int(data[at]) == PADDING_BYTE:
        return min(end, at + ALIGNMENT - at % ALIGNMENT), behind_gap
    if not any(bytes(data[at : min(end, at + ALIGNMENT)])) and end - at > ALIGNMENT:
        return at + ALIGNMENT - 3, True  # the last 3 zeros may belong to the next record's size
    return at + 1, True


def _is_record(
    data: Buffer,
    at: int,
    end: int,
    size: int,
    digests: Mapping[int, Digest],
    passwords: Mapping[int, bytes],
) -> bool:
    if size > end - at - 4:
        return False
    try:
        record = _record(data, at, size, digests, passwords)
    except CorruptLog:
        return False
    return record is not None and record.digest is not None


def _record(
    data: Buffer, at: int, size: int, digests: Mapping[int, Digest], passwords: Mapping[int, bytes]
) -> LogRecord | None:
    """The entry's record whose size field is at byte ``at``. None for a bookie's own record.

    The caller has checked the length.
    """
    if size < _IDS_BYTES:
        raise CorruptLog(
            f"the record length is {size} bytes, too small for a ledger id and an entry id", at
        )
    ledger, entry = struct.unpack_from(">qq", data, at + 4)
    if ledger < 0 or entry < 0:
        return None
    if size < RECORD_HEAD.size:
        raise CorruptLog(f"the record of entry {ledger}:{entry} has only {size} bytes", at)
    head = EntryRecordHead._make(RECORD_HEAD.unpack_from(data, at + 4))
    body = bytes(data[at + 4 : at + 4 + size])
    known = digests.get(ledger)
    tried = (known,) if known is not None else (Digest.CRC32C, Digest.CRC32)
    found = next((one for one in tried if _holds(one, body, passwords.get(ledger, b""))), None)
    if known is not None and found is None:
        raise CorruptLog(f"entry {ledger}:{entry} does not match its digest ({known.name})", at)
    skipped = RECORD_HEAD.size + (0 if found is None else DIGEST_BYTES[found])
    return LogRecord(at, *head, found, at + 4 + skipped, size - skipped)


def _holds(digest: Digest, body: bytes, password: bytes) -> bool:
    """Whether the digest in a record's body matches the record's head and payload.

    ``body`` has at least a complete head.
    """
    size = DIGEST_BYTES[digest]
    head, stored, payload = body[:32], body[32 : 32 + size], body[32 + size :]
    return len(stored) == size and stored == digest_of(digest, head, payload, password)


def digest_of(digest: Digest, head: bytes, payload: bytes, password: bytes = b"") -> bytes:
    """The digest of a record's 32-byte head and its payload."""
    if digest is Digest.CRC32C:
        return int(google_crc32c.extend(google_crc32c.value(head), payload)).to_bytes(4, "big")
    if digest is Digest.CRC32:
        return zlib.crc32(payload, zlib.crc32(head)).to_bytes(8, "big")
    if digest is Digest.HMAC:
        return hmac.digest(hashlib.sha1(b"mac" + password).digest(), head + payload, "sha1")
    return b""


def decode_map(data: Buffer) -> dict[int, int]:
    """The bytes of each ledger in a closed log, size fields included. Empty without a ledger map.

    Raises:
        TruncatedLog, CorruptLog, UnsupportedFormat: as ``decode_header``, or a broken map.
    """
    header = decode_header(data)
    found: dict[int, int] = {}
    at = header.map_at
    while at and at < len(data):
        left = len(data) - at - 4
        size = _i32(data, at) if left >= 0 else 0
        if size == 0:
            break
        if size < 20 or size > left:
            raise TruncatedLog(
                f"the length of the ledger map is {size} bytes, but only {left} bytes follow", at
            )
        ledger, entry, count = struct.unpack_from(">qqi", data, at + 4)
        if (ledger, entry) != (MAP_LEDGER, MAP_ENTRY) or size != 20 + 16 * count:
            raise CorruptLog(f"a ledger map of {count} ledgers cannot have {size} bytes", at)
        found |= dict(struct.iter_unpack(">qq", bytes(data[at + 24 : at + 4 + size])))
        at += 4 + size
    return found


def encode_header(map_at: int = 0, ledgers: int = 0) -> bytes:
    """The first 1024 bytes of a log."""
    return HEADER.pack(MAGIC, _MAX_VERSION, map_at, ledgers).ljust(HEADER_BYTES, b"\0")


def encode_map(sizes: Mapping[int, int]) -> bytes:
    """The map at the end of a closed log, of at most 10,000 ledgers."""
    body = struct.pack(">qqi", MAP_LEDGER, MAP_ENTRY, len(sizes))
    body += b"".join(struct.pack(">qq", ledger, size) for ledger, size in sizes.items())
    return len(body).to_bytes(4, "big") + body


def encode_record(
    ledger: int,
    entry: int,
    payload: bytes,
    *,
    last_confirmed: int | None = None,
    length: int | None = None,
    digest: Digest = Digest.CRC32C,
    password: bytes = b"",
) -> bytes:
    """Encode the record of an entry.

    If ``last_confirmed`` is None, the preceding entry is the last confirmed entry. If ``length`` is
    None, the ledger has only the bytes of this entry.
    """
    head = RECORD_HEAD.pack(
        ledger,
        entry,
        entry - 1 if last_confirmed is None else last_confirmed,
        len(payload) if length is None else length,
    )
    body = head + digest_of(digest, head, payload, password) + payload
    return len(body).to_bytes(4, "big") + body


def walk_journal(data: Buffer, digests: Mapping[int, Digest] | None = None) -> Iterator[LogRecord]:
    """The entries of a journal in order of arrival, without the bookie's own records.

    Raises:
        TruncatedLog: the header is incomplete, or a record exceeds the end: the bookie was killed.
        CorruptLog: another magic, or an impossible record.
        UnsupportedFormat: a version below 5 or above 6.
    """
    if len(data) < JOURNAL_HEADER_BYTES:
        raise TruncatedLog(f"the journal has only {len(data)} bytes, less than its header", 0)
    magic, version = struct.unpack_from(">Ii", data, 0)
    if magic != JOURNAL_MAGIC:
        raise CorruptLog(f"the file is not a journal: its magic is {magic:08x}", 0)
    if not _FIRST_JOURNAL_WITH_PADDING <= version <= _LAST_JOURNAL_VERSION:
        raise UnsupportedFormat(f"journal version {version} is not supported", 4)
    at, end = JOURNAL_HEADER_BYTES, len(data)
    while end - at >= 4:
        size = _i32(data, at)
        if size == 0:
            return
        is_padding = size == JOURNAL_PADDING
        if is_padding:
            if end - at < 8:
                raise TruncatedLog("the journal ends inside its padding", at)
            at += 4
            size = _i32(data, at)
        if size < 0 or size > end - at - 4:
            raise TruncatedLog(f"record of {size} bytes, {end - at - 4} are left", at)
        if not is_padding:
            record = _record(data, at, size, digests or {}, {})
            if record is not None:
                yield record
        at += 4 + size


def _i32(data: Buffer, at: int) -> int:
    return int.from_bytes(bytes(data[at : at + 4]), "big", signed=True)
