"""A TCP proxy that closes each connection after a given number of bytes."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Iterable, Iterator
from types import TracebackType


class BreakingProxy:
    """Passes bytes between clients of ``address`` and a server.

    Args:
        sizes: The bytes that the server may send on each connection before the proxy closes it. The
            numbers are used in turn, and from the first again after the last.
        port: The port to listen on. 0 means a free one.
        renamed: An address in the server's answers, and the one that replaces it. Both have the
            same length.
        is_both: Whether the proxy also closes a connection after that many bytes of the client.
    """

    def __init__(
        self,
        sizes: Iterable[int],
        port: int = 0,
        renamed: tuple[str, str] = ("", ""),
        is_both: bool = False,
    ) -> None:
        self._is_both = is_both
        self._renamed = renamed[0].encode(), renamed[1].encode()
        self.breaks = 0
        self._sizes = itertools.cycle(sizes)
        self._listener = socket.create_server(("127.0.0.1", port))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._target: tuple[str, int] | None = None
        self._open: set[socket.socket] = set()
        self._is_closed = False

    @contextlib.contextmanager
    def before(self, target: str) -> Iterator[None]:
        """Pass bytes to ``target``, given as ``HOST:PORT``, while the context is open."""
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        with self:
            yield

    def __enter__(self) -> BreakingProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_closed = True
        for each in [self._listener, *self._open]:
            _end(each)

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                assert self._target is not None
                server = socket.create_connection(self._target)
            except OSError:
                _end(client)
                continue
            self._open |= {client, server}
            size = next(self._sizes)
            sent = size if self._is_both else None
            for each in ((client, server, sent, False), (server, client, size, True)):
                threading.Thread(target=self._pass, args=each, daemon=True).start()

    def _in_clients_words(self, data: bytes) -> bytes:
        old, new = self._renamed
        assert len(old) == len(new)
        return data.replace(old, new) if old else data

    def _pass(
        self, source: socket.socket, sink: socket.socket, left: int | None, is_answer: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16 if left is None else min(left, 1 << 16)):
                sink.sendall(self._in_clients_words(data) if is_answer else data)
                if left is not None:
                    left -= len(data)
                    if not left:
                        self.breaks += 1
                        break
        _end(source)
        _end(sink)
        self._open -= {source, sink}


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
