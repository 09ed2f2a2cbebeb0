"""A name server and broker in this process, with a topic of one queue."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from lastwrite.rocketmq.format.record import encode_message, make_message
from lastwrite.rocketmq.network.client import PullCode, RequestCode
from lastwrite.rocketmq.network.frame import IS_ANSWER, PREFIX, Command, decode_command
from lastwrite.rocketmq.network.frame import encode_command as encode
from tests.support.rocketmq.records import START

TOPIC = "t"
_NO_MESSAGE = 1


@dataclass
class ServedQueue:
    """The queue and its broker's state.

    ``address`` is the broker address that the name server returns. ``messages`` has what a pull
    returns by queue offset, and ``kept`` what is in the commit log. ``is_compacted`` tells whether
    the broker compacts the topic.
    """

    is_compacted: bool = False
    address: str = ""
    messages: dict[int, bytes] = field(default_factory=dict)
    kept: dict[int, bytes] = field(default_factory=dict)
    end: int = 0
    pulls: int = 0
    # whether a pull gets no answer, by the number of pulls so far
    is_silent: Callable[[int], bool] = lambda asked: False

    def add(self, key: str, body: bytes, count: int = 1) -> None:
        """Append ``count`` messages."""
        for _ in range(count):
            record = message_at(self.end, key, body)
            self.messages[self.end] = self.kept[self.end] = record
            self.end += 1

    def expire(self, below: int) -> None:
        """Delete the messages below an offset from the commit log, as retention does."""
        for offset in [each for each in self.kept if each < below]:
            del self.kept[offset]
            if not self.is_compacted:
                del self.messages[offset]

    def compact(self, *offsets: int) -> None:
        """Remove these offsets from what pulls return, as a broker's compaction does."""
        for offset in offsets:
            del self.messages[offset]

    @property
    def first_kept(self) -> int:
        return min(self.kept, default=self.end)

    # ------------------------------------------------------------------ answers

    def answer(self, request: Command) -> Command:
        asked = RequestCode(request.code)
        wanted = request.fields
        answers = {
            RequestCode.TOPICS: lambda: Command(0, body=_json(topicList=[TOPIC])),
            RequestCode.ROUTE: lambda: Command(0, body=self._route()),
            RequestCode.TOPIC_CONFIG: lambda: Command(0, body=self._config()),
            RequestCode.BROKER_CONFIG: lambda: Command(0, body=b"searchBcqByCacheEnable=false\n"),
            RequestCode.MIN_OFFSET: lambda: Command(0, {"offset": str(self.first_kept)}),
            RequestCode.MAX_OFFSET: lambda: Command(0, {"offset": str(self.end)}),
            RequestCode.PULL: lambda: self._pull(
                int(wanted["queueOffset"]), int(wanted["maxMsgNums"])
            ),
            RequestCode.QUEUE_UNITS: lambda: self._units(
                int(wanted["index"]), int(wanted["count"])
            ),
            RequestCode.MESSAGE_AT: lambda: self._message(int(wanted["offset"])),
        }
        return replace(answers[asked](), opaque=request.opaque, flag=IS_ANSWER)

    def _route(self) -> bytes:
        return _json(
            queueDatas=[{"brokerName": "a", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}],
            brokerDatas=[{"brokerName": "a", "brokerAddrs": {"0": self.address}}],
        )

    def _config(self) -> bytes:
        attributes = {"cleanup.policy": "COMPACTION"} if self.is_compacted else {}
        return _json(readQueueNums=1, writeQueueNums=1, perm=6, attributes=attributes)

    def _pull(self, offset: int, count: int) -> Command:
        first = min(self.messages, default=self.end)
        bounds = {"minOffset": str(first), "maxOffset": str(self.end)}
        if offset < first and not self.is_compacted:
            return Command(PullCode.MOVED, {**bounds, "nextBeginOffset": str(first)})
        found = sorted(each for each in self.messages if each >= offset)[:count]
        if not found:
            return Command(PullCode.NOT_FOUND, {**bounds, "nextBeginOffset": str(offset)})
        body = b"".join(self.messages[each] for each in found)
        return Command(0, {**bounds, "nextBeginOffset": str(found[-1] + 1)}, body)

    def _units(self, first: int, count: int) -> Command:
        found = [
            {"physicOffset": each, "physicSize": len(self.kept[each])}
            for each in range(first, min(first + count, self.end))
        ]
        return Command(0, body=_json(queueData=found))

    def _message(self, offset: int) -> Command:
        record = self.kept.get(offset)
        return Command(_NO_MESSAGE) if record is None else Command(0, body=record)


def message_at(offset: int, key: str, body: bytes) -> bytes:
    """A record of the topic. An empty body deletes the key."""
    return encode_message(
        make_message(
            TOPIC,
            body,
            {"KEYS": key},
            queue_offset=offset,
            physical_offset=offset,
            store_time_ms=START + offset,
            born_time_ms=START + offset,
        )
    )


def _json(**values: object) -> bytes:
    return json.dumps(values).encode()


@contextmanager
def serving(queue: ServedQueue) -> Iterator[str]:
    """Serve the queue while the context is open. Returns the name server's address."""
    listener = socket.create_server(("127.0.0.1", 0))
    taken: list[socket.socket] = []

    def converse(connection: socket.socket) -> None:
        with suppress(OSError, EOFError):
            while True:
                (size,) = PREFIX.unpack(_exactly(connection, PREFIX.size))
                request = decode_command(_exactly(connection, size))
                if request.code == RequestCode.PULL:
                    queue.pulls += 1
                    if queue.is_silent(queue.pulls):
                        return
                connection.sendall(encode(queue.answer(request)))

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                taken.append(connection)
                threading.Thread(target=converse, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    queue.address = queue.address or address
    try:
        yield address
    finally:
        for each in (listener, *taken):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data
