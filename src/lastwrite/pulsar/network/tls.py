"""TLS contexts and sockets for connections to brokers and bookies.

Source: Pulsar 4.2.4 ``PulsarChannelInitializer``; BookKeeper 4.17.3 ``TLSContextFactory``.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time

from lastwrite.errors import InvalidConfig
from lastwrite.pulsar.rules.live_settings import TlsFiles

_MILLISECONDS = 1000


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """The TLS context of a connection.

    Raises:
        InvalidConfig: a file is missing, or not PEM.
    """
    try:
        context = ssl.create_default_context(cafile=files.trusted or None)
        if files.certificate:
            # Raise an error for an encrypted key. Otherwise the library would prompt for its
            # password at the terminal.
            context.load_cert_chain(files.certificate, files.key or None, password="")
    except OSError as error:  # includes ssl.SSLError
        raise InvalidConfig(
            f"a certificate or a key cannot be read: {error.strerror or error}",
            path=", ".join(each for each in (files.trusted, files.certificate, files.key) if each),
            remedy="set tlsTrustCertsFilePath, tlsCertificateFilePath and tlsKeyFilePath to PEM "
            "files, and use a key without a password; for bookies use the same names with "
            "bookkeeperTLS in the place of tls",
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Do not require the extensions of strict checks, because Java accepts certificates without
    # them.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = files.verifies_host and not files.is_insecure
    if files.is_insecure:
        context.verify_mode = ssl.CERT_NONE
    return context


class TlsSocket:
    """A TLS connection where one thread may send while another receives.

    The ssl library handles one call at a time, so no call may block in it.
    """

    def __init__(self, wrapped: ssl.SSLSocket, timeout: float) -> None:
        self._socket = wrapped
        self._sending = self._receiving = timeout
        self._one = threading.Lock()
        wrapped.setblocking(False)

    def settimeout(self, seconds: float) -> None:
        """Set the timeout of ``recv`` in seconds."""
        self._receiving = seconds

    def sendall(self, data: bytes) -> None:
        deadline = time.monotonic() + self._sending
        left = memoryview(data)
        while left:
            with self._one:
                try:
                    left = left[self._socket.send(left) :]
                    continue
                except ssl.SSLWantReadError:
                    wanted = select.POLLIN
                except ssl.SSLWantWriteError:
                    wanted = select.POLLOUT
            self._wait(wanted, deadline)

    def recv(self, size: int) -> bytes:
        deadline = time.monotonic() + self._receiving
        while True:
            with self._one:
                try:
                    return self._socket.recv(size)
                except ssl.SSLWantReadError:
                    wanted = select.POLLIN
                except ssl.SSLWantWriteError:
                    wanted = select.POLLOUT
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    return b""
            self._wait(wanted, deadline)

    def shutdown(self, how: int) -> None:
        socket.socket.shutdown(self._socket, how)

    def close(self) -> None:
        self._socket.close()

    def _wait(self, needed: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(self._socket, needed)
        if not poll.poll(max(deadline - time.monotonic(), 0) * _MILLISECONDS):
            raise TimeoutError
