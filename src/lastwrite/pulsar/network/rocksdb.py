"""The metadata store of a Pulsar standalone: a RocksDB folder on this machine, for reading only.

The standalone has exclusive write access and keeps running. Lastwrite opens the store as a
secondary, which reads what the primary has written, and catches up with it before each request. So
a topic can be fetched and planned. A compaction cannot be committed, because no other process may
write to the store.

A value is 41 bytes of head and the data; the key is the path.

Source: Pulsar 4.2.4 ``RocksdbMetadataStore``; RocksDB 7.9 ``OpenAsSecondary``.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from lastwrite.errors import CorruptLog, InvalidConfig, RemoteFailed, missing_extra
from lastwrite.pulsar.network.nodes import Node
from lastwrite.storage.scratch import make_folder, remove_folder

_SCHEME = "rocksdb:"
# The head of a value. Its fields are its own size, the format, the version, the owner, the times of
# creation and of the last change, and whether the node is ephemeral.
_HEAD = struct.Struct(">iiqqqqb")
_FORMAT = 1
_READ_ONLY = (
    "only fetch and plan work with metadata in RocksDB. To publish rounds, start a new "
    "standalone with PULSAR_STANDALONE_USE_ZOOKEEPER=1"
)


class RocksDb:
    """A metadata store in RocksDB, for reading only; implements ``nodes.Nodes``.

    ``url`` is ``rocksdb://PATH``.

    Raises:
        InvalidConfig: there is no RocksDB store at that path.
        EnvironmentUnfit: rocksdict is not installed.
    """

    read_only = _READ_ONLY

    def __init__(self, url: str) -> None:
        path = url.removeprefix(_SCHEME)
        self.address = path.removeprefix("//") if path.startswith("//") else path
        try:
            from rocksdict import AccessType, Options, Rdict
        except ImportError as error:
            raise missing_extra("reading metadata in RocksDB", "rocksdict", "pulsar") from error
        if not (Path(self.address) / "CURRENT").exists():
            raise InvalidConfig(
                "the path is not a RocksDB store",
                path=self.address,
                remedy="give metadataStoreUrl=rocksdb://PATH, where PATH is the standalone's "
                "data/metadata",
            )
        self._scratch = make_folder()
        try:
            options = Options(raw_mode=True)
            # RocksDB keeps all files open, so that files removed by RocksDB's compaction can still
            # be read.
            options.set_max_open_files(-1)
            self._store: Any = Rdict(
                self.address, options, access_type=AccessType.secondary(str(self._scratch))
            )
        except BaseException as error:
            remove_folder(self._scratch)
            if not isinstance(error, Exception):
                raise
            raise InvalidConfig(
                f"the RocksDB store cannot be opened: {error}",
                path=self.address,
                remedy="run lastwrite as a user with read access to the store",
            ) from error

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
            remove_folder(self._scratch)

    def find(self, path: str, doing: str) -> Node | None:
        self._catch_up(doing)
        found = self._store.get(path.encode())
        return None if found is None else decode_value(bytes(found), f"{self.address}:{path}")

    def children(self, path: str, doing: str) -> list[str]:
        self._catch_up(doing)
        prefix = f"{path.rstrip('/')}/".encode()
        names = set()
        for key in self._store.keys(from_key=prefix):
            if not bytes(key).startswith(prefix):
                break
            names.add(bytes(key)[len(prefix) :].split(b"/")[0].decode())
        return sorted(names)

    def _catch_up(self, doing: str) -> None:
        try:
            self._store.try_catch_up_with_primary()
        except Exception as error:  # rocksdict raises exceptions of its own type
            raise RemoteFailed(
                f"{doing}: {error}", path=self.address, remedy="run the command again"
            ) from error

    def create(self, path: str, data: bytes, doing: str) -> int:
        raise self._open_error(doing)

    def replace(self, path: str, data: bytes, version: int, doing: str) -> None:
        raise self._open_error(doing)

    def delete(self, path: str, doing: str) -> None:
        raise self._open_error(doing)

    def number(self, prefix: str, doing: str) -> str:
        raise self._open_error(doing)

    def _open_error(self, doing: str) -> InvalidConfig:
        return InvalidConfig(
            f"{doing}: Lastwrite can only read a RocksDB store",
            path=self.address,
            remedy=_READ_ONLY,
        )


def decode_value(value: bytes, where: str) -> Node:
    """Decode a value of the RocksDB store: the node's bytes and version.

    Raises:
        CorruptLog: its head is not of a supported form.
    """
    if len(value) < _HEAD.size:
        raise CorruptLog(f"the value has only {len(value)} bytes, less than its header", 0, where)
    size, form, version, *_ = _HEAD.unpack_from(value)
    if form != _FORMAT or not _HEAD.size <= size <= len(value):
        raise CorruptLog(
            f"the value has format {form} and a header of {size} bytes, which is not supported",
            0,
            where,
        )
    return Node(value[size:], version)
