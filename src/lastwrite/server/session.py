"""The SASL state of one connection: authentication at its start, and again before it expires.

    versions? ──► handshake: a mechanism ──► authenticate, as often as it takes ──► requests
                        ▲                                                             │
                        └─────────────────── before the session's end ────────────────┘

After a handshake of version 0, tokens follow without headers. Any other request before
authentication, and any failed authentication, closes the connection.

Source: Kafka 4.4 ``SaslServerAuthenticator``, ``KafkaChannel``; KIP-43, KIP-152, KIP-368.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from lastwrite.errors import CorruptLog
from lastwrite.server.acls import ClientIdentity
from lastwrite.server.errors import Code
from lastwrite.server.listener_security import ListenerSecurity
from lastwrite.server.messages import ClientRequest, decode_body, encode_answer
from lastwrite.server.sasl import AuthenticationFailed, SaslExchange, start_sasl

_LEAST_BETWEEN_S = 1.0  # minimum seconds between two authentications of a connection


class Session:
    """The SASL state of a connection.

    ``certificate_of`` is the client certificate's subject, if any.
    """

    def __init__(self, door: ListenerSecurity, host: str, certificate_of: str | None) -> None:
        self._security = door
        self._host = host
        self._user = certificate_of
        self._is_known = not door.requires_sasl
        self._mechanism: str | None = None
        self._proof: SaslExchange | None = None
        self._has_requested_versions = False
        self._ends = 0.0  # time.monotonic at which the session expires; 0 if it never expires
        self._shown_s = 0.0
        self.takes_tokens = False
        self.is_over = False
        self.rejection = ""  # why authentication was refused, for the operator

    @property
    def is_known(self) -> bool:
        """Whether the client is authenticated.

        Before that, only authentication requests are answered.
        """
        return self._is_known

    def client(self) -> ClientIdentity:
        """The client with its current permissions.

        Raises:
            PermissionError: the user was removed.
        """
        found = self._security.client(self._user, self._host)
        if found is None:
            raise PermissionError
        return found

    def authenticate(self, request: ClientRequest) -> bytes | None:
        """The response to an authentication request. None for another request, if it is allowed.

        Raises:
            CorruptLog: the request is not allowed now.
            PermissionError: the session has expired.
        """
        if request.name == "sasl_handshake":
            return self._handshake(request)
        if request.name == "sasl_authenticate":
            return self._authenticate(request)
        if self._proof is not None:
            raise CorruptLog(f"the client sent {request.name} during authentication", 0)
        if self._is_known:
            if self._ends and time.monotonic() > self._ends:
                raise PermissionError
            return None
        if request.name != "api_versions" or self._has_requested_versions:
            raise CorruptLog(f"the client sent {request.name} before authentication", 0)
        self._has_requested_versions = 0 <= request.version <= 5
        return None

    def handle_raw_token(self, token: bytes) -> bytes:
        """The response to a token without header. Empty after a failed authentication."""
        try:
            return self._step(token)
        except AuthenticationFailed:
            self._fail()
            return b""

    def _handshake(self, request: ClientRequest) -> bytes:
        body = _body(request)
        if not self._may_begin():
            return encode_answer(request, error_code=Code.ILLEGAL_SASL_STATE, mechanisms=())
        error = Code.NONE
        mechanism = body.mechanism
        if mechanism not in self._security.mechanisms or self._has_other(mechanism):
            error = Code.UNSUPPORTED_SASL_MECHANISM
            self.is_over, self.rejection = (
                True,
                "the client requested a SASL mechanism that is not enabled",
            )
        else:
            self._mechanism, self._shown_s = mechanism, time.monotonic()
            self._proof = start_sasl(mechanism, lambda: self._security.current_users().users)
            self.takes_tokens = request.version == 0
        return encode_answer(request, error_code=error, mechanisms=self._security.mechanisms)

    def _may_begin(self) -> bool:
        """Whether authentication may start now: for the first time, or again if sessions expire."""
        if not self._security.requires_sasl or self._proof is not None:
            return False
        if not self._is_known:
            return True
        return bool(self._ends) and time.monotonic() - self._shown_s >= _LEAST_BETWEEN_S

    def _has_other(self, mechanism: str) -> bool:
        return self._is_known and mechanism != self._mechanism

    def _authenticate(self, request: ClientRequest) -> bytes:
        body = _body(request)
        if self._proof is None or self.takes_tokens:
            if not self._is_known:
                raise CorruptLog("the client sent sasl_authenticate before sasl_handshake", 0)
            return encode_answer(
                request,
                error_code=Code.ILLEGAL_SASL_STATE,
                error_message="SaslAuthenticate request received after successful authentication",
                auth_bytes=b"",
                session_lifetime=timedelta(0),
            )
        try:
            answer = self._step(bytes(body.auth_bytes))
        except AuthenticationFailed as refused:
            self._fail()
            return encode_answer(
                request,
                error_code=Code.SASL_AUTHENTICATION_FAILED,
                error_message=str(refused),
                auth_bytes=b"",
                session_lifetime=timedelta(0),
            )
        is_done = self._proof is None
        return encode_answer(
            request,
            error_code=Code.NONE,
            error_message=None,
            auth_bytes=answer,
            session_lifetime=timedelta(seconds=self._security.session_s if is_done else 0.0),
        )

    def _step(self, token: bytes) -> bytes:
        """Process the next message of the SASL exchange, and return the answer.

        Raises:
            AuthenticationFailed: the credentials are wrong, or the message is invalid.
        """
        if self._proof is None:
            raise AuthenticationFailed("Authentication failed")
        answer, user = self._proof.authenticate(token)
        if user is None:
            return answer
        if self._is_known and user != self._user:
            raise AuthenticationFailed("Cannot change principals during re-authentication")
        self._proof, self._user, self._is_known, self.takes_tokens = None, user, True, False
        if self._security.session_s:
            self._ends = time.monotonic() + self._security.session_s
        return answer

    def _fail(self) -> None:
        """End the session after a failed authentication.

        A delay slows down guessing of passwords.
        """
        self.is_over, self.rejection = (
            True,
            f"the user or the password is wrong ({self._mechanism})",
        )
        time.sleep(self._security.failed_delay_s)


def _body(request: ClientRequest) -> Any:
    """Decode a request's body. Errors contain no part of it, because it may contain a password."""
    try:
        return decode_body(request)
    except CorruptLog:
        raise CorruptLog(f"the bytes are not a valid request {request.name}", 0) from None
