"""A bucket in a dry run: reads are sent, but changes are only counted.

``plan`` can therefore run every step of a compaction, and predict its requests exactly.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence

from lastwrite.model.columns import ByteArray
from lastwrite.storage.objects.bucket import AT_ONCE, LEAST_PART_BYTES, RANGE_BYTES, BucketStore
from lastwrite.storage.objects.store import ObjectInfo, Requests, Version, check_key

_HELD_BYTES = 4096  # maximum size of contents that are stored; no writer reads larger objects


class DryStore:
    """A bucket whose writes stay in this object.

    Reads of other objects go to the bucket ``real``.
    """

    def __init__(self, real: BucketStore) -> None:
        self._real = real
        self.address = real.address
        self.is_providers = real.is_providers
        self.requests = Requests()  # requests that were only counted, not sent to ``real``
        self._lock = threading.Lock()
        self._written: dict[str, tuple[bytes, ObjectInfo]] = {}

    def clear(self) -> None:
        """Forget all objects written in the dry run."""
        self._written.clear()

    def head(self, key: str) -> ObjectInfo | None:
        found = self._written.get(key)
        if found is None:
            return self._real.head(key)
        self._count(gets=1)
        return found[1]

    def get(self, key: str) -> tuple[bytes, ObjectInfo] | None:
        found = self._written.get(key)
        if found is None:
            return self._real.get(key)
        self._count(gets=1, bytes_read=found[1].size_bytes)
        return found

    def read_into(self, key: str, target: ByteArray, position: int, etag: str = "") -> None:
        self._real.read_into(key, target, position, etag)

    def create(self, key: str, content: bytes) -> Version | None:
        check_key(key, self.address)
        self._count(puts=1, bytes_written=len(content))
        found = _object_info(key, len(content))
        self._written[key] = content if len(content) <= _HELD_BYTES else b"", found
        return found.version

    def replace(self, key: str, content: bytes, version: Version) -> Version | None:
        return self.create(key, content)

    def writer(self, key: str, part_bytes: int = RANGE_BYTES) -> DryWriter:
        check_key(key, self.address)
        return DryWriter(self, key, max(part_bytes, LEAST_PART_BYTES))

    def remove(self, keys: Iterable[str]) -> None:
        named = list(keys)
        self._count(deletes=math.ceil(len(named) / AT_ONCE))
        for key in named:
            self._written.pop(key, None)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._real.list(prefix)

    def remove_unfinished(self, prefix: str, older_than_ms: int) -> None:
        """Do nothing, like a bucket."""

    def folders(self, prefix: str) -> Sequence[str]:
        return self._real.folders(prefix)

    def _count(self, **asked: int) -> None:
        with self._lock:
            self.requests += Requests(**asked)


class DryWriter:
    """Writes no object, and counts the requests that ``BucketWriter`` would send."""

    def __init__(self, store: DryStore, key: str, part_bytes: int) -> None:
        self._store, self._key, self._part_bytes = store, key, part_bytes
        self._written = 0

    def write(self, data: bytes | ByteArray) -> None:
        self._written += len(data)

    def close(self) -> ObjectInfo:
        parts = math.ceil(self._written / self._part_bytes)
        puts, gets = (parts + 2, 1) if parts > 1 else (1, 0)
        self._store._count(puts=puts, gets=gets, bytes_written=self._written)
        return _object_info(self._key, self._written, parts)

    def abandon(self) -> None:
        """Discard everything written."""


def _object_info(key: str, size_bytes: int, parts: int = 1) -> ObjectInfo:
    """Metadata of a simulated object.

    Its etag has the usual length, so manifests get their true size.
    """
    etag = f'"{uuid.uuid4().hex}-{parts}"' if parts > 1 else f'"{uuid.uuid4().hex}"'
    return ObjectInfo(key, size_bytes, Version(etag), time.time_ns() // 1_000_000)
