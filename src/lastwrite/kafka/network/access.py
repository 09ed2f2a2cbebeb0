"""Authentication to a broker: TLS, and SASL with PLAIN or SCRAM.

SCRAM, with the client's messages on the left::

    n,,n=alice,r=abc          →
                              ←   r=abcXYZ,s=SALT,i=4096
    c=biws,r=abcXYZ,p=PROOF   →
                              ←   v=SIGNATURE

Neither side sends its secret. The proof shows that the client has the password. The signature shows
that the broker has the server key, which is derived from the password.

Source: RFC 5802, RFC 7677; Kafka 4.4 ``ScramSaslClient``, ``PlainSaslServer``; KIP-152.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import ssl
from collections.abc import Callable

from lastwrite.errors import InvalidConfig, RemoteFailed
from lastwrite.kafka.network.scram import (
    attributes,
    decode_base64,
    hash_of,
    keyed,
    keys_of,
    masked,
)
from lastwrite.kafka.rules.live_settings import KafkaClientConfig

# smallest and largest iteration count that is accepted from a broker
_LEAST_TURNS, _MOST_TURNS = 4096, 10_000_000
_NO_BINDING = base64.b64encode(b"n,,").decode()

Exchange = Callable[[bytes], bytes]  # sends a token and returns the broker's token


def tls_context(config: KafkaClientConfig) -> ssl.SSLContext | None:
    """The TLS context for connections to brokers. None if they are not encrypted.

    Raises:
        InvalidConfig: a certificate or key file is missing or is not PEM.
    """
    if not config.uses_tls:
        return None
    try:
        context = ssl.create_default_context(cafile=config.ssl_ca or None)
        if config.ssl_certificate:
            context.load_cert_chain(
                config.ssl_certificate, config.ssl_key or None, config.ssl_key_password or None
            )
    except OSError as error:  # includes ssl.SSLError
        raise InvalidConfig(
            f"a certificate or key cannot be read: {error.strerror or error}",
            remedy="give PEM files with ssl.ca.location, ssl.certificate.location and "
            "ssl.key.location; to convert a JKS or PKCS12 store, use keytool -exportcert -rfc or "
            "openssl pkcs12",
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if config.ssl_identification.lower() in ("", "none"):
        context.check_hostname = False
    return context


def authenticate(config: KafkaClientConfig, exchange: Exchange, address: str) -> None:
    """Authenticate a connection as the configured user. SCRAM also verifies the broker's signature.

    Raises:
        RemoteFailed: the broker's signature is wrong, its message is not SCRAM, or ``exchange``
            raises because the broker rejects the user.
    """
    if config.sasl_mechanism == "PLAIN":
        exchange(f"\0{config.user}\0{config.password}".encode())
        return
    scram = _Scram(config.user, config.password, hash_of(config.sasl_mechanism), address)
    scram.finish(exchange(scram.proof(exchange(scram.begin()))))


class _Scram:
    """The client side of one SCRAM authentication."""

    def __init__(self, user: str, password: str, hash_name: str, address: str) -> None:
        self._password = password.encode()
        self._hash = hash_name
        self._address = address
        self._nonce = secrets.token_urlsafe(24)
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._first = f"n={name},r={self._nonce}"
        self._signature = b""

    def begin(self) -> bytes:
        return f"n,,{self._first}".encode()

    def proof(self, answer: bytes) -> bytes:
        """The client's final message, in answer to the server's first message."""
        fields = self._parts(answer)
        nonce, salt, turns = (
            fields.get("r", ""),
            self._bytes(fields.get("s", "")),
            fields.get("i", ""),
        )
        if not nonce.startswith(self._nonce) or nonce == self._nonce or not turns.isdecimal():
            raise self._wrong("its nonce does not begin with the client's nonce")
        if not _LEAST_TURNS <= int(turns) <= _MOST_TURNS:
            raise self._wrong(f"it requires {turns} iterations, which is outside the allowed range")
        key, server_key = keys_of(self._hash, self._password, salt, int(turns))
        last = f"c={_NO_BINDING},r={nonce}"
        signed = ",".join((self._first, answer.decode(), last)).encode()
        mask = keyed(self._hash, hashlib.new(self._hash, key).digest(), signed)
        self._signature = keyed(self._hash, server_key, signed)
        proof = masked(key, mask)
        return f"{last},p={base64.b64encode(proof).decode()}".encode()

    def finish(self, answer: bytes) -> None:
        """Verify the signature in the server's final message."""
        fields = self._bytes(self._parts(answer).get("v", ""))
        if not hmac.compare_digest(fields, self._signature):
            raise self._wrong("its signature does not match the password")

    def _parts(self, message: bytes) -> dict[str, str]:
        try:
            return attributes(message)
        except ValueError as error:
            raise self._wrong("it is not UTF-8 text") from error

    def _bytes(self, text: str) -> bytes:
        try:
            return decode_base64(text)
        except ValueError as error:
            raise self._wrong("it is not valid base64") from error

    def _wrong(self, why: str) -> RemoteFailed:
        return RemoteFailed(
            f"the broker's SCRAM message is invalid: {why}",
            path=self._address,
            remedy="check the address and the password",
        )
