"""Reads from raw connections to a server."""

from __future__ import annotations

import socket


def received(connection: socket.socket, size: int) -> bytes:
    """Read ``size`` bytes.

    Raises:
        ConnectionError: The server closed the connection before.
    """
    found = bytearray(size)
    receive_into(connection, memoryview(found))
    return bytes(found)


def receive_into(connection: socket.socket, room: memoryview) -> None:
    """Fill the buffer. Raises the errors of ``received``."""
    while len(room):
        count = connection.recv_into(room)
        if not count:
            raise ConnectionError("the server hung up")
        room = room[count:]
