"""Addresses of archives and of their objects: a folder's path, or ``s3://bucket/key``."""

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
    """Set the settings with which this process accesses buckets from now on."""
    global _settings
    _settings = settings


def used() -> StoreSettings:
    """The settings for buckets that this process uses."""
    return _settings


def is_address(path: str) -> bool:
    """Whether ``path`` is the address of a bucket or object, not a file path."""
    scheme, colon, _ = path.partition("://")
    return bool(colon) and scheme in SCHEMES


def real_path(path: str) -> str:
    """A path without symbolic links. An address is returned without a trailing ``/``."""
    return path.rstrip("/") if is_address(path) else os.path.realpath(path)


def store_at(address: str, settings: StoreSettings | None = None) -> tuple[ObjectStore, str]:
    """The store of an address, and the key in it.

    For ``s3://bucket/a/b`` these are the bucket and ``a/b``; for a folder, the folder and an empty
    key. A process has one store per bucket, and shares its connections. ``settings`` None means
    the settings of ``use``.

    Raises:
        InvalidConfig: the address has no bucket.
        EnvironmentUnfit: the client for buckets is not installed.
    """
    if not is_address(address):
        return FolderStore(address), ""
    scheme, _, rest = address.partition("://")
    bucket, _, key = rest.partition("/")
    if not bucket:
        raise InvalidConfig(
            f"the address {address!r} contains no bucket", remedy=f"give {scheme}://BUCKET/PREFIX"
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


def sent_requests() -> Requests:
    """The requests that this process has sent to buckets, or would send in a dry run."""
    with _lock:
        stores: tuple[ObjectStore, ...] = (*_stores.values(), *_dry.values())
        return sum((store.requests for store in stores), Requests())


@contextlib.contextmanager
def dry() -> Iterator[None]:
    """A context in which writes to buckets are counted but not sent, here and in workers."""
    before = _settings
    for store in _dry.values():
        store.clear()
    use(replace(before, is_dry=True))
    try:
        yield
    finally:
        use(before)


def join(address: str, *names: str) -> str:
    """The address or path of a name below an address or folder."""
    if is_address(address):
        return "/".join((address.rstrip("/"), *names))
    return os.path.join(address, *names)
