"""What clients say to a server of Kafka's protocol, kept so that it can be said to another."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.sockets import received


class Recorder:
    """Stands between clients and a server. ``said``: the requests of each connection, without their
    sizes.
    """

    def __init__(self) -> None:
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
                for way in ((client, server, said), (server, client, [])):
                    threading.Thread(target=_hand_on, args=way, daemon=True).start()


def _hand_on(of: socket.socket, to: socket.socket, said: list[bytes]) -> None:
    with contextlib.suppress(OSError), of, to:
        while True:
            size = received(of, 4)
            frame = received(of, int.from_bytes(size, "big"))
            said.append(frame)
            to.sendall(size + frame)
