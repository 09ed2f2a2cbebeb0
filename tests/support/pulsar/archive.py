"""Topic folders for tests: raw ledgers as offloaded objects (layout V1), in plain Python.

Shares no code with the package, so that it checks the layout independently. Source:
docs/formats/pulsar.md, "Offloaded ledger".
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path

from tests.support.pulsar.entries import fields
from tests.support.pulsar.wire import message

BLOCK_MAGIC = 0xFBDBABCB
INDEX_MAGIC = 0xDE47DE47
HEADER_BYTES = 128
PADDING = bytes.fromhex("fedcdead")
METADATA_LINE = b"BookieMetadataFormatVersion\t3\n"


def topic_folder(archive: Path, topic: str) -> Path:
    """The archive folder of ``persistent://tenant/namespace/name``.

    The name must need no escapes.
    """
    tenant, namespace, name = topic.removeprefix("persistent://").split("/")
    return archive / tenant / namespace / "persistent" / name


def write_ledger(
    folder: Path,
    ledger: int,
    entries: Sequence[bytes],
    metadata: bytes,
    block_bytes: int = 64 << 20,
) -> Path:
    """Write a ledger as the offloader does. Returns the path of the data object.

    ``metadata`` is from the metadata store, with its first line. Metadata of an open ledger is
    changed to that of a ledger closed after these entries. Writing a ledger again replaces its
    objects.
    """
    data, index = bytearray(), []
    at = 0
    while at < len(entries):
        begin, first = len(data), at
        data += bytes(HEADER_BYTES)
        while at < len(entries) and len(data) - begin + 12 + len(entries[at]) <= max(
            block_bytes, HEADER_BYTES + 12 + len(entries[first])
        ):
            data += struct.pack(">iq", len(entries[at]), at) + entries[at]
            at += 1
        if at < len(entries):
            gap = max(0, block_bytes - (len(data) - begin))
            data += (PADDING * (gap // 4 + 1))[:gap]
        struct.pack_into(">IQQQ", data, begin, BLOCK_MAGIC, HEADER_BYTES, len(data) - begin, first)
        index.append((first, len(index) + 1, begin))
    bare = _closed(_without_length(metadata.removeprefix(METADATA_LINE)), entries)
    rows = b"".join(struct.pack(">qiq", *row) for row in index)
    head = struct.pack(
        ">IIQQII",
        INDEX_MAGIC,
        32 + len(bare) + len(rows),
        len(data),
        HEADER_BYTES,
        len(index),
        len(bare),
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = _path(folder, ledger)
    path.with_name(path.name + "-index").write_bytes(head + bare + rows)
    path.write_bytes(data)
    return path


def remove_ledger(folder: Path, ledger: int) -> None:
    """Remove a ledger of ``write_ledger``, if it exists."""
    path = _path(folder, ledger)
    path.unlink(missing_ok=True)
    path.with_name(path.name + "-index").unlink(missing_ok=True)


def read_ledger(path: Path) -> list[bytes]:
    """The entries of a data object, whose ids must count from 0."""
    data = path.read_bytes()
    entries: list[bytes] = []
    at = 0
    while at < len(data):
        magic, header, length, first = struct.unpack_from(">IQQQ", data, at)
        assert (magic, header, first) == (BLOCK_MAGIC, HEADER_BYTES, len(entries)), data[
            at : at + 28
        ].hex()
        assert not any(data[at + 28 : at + header])
        end, at = at + length, at + header
        while at + 12 <= end:
            size, entry = struct.unpack_from(">iq", data, at)
            if size < 0:
                break
            assert entry == len(entries)
            entries.append(data[at + 12 : at + 12 + size])
            at += 12 + size
        padding = data[at:end]
        assert padding == (PADDING * (len(padding) // 4 + 1))[: len(padding)]
        at = end
    return entries


def _closed(metadata: bytes, entries: Sequence[bytes]) -> bytes:
    """A LedgerMetadataFormat with the length, lastEntryId and state of a closed ledger."""
    ends = [(3, sum(map(len, entries))), (4, len(entries) - 1), (5, 3)]
    return message(
        *sorted(
            [*(pair for pair in fields(metadata) if pair[0] not in (3, 4, 5)), *ends],
            key=itemgetter(0),
        )
    )


def _path(folder: Path, ledger: int) -> Path:
    return folder / f"{uuid.UUID(int=ledger)}-ledger-{ledger}"


def _without_length(sized: bytes) -> bytes:
    """A message without the varint length before it."""
    at = 0
    while sized[at] > 127:
        at += 1
    return sized[at + 1 :]
