"""Store layouts other than the default layout: DLedger, consume queues in RocksDB, tiered storage.

DLedger writes the commit log as entries of a 48-byte header and a record, to ``dledger-NAME/data``
below the store. A record's address does not depend on the header, so readers skip the headers.
RocksDB has the units of all queues in one database. Tiered storage moves older messages to files
outside the store.

Source: RocketMQ 5.5.0 ``DLedgerCommitLog``, ``StorePathConfigHelper``, ``DefaultMetadataStore`` of
tiered storage; DLedger 0.3.2 ``DLedgerConfig``, ``DLedgerEntryCoder``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from lastwrite.errors import UnsupportedFormat
from lastwrite.model.log import Problem, ProblemKind
from lastwrite.rocketmq.format import names
from lastwrite.rocketmq.format.kernels import DLEDGER_HEADER_BYTES

_DLEDGER = "dledger-"
_DATA = "data"
_ROCKSDB_FILE = "CURRENT"  # present in every RocksDB database
_ROCKSDB_FOLDERS = (names.CONSUME_QUEUES, "consumequeue_rocksdb")
_TIERED_METADATA = "tieredStoreMetadata.json"
_LET_THE_BROKER = "start the broker on the store, which builds its queues itself"


def dledger_folders(root: str, config: Mapping[str, object] | None = None) -> list[str]:
    """The data folders of a store's DLedger commit log.

    They are below ``storePathDLedgerCommitLog`` if it is set, else below the store.
    """
    given = str((config or {}).get("storePathDLedgerCommitLog") or "").strip()
    bases = [given] if given else [os.path.join(root, name) for name in _entries(root)]
    if not given:
        bases = [base for base in bases if os.path.basename(base).startswith(_DLEDGER)]
    folders = [os.path.join(base, _DATA) for base in bases]
    return [folder for folder in folders if any(map(_is_log_file, _entries(folder)))]


def is_dledger_data(folder: str) -> bool:
    """Whether the files of a commit log folder begin with DLedger's header."""
    name = next(filter(_is_log_file, _entries(folder)), None)
    if name is None:
        return False
    try:
        with open(os.path.join(folder, name), "rb") as file:
            head = file.read(DLEDGER_HEADER_BYTES)
    except OSError:
        return False
    return bool(head) and not without_dledger_header(head)


def without_dledger_header(data: bytes) -> bytes:
    """The bytes ``data`` without a DLedger header at the start."""
    if len(data) < DLEDGER_HEADER_BYTES:
        return data
    magic, size, body = (int.from_bytes(data[at : at + 4], "big") for at in (0, 4, 44))
    is_header = magic == 1 and size == body + DLEDGER_HEADER_BYTES
    return data[DLEDGER_HEADER_BYTES:] if is_header else data


def rocksdb_folders(root: str) -> list[str]:
    """The folders in which RocksDB stores the units of the store's queues."""
    folders = [os.path.join(root, name) for name in _ROCKSDB_FOLDERS]
    return [folder for folder in folders if os.path.isfile(os.path.join(folder, _ROCKSDB_FILE))]


def unsupported(root: str) -> Iterator[Problem]:
    """A problem for each part of the store whose layout Lastwrite does not read."""
    for folder in rocksdb_folders(root):
        yield Problem(
            ProblemKind.UNSUPPORTED,
            "Lastwrite does not read consume queues in RocksDB; it read only the commit log",
            folder,
            remedy="the queues were not checked; read them through the broker",
        )
    path = os.path.join(root, names.CONFIG, _TIERED_METADATA)
    if _has_tiered_segments(path):
        yield Problem(
            ProblemKind.UNSUPPORTED,
            "Lastwrite does not read tiered storage; it read only the messages on this disk",
            path,
            remedy="read older messages through the broker",
        )


def reject_other_layouts(root: str, doing: str, config: Mapping[str, object] | None = None) -> None:
    """Raise if the store has files in a layout that Lastwrite does not write.

    ``doing`` is the name of the command, for the error message.

    Raises:
        UnsupportedFormat: the store has such files.
    """
    for folder in rocksdb_folders(root):
        raise UnsupportedFormat(
            f"{doing} does not write consume queues in RocksDB; nothing was changed",
            path=folder,
            remedy=_LET_THE_BROKER,
        )
    given = str((config or {}).get("storePathCommitLog") or "").split(",")
    named = [folder.strip() for folder in given if is_dledger_data(folder.strip())]
    for folder in named or dledger_folders(root, config):
        raise UnsupportedFormat(
            f"{doing} does not change a store with a DLedger commit log; nothing was changed",
            path=folder,
            remedy=_LET_THE_BROKER,
        )


def _has_tiered_segments(path: str) -> bool:
    """Whether the metadata of tiered storage may contain a file; true if it cannot be read."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return b'"path"' in data  # not valid JSON: member names may be unquoted numbers


def _is_log_file(name: str) -> bool:
    return names.parse_file_name(name) is not None


def _entries(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
