"""The server side of SASL's PLAIN and SCRAM.

Refusing an unknown user takes as long as refusing a wrong password, because the password is checked
against generated keys. Each mechanism has one error message for all failures, as on a Kafka broker.

Source: RFC 4616, RFC 5802, RFC 7677; Kafka 4.4 ``PlainSaslServer``, ``ScramSaslServer``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from lastwrite.kafka.network.scram import attributes, decode_base64, hash_of, keyed, masked
from lastwrite.server.users import BLOCK, COST, PARALLEL, TURNS, ScramKeys, SlowHash, User

_NAME = re.compile(r"(?:[^=]|=2C|=3D)+")
# at most two passwords are hashed at once, because each hash uses 16 MiB and a core
_HASHING = threading.Semaphore(2)
# The secret from which the SCRAM keys of unknown users are derived. Because of these keys, the
# responses do not show that a user does not exist.
_NOBODY = secrets.token_bytes(32)
_NOBODYS_HASH = SlowHash(_NOBODY[:16], COST, BLOCK, PARALLEL, _NOBODY)
_LONGEST_NONCE = 512


class AuthenticationFailed(Exception):  # noqa: N818 - an answer
    """Raised if authentication failed. The message is sent to the client."""


class SaslStep(NamedTuple):
    """The result of one SASL message: bytes to send back, and the user's name after success."""

    answer: bytes
    user: str | None = None


class SaslExchange(Protocol):
    """The server side of one SASL authentication. Subclasses implement the mechanisms."""

    def authenticate(self, token: bytes) -> SaslStep:
        """Process the client's next message, and return the answer to it.

        Raises:
            AuthenticationFailed: the credentials are wrong, or the message is invalid.
        """


Users = Mapping[str, User]


def start_sasl(mechanism: str, users: Callable[[], Users]) -> SaslExchange:
    """Start the server side of an authentication by ``mechanism``, one of ``MECHANISMS``."""
    return PlainExchange(users) if mechanism == "PLAIN" else ScramExchange(mechanism, users)


class PlainExchange:
    """The server side of PLAIN: the client sends ``[authorized] NUL name NUL password``."""

    _WORDS = "Authentication failed: Invalid username or password"

    def __init__(self, users: Callable[[], Users]) -> None:
        self._users = users

    def authenticate(self, token: bytes) -> SaslStep:
        parts = token.split(b"\0")
        if len(parts) != 3:
            raise AuthenticationFailed(self._WORDS)
        authorized, name, password = parts
        try:
            user = name.decode()
        except UnicodeDecodeError:
            user = ""
        found = self._users().get(user)
        known = None if found is None else found.plain
        with _HASHING:
            kept = known or _NOBODYS_HASH
            is_right = hmac.compare_digest(kept.hashed(password), kept.hash)
        if not is_right or known is None or authorized not in (b"", name):
            raise AuthenticationFailed(self._WORDS)
        return SaslStep(b"", user)


class ScramExchange:
    """The server side of SCRAM: client and server send two messages each."""

    def __init__(self, mechanism: str, users: Callable[[], Users]) -> None:
        self._mechanism = mechanism
        self._hash = hash_of(mechanism)
        self._users = users
        self._user = ""
        self._keys: ScramKeys | None = None
        self._is_known = False
        # GS2 header of the client's first message, which the client's last message repeats
        self._head = b""
        self._nonce = ""
        self._auth_message = (
            b""  # the client's first message without the GS2 header, and the response
        )

    def authenticate(self, token: bytes) -> SaslStep:
        try:
            return self._first(token) if self._keys is None else self._last(token, self._keys)
        except ValueError as error:
            raise self._failure() from error

    def _failure(self) -> AuthenticationFailed:
        return AuthenticationFailed(
            "Authentication failed during authentication due to invalid credentials with SASL "
            f"mechanism {self._mechanism}"
        )

    def _first(self, token: bytes) -> SaslStep:
        binding, authorized, bare = token.split(b",", 2)
        fields = attributes(bare)
        name, nonce = fields.get("n", ""), fields.get("r", "")
        if binding not in (b"n", b"y") or not _NAME.fullmatch(name):
            raise self._failure()
        if not nonce or len(nonce) > _LONGEST_NONCE or "m" in fields:
            raise self._failure()
        self._user = name.replace("=2C", ",").replace("=3D", "=")
        if authorized and authorized.removeprefix(b"a=").decode() != name:
            raise self._failure()
        found = self._users().get(self._user)
        keys = None if found is None else found.scram.get(self._mechanism)
        self._is_known = keys is not None
        self._keys = keys or _nobodys_keys(self._hash, self._user)
        self._nonce = nonce + secrets.token_urlsafe(24)
        self._head = binding + b"," + authorized + b","
        salt = base64.b64encode(self._keys.salt).decode()
        answer = f"r={self._nonce},s={salt},i={self._keys.iterations}".encode()
        self._auth_message = bare + b"," + answer
        return SaslStep(answer)

    def _last(self, token: bytes, keys: ScramKeys) -> SaslStep:
        bare, _, _ = token.rpartition(b",p=")
        fields = attributes(token)
        signed = self._auth_message + b"," + bare
        proof = decode_base64(fields.get("p", ""))
        mask = keyed(self._hash, keys.stored_key, signed)
        shown = hashlib.new(self._hash, masked(proof, mask)).digest()
        is_right = hmac.compare_digest(shown, keys.stored_key)
        is_ours = hmac.compare_digest(fields.get("r", "").encode(), self._nonce.encode())
        is_bound = decode_base64(fields.get("c", "")) == self._head
        if not (is_right and is_ours and is_bound and self._is_known):
            raise self._failure()
        signature = base64.b64encode(keyed(self._hash, keys.server_key, signed)).decode()
        return SaslStep(f"v={signature}".encode(), self._user)


def _nobodys_keys(hash_name: str, user: str) -> ScramKeys:
    """Generated SCRAM keys for the name of an unknown user. A name always gets the same salt."""
    key = keyed(hash_name, _NOBODY, user.encode())
    return ScramKeys(key[:16], TURNS, keyed(hash_name, _NOBODY, key), key)
