"""One connection to one broker: send a request, receive the response.

Every call ends within the timeout, whatever the broker does. The buffer grows with the bytes
received, so a wrong frame length cannot exhaust the memory.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Iterator
from importlib.metadata import version as version_of
from typing import Any

import numpy as np

from lastwrite.config.address import parse_address
from lastwrite.errors import CorruptLog, LogError, RemoteFailed
from lastwrite.kafka.network import messages
from lastwrite.kafka.network.access import authenticate
from lastwrite.kafka.network.fetch import (
    FetchedPartition,
    FetchPartition,
    decode_fetch,
    encode_fetch,
)
from lastwrite.kafka.network.messages import APIS
from lastwrite.kafka.network.produce import (
    ProduceBatch,
    ProduceResult,
    decode_produce,
    encode_produce,
)
from lastwrite.kafka.rules.live_settings import KafkaClientConfig

_ROOM_BYTES = 1 << 20
_MOST_BYTES = (1 << 31) - 1
_SIZE = struct.Struct(">i")
_TLS_ALERT = 0x1503
_UNSUPPORTED_VERSION = 35
_LONGEST_PAUSE_S = 60.0  # upper limit of a broker's throttle time


class RetriableError(RemoteFailed):
    """Raised for an error that may disappear after a wait, or with another leader."""


class ConnectionBroken(RetriableError):
    """Raised if the broker or the network closed an established connection."""


class ReceiveBuffer:
    """The buffer of a response. A view of the buffer is valid until the next response arrives."""

    def __init__(self) -> None:
        self._bytes = np.empty(_ROOM_BYTES, dtype=np.uint8)

    def grown(self, filled: int, size: int) -> memoryview:
        """A view of ``size`` bytes. Grows the buffer, keeping its first ``filled`` bytes."""
        if size > len(self._bytes):
            grown = np.empty(size, dtype=np.uint8)
            grown[:filled] = self._bytes[:filled]
            self._bytes = grown
        return memoryview(self._bytes)[:size]


class KafkaConnection:
    """A connection to ``address`` (``HOST:PORT``). Not thread-safe.

    The first request opens the connection, and an error closes it. The next request reopens it.
    """

    def __init__(
        self, address: str, config: KafkaClientConfig, tls: ssl.SSLContext | None = None
    ) -> None:
        self.address = address
        self._host, self._port = parse_address(address)
        self._config = config
        self._timeout = config.request_timeout_ms / 1000
        self._socket: socket.socket | None = None
        self._versions: dict[int, tuple[int, int]] = {}
        self._correlation_id = 0
        self._awaited: deque[int] = deque()  # correlation ids of unanswered Produce requests
        self._room = ReceiveBuffer()
        self._filled = 0  # bytes that the last ``_fill`` received
        self._arrived = memoryview(b"")  # received bytes of an incomplete response
        self._tls = tls
        self._muted_until = 0.0
        self._expires = 0.0  # monotonic time of the next authentication; 0: never

    # ------------------------------------------------------------------ requests

    def request(self, name: str, doing: str, **values: object) -> Any:
        """Send a request in the newest version that both sides support, and return the response.

        ``doing`` describes the request in error messages.

        Raises:
            RemoteFailed: the broker does not answer in time, does not use Kafka's protocol, or has
                no common version.
        """
        with self._failing(doing):
            deadline = self._opened(doing)
            version = self._version(name)
            return self._exchange(name, version, deadline, **values)

    def schema(self, name: str, doing: str) -> Any:
        """The kio module of the request ``name``, in the version that this connection uses."""
        with self._failing(doing):
            self._opened(doing)
            return messages.schema(name, self._version(name))

    def supports(self, name: str, doing: str) -> bool:
        """Whether the broker and Lastwrite have a common version of this request."""
        with self._failing(doing):
            self._opened(doing)
            return self._common(name) is not None

    def send_fetch(self, asked: FetchPartition, doing: str) -> None:
        """Send a Fetch request. ``receive_fetch`` returns its response and must be the next
        call.
        """
        with self._failing(doing):
            self._opened(doing)
            self._pause()
            self._correlation_id += 1
            request = encode_fetch(
                self._fetch_version(asked), self._correlation_id, self._config.client_id, asked
            )
            self._send(request)

    def receive_fetch(
        self, request: FetchPartition, room: ReceiveBuffer, doing: str
    ) -> FetchedPartition:
        """Receive the response to ``send_fetch``. Its records are a view of the buffer ``room``.

        If the connection breaks within the records, the response has the records received so far.
        """
        with self._failing(doing):
            deadline = time.monotonic() + self._timeout + request.max_wait_ms / 1000
            version = self._fetch_version(request)
            try:
                answer = decode_fetch(version, self._receive(deadline, room))
            except OSError as error:
                answer = self._cut(version, error)
                self.close()
            self._wait_out_throttle(answer.throttle_ms)
            return answer

    def _cut(self, version: int, error: OSError) -> FetchedPartition:
        """Decode an incomplete Fetch response: the bytes received before ``error``.

        Raises ``error`` if the received bytes end before the records.
        """
        if len(self._arrived) < 4:
            raise error
        (correlation_id,) = _SIZE.unpack(self._arrived[:4])
        if correlation_id != self._correlation_id:
            raise error
        try:
            return decode_fetch(version, self._arrived[4:], is_cut=True)
        except CorruptLog:
            raise error from None

    def _fetch_version(self, request: FetchPartition) -> int:
        version = self._version("fetch")
        return version if any(request.topic_id) else min(version, 12)

    def send_produce(self, append: ProduceBatch, doing: str) -> None:
        """Send a Produce request. ``receive_produce`` returns its response.

        Several Produce requests may be in flight. Send no other request until all are answered.
        """
        with self._failing(doing):
            self._opened(doing)
            self._pause()
            self._correlation_id += 1
            self._awaited.append(self._correlation_id)
            self._send(
                encode_produce(
                    self._version("produce"),
                    self._correlation_id,
                    self._config.client_id,
                    append,
                    self._config.request_timeout_ms,
                )
            )

    def receive_produce(self, doing: str) -> ProduceResult:
        """Receive the response to the oldest unanswered ``send_produce``."""
        with self._failing(doing):
            # Wait twice the timeout, because the broker may also wait for its replicas.
            deadline = time.monotonic() + 2 * self._timeout
            data = self._receive(deadline, self._room, self._awaited.popleft())
            answer = decode_produce(self._version("produce"), data)
            self._wait_out_throttle(answer.throttle_ms)
            return answer

    def close(self) -> None:
        self._awaited.clear()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def shutdown(self) -> None:
        """Shut the socket down. A thread that waits for a response then fails at once."""
        talking = self._socket
        if talking is not None:
            with contextlib.suppress(OSError):
                talking.shutdown(socket.SHUT_RDWR)

    def _opened(self, doing: str) -> float:
        """Connect and authenticate unless connected.

        Returns the monotonic deadline of the next request.
        """
        if self._expires and time.monotonic() > self._expires:
            self.close()
        deadline = time.monotonic() + self._timeout
        if self._socket is None:
            try:
                self._socket = self._connected(deadline)
                self._fetch_versions(deadline)
                self._expires = 0.0
                if self._config.uses_sasl:
                    self._authenticate(deadline)
            except BaseException:
                self.close()
                raise
            deadline = time.monotonic() + self._timeout
        return deadline

    def _connected(self, deadline: float) -> socket.socket:
        plain = socket.create_connection((self._host, self._port), _seconds_left(deadline))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is None:
            return plain
        try:
            return self._tls.wrap_socket(plain, server_hostname=self._host)
        except ssl.SSLCertVerificationError as error:
            raise RemoteFailed(
                f"the broker's certificate is not trusted: {error.verify_message}",
                path=self.address,
                remedy="set ssl.ca.location to the certificate of the authority that signed the "
                "broker's certificate",
            ) from error

    def _authenticate(self, deadline: float) -> None:
        mechanism = self._config.sasl_mechanism
        offered = self._exchange("sasl_handshake", 1, deadline, mechanism=mechanism)
        if offered.error_code:
            raise RemoteFailed(
                f"the broker does not support the SASL mechanism {mechanism}",
                path=self.address,
                remedy="set sasl.mechanism to a mechanism that the broker supports: "
                f"{', '.join(offered.mechanisms)}",
            )
        version = self._version("sasl_authenticate")

        def exchange(token: bytes) -> bytes:
            answer = self._exchange("sasl_authenticate", version, deadline, auth_bytes=token)
            if answer.error_code:
                raise RemoteFailed(
                    f"the broker refused user {self._config.user}: {answer.error_message}",
                    path=self.address,
                    remedy="check sasl.username and sasl.password",
                )
            lifetime = getattr(answer, "session_lifetime", None)
            if lifetime:
                self._expires = time.monotonic() + 0.8 * lifetime.total_seconds()
            return bytes(answer.auth_bytes)

        authenticate(self._config, exchange, self.address)

    def _fetch_versions(self, deadline: float) -> None:
        software = {
            "client_software_name": "lastwrite",
            "client_software_version": version_of("lastwrite"),
        }
        newest = APIS["api_versions"].newest
        found = self._exchange("api_versions", newest, deadline, **software)
        self._versions = {
            each.api_key: (each.min_version, each.max_version) for each in found.api_keys
        }

    def _common(self, name: str) -> int | None:
        api = APIS[name]
        low, high = self._versions.get(api.key, (0, -1))
        version = min(high, api.newest)
        return version if version >= max(low, api.oldest) else None

    def _version(self, name: str) -> int:
        found = self._common(name)
        if found is None:
            api = APIS[name]
            low, high = self._versions.get(api.key, (0, -1))
            raise RemoteFailed(
                f"the broker supports versions {low} to {high} of the request {name}, and "
                f"Lastwrite supports {api.oldest} to {api.newest}",
                path=self.address,
                remedy="use a broker of Kafka 2.1 to 4.4",
            )
        return found

    def _exchange(self, name: str, version: int, deadline: float, **values: object) -> Any:
        self._pause()
        self._correlation_id += 1
        message = messages.request_of(name, version, **values)
        self._send(
            messages.encode(name, version, self._correlation_id, self._config.client_id, message)
        )
        data = self._receive(deadline, self._room)
        if name == "api_versions" and _error_of(data) == _UNSUPPORTED_VERSION and version:
            return self._exchange(name, 0, deadline)
        found = messages.decode(name, version, bytes(data))
        throttle = getattr(found, "throttle_time", None)
        if throttle is not None:
            self._wait_out_throttle(throttle.total_seconds() * 1000)
        return found

    # ------------------------------------------------------------------ frames

    def _wait_out_throttle(self, throttle_ms: float) -> None:
        """Wait until the throttle time of the last response is over."""
        if throttle_ms > 0:
            self._muted_until = time.monotonic() + min(throttle_ms / 1000, _LONGEST_PAUSE_S)

    def _pause(self) -> None:
        left = self._muted_until - time.monotonic()
        if left > 0:
            time.sleep(left)

    def _send(self, request: bytes) -> None:
        if self._socket is None:
            raise ConnectionAbortedError("the connection is closed")
        self._socket.settimeout(self._timeout)
        self._socket.sendall(_SIZE.pack(len(request)) + request)

    def _receive(
        self, deadline: float, room: ReceiveBuffer, wanted: int | None = None
    ) -> memoryview:
        """Receive the next response. Returns its bytes after the correlation id.

        ``wanted`` is the expected correlation id. None means the id of the last request.
        """
        wanted = self._correlation_id if wanted is None else wanted
        self._arrived = memoryview(b"")
        head = room.grown(0, _SIZE.size)
        self._fill(head, deadline)
        (size,) = _SIZE.unpack(head)
        if size >> 16 == _TLS_ALERT:
            raise CorruptLog(
                "the listener requires TLS: set security.protocol to SSL or SASL_SSL", 0
            )
        if not 4 <= size <= _MOST_BYTES:
            raise CorruptLog(f"the response's frame has {size} bytes", 0)
        filled, view = 0, head
        while filled < size:
            view = room.grown(filled, min(size, max(_ROOM_BYTES, 2 * filled)))
            try:
                self._fill(view[filled:], deadline)
            except OSError:
                self._arrived = view[: filled + self._filled]
                raise
            filled = len(view)
        (correlation_id,) = _SIZE.unpack(view[:4])
        if correlation_id != wanted:
            raise CorruptLog(
                f"the response is for request {correlation_id}, not for request {wanted}", 0
            )
        return view[4:]

    def _fill(self, view: memoryview, deadline: float) -> None:
        """Receive bytes of a response until ``view`` is full."""
        if self._socket is None:
            raise ConnectionAbortedError("the connection is closed")
        self._filled = 0
        while self._filled < len(view):
            self._socket.settimeout(_seconds_left(deadline))
            received = self._socket.recv_into(view[self._filled :])
            if not received:
                raise ConnectionResetError("the broker closed the connection")
            self._filled += received

    @contextlib.contextmanager
    def _failing(self, doing: str) -> Iterator[None]:
        """A context that closes the connection on an error.

        Raises the error as ``RemoteFailed``.
        """
        try:
            yield
        except (CorruptLog, OSError) as error:
            self.close()
            raise self._failed(error, doing) from error
        except LogError:
            raise
        except BaseException:  # after Ctrl-C an unread response may still arrive
            self.close()
            raise

    def _failed(self, error: LogError | OSError, doing: str) -> RemoteFailed:
        remedy = "check that the broker runs at this address, and that this machine can reach it"
        kind = RetriableError
        if isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError):
            kind = ConnectionBroken
        # TLS also raises this error if the broker rejects the client certificate.
        if isinstance(error, ssl.SSLError):
            wrong = (
                "the TLS handshake failed: "
                f"{(error.reason or str(error)).lower().replace('_', ' ')}"
            )
            remedy = (
                "check whether the listener uses TLS, and whether it requires a client certificate"
            )
        elif isinstance(error, TimeoutError):
            wrong, remedy = (
                f"the broker did not answer within {self._timeout:g} s",
                "check that the broker is running",
            )
        elif isinstance(error, OSError):
            wrong = (error.strerror or str(error)).lower()
        else:
            wrong, remedy = error.problem, "check that a Kafka broker listens at this address"
        return kind(f"could not {doing}: {wrong}", path=self.address, remedy=remedy)


def _error_of(data: memoryview) -> int:
    """The error code at the start of an ApiVersions response of any version."""
    if len(data) < 2:
        raise CorruptLog(f"the response has only {len(data)} bytes", 0)
    return int.from_bytes(data[:2], "big", signed=True)


def _seconds_left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
