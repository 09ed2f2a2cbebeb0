"""One connection to a name server or a broker, for requests and their answers.

Every call ends within the timeout. The length in a frame is not trusted: memory grows only with
the received bytes, and a length above 64 MiB closes the connection.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping

from lastwrite.config.address import parse_address
from lastwrite.errors import LogError, RemoteFailed
from lastwrite.rocketmq.network.access import RequestCredentials
from lastwrite.rocketmq.network.frame import PREFIX, Command, decode_command, encode_command

TIMEOUT_SECONDS = 30.0

_MOST_BYTES = 64 << 20  # largest accepted answer; brokers accept frames of at most 16 MiB
_READ_BYTES = 1 << 18

SUCCESS = 0


class RocketmqConnection:
    """A connection to ``address``, ``HOST:PORT``, opened by the first request.

    If ``access`` is None, the client is anonymous. Two threads must not use a connection at once.
    """

    def __init__(
        self,
        address: str,
        timeout: float = TIMEOUT_SECONDS,
        access: RequestCredentials | None = None,
    ) -> None:
        self.address = address
        self._access = access or RequestCredentials()
        self._host, self._port = parse_address(address)
        self._timeout = timeout
        self._socket: socket.socket | None = None
        self._received = bytearray()
        self._opaque = 0

    def request(
        self, code: int, fields: Mapping[str, object], body: bytes = b"", doing: str = ""
    ) -> Command:
        """Send a request and return the answer. ``doing`` describes the request in errors.

        Raises:
            RemoteFailed: no answer arrives within the timeout, or it is not RocketMQ's protocol.
        """
        doing = doing or f"request {code}"
        self._opaque += 1
        texts = {name: _text(value) for name, value in fields.items()}
        request = Command(code, self._access.signed(texts, body), body, self._opaque)
        deadline = time.monotonic() + self._timeout
        try:
            self._connected(deadline).sendall(encode_command(request))
            while True:
                answer = decode_command(self._frame(deadline))
                # Requests that a broker sends to its clients are ignored.
                if answer.is_answer and answer.opaque == request.opaque:
                    return answer
        except (LogError, OSError) as error:
            is_cut = isinstance(error, ConnectionError) or bool(self._received)
            self.close()
            if isinstance(error, RemoteFailed):
                raise
            failed = self._failed(error, doing)
            if isinstance(error, OSError) and is_cut:
                failed = RocketmqConnectionBroken(
                    failed.problem, path=failed.path, remedy=failed.remedy
                )
            raise failed from error

    def _failed(self, error: LogError | OSError, doing: str) -> RemoteFailed:
        if isinstance(error, TimeoutError):
            wrong, remedy = (
                f"no answer within {self._timeout:g} s",
                "check that the server is running",
            )
        elif isinstance(error, OSError):
            wrong = (error.strerror or str(error)).lower()
            remedy = "check that the server is running, and that this machine can reach it"
        else:
            wrong, remedy = error.problem, "check that the address belongs to a RocketMQ server"
        return RemoteFailed(f"{doing}: {wrong}", path=self.address, remedy=remedy)

    def call(
        self, code: int, fields: Mapping[str, object], body: bytes = b"", doing: str = ""
    ) -> Command:
        """Send a request and return the answer. Raises if the server rejects the request.

        Raises:
            RemoteFailed: as in ``request``, or the server rejects the request.
        """
        answer = self.request(code, fields, body, doing)
        if answer.code != SUCCESS:
            raise refusal(self.address, doing or f"request {code}", answer)
        return answer

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._received.clear()

    def __enter__(self) -> RocketmqConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connected(self, deadline: float) -> socket.socket:
        if self._socket is None:
            self._socket = socket.create_connection(
                (self._host, self._port), _seconds_left(deadline)
            )
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._access.tls is not None:
                self._socket = self._access.tls.wrap_socket(
                    self._socket, server_hostname=self._host
                )
        self._socket.settimeout(_seconds_left(deadline))
        return self._socket

    def _frame(self, deadline: float) -> bytearray:
        self._fill(PREFIX.size, deadline)
        (length,) = PREFIX.unpack_from(self._received)
        if not 0 < length <= _MOST_BYTES:
            raise RemoteFailed(
                f"the answer is not RocketMQ's protocol: it has a frame of {length} bytes",
                path=self.address,
                remedy="check that the address belongs to a RocketMQ server",
            )
        self._fill(PREFIX.size + length, deadline)
        frame = self._received[PREFIX.size : PREFIX.size + length]
        del self._received[: PREFIX.size + length]
        return frame

    def _fill(self, size: int, deadline: float) -> None:
        while len(self._received) < size:
            part = self._connected(deadline).recv(_READ_BYTES)
            if not part:
                raise RocketmqConnectionBroken(
                    "the server closed the connection",
                    path=self.address,
                    remedy="look for the reason in the server's log",
                )
            self._received += part


class RocketmqConnectionBroken(RemoteFailed):
    """Raised if the server or the network closed the connection, perhaps during an answer."""


class RequestRefused(RemoteFailed):
    """Raised if the server rejected the request, and would reject a retry too."""


_TRANSIENT = {2, 14}  # codes: system busy; service not available


def refusal(address: str, doing: str, answer: Command) -> RemoteFailed:
    """An error for a rejected request, with the first line of the answer's remark."""
    said = (answer.remark or "no reason given").strip().splitlines()
    kind = RemoteFailed if answer.code in _TRANSIENT else RequestRefused
    return kind(
        f"{doing}: the server refused with code {answer.code}: "
        f"{said[0] if said else 'no reason given'}",
        path=address,
    )


def _seconds_left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
