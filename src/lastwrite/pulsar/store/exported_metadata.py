"""Exported metadata of a topic: the ledgers that it has, and how far it is compacted.

One of these files, or two together, contain the metadata:

- the metadata store's node ``/managed-ledgers/TENANT/NAMESPACE/persistent/TOPIC``: the ledgers,
- its child ``__compaction``: the horizon and the compacted ledger, or the ledger whose last entry
  has them,
- the output of ``pulsar-admin topics info-internal``: the ledgers,
- the output of ``pulsar-admin topics stats-internal``: all of these, except uuids of offloaded
  ledgers.

Source: Pulsar 4.2.4; docs/formats/pulsar-compaction.md, "The commit"; docs/formats/pulsar.md,
"Managed ledger".
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from lastwrite.errors import LogError, NotALog, located
from lastwrite.pulsar.format.managed_ledger import (
    CursorInfo,
    ManagedLedgerInfo,
    PositionInfo,
    from_json,
)
from lastwrite.pulsar.format.names import (
    COMPACTION_CURSOR,
    MANAGED_LEDGER,
    MANAGED_LEDGER_JSON,
    TopicName,
)
from lastwrite.pulsar.format.position import Position
from lastwrite.storage.files import to_log_error

_MOST_BYTES = 256 << 20
_EXPORT = (
    "export the metadata with pulsar-admin topics stats-internal TOPIC, or give the metadata "
    "store's node as a file"
)


@dataclass(frozen=True, slots=True)
class ExportedMetadata:
    """The metadata of a topic, read from exported files. Unknown values are None."""

    info: ManagedLedgerInfo | None = None
    content: bytes = b""  # the bytes that ``info`` was decoded from
    is_json: bool = False
    horizon: Position | None = None
    compacted_ledger: int | None = None
    compacted_entries: int | None = None
    # the cursor's ledger, if its last entry has the horizon and the compacted ledger
    cursors_ledger: int | None = None
    last_confirmed: Position | None = None
    # ledgers whose entry count is from BookKeeper's ledger metadata
    ended: frozenset[int] = frozenset()

    def with_cursor(self, path: str) -> ExportedMetadata:
        """These metadata with the cursor from the file at ``path``. Errors as ``read_exported``."""
        data = _read(path)
        with located(path):
            if _is_json(data):
                other = _of_json(data)
                last = self.last_confirmed or other.last_confirmed
                return replace(
                    other,
                    info=self.info,
                    content=self.content,
                    is_json=self.is_json,
                    cursors_ledger=self.cursors_ledger,
                    last_confirmed=last,
                    ended=self.ended,
                )
            cursor = CursorInfo.decode_node(data)
        if cursor.cursors_ledger >= 0:
            return replace(self, cursors_ledger=cursor.cursors_ledger)
        return replace(self, horizon=cursor.horizon, compacted_ledger=cursor.compacted_ledger)

    def with_position(self, entry: bytes) -> ExportedMetadata:
        """These metadata with the position in ``entry``, the last entry of the cursor's ledger.

        Raises:
            CorruptLog: the entry is not a position.
        """
        found = PositionInfo.decode_node(entry)
        ledger = found.compacted_ledger
        return replace(self, horizon=found.horizon, compacted_ledger=ledger, cursors_ledger=None)


def read_exported(path: str) -> ExportedMetadata:
    """Read a topic's ledgers from a file, and its cursor if the file has it.

    Raises:
        CorruptLog: the content is broken.
        InvalidConfig: the JSON has no list of ledgers.
        LogError: the file cannot be read.
    """
    data = _read(path)
    try:
        if _is_json(data):
            return _of_json(data)
        return ExportedMetadata(ManagedLedgerInfo.decode_node(data), data)
    except LogError as error:
        raise type(error)(error.problem, error.at, path, error.remedy or _EXPORT) from error


def find_exported(path: str) -> Iterator[tuple[TopicName, ExportedMetadata]]:
    """Find the topics whose metadata are below a folder.

    The paths are as in an archive: ``TENANT/NAMESPACE/persistent/TOPIC/managed-ledger`` (or
    ``managed-ledger.json``), with the cursor's node as ``__compaction`` beside it, if present.

    Raises:
        NotALog: there is no topic. Other errors as ``read_exported``.
    """
    found = False
    for folder, below, names in os.walk(path):
        below.sort()
        for name in (MANAGED_LEDGER, MANAGED_LEDGER_JSON):
            if name in names:
                text = read_exported(os.path.join(folder, name))
                if COMPACTION_CURSOR in names:
                    text = text.with_cursor(os.path.join(folder, COMPACTION_CURSOR))
                yield TopicName.of_folder(os.path.abspath(folder)), text
                found = True
                break
    if not found:
        words = (
            "the folder has no metadata of a topic at "
            f"TENANT/NAMESPACE/persistent/TOPIC/{MANAGED_LEDGER}"
        )
        raise NotALog(words, path=path, remedy=_EXPORT)


def _is_json(data: bytes) -> bool:
    return data.lstrip()[:1] == b"{"


def _of_json(data: bytes) -> ExportedMetadata:
    found = from_json(data.decode(errors="replace"))
    return ExportedMetadata(
        found.info,
        data,
        is_json=True,
        horizon=found.horizon if found.compacted_ledger is not None else None,
        compacted_ledger=found.compacted_ledger,
        compacted_entries=found.compacted_entries,
        last_confirmed=found.last_confirmed,
        ended=found.ended,
    )


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise to_log_error(error, path, "read the metadata") from error
    if len(data) > _MOST_BYTES:
        raise LogError(
            "the file is too large to be the metadata of a topic", path=path, remedy=_EXPORT
        )
    return data
