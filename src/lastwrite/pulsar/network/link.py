"""One connection to a bookie or a broker.

It sends and receives frames: a length and as many bytes.

Every call ends within its timeout, even without an answer. The length of a frame may be
false: bytes are read as they arrive, and a length above the maximum ends the connection.

Source: Pulsar 4.2.4 and BookKeeper 4.17.3, which use the same framing: an int32, big-endian, that
does not count itself.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Callable

from lastwrite.config.address import parse_address
from lastwrite.errors import RemoteFailed
from lastwrite.pulsar.network.tls import TlsSocket

TIMEOUT_SECONDS = 30.0

_PREFIX = struct.Struct(">i")
# The maximum size of a frame, above the largest message size of any cluster.
_MOST_BYTES = 256 << 20
_READ_BYTES = 1 << 18


class PulsarConnectionBroken(RemoteFailed):
    """Raised if the other side, or the network, closed an open connection."""


class Link:
    """A connection to ``address``, ``HOST:PORT``.

    It starts with the first frame and ends with the first error.

    A request before the error is never repeated automatically. ``kind`` names the other side in
    errors. ``tls`` wraps the connection, before the first frame, or after the frames that ``begin``
    exchanges without TLS. Not thread-safe, but one thread may send while another receives.
    """

    def __init__(
        self,
        address: str,
        kind: str,
        timeout: float = TIMEOUT_SECONDS,
        tls: ssl.SSLContext | None = None,
        begin: Callable[[Callable[[bytes], bytes], str], None] | None = None,
    ) -> None:
        self.address = address
        self._kind = kind
        self._host, self._port = parse_address(address)
        self._timeout = timeout
        self._tls = tls
        self._begin = begin
        self._socket: socket.socket | TlsSocket | None = None
        self._received = bytearray()
        self._consumed = 0  # number of bytes of ``_received`` that were returned as frames

    def open(self, doing: str) -> None:
        """Connect, if not connected yet. ``doing`` names the purpose in errors.

        Raises:
            RemoteFailed: the connection fails or times out.
        """
        if self._socket is not None:
            return
        try:
            connected = socket.create_connection((self._host, self._port), self._timeout)
            self._socket = connected
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                if self._begin is not None:
                    self._begin(lambda frame: self._exchange(frame, doing), self.address)
                wrapped = self._tls.wrap_socket(connected, server_hostname=self._host)
                self._socket = TlsSocket(wrapped, self._timeout)
        except OSError as error:
            self.close()
            raise self._failed(error, doing) from error
        except RemoteFailed:
            self.close()
            raise

    def _exchange(self, frame: bytes, doing: str) -> bytes:
        self.send([frame], doing)
        answer = self.receive(doing)
        assert answer is not None
        return answer

    def send(self, frames: list[bytes], doing: str) -> None:
        """Send whole frames.

        Raises:
            RemoteFailed: the other side does not accept them within the timeout.
        """
        self.open(doing)
        parts = [part for frame in frames for part in (_PREFIX.pack(len(frame)), frame)]
        try:
            if self._socket is None:  # another thread closed the connection after an error
                raise ConnectionAbortedError
            self._socket.sendall(b"".join(parts))
        except OSError as error:
            self.close()
            raise self._failed(error, doing) from error

    def receive(self, doing: str, seconds: float | None = None) -> bytes | None:
        """The next frame.

        With ``seconds``, returns None if no byte of the frame arrives in that time. Without
        ``seconds``, waits until the timeout and raises.

        Raises:
            RemoteFailed: the frame does not arrive in time, the connection is closed, or the bytes
                are not a frame.
        """
        frame = self._at_hand()
        if frame is not None:
            return frame
        deadline = time.monotonic() + (self._timeout if seconds is None else seconds)
        try:
            if seconds is not None:
                try:
                    self._fill(_PREFIX.size, deadline)
                except TimeoutError:
                    return None
                deadline = max(deadline, time.monotonic() + self._timeout)
            self._fill(_PREFIX.size, deadline)
            (length,) = _PREFIX.unpack_from(self._received, self._consumed)
            if not 0 < length <= _MOST_BYTES:
                raise RemoteFailed(
                    f"{doing}: the answer begins with an invalid frame length of {length} bytes",
                    path=self.address,
                    remedy=f"check that this address is a {self._kind}'s, and that it uses TLS "
                    "exactly if the configuration does",
                )
            self._fill(_PREFIX.size + length, deadline)
        except RemoteFailed:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise self._failed(error, doing) from error
        return self._at_hand()

    def _at_hand(self) -> bytes | None:
        """The next frame, if all its bytes have arrived. ``receive`` handles an invalid frame."""
        begin = self._consumed + _PREFIX.size
        if len(self._received) < begin:
            return None
        (length,) = _PREFIX.unpack_from(self._received, self._consumed)
        end = begin + length
        if not begin < end <= len(self._received):
            return None
        self._consumed = end
        return bytes(memoryview(self._received)[begin:end])

    def shutdown(self) -> None:
        """Shut the connection down. A thread that waits in ``receive`` wakes up and closes it."""
        connected = self._socket
        if connected is not None:
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._received = bytearray()
        self._consumed = 0

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fill(self, size: int, deadline: float) -> None:
        while len(self._received) - self._consumed < size:
            if self._consumed:
                del self._received[: self._consumed]
                self._consumed = 0
            if self._socket is None:
                raise ConnectionAbortedError
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            try:
                part = self._socket.recv(_READ_BYTES)
            finally:
                if self._socket is not None:
                    self._socket.settimeout(self._timeout)
            if not part:
                raise ConnectionResetError("the server closed the connection")
            self._received += part

    def _failed(self, error: OSError, doing: str) -> RemoteFailed:
        if isinstance(error, TimeoutError):
            return RemoteFailed(
                f"{doing}: no answer from the {self._kind} within {self._timeout:g} s",
                path=self.address,
                remedy=f"check that the {self._kind} is running",
            )
        if isinstance(error, ssl.SSLCertVerificationError):
            return RemoteFailed(
                f"{doing}: the {self._kind}'s certificate is not trusted: {error.verify_message}",
                path=self.address,
                remedy="set tlsTrustCertsFilePath (for bookies bookkeeperTLSTrustCertsFilePath) "
                "to the certificate of the authority; if host names are verified, connect "
                "by a host name of the certificate",
            )
        if isinstance(error, ssl.SSLError):
            why = (error.reason or str(error)).lower().replace("_", " ")
            return RemoteFailed(
                f"{doing}: the TLS handshake with the {self._kind} failed: {why}",
                path=self.address,
                remedy="check that the port uses TLS, and whether it requires a client certificate",
            )
        reason = (error.strerror or str(error) or "the connection was closed").lower()
        begun = ConnectionResetError, ConnectionAbortedError, BrokenPipeError
        kind = PulsarConnectionBroken if isinstance(error, begun) else RemoteFailed
        return kind(
            f"{doing}: {reason}",
            path=self.address,
            remedy=f"check that the {self._kind} is running at this address, and that this "
            "machine can reach it",
        )
