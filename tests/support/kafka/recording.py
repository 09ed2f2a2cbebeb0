"""Records what clients send to a Kafka server, so that a test can send it to another server."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support.sockets import received


class Recorder:
    """A proxy that records requests.

    ``said`` has the requests of each connection, without their sizes. ``change`` takes a request
    and its answer, and returns the answer that the client gets.
    """

    def __init__(self, change: Callable[[bytes, bytes], bytes] | None = None) -> None:
        self._change = change
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.said: list[list[bytes]] = []

    @contextmanager
    def before(self, address: str) -> Iterator[Recorder]:
        """Forward connections to the server at ``address`` while the context is open."""
        accepting = threading.Thread(target=self._accept, args=(address,), daemon=True)
        accepting.start()
        try:
            yield self
        finally:
            self._listener.close()

    def _accept(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        with contextlib.suppress(OSError):  # the listener is closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((host, int(port)))
                said: list[bytes] = []
                self.said.append(said)
                ways = (client, server, said.append), (server, client, self._changed(said))
                for way in ways:
                    threading.Thread(target=_hand_on, args=way, daemon=True).start()

    def _changed(self, said: list[bytes]) -> Callable[[bytes], bytes | None]:
        """Apply ``change`` to each answer. Answers have the order of the requests."""
        asked, change = iter(said), self._change
        return lambda answer: change(next(asked), answer) if change else None


def _hand_on(of: socket.socket, to: socket.socket, seen: Callable[[bytes], bytes | None]) -> None:
    """Forward frames. A result of ``seen``, unless None, replaces the frame."""
    with of, to:
        with contextlib.suppress(OSError):
            while True:
                frame = received(of, int.from_bytes(received(of, 4), "big"))
                frame = seen(frame) or frame
                to.sendall(len(frame).to_bytes(4, "big") + frame)
        # close alone does not end the connection while the other thread reads from it
        for each in (of, to):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
