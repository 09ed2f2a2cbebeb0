"""Runs RocketMQ's own Java producer and consumer. See ``StockClient.java``."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple

from tests.support.rocketmq.broker import Broker, Unavailable

_SOURCE = Path(__file__).with_name("StockClient.java")


class Seen(NamedTuple):
    """A message that a consumer received, decompressed."""

    offset: int
    key: str | None
    tag: str | None
    body: bytes


class Consumed(NamedTuple):
    """The messages that a consumer received from a queue, and the fields of its last answer."""

    messages: list[Seen]
    status: str
    next_offset: int
    min_offset: int
    max_offset: int


class StockClient:
    """A JVM with the Java clients of ``broker``'s release.

    Raises:
        Unavailable: The Java has no compiler.
    """

    def __init__(self, broker: Broker) -> None:
        if shutil.which("javac") is None:
            raise Unavailable("the stock client needs a JDK: no javac on PATH")
        broker.run.mkdir(parents=True, exist_ok=True)
        self._said: IO[bytes] = (broker.run / "client.out").open("wb")
        self._process = subprocess.Popen(
            [
                "java",
                "-Xmx256m",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                f"-Duser.home={broker.run}",
                "-cp",
                f"{broker.home}/lib/*",
                str(_SOURCE),
                broker.name_server,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )
        self._ask("", until="ready")

    def send(self, topic: str, key: str, body: bytes, tag: str | None = None) -> tuple[int, int]:
        """Send one message to the queue that RocketMQ's selector takes for its key.

        Returns the queue and the offset.
        """
        (line,) = self._ask(f"send {topic} {_coded(key)} {_coded(tag)} {_coded(body)}")
        _, queue, offset = line.split()
        return int(queue), int(offset)

    def pull(self, topic: str, queue: int, offset: int = 0) -> Consumed:
        """All messages from ``offset`` to the queue's end, as a consumer pulls them."""
        *lines, end = self._ask(f"pull {topic} {queue} {offset}")
        messages = []
        for line in lines:
            _, place, _, _, key, tag, body = line.split(" ")
            messages.append(Seen(int(place), _text(key), _text(tag), base64.b64decode(body[1:])))
        _, status, *numbers = end.split()
        return Consumed(messages, status, *map(int, numbers))

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._said.close()

    def __enter__(self) -> StockClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(self, command: str, until: str = "done") -> list[str]:
        assert self._process.stdin is not None and self._process.stdout is not None
        if command:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        lines: list[str] = []
        for line in self._process.stdout:
            line = line.rstrip("\n")
            if line == until:
                return lines
            if line.startswith("failed"):
                raise RuntimeError(f"{command}: {line}")
            if line.startswith(("sent ", "message ", "end ")):
                lines.append(line)
        raise RuntimeError(f"{command}: the stock client ended; see {self._said.name}")


def _coded(value: str | bytes | None) -> str:
    return (
        "-"
        if value is None
        else base64.b64encode(value.encode() if isinstance(value, str) else value).decode()
    )


def _text(word: str) -> str | None:
    return None if word == "-" else base64.b64decode(word[1:]).decode()
