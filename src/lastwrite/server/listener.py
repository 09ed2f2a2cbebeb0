"""The server: one thread per connection, whose requests are answered in order.

    accept ──► frame ──► request ──► answer: bytes, and file ranges that the kernel sends
                 ▲                        │
                 └────────────────────────┘   a Fetch without data waits for ``ChangeNotifier``

Sizes in a request are not trusted: buffers grow with the bytes received. A client that does not use
Kafka's protocol, or does not read its responses, loses its connection and affects no other.

Source: docs/decisions/serving.md; limits as in Kafka 4.4 SocketServer.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import ssl
import struct
import threading
import time
from dataclasses import dataclass, replace

from lastwrite.errors import CommitConflict, CorruptLog
from lastwrite.kafka.look.served import ByteRange
from lastwrite.server.acls import ClientIdentity
from lastwrite.server.admin_handlers import ADMIN_HANDLERS
from lastwrite.server.authorized_catalog import AuthorizedCatalog
from lastwrite.server.change_notifier import ChangeNotifier
from lastwrite.server.cluster_handlers import CLUSTER_HANDLERS
from lastwrite.server.config_handlers import CONFIG_HANDLERS
from lastwrite.server.fetch import FetchPlan, encode_fetched, error_response, found_for, planned
from lastwrite.server.files import Files, open_files_limit, reserved_descriptors
from lastwrite.server.group_handlers import GROUP_HANDLERS, Coordinator
from lastwrite.server.handlers import HANDLERS, ServerContext, versions_error
from lastwrite.server.listener_security import ListenerSecurity, name_of
from lastwrite.server.memory_budget import MemoryBudget
from lastwrite.server.messages import ClientRequest, decode_body, decode_request, encode_versions
from lastwrite.server.metrics import ServerMetrics
from lastwrite.server.refused_writes import REFUSED_WRITES
from lastwrite.server.session import Session

_ANSWERS = HANDLERS | ADMIN_HANDLERS | CLUSTER_HANDLERS | CONFIG_HANDLERS | REFUSED_WRITES
_SIZE = struct.Struct(">i")
_ROOM_BYTES = 64 << 10
# bytes that are read together with a frame's size field; most requests have fewer bytes
_AHEAD_BYTES = 4 << 10
_JOINED_BYTES = 64 << 10  # a response with at most this many bytes of records is sent in one call
_SEND_ROOM_BYTES = 512 << 10
# Idle seconds after which a connection may be closed to accept another client. The first limit
# applies after a connection's first request, and exceeds a group member's heartbeat interval. The
# second limit applies before the first request.
_LEAST_IDLE_S, _SILENT_S = 6.0, 1.0
_BEGINNINGS = {
    b"GET ": "an HTTP client",
    b"\x16\x03\x01": "a TLS client",
    b"\x16\x03\x03": "a TLS client",
}


@dataclass(frozen=True, slots=True)
class ServeLimits:
    """Limits for clients, as in Kafka's SocketServer.

    Limits per address do not apply to this machine's own addresses, because a proxy on this machine
    may connect for all clients.
    """

    request_bytes: int = 100 << 20  # maximum bytes of a request
    unknown_bytes: int = 64 << 10  # maximum bytes of a request before authentication
    work_bytes: int = 256 << 20  # maximum bytes of all requests in progress, together
    connections: int = 1000
    connections_of_address: int = 100
    idle_s: float = 600.0
    known_s: float = 10.0  # seconds in which TLS handshake and authentication must succeed
    frame_s: float = 30.0  # seconds in which a frame must arrive, from its first byte to its last
    # seconds in which the client must read a response, or each MiB of a large one
    send_s: float = 60.0


@dataclass(eq=False)
class _Guest:
    """A client's connection.

    ``idle_s`` is the time.monotonic at which the connection became idle. None while a request is
    handled.
    """

    host: str
    idle_s: float | None = None
    has_requested: bool = False

    def overdue_s(self) -> float:
        """The seconds by which this connection has exceeded its allowed idle time.

        Negative before that.
        """
        if self.idle_s is None:
            return -1.0
        return time.monotonic() - self.idle_s - (_LEAST_IDLE_S if self.has_requested else _SILENT_S)


class Server:
    """Serves the connections of ``listener`` until it is closed."""

    def __init__(
        self,
        listener: socket.socket,
        door: ListenerSecurity,
        place: ServerContext,
        coordinator: Coordinator,
        files: Files,
        limits: ServeLimits,
        metrics: ServerMetrics,
    ) -> None:
        self._listener = listener
        self._security = door
        self._context = place
        self._coordinator = coordinator
        self._files = files
        self._growth = ChangeNotifier()
        self._limits = limits
        self._budget = MemoryBudget(limits.work_bytes)
        self._metrics = metrics
        self._lock = threading.Lock()
        self._open: dict[socket.socket, _Guest] = {}
        self._most_descriptors = open_files_limit() - reserved_descriptors()
        self._reported_s: dict[str, float] = {}
        self._is_closing = False

    def run(self) -> None:
        """Accept connections until ``close``."""
        while not self._is_closing:
            try:
                connection, peer = self._listener.accept()
                self._wait_for_descriptors()
            except OSError:
                if self._is_closing:
                    return
                self._wait_for_descriptors()
                continue
            host = str(peer[0])
            with self._lock:
                is_full = self._is_full(host)
                if not is_full:
                    self._open[connection] = _Guest(host)
            if is_full:
                self._metrics.disconnected("full")
                self._log_once("full", f"no more connections: {host} was disconnected")
                connection.close()
                continue
            threading.Thread(
                target=self._serve_client, args=(connection, host), daemon=True, name="client"
            ).start()

    def _is_full(self, host: str) -> bool:
        if len(self._open) >= self._limits.connections:
            return True
        of_host = sum(each.host == host for each in self._open.values())
        return of_host >= self._limits.connections_of_address and not _is_of_this_machine(host)

    def _wait_for_descriptors(self) -> None:
        """Close the longest idle connections until the descriptors reserved for files are free.

        New clients wait meanwhile. Without the reserved descriptors, requests that read partitions
        would fail.
        """
        while not self._is_closing and _open_descriptors() >= self._most_descriptors:
            text = f"the limit of {open_files_limit()} open files (ulimit -n) is reached: the "
            self._log_once(
                "descriptors",
                f"{text}connections that are idle longest are closed, and new clients may wait. "
                "Raise the limit, or lower max.connections",
            )
            self._close_idle()
            time.sleep(0.02)

    def _close_idle(self) -> None:
        with self._lock:
            found = max(self._open.items(), key=lambda each: each[1].overdue_s(), default=None)
            if found is None or found[1].overdue_s() < 0:
                return
            connection, guest = found
            guest.idle_s = None
        self._metrics.disconnected("full")
        # Shut down the socket without ending TLS. The connection's thread then reads the end of the
        # stream, and closes the connection.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def connections(self) -> int:
        """The number of open connections."""
        return len(self._open)

    def close(self) -> None:
        """Close all connections. Responses in progress may be cut short."""
        self._is_closing = True
        self._growth.close()
        for each in (self._listener, *list(self._open)):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _serve_client(self, connection: socket.socket, host: str) -> None:
        conversation: _ClientConnection | None = None
        request: ClientRequest | None = None
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_ROOM_BYTES)
            until = time.monotonic() + self._limits.known_s
            connection, session = self._accept(connection, host)
            guest = self._open[connection]
            conversation = _ClientConnection(connection, self._limits, self._budget)
            while True:
                guest.idle_s = time.monotonic()
                frame = conversation.frame(None if session.is_known else until)
                guest.idle_s, guest.has_requested = None, True
                if frame is None:
                    return
                if session.takes_tokens:
                    token = session.handle_raw_token(bytes(frame))
                    answer: list[bytes | ByteRange] | None = None if session.is_over else [token]
                else:
                    request = decode_request(frame)
                    said = session.authenticate(request)
                    answer = [said] if said is not None else self._answer(request, session, host)
                if answer is not None:
                    sent = conversation.send(answer, self._files)
                    self._metrics.answered(request.name if request else "sasl_token", sent)
                conversation.release()
                if session.is_over:
                    self._metrics.disconnected("refused")
                    self._log_once(f"{host} refused", f"{host} was refused: {session.rejection}")
                    return
        except CorruptLog as error:
            self._metrics.disconnected("protocol")
            begun = "" if conversation is None else conversation.detect_protocol()
            said_by = begun or (f"{request.client_id!r}, {error}" if request else str(error))
            self._log_once(f"{host} {begun}", f"{host} disconnected: {said_by}")
        except ssl.SSLError as error:
            self._metrics.disconnected("protocol")
            why = (error.reason or "the connection broke").lower().replace("_", " ")
            self._log_once(f"{host} tls", f"{host} disconnected: TLS failed: {why}")
        except (OSError, CommitConflict):
            # Not reported: the client disconnected, was too slow or lost its permission, or the
            # data was replaced.
            pass
        except Exception as error:
            self._metrics.disconnected("failed")
            what = "a frame" if request is None else f"{request.name} {request.version}"
            self._log_once(what, f"{what} of {host} failed: {type(error).__name__}: {error}")
        finally:
            if conversation is not None:
                conversation.release()
            with self._lock:
                self._open.pop(connection, None)
            connection.close()

    def _accept(self, plain: socket.socket, host: str) -> tuple[socket.socket, Session]:
        """The connection, wrapped in TLS if that is configured, and its session.

        Raises:
            OSError: the TLS handshake failed or timed out.
        """
        plain.settimeout(self._limits.known_s)
        # replace the socket in ``_open`` by the TLS socket, so that ``close`` finds it
        with self._lock:
            connection = self._security.secured(plain)
            self._open[connection] = self._open.pop(plain, _Guest(host))
        whose = None
        try:
            if isinstance(connection, ssl.SSLSocket):
                connection.do_handshake()
                whose = name_of(connection.getpeercert()) or None
        except BaseException:
            with self._lock:
                self._open.pop(connection, None)
            connection.close()
            raise
        return connection, Session(self._security, host, whose)

    def _answer(
        self, request: ClientRequest, session: Session, host: str
    ) -> list[bytes | ByteRange] | None:
        if request.name == "api_versions":
            error = versions_error(self._context, request)
            return [encode_versions(request, error, self._context.files.features())]
        return self.answer(request, session.client(), host)

    def answer(
        self, request: ClientRequest, client: ClientIdentity, host: str
    ) -> list[bytes | ByteRange] | None:
        """The response to a request. None if the client expects no response.

        Raises:
            CorruptLog: the request does not decode.
        """
        body = decode_body(request)
        catalog = self._context.catalog.for_(client, request.name)
        if request.name == "fetch":
            return encode_fetched(request, self._fetched(request, body, catalog))
        if request.name in GROUP_HANDLERS:
            coordinator = replace(self._coordinator, catalog=catalog, client_host=f"/{host}")
            return [GROUP_HANDLERS[request.name](coordinator, request, body)]
        answer = _ANSWERS[request.name](replace(self._context, catalog=catalog), request, body)
        return None if answer is None else [answer]

    def _fetched(
        self, request: ClientRequest, body: object, catalog: AuthorizedCatalog
    ) -> FetchPlan:
        wrong = error_response(body)
        if wrong is not None:
            return wrong
        waiting = found_for(request, body, catalog)
        since = time.monotonic()
        answer = planned(waiting)
        while not answer.has_error and answer.size < waiting.min_bytes:
            left = waiting.until - time.monotonic()
            if left <= 0 or self._is_closing:
                break
            if not self._growth.wait(waiting.partitions(), since, left):
                break
            since = time.monotonic()
            answer = planned(waiting)
        for (_, asked), (_, parts) in zip(waiting.topics, answer.topics, strict=True):
            for each, part in zip(asked, parts, strict=True):
                if each.partition is not None and part.stretch is not None:
                    self._metrics.fetched(each.partition.name.topic, part.stretch.size)
        return answer

    def _log_once(self, what: str, text: str) -> None:
        """Report ``text`` to the operator, at most once a minute for each kind ``what``."""
        now = time.monotonic()
        if now - self._reported_s.get(what, -60.0) >= 60.0:
            if len(self._reported_s) > 1000:
                self._reported_s.clear()
            self._reported_s[what] = now
            self._metrics.notify(text)


class _ClientConnection:
    """Reads the requests of one connection, and sends the responses."""

    def __init__(self, connection: socket.socket, limits: ServeLimits, room: MemoryBudget) -> None:
        self._socket = connection
        self._limits = limits
        self._room = room
        self._reserved_bytes = 0
        self._begin = b""
        self._ahead = b""

    def detect_protocol(self) -> str:
        """The protocol that a client used instead of Kafka's, by its first bytes.

        Empty if unknown.
        """
        return next((who for b, who in _BEGINNINGS.items() if self._begin.startswith(b)), "")

    def frame(self, until: float | None) -> memoryview | None:
        """The next request. None if the client closed the connection or stayed idle.

        ``release`` frees the request's memory. ``until`` is the time.monotonic at which
        authentication times out, or None after authentication.

        Raises:
            CorruptLog: the size is invalid for a request.
            OSError: the connection broke or timed out.
        """
        self._socket.settimeout(self._limits.idle_s if until is None else _seconds_left(until))
        self._ahead = self._ahead or self._socket.recv(_AHEAD_BYTES)
        if not self._ahead:
            return None
        most = self._limits.request_bytes if until is None else self._limits.unknown_bytes
        whole = time.monotonic() + self._limits.frame_s
        until = whole if until is None else min(until, whole)
        self._begin = head = bytes(self._more(_SIZE.size, until))
        (size,) = _SIZE.unpack(head)
        if not 2 <= size <= most:
            raise CorruptLog(f"the request has the invalid size {size}", 0)
        return self._more(size, until)

    def _more(self, size: int, until: float) -> memoryview:
        """Read ``size`` more bytes of a frame. The buffer grows with the bytes received.

        All but the buffer's first 64 KiB count against the memory that all requests share.
        """
        here, self._ahead = self._ahead[:size], self._ahead[size:]
        filled = len(here)
        if filled == size:
            return memoryview(here)
        room = bytearray(min(size, _ROOM_BYTES))
        room[:filled] = here
        while filled < size:
            if filled == len(room):
                more = min(size - filled, len(room))
                self._room.take(more, until)
                self._reserved_bytes += more
                room.extend(bytes(more))
            self._socket.settimeout(_seconds_left(until))
            received = self._socket.recv_into(memoryview(room)[filled:])
            if not received:
                raise ConnectionResetError
            filled += received
        return memoryview(room).toreadonly()

    def release(self) -> None:
        """Return the memory of the answered request to the memory budget."""
        self._room.release(self._reserved_bytes)
        self._reserved_bytes = 0

    def send(self, answer: list[bytes | ByteRange], files: Files) -> int:
        """Send a response, preceded by its size in bytes. Returns that size."""
        size = sum(part.size if isinstance(part, ByteRange) else len(part) for part in answer)
        self._socket.settimeout(self._limits.send_s)
        joined = bytearray(_SIZE.pack(size))
        for part in answer:
            if not isinstance(part, ByteRange):
                joined += part
            elif part.size <= _JOINED_BYTES:
                joined += files.read_exact(part.segment, part.position, part.size)
            else:
                self._socket.sendall(joined)
                joined.clear()
                files.send(self._socket, part.segment, part.position, part.size)
            if len(joined) > _JOINED_BYTES:
                self._socket.sendall(joined)
                joined.clear()
        if joined:
            self._socket.sendall(joined)
        return size


def _open_descriptors() -> int:
    try:
        # one less, because listing the folder has opened a descriptor
        return len(os.listdir("/dev/fd")) - 1
    except OSError:  # the folder cannot be listed, because no descriptor is free
        return open_files_limit()


def _seconds_left(until: float) -> float:
    """The number of seconds until the time ``until`` of time.monotonic.

    Raises:
        TimeoutError: no time is left.
    """
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _is_of_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
