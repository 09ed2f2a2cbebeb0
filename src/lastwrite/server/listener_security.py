"""Listener security: TLS, authentication and permissions.

Changed files are reloaded. If a reload fails, the previous version stays in use, and the operator
gets a message.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from lastwrite.errors import InvalidConfig, LogError
from lastwrite.server.acls import ANONYMOUS, AclTable, ClientIdentity
from lastwrite.server.users import Users, read_users
from lastwrite.storage.file_state import state_of

_LOOK_S = 1.0  # seconds between checks for changed files
_SHORT = {  # the short names that Java writes for attributes in a certificate's subject
    "commonName": "CN",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
Made = TypeVar("Made")


class ReloadingFile(Generic[Made]):
    """A value that is read from files, and read again when a file changes."""

    def __init__(
        self, paths: tuple[str, ...], make: Callable[[], Made], notify: Callable[[str], None]
    ) -> None:
        self._paths = paths
        self._make = make
        self._notify = notify
        self._lock = threading.Lock()
        self._checked_s = time.monotonic()
        self._state = self._identity()
        self._value = make()

    def __call__(self) -> Made:
        if time.monotonic() - self._checked_s > _LOOK_S and self._lock.acquire(blocking=False):
            try:
                self._checked_s = time.monotonic()
                state = self._identity()
                if state != self._state:
                    self._state = state
                    self._reload()
            finally:
                self._lock.release()
        return self._value

    def _reload(self) -> None:
        named = ", ".join(self._paths)
        try:
            self._value = self._make()
        except LogError as error:
            self._notify(
                f"{named}: the new file is invalid, and the previous one stays in use: {error}"
            )
        else:
            self._notify(f"{named}: reloaded")

    def _identity(self) -> tuple[object, ...]:
        return tuple(state_of(path) for path in self._paths)


def tls_context(certificate: str, key: str, client_ca: str) -> ssl.SSLContext:
    """The server's TLS context.

    Clients need a certificate issued by ``client_ca``. Empty means that they need no certificate.

    Raises:
        InvalidConfig: a file is missing, is not PEM, or needs a password.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # an empty password, so that an encrypted key causes an error, not a prompt
        context.load_cert_chain(certificate, key or None, lambda: b"")
        if client_ca:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # includes ssl.SSLError
        raise InvalidConfig(
            f"the certificate or key cannot be read: {error.strerror or error}",
            path=certificate,
            remedy="set ssl.certificate.location, ssl.key.location and ssl.ca.location to PEM "
            "files without a password",
        ) from error
    return context


def name_of(certificate: object) -> str:
    """The subject of a certificate of ``getpeercert``, as RFC 2253 writes it."""
    subject = certificate.get("subject", ()) if isinstance(certificate, dict) else ()
    return ",".join(
        "+".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in each)
        for each in reversed(subject)
    )


def _escaped(value: str) -> str:
    out = "".join("\\" + each if each in ',+"\\<>;' else each for each in value)
    if out.startswith((" ", "#")):
        out = "\\" + out
    return out[:-1] + "\\ " if value.endswith(" ") and len(value) > 1 else out


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """The security settings of a listener.

    If ``users`` is None, there is neither authentication nor authorization. ``mechanisms`` are the
    SASL mechanisms; if there are none, clients do not authenticate by SASL.
    """

    tls: ReloadingFile[ssl.SSLContext] | None = None
    users: ReloadingFile[tuple[Users, AclTable]] | None = None
    mechanisms: tuple[str, ...] = ()
    session_s: float = 0.0  # seconds after which clients must authenticate again; 0 for never
    failed_delay_s: float = 0.0

    @property
    def requires_sasl(self) -> bool:
        """Whether clients have to authenticate by SASL."""
        return bool(self.mechanisms)

    def secured(self, connection: socket.socket) -> socket.socket:
        """The connection, wrapped in TLS if that is configured. The caller does the handshake."""
        if self.tls is None:
            return connection
        return self.tls().wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def current_users(self) -> Users:
        """The current users."""
        return Users() if self.users is None else self.users()[0]

    def client(self, user: str | None, host: str) -> ClientIdentity | None:
        """The client with its current permissions. None if the user was removed.

        ``user`` is the SASL user name, or the subject ``CN=…`` of a client certificate. None means
        that there is no authentication.
        """
        if self.users is None:
            return ClientIdentity(f"User:{user}" if user else ANONYMOUS, host, None)
        users, rights = self.users()
        if self.requires_sasl and user not in users.users:
            return None
        return ClientIdentity(f"User:{user}" if user else ANONYMOUS, host, rights)


def reloading_users(
    path: str, notify: Callable[[str], None]
) -> ReloadingFile[tuple[Users, AclTable]]:
    """The users file, reloaded when it changes.

    Raises:
        InvalidConfig: the file cannot be read.
    """

    def made() -> tuple[Users, AclTable]:
        users = read_users(path)
        return users, AclTable(users.rules)

    return ReloadingFile((path,), made, notify)


def reloading_tls(
    certificate: str, key: str, client_ca: str, notify: Callable[[str], None]
) -> ReloadingFile[ssl.SSLContext]:
    """The TLS context, reloaded when one of its files changes.

    Raises:
        InvalidConfig: a file cannot be read.
    """
    paths = tuple(each for each in (certificate, key, client_ca) if each)
    return ReloadingFile(paths, lambda: tls_context(certificate, key, client_ca), notify)
