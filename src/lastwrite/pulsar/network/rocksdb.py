"""Metadata in RocksDB, as a standalone keeps them: a folder of this machine, only to be read.

The standalone has the store to itself, and goes on: we open it as a secondary, which sees what the
primary has written, and catches up with it before each question. So a topic can be fetched and
planned; a round cannot be published, since nobody else may write there.

A value is 41 bytes of head and the data; the key is the path.

Source: Pulsar 4.2.4 ``RocksdbMetadataStore``; RocksDB 7.9 ``OpenAsSecondary``.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from lastwrite.errors import CorruptLog, EnvironmentUnfit, InvalidConfig, RemoteFailed
from lastwrite.pulsar.network.nodes import Node
from lastwrite.storage.scratch import make_folder, remove_folder

_SCHEME = "rocksdb:"
_HEAD = struct.Struct(">iiqqqqb")  # its size, format, version, owner, made, changed, is ephemeral
_FORMAT = 1
_READ_ONLY = (
    "a round beside metadata in RocksDB cannot be published, fetch and plan only read; with "
    "ZooKeeper it can: PULSAR_STANDALONE_USE_ZOOKEEPER=1 before the standalone's first start"
)


class RocksDb:
    """See ``nodes.Nodes``; what would change something is refused. ``url``: ``rocksdb://PATH``.

    Raises:
        InvalidConfig: there is no such store.
        EnvironmentUnfit: rocksdict is not installed.
    """

    read_only = _READ_ONLY

    def __init__(self, url: str) -> None:
        path = url.removeprefix(_SCHEME)
        self.address = path.removeprefix("//") if path.startswith("//") else path
        try:
            from rocksdict import AccessType, Options, Rdict
        except ImportError as error:
            raise EnvironmentUnfit(
                "metadata in RocksDB are read by rocksdict, which is not installed",
                remedy="pip install 'lastwrite[pulsar]'",
            ) from error
        if not (Path(self.address) / "CURRENT").exists():
            raise InvalidConfig(
                "no RocksDB lies there",
                path=self.address,
                remedy="give metadataStoreUrl=rocksdb://PATH of the standalone's data/metadata",
            )
        self._scratch = make_folder()
        try:
            options = Options(raw_mode=True)
            options.set_max_open_files(-1)  # else a file that compaction removes is gone for us
            self._store: Any = Rdict(
                self.address, options, access_type=AccessType.secondary(str(self._scratch))
            )
        except BaseException as error:
            remove_folder(self._scratch)
            if not isinstance(error, Exception):
                raise
            raise InvalidConfig(
                f"the store cannot be opened: {error}",
                path=self.address,
                remedy="run as a user that may read it",
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
        except Exception as error:  # the library's own
            raise RemoteFailed(
                f"{doing}: {error}", path=self.address, remedy="start again"
            ) from error

    def create(self, path: str, data: bytes, doing: str) -> int:
        raise self._refused(doing)

    def replace(self, path: str, data: bytes, version: int, doing: str) -> None:
        raise self._refused(doing)

    def delete(self, path: str, doing: str) -> None:
        raise self._refused(doing)

    def number(self, prefix: str, doing: str) -> str:
        raise self._refused(doing)

    def _refused(self, doing: str) -> InvalidConfig:
        return InvalidConfig(f"{doing}: it can only be read", path=self.address, remedy=_READ_ONLY)


def decode_value(value: bytes, where: str) -> Node:
    """What lies at a path, of the value that RocksDB has.

    Raises:
        CorruptLog: it has no head that we know.
    """
    if len(value) < _HEAD.size:
        raise CorruptLog(f"a value of {len(value)} bytes", 0, where)
    size, form, version, *_ = _HEAD.unpack_from(value)
    if form != _FORMAT or not _HEAD.size <= size <= len(value):
        raise CorruptLog(f"a value of format {form} with a head of {size} bytes", 0, where)
    return Node(value[size:], version)
