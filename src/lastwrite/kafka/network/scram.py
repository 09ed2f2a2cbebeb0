"""Keys that client and server derive from a password in SCRAM, and parsing of SCRAM messages.

    salted      = PBKDF2(password, salt, iterations)
    client key  = HMAC(salted, "Client Key")        stored key = H(client key)
    server key  = HMAC(salted, "Server Key")

A server has only the stored key and the server key. The client key cannot be computed from them.

Source: RFC 5802, RFC 7677.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac


def hash_of(mechanism: str) -> str:
    """The name of a mechanism's hash: ``sha256`` for ``SCRAM-SHA-256``."""
    return mechanism.removeprefix("SCRAM-").replace("-", "").lower()


def keyed(hash_name: str, key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, hash_name).digest()


def keys_of(hash_name: str, password: bytes, salt: bytes, turns: int) -> tuple[bytes, bytes]:
    """Compute the client key and the server key from a password."""
    salted = hashlib.pbkdf2_hmac(hash_name, password, salt, turns)
    return keyed(hash_name, salted, b"Client Key"), keyed(hash_name, salted, b"Server Key")


def masked(one: bytes, other: bytes) -> bytes:
    """The XOR of two values.

    The proof is the XOR of client key and client signature, so any two of the three give the third.
    """
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def attributes(message: bytes) -> dict[str, str]:
    """The attributes of a message by letter: ``r=abc,i=4096`` gives ``{"r": "abc", "i": "4096"}``.

    Raises:
        ValueError: the message is not UTF-8.
    """
    return {part[:1]: part[2:] for part in message.decode().split(",") if part[1:2] == "="}


def decode_base64(text: str) -> bytes:
    """The bytes of a base64 text.

    Raises:
        ValueError: the text is not base64.
    """
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
