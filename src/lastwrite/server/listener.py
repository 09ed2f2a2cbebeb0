"""The server: a thread for each connection, requests of one answered in order.

    accept ──► frame ──► request ──► answer: bytes, and places in files that the kernel sends
                 ▲                        │
                 └────────────────────────┘   a Fetch that finds nothing waits for ``Growth``

What a client says of sizes is a claim: room grows with what comes. Whatever is not Kafka's protocol
ends that conversation and nothing else; so does whoever does not read.

Source: docs/decisions/serving.md; limits as those of Kafka 4.4 SocketServer.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from lastwrite.errors import CommitConflict, CorruptLog
from lastwrite.kafka.look.served import Stretch
from lastwrite.server.errors import Code
from lastwrite.server.fetch import Planned, encode_fetched, found_for, planned
from lastwrite.server.files import Files
from lastwrite.server.group_handlers import GROUP_HANDLERS, Coordinator
from lastwrite.server.growth import Growth
from lastwrite.server.handlers import HANDLERS, Place
from lastwrite.server.messages import Request, decode_body, decode_request, encode_versions

_SIZE = struct.Struct(">i")
_ROOM_BYTES = 64 << 10
_SEND_ROOM_BYTES = 512 << 10
_BEGINNINGS = {
    b"GET ": "an HTTP client",
    b"\x16\x03\x01": "a TLS client",
    b"\x16\x03\x03": "a TLS client",
}


@dataclass(frozen=True, slots=True)
class ServeLimits:
    """What clients may take; see the source above."""

    request_bytes: int = 16 << 20
    connections: int = 1000
    connections_of_address: int = 1000
    idle_s: float = 600.0
    frame_s: float = 30.0  # for a frame that has begun to be whole
    send_s: float = 60.0  # for a piece of an answer to be taken


class Server:
    """Answers at ``listener`` until it is closed.

    ``tell``: hears what an operator should know.
    """

    def __init__(
        self,
        listener: socket.socket,
        place: Place,
        coordinator: Coordinator,
        files: Files,
        growth: Growth,
        limits: ServeLimits,
        tell: Callable[[str], None],
    ) -> None:
        self._listener = listener
        self._place = place
        self._coordinator = coordinator
        self._files = files
        self._growth = growth
        self._limits = limits
        self._tell = tell
        self._lock = threading.Lock()
        self._open: dict[socket.socket, str] = {}
        self._told: dict[str, float] = {}
        self._is_closing = False

    def run(self) -> None:
        """Accept until ``close``."""
        while not self._is_closing:
            try:
                connection, peer = self._listener.accept()
            except OSError:
                if self._is_closing:
                    return
                time.sleep(0.1)  # no descriptor is left: some come back
                continue
            host = str(peer[0])
            with self._lock:
                of_host = Counter(self._open.values())[host]
                is_full = len(self._open) >= self._limits.connections
                is_full = is_full or of_host >= self._limits.connections_of_address
                if not is_full:
                    self._open[connection] = host
            if is_full:
                self._tell_once("full", f"no more connections: {host} was turned away")
                connection.close()
                continue
            threading.Thread(
                target=self._converse, args=(connection, host), daemon=True, name="client"
            ).start()

    def close(self) -> None:
        """End all conversations; what is being answered may be cut short."""
        self._is_closing = True
        self._growth.close()
        for each in (self._listener, *list(self._open)):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _converse(self, connection: socket.socket, host: str) -> None:
        conversation = _Conversation(connection, self._limits)
        coordinator = replace(self._coordinator, client_host=f"/{host}")
        request = None
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_ROOM_BYTES)
            while (frame := conversation.frame()) is not None:
                request = decode_request(frame)
                answer = self._answer(request, coordinator)
                if answer is not None:
                    conversation.send(answer, self._files)
        except CorruptLog as error:
            begun = next(
                (w for b, w in _BEGINNINGS.items() if conversation.begin.startswith(b)), ""
            )
            said = begun or (f"{request.client_id!r}, {error}" if request else str(error))
            self._tell_once(f"{host} {begun}", f"{host} hung up on: {said}")
        except (OSError, CommitConflict):
            pass  # it has gone, or does not read; or what was being sent has
        except Exception as error:
            what = "a frame" if request is None else f"{request.name} {request.version}"
            self._tell_once(what, f"{what} of {host} failed: {type(error).__name__}: {error}")
        finally:
            with self._lock:
                self._open.pop(connection, None)
            connection.close()

    def _answer(self, request: Request, coordinator: Coordinator) -> list[bytes | Stretch] | None:
        if request.name == "api_versions":
            return [encode_versions(request, self._versions_error(request))]
        body = decode_body(request)
        if request.name == "fetch":
            return encode_fetched(request, self._fetched(request, body))
        if request.name in GROUP_HANDLERS:
            return [GROUP_HANDLERS[request.name](coordinator, request, body)]
        answer = HANDLERS[request.name](self._place, request, body)
        return None if answer is None else [answer]

    def _versions_error(self, request: Request) -> int:
        if not 3 <= request.version <= 4:  # 5 has what kio does not know: the cluster's id
            return Code.NONE
        body = decode_body(request)
        return Code.NONE if body.client_software_name else Code.INVALID_REQUEST

    def _fetched(self, request: Request, body: object) -> Planned:
        waiting = found_for(request, body, self._place.catalog)
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
        return answer

    def _tell_once(self, what: str, text: str) -> None:
        """Say it, of one kind of thing once a minute."""
        now = time.monotonic()
        if now - self._told.get(what, -60.0) >= 60.0:
            if len(self._told) > 1000:
                self._told.clear()
            self._told[what] = now
            self._tell(text)


class _Conversation:
    """Frames of one connection."""

    def __init__(self, connection: socket.socket, limits: ServeLimits) -> None:
        self._socket = connection
        self._limits = limits
        self.begin = b""

    def frame(self) -> memoryview | None:
        """The next request; None: the client has gone, or says nothing.

        Raises:
            CorruptLog: a size that none has.
            OSError: it broke off, or took too long.
        """
        self._socket.settimeout(self._limits.idle_s)
        first = self._socket.recv(4)
        if not first:
            return None
        until = time.monotonic() + self._limits.frame_s
        head = first + self._more(4 - len(first), until)
        self.begin = head
        (size,) = _SIZE.unpack(head)
        if not 8 <= size <= self._limits.request_bytes:
            raise CorruptLog(f"a request of {size} bytes", 0)
        return memoryview(self._more(size, until))

    def _more(self, size: int, until: float) -> bytes:
        room, filled = bytearray(min(size, _ROOM_BYTES)), 0
        while filled < size:
            if filled == len(room):
                room.extend(bytes(min(size - filled, len(room))))
            self._socket.settimeout(max(until - time.monotonic(), 0.001))
            received = self._socket.recv_into(memoryview(room)[filled:])
            if not received:
                raise ConnectionResetError
            filled += received
        return bytes(room[:size])

    def send(self, answer: list[bytes | Stretch], files: Files) -> None:
        """Send an answer, its size before it."""
        size = sum(part.size if isinstance(part, Stretch) else len(part) for part in answer)
        self._socket.settimeout(self._limits.send_s)
        head = _SIZE.pack(size)
        for part in answer:
            if isinstance(part, Stretch):
                files.send(self._socket, part.segment, part.position, part.size)
            else:
                self._socket.sendall(head + part)
                head = b""
