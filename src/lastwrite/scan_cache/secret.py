"""The secret of an archive, which protects the scans that are stored in it.

The secret is a separate object, ``ARCHIVE/_lastwrite/kept.secret``, so that a bucket policy can
deny it to readers of the archive. A local file on the driver (``storage.secretFile``) takes
precedence. Workers receive a secret derived for one partition, from which no other can be computed.

Reasons: docs/decisions/kept-scans.md.
"""

from __future__ import annotations

import os
import secrets
import stat
import uuid
from dataclasses import replace
from hashlib import shake_256

from lastwrite.encoding.fingerprint import SECRET_WORDS
from lastwrite.errors import InvalidConfig, LogError
from lastwrite.model.log import TopicPartition
from lastwrite.model.progress import Progress
from lastwrite.scan_cache.format import decode_secret, encode_secret
from lastwrite.storage import files, ownership
from lastwrite.storage.objects.address import is_address, join, store_at, used

_NAME = "_lastwrite/kept.secret"
_BYTES = 32
_MOST_BYTES = 1 << 16


def partition_secret(archive_secret: bytes, system: str, name: TopicPartition) -> bytes:
    """The secret of a partition, derived from the archive's secret."""
    partition = f"{system}/{name.topic}/{name.partition}"
    size = len(archive_secret).to_bytes(8, "little")
    whole = b"lastwrite kept scans 1" + size + archive_secret + partition.encode()
    return shake_256(whole).digest(8 * SECRET_WORDS)


def secret_of(archive: str) -> bytes | None:
    """The archive's secret, which is created if it is missing or incomplete.

    None if another program has removed or truncated the new secret meanwhile.

    Raises:
        InvalidConfig: the file named in the settings does not contain a secret.
        LogError: the store or the system fails.
    """
    if used().secret_file:
        return _of_file(used().secret_file)
    if not is_address(archive):
        return _of_folder(archive)
    store, key = store_at(join(archive, _NAME))
    found = store.get(key)
    secret = None if found is None else decode_secret(found[0], _BYTES)
    if secret is None:
        drawn = encode_secret(secrets.token_bytes(_BYTES))
        if found is None:
            store.create(key, drawn)
        else:
            store.replace(key, drawn, found[1].version)
        found = store.get(key)  # another round may have created it first
        secret = None if found is None else decode_secret(found[0], _BYTES)
    return secret


def secret_or_none(archive: str, progress: Progress) -> bytes | None:
    """The archive's secret, or None if the store fails.

    In that case, a note states why no scan is stored.

    Raises:
        InvalidConfig: as ``secret_of``.
    """
    try:
        return secret_of(archive)
    except InvalidConfig:
        raise
    except LogError as error:
        progress.note(f"scans are not cached: {error}")
        return None


def _of_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_MOST_BYTES)
    except OSError as error:
        raise InvalidConfig(
            f"the file storage.secretFile cannot be read: {error.strerror}", path=path
        ) from None
    if stat.S_ISREG(mode) and mode & 0o077:
        raise InvalidConfig(
            "other users can read the file storage.secretFile",
            path=path,
            remedy="run chmod 600 FILE",
        )
    if len(content) < _BYTES:
        raise InvalidConfig(
            f"the file storage.secretFile has {len(content)} bytes, fewer than {_BYTES}",
            path=path,
            remedy="give another FILE, created with head -c 32 /dev/urandom > FILE",
        )
    return content


def _of_folder(archive: str) -> bytes | None:
    path = os.path.join(archive, _NAME)
    secret = _read_private(path)
    if secret is None:
        files.make_new_folder(os.path.dirname(path))
        aside = f"{path}.{uuid.uuid4().hex}.aside"
        like = ownership.of_new(os.path.dirname(path))
        like = replace(like, mode=0o600, attributes=(), is_required=False)
        files.write(aside, encode_secret(secrets.token_bytes(_BYTES)), like=like)
        if os.path.lexists(path) or not files.name_new(aside, path):
            secret = _read_private(path)  # another round may have created it first
            if secret is None:
                files.rename(aside, path)
                return _read_private(path)
        files.unlink(aside)
        secret = _read_private(path)
    return secret


def _read_private(path: str) -> bytes | None:
    """Read the secret file. None if it is missing or incomplete, or if other users may read it."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        seen = os.fstat(file.fileno())
        if not stat.S_ISREG(seen.st_mode) or seen.st_mode & 0o077:
            return None
        return decode_secret(file.read(_MOST_BYTES), _BYTES)
