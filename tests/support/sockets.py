"""What raw connections to a server have in common."""

from __future__ import annotations

import socket


def received(connection: socket.socket, size: int) -> bytes:
    """So many bytes.

    Raises:
        ConnectionError: the server hung up before.
    """
    found = bytearray(size)
    receive_into(connection, memoryview(found))
    return bytes(found)


def receive_into(connection: socket.socket, room: memoryview) -> None:
    """As many bytes as there is room for; errors as ``received``."""
    while len(room):
        count = connection.recv_into(room)
        if not count:
            raise ConnectionError("the server hung up")
        room = room[count:]
