"""Addresses of archives and of what is in them: a folder's path, or ``s3://bucket/key``."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import replace

from lastwrite.errors import InvalidConfig
from lastwrite.model.stores import StoreSettings
from lastwrite.storage.objects.bucket import BucketStore
from lastwrite.storage.objects.dry import DryStore
from lastwrite.storage.objects.folder import FolderStore
from lastwrite.storage.objects.store import ObjectStore, Requests

SCHEMES = ("s3", "gs", "az")

_settings = StoreSettings()
_stores: dict[tuple[str, StoreSettings], BucketStore] = {}
_dry: dict[tuple[str, StoreSettings], DryStore] = {}
_lock = threading.Lock()


def use(settings: StoreSettings) -> None:
    """Reach buckets so from now on, in this process."""
    global _settings
    _settings = settings


def used() -> StoreSettings:
    """How this process reaches buckets."""
    return _settings


def is_address(path: str) -> bool:
    """Whether it is a bucket's or an object's, not a file's."""
    scheme, colon, _ = path.partition("://")
    return bool(colon) and scheme in SCHEMES


def real_path(path: str) -> str:
    """A path without symbolic links; an address as it is, without a ``/`` behind."""
    return path.rstrip("/") if is_address(path) else os.path.realpath(path)


def store_at(address: str, settings: StoreSettings | None = None) -> tuple[ObjectStore, str]:
    """The store that an address lies in, and what is left as the key.

    ``s3://bucket/a/b`` gives the bucket and ``a/b``, a folder itself and nothing. Of a bucket
    there is one store in a process, so that its connections serve all. ``settings``: as the driver
    told a worker; None: as ``use`` said.

    Raises:
        InvalidConfig: it names no bucket.
        EnvironmentUnfit: the client of buckets is not installed.
    """
    if not is_address(address):
        return FolderStore(address), ""
    scheme, _, rest = address.partition("://")
    bucket, _, key = rest.partition("/")
    if not bucket:
        raise InvalidConfig(
            f"{address!r} names no bucket", remedy=f"write {scheme}://BUCKET/PREFIX"
        )
    return _bucket(f"{scheme}://{bucket}", settings or _settings), key.strip("/")


def _bucket(address: str, settings: StoreSettings) -> ObjectStore:
    with _lock:
        known = (address, replace(settings, is_dry=False))
        if known not in _stores:
            _stores[known] = BucketStore(*known)
        real = _stores[known]
        if not settings.is_dry:
            return real
        if known not in _dry:
            _dry[known] = DryStore(real)
        return _dry[known]


def asked() -> Requests:
    """What this process has asked of buckets so far, or in a dry run would have."""
    with _lock:
        stores: tuple[ObjectStore, ...] = (*_stores.values(), *_dry.values())
        return sum((store.requests for store in stores), Requests())


@contextlib.contextmanager
def dry() -> Iterator[None]:
    """Let what would be written in this context only be counted, here and by what is told of
    ``used``.
    """
    before = _settings
    for store in _dry.values():
        store.forget()
    use(replace(before, is_dry=True))
    try:
        yield
    finally:
        use(before)


def join(address: str, *names: str) -> str:
    """What lies below an address, or below a folder."""
    if is_address(address):
        return "/".join((address.rstrip("/"), *names))
    return os.path.join(address, *names)
