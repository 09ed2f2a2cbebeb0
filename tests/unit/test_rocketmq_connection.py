"""Tests of connections to peers that do not use RocketMQ's protocol.

They end in time, with a helpful error. For a real broker see
``tests/system/test_rocketmq_client.py``.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from lastwrite.errors import InvalidConfig, RemoteFailed
from lastwrite.rocketmq.network.connection import RocketmqConnection, parse_address
from lastwrite.rocketmq.network.frame import Command, encode_command


@contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a server that accepts one connection and calls ``answer`` with it."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        try:
            connection, _ = server.accept()
            with connection:
                answer(connection)
        except OSError:
            pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.close()
        thread.join(5)


def ask(address: str, timeout: float = 5.0) -> Command:
    with RocketmqConnection(address, timeout) as connection:
        return connection.request(105, {"topic": "t"}, doing="requesting the route of t")


def test_silence_ends_with_the_timeout() -> None:
    with (
        listening(lambda connection: time.sleep(1)) as address,
        pytest.raises(RemoteFailed, match=r"within 0\.2 s"),
    ):
        ask(address, 0.2)


def test_slow_trickle_ends_with_the_timeout() -> None:
    def trickle(connection: socket.socket) -> None:
        connection.sendall(struct.pack(">i", 1000))
        for _ in range(20):
            connection.sendall(b"x")
            time.sleep(0.05)

    with listening(trickle) as address, pytest.raises(RemoteFailed, match="no answer within"):
        ask(address, 0.3)


def test_closed_connection_is_reported() -> None:
    with listening(lambda connection: None) as address, pytest.raises(RemoteFailed) as caught:
        ask(address)
    assert caught.value.path == address


@pytest.mark.parametrize("length", [-1, 0, 2**31 - 1, (64 << 20) + 1])
def test_impossible_frame_length_is_refused_at_once(length: int) -> None:
    def contradiction(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(struct.pack(">i", length))
        time.sleep(0.5)

    with (
        listening(contradiction) as address,
        pytest.raises(RemoteFailed, match=f"a frame of {length} bytes"),
    ):
        ask(address)


def test_other_protocol_is_reported() -> None:
    def web(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with listening(web) as address, pytest.raises(RemoteFailed, match="a frame of") as caught:
        ask(address)
    assert caught.value.remedy is not None and "RocketMQ" in caught.value.remedy


def test_unrelated_responses_are_skipped() -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        # A request of the broker to its client.
        connection.sendall(encode_command(Command(40, opaque=1)))
        connection.sendall(encode_command(Command(0, {"late": "1"}, opaque=99, flag=1)))
        connection.sendall(encode_command(Command(0, {"ours": "1"}, opaque=1, flag=1)))
        time.sleep(0.2)

    with listening(answer) as address:
        assert ask(address).fields == {"ours": "1"}


def test_refused_connection_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(RemoteFailed, match="requesting the route of t: connection refused"):
        ask(address)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h:1", ("h", 1)),
        ("[::1]:9876", ("::1", 9876)),
        ("::1:9876", ("::1", 9876)),
        (" h.x:65535 ", ("h.x", 65535)),
    ],
)
def test_addresses_are_parsed(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize("text", ["", "h", "h:", ":1", "h:0", "h:65536", "h:x", "h:-1", "h:１"])
def test_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="HOST:PORT"):
        parse_address(text)
