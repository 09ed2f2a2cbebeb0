"""Decryption of encrypted chunks and side files.

This is the format of Aiven's tiered-storage-for-apache-kafka. Each segment has its own data key,
for AES with 256 bits. The manifest contains the data key, encrypted with an RSA key of the broker's
key ring (OAEP with SHA3-512, also for MGF1), after the id of the key pair::

    "encryption": {"dataKey": "ID:base64", "aad": "base64"}

Each chunk, after optional compression, and each index is stored as 12 bytes of IV, the ciphertext
of AES in Galois counter mode, and a tag of 16 bytes. The tag also covers ``aad``.

Source: commit 8fb15816 of the plugin (2026-05-04): ``RsaEncryptionProvider``,
``AesEncryptionProvider``, ``EncryptionChunkEnumeration``; files that its classes wrote in
tests/corpus.
"""

from __future__ import annotations

import base64
import os
from functools import lru_cache
from typing import Any

import msgspec

from lastwrite.errors import CorruptLog, InvalidConfig, missing_extra
from lastwrite.model.stores import StoreSettings

_IV_BYTES, _TAG_BYTES, _KEY_BYTES = 12, 16, 32
_MOST_PEM_BYTES = 1 << 16


class Encryption(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The encryption fields of a manifest."""

    data_key: str
    aad: bytes

    def wrapped(self) -> tuple[str, bytes]:
        """The id of the key pair, and the data key encrypted with it.

        Raises:
            CorruptLog: ``data_key`` is not ``ID:BASE64``.
        """
        name, _, text = self.data_key.partition(":")
        try:
            content = base64.b64decode(text, validate=True)
        except ValueError:
            content = b""
        if not name.strip() or not content:
            raise CorruptLog("the data key is not of the form ID:BASE64", 0)
        return name, content


class SegmentCipher:
    """Decrypts the chunks and indexes of one segment with the private keys of the settings.

    Raises:
        InvalidConfig: the private key is not given, or does not decrypt the data key.
        CorruptLog: the manifest's encryption fields are invalid.
        EnvironmentUnfit: pycryptodome is not installed.
    """

    def __init__(self, encryption: Encryption, stores: StoreSettings) -> None:
        name, wrapped = encryption.wrapped()
        file = dict(stores.encryption_keys).get(name)
        if file is None:
            raise InvalidConfig(
                f"the segment is encrypted with the key pair {name!r}, but its private key "
                "was not given",
                remedy=f"give --config storage.encryptionKeys={name}:FILE, where FILE is the "
                f"broker's encryption.key.pairs.{name}.private.key.file",
            )
        self._key, self._aad = _data_key(wrapped, name, file), encryption.aad

    def opened(self, stored: bytes) -> bytes:
        """Decrypt a chunk or an index.

        Raises:
            CorruptLog: the data was changed after it was written.
        """
        from Crypto.Cipher import AES

        if len(stored) < _IV_BYTES + _TAG_BYTES:
            raise CorruptLog(
                f"the encrypted data have only {len(stored)} bytes, less than an IV and a tag", 0
            )
        view = memoryview(stored)
        cipher = AES.new(self._key, AES.MODE_GCM, nonce=view[:_IV_BYTES], mac_len=_TAG_BYTES)
        cipher.update(self._aad)
        try:
            plain: bytes = cipher.decrypt_and_verify(
                view[_IV_BYTES:-_TAG_BYTES], view[-_TAG_BYTES:]
            )
        except ValueError:
            raise CorruptLog(
                "the tag does not match the encrypted data, so the data were changed", 0
            ) from None
        return plain


def check_key(file: str) -> None:
    """Check that the private key in ``file`` can be used on this machine.

    Raises:
        InvalidConfig: the file is missing, or is not an RSA key without a password.
        EnvironmentUnfit: pycryptodome is not installed.
    """
    _private_key(file, _modified_ns(file))


@lru_cache(maxsize=4096)
def _data_key(wrapped: bytes, name: str, file: str) -> bytes:
    key = _private_key(file, _modified_ns(file))
    from Crypto.Cipher import PKCS1_OAEP
    from Crypto.Hash import SHA3_512

    try:
        data_key: bytes = PKCS1_OAEP.new(key, SHA3_512).decrypt(wrapped)
    except (ValueError, TypeError):  # the key is of another key pair, or is a public key
        data_key = b""
    if len(data_key) != _KEY_BYTES:
        raise InvalidConfig(
            f"the private key in {file} cannot decrypt the data key, which was encrypted with "
            f"the key pair {name!r}",
            remedy=f"give the private key of this pair as storage.encryptionKeys={name}:FILE. If "
            "the key is right, the manifest was changed: restore the manifest from the "
            "bucket's versions",
        )
    return data_key


@lru_cache(maxsize=64)
def _private_key(file: str, modified_ns: int) -> Any:
    try:
        from Crypto.PublicKey import RSA
    except ImportError as error:
        raise missing_extra("reading encrypted segments", "pycryptodome", "tiers") from error
    try:
        with open(file, "rb") as opened:
            content = opened.read(_MOST_PEM_BYTES)
    except OSError as error:
        raise _unreadable(file, error) from None
    try:
        return RSA.import_key(content)
    except (ValueError, IndexError, TypeError):
        raise InvalidConfig(
            "the file does not contain an RSA key in PEM without a password",
            path=file,
            remedy="give the private key file of the broker: PKCS #8, which begins with "
            "-----BEGIN PRIVATE KEY-----",
        ) from None


def _modified_ns(file: str) -> int:
    try:
        return os.stat(file).st_mtime_ns
    except OSError as error:
        raise _unreadable(file, error) from None


def _unreadable(file: str, error: OSError) -> InvalidConfig:
    return InvalidConfig(
        f"the private key cannot be read: {error.strerror}",
        path=file,
        remedy="copy the key file to the path in storage.encryptionKeys on every machine that "
        "reads the segments",
    )
