"""Sends any request of Kafka's protocol, in any version, to a broker or to ``serve``.

Requests and answers are kio's messages.
"""

from __future__ import annotations

import io
import socket
import struct
from types import TracebackType
from typing import Any

from kio.serial import entity_reader, entity_writer

from lastwrite.kafka.network.messages import build_message, schema, skip_tags
from tests.support.sockets import received


class Raw:
    """A connection to ``HOST:PORT``."""

    def __init__(self, address: str, timeout_s: float = 60.0) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self._correlation_id = 0

    def ask(self, name: str, version: int, /, **values: object) -> Any:
        """Send a request of these fields, and return the answer.

        ``part`` makes nested structures.
        """
        module = schema(name, version)
        return self.say(name, version, build_message(module, _class_of(name) + "Request", **values))

    def say(self, name: str, version: int, message: Any) -> Any:
        """Send a complete request message, and return the answer."""
        self._correlation_id += 1
        out = io.BytesIO()
        head = struct.pack(">hhi", message.__api_key__, version, self._correlation_id)
        client = b"raw"
        out.write(head + struct.pack(">h", len(client)) + client)
        out.write(b"\0" if message.__flexible__ else b"")
        entity_writer(type(message))(out, message)
        self.send(out.getvalue())
        answer = self.receive()
        assert int.from_bytes(answer[:4], "big") == self._correlation_id
        kind = getattr(schema(name, version, "response"), _class_of(name) + "Response")
        has_tags = kind.__flexible__ and name != "api_versions"
        at = skip_tags(answer, 4) if has_tags else 4
        found, size = entity_reader(kind)(answer, at)
        assert at + size == len(answer), "bytes behind the answer"
        return found

    def send(self, frame: bytes) -> None:
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self) -> bytes:
        """The next answer, without its size field.

        Raises:
            ConnectionError: The server closed the connection.
        """
        (size,) = struct.unpack(">i", received(self._socket, 4))
        return received(self._socket, size)

    def __enter__(self) -> Raw:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()


def part(name: str, version: int, of: str, /, **values: object) -> Any:
    """A nested structure of a request."""
    return build_message(schema(name, version), of, **values)


def _class_of(name: str) -> str:
    return "".join(each.capitalize() for each in name.split("_"))
