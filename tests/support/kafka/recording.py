"""What clients say to a server of Kafka's protocol, kept so that it can be said to another."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support.sockets import received


class Recorder:
    """Stands between clients and a server. ``said``: the requests of each connection, without their
    sizes. ``change``: of a request and its answer makes what the client gets.
    """

    def __init__(self, change: Callable[[bytes, bytes], bytes] | None = None) -> None:
        self._change = change
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.said: list[list[bytes]] = []

    @contextmanager
    def before(self, address: str) -> Iterator[Recorder]:
        """Hand on what comes to the server at ``address``."""
        accepting = threading.Thread(target=self._accept, args=(address,), daemon=True)
        accepting.start()
        try:
            yield self
        finally:
            self._listener.close()

    def _accept(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        with contextlib.suppress(OSError):  # nobody listens any more
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((host, int(port)))
                said: list[bytes] = []
                self.said.append(said)
                ways = (client, server, said.append), (server, client, self._changed(said))
                for way in ways:
                    threading.Thread(target=_hand_on, args=way, daemon=True).start()

    def _changed(self, said: list[bytes]) -> Callable[[bytes], bytes | None]:
        """Answers come in the order of requests."""
        asked, change = iter(said), self._change
        return lambda answer: change(next(asked), answer) if change else None


def _hand_on(of: socket.socket, to: socket.socket, seen: Callable[[bytes], bytes | None]) -> None:
    """``seen`` is told of each frame; what it gives, if anything, goes on in its place."""
    with of, to:
        with contextlib.suppress(OSError):
            while True:
                frame = received(of, int.from_bytes(received(of, 4), "big"))
                frame = seen(frame) or frame
                to.sendall(len(frame).to_bytes(4, "big") + frame)
        for each in (of, to):  # closed alone it stays open as long as the other thread reads it
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
