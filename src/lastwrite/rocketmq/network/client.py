"""Requests to name servers and brokers: routes, messages by queue offset, bounds, and sending.

    with Client("127.0.0.1:9876") as client:
        queue = client.route("orders").readable[0]
        pulled = client.pull(queue, 0)

A pull includes its subscription, so the client sends no heartbeats. It uses the consumer group of
RocketMQ's tools, so the broker stores no state for it.

Source: RocketMQ 5.5.0 and 4.9.3 ``RequestCode``, ``ResponseCode``, ``PullSysFlag``,
``PullMessageRequestHeader``, ``SendMessageRequestHeaderV2``, ``CreateTopicRequestHeader``;
docs/formats/rocketmq.md, "The store"; docs/formats/rocketmq-compaction.md.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeVar

from lastwrite.errors import CorruptLog, InvalidConfig, RemoteFailed
from lastwrite.rocketmq.format.sides import TopicConfig, decode_topic
from lastwrite.rocketmq.network.access import RequestCredentials
from lastwrite.rocketmq.network.connection import TIMEOUT_SECONDS, RocketmqConnection, refusal
from lastwrite.rocketmq.network.frame import Command
from lastwrite.rocketmq.network.outgoing import OutgoingMessage, encode_batch_member
from lastwrite.rocketmq.network.patience import Patience
from lastwrite.rocketmq.network.route import (
    MASTER,
    MessageQueue,
    Route,
    decode_addresses,
    decode_json,
    decode_route,
)

T = TypeVar("T")

PULL_COUNT = 32  # messages per pull; by default a broker returns no more


class RequestCode(IntEnum):
    """The codes of the requests that Lastwrite sends."""

    PULL = 11
    CREATE_TOPIC = 17
    SET_BROKER_CONFIG = 25
    BROKER_CONFIG = 26
    MAX_OFFSET = 30
    MIN_OFFSET = 31
    MESSAGE_AT = 33
    ROUTE = 105
    CLUSTER = 106
    TOPICS = 206
    SEND = 310  # SEND_MESSAGE_V2, whose header fields have names of one letter
    SEND_BATCH = 320
    QUEUE_UNITS = 321
    TOPIC_CONFIG = 351


class PullCode(IntEnum):
    """The outcome of a pull."""

    FOUND = 0
    NOT_FOUND = 19  # the offset is the queue's end, or no message is found
    RETRY = 20
    MOVED = 21  # the client continues at the answer's next offset


_SYSTEM_ERROR = 1
_NO_SUCH_REQUEST = 3
_TOPIC_NOT_EXIST = 17
_SENT = {0, 10, 11, 12}  # codes for a stored message; above 0: late flush or replication
_WITH_SUBSCRIPTION = 4  # sysFlag of a pull that includes its subscription
_TOOLS_GROUP = "TOOLS_CONSUMER"  # exists on every broker
_PRODUCER_GROUP = "lastwrite"
_DEFAULT_TOPIC = "TBW102"
_READ_AND_WRITE = 6


@dataclass(frozen=True, slots=True)
class PullResponse:
    """The response to one pull. ``records`` are contiguous bytes, as in a commit log."""

    status: PullCode
    next_offset: int
    min_offset: int
    max_offset: int  # offset after the queue's last message
    records: bytes


class Unit(NamedTuple):
    """The address and size of a message in the commit log."""

    address: int
    size: int


class SendResult(NamedTuple):
    """The queue, offset and id of a stored message."""

    queue: MessageQueue
    offset: int
    message_id: str


class RocketmqClient:
    """A client of a name server and its brokers.

    ``name_server`` may have several addresses separated by semicolons; the first that answers is
    used. Two threads must not use a client at once. ``timeout`` is in seconds, for each request.
    ``patience`` limits the retries of requests for topics, routes and settings; None means no
    retries. If ``access`` is None, the client is anonymous.
    """

    def __init__(
        self,
        name_server: str,
        timeout: float = TIMEOUT_SECONDS,
        access: RequestCredentials | None = None,
        patience: Patience | None = None,
    ) -> None:
        addresses = [address for address in name_server.split(";") if address.strip()]
        if not addresses:
            raise InvalidConfig(f"{name_server!r} is not HOST:PORT")
        self._access = access or RequestCredentials()
        self._name_servers = [RocketmqConnection(each, timeout, self._access) for each in addresses]
        self._brokers: dict[str, RocketmqConnection] = {}
        self._routes: dict[str, Route] = {}
        self._timeout = timeout
        self._patience = patience or Patience()

    def close(self) -> None:
        for connection in (*self._name_servers, *self._brokers.values()):
            connection.close()

    def __enter__(self) -> RocketmqClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ routes

    def find_route(self, topic: str) -> Route | None:
        """The current brokers and queues of a topic. Returns None if the topic does not exist."""
        return self._with_retries(lambda: self._find_route(topic))

    def _find_route(self, topic: str) -> Route | None:
        doing = f"requesting the route of {topic}"
        fields = {"topic": topic, "acceptStandardJsonOnly": True}
        answer = self._request_name_server(RequestCode.ROUTE, fields, doing)
        if answer.code == _TOPIC_NOT_EXIST:
            return None
        route = self._decoded(answer, doing, lambda body: decode_route(topic, body))
        self._routes[topic] = route
        return route

    def route(self, topic: str) -> Route:
        """The brokers and queues of a topic, cached by the first request.

        Raises:
            RemoteFailed: the topic does not exist, or no name server answers.
        """
        route = self._routes.get(topic) or self._find_route(topic)
        if route is None:
            raise RemoteFailed(
                f"the cluster has no topic {topic}",
                path=self._name_servers[0].address,
                remedy="check the topic's name; a broker registers its topics after its start",
            )
        return route

    def masters(self) -> dict[str, str]:
        """The addresses of the masters, by broker name. Names without a master are skipped."""

        def decode(body: bytes) -> dict[str, dict[int, str]]:
            known = decode_json(body)
            table = known.get("brokerAddrTable") if isinstance(known, dict) else None
            return decode_addresses(list(table.values()) if isinstance(table, dict) else [])

        doing = "requesting the brokers"
        found = self._decoded(
            self._request_name_server(RequestCode.CLUSTER, {}, doing), doing, decode
        )
        return {name: known[MASTER] for name, known in sorted(found.items()) if MASTER in known}

    def topics(self) -> list[str]:
        """The names of all topics of the name server, sorted, including RocketMQ's own."""

        def decode(body: bytes) -> list[str]:
            known = decode_json(body)
            names = known.get("topicList") if isinstance(known, dict) else None
            return sorted(map(str, names)) if isinstance(names, list) else []

        doing = "requesting the topics"
        return self._with_retries(
            lambda: self._decoded(
                self._request_name_server(RequestCode.TOPICS, {}, doing), doing, decode
            )
        )

    # ------------------------------------------------------------------ reading

    def topic_config(self, queue: MessageQueue) -> TopicConfig | None:
        """The settings of the queue's topic on its broker.

        Returns None if the broker's release is before 5.0, which has no topic attributes.
        """
        return self._with_retries(lambda: self._topic_config(queue))

    def _topic_config(self, queue: MessageQueue) -> TopicConfig | None:
        connection = self._reader(queue)
        doing = f"requesting the settings of {queue.topic}"
        answer = connection.request(RequestCode.TOPIC_CONFIG, {"topic": queue.topic}, doing=doing)
        if answer.code == _NO_SUCH_REQUEST:
            return None
        if answer.code != 0:
            raise refusal(connection.address, doing, answer)
        try:
            return decode_topic(queue.topic, answer.body)
        except CorruptLog as error:
            raise self._strange(connection.address, doing, error) from error

    def units(self, queue: MessageQueue, offset: int, count: int) -> tuple[int, list[Unit]]:
        """Up to ``count`` units of the ordinary consume queue.

        The first element of the result is the first unit's queue offset.

        The first unit is at ``offset``, or at the start of the queue if that is higher.
        """
        connection = self._reader(queue)
        doing = f"requesting the consume queue of {queue.topic}-{queue.queue}"
        first = max(offset, self._bound(connection, RequestCode.MIN_OFFSET, queue, doing))
        fields = {
            "topic": queue.topic,
            "queueId": queue.queue,
            "index": first,
            "count": max(offset + count - first, 0),
        }
        if first >= offset + count:
            return first, []
        answer = connection.call(RequestCode.QUEUE_UNITS, fields, doing=doing)
        if not answer.body:  # the queue ends before ``first``
            return first, []
        try:
            known = decode_json(answer.body)
            listed = known.get("queueData") if isinstance(known, dict) else None
            return first, [
                Unit(int(each["physicOffset"]), int(each["physicSize"])) for each in listed or ()
            ]
        except (CorruptLog, TypeError, KeyError, ValueError) as error:
            problem = (
                error
                if isinstance(error, CorruptLog)
                else CorruptLog(f"the answer has no valid units: {error}")
            )
            raise self._strange(connection.address, doing, problem) from error

    def record_at(self, queue: MessageQueue, address: int) -> bytes | None:
        """The record at ``address`` in the commit log of the queue's broker.

        Returns None if no record begins there.
        """
        connection = self._reader(queue)
        doing = f"requesting the message at physical offset {address}"
        fields = {"offset": address, "topic": queue.topic}
        answer = connection.request(RequestCode.MESSAGE_AT, fields, doing=doing)
        if answer.code == _SYSTEM_ERROR:
            return None
        if answer.code != 0:
            raise refusal(connection.address, doing, answer)
        return answer.body

    def pull(self, queue: MessageQueue, offset: int, count: int = PULL_COUNT) -> PullResponse:
        """Pull up to ``count`` messages from queue offset ``offset`` on.

        An answer has messages of one file only.

        Raises:
            RemoteFailed: the broker does not answer, or rejects the request.
        """
        doing = f"pulling {queue.topic}-{queue.queue} at offset {offset}"
        connection = self._reader(queue)
        fields = {
            "consumerGroup": _TOOLS_GROUP,
            "topic": queue.topic,
            "queueId": queue.queue,
            "queueOffset": offset,
            "maxMsgNums": count,
            "sysFlag": _WITH_SUBSCRIPTION,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
        }
        answer = connection.request(RequestCode.PULL, fields, doing=doing)
        try:
            status = PullCode(answer.code)
        except ValueError:
            raise refusal(connection.address, doing, answer) from None
        return PullResponse(
            status,
            self._number(connection, answer, "nextBeginOffset", doing),
            self._number(connection, answer, "minOffset", doing),
            self._number(connection, answer, "maxOffset", doing),
            answer.body if status is PullCode.FOUND else b"",
        )

    def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """The first offset of the ordinary consume queue, and the offset after its last unit."""
        connection = self._reader(queue)
        doing = f"requesting the offsets of {queue.topic}-{queue.queue}"
        first, end = (
            self._bound(connection, one, queue, doing)
            for one in (RequestCode.MIN_OFFSET, RequestCode.MAX_OFFSET)
        )
        return first, end

    def _bound(
        self, connection: RocketmqConnection, which: RequestCode, queue: MessageQueue, doing: str
    ) -> int:
        fields = {"topic": queue.topic, "queueId": queue.queue, "committed": True}
        return self._number(
            connection, connection.call(which, fields, doing=doing), "offset", doing
        )

    def broker_config(self, broker: str) -> dict[str, str]:
        """The current settings of the broker that answers pulls for ``broker``.

        Raises:
            RemoteFailed: the broker does not answer, or rejects an unauthorized client.
        """
        doing = f"requesting the settings of broker {broker}"
        answer = self._with_retries(
            lambda: self._broker(broker).call(RequestCode.BROKER_CONFIG, {}, doing=doing)
        )
        lines = (line.partition("=") for line in answer.body.decode(errors="replace").splitlines())
        return {name.strip(): value.strip() for name, equals, value in lines if equals}

    # ------------------------------------------------------------------ writing

    def send(
        self, queue: MessageQueue, message: OutgoingMessage, born_ms: int | None = None
    ) -> SendResult:
        """Append one message to ``queue``. ``born_ms`` is the sender's time; None means now.

        Raises:
            InvalidConfig: brokers would not accept the message.
            RemoteFailed: the broker rejects the message, or does not answer. Without an answer, the
                message may be stored.
        """
        properties = message.encode_properties(secrets.token_hex(16).upper())
        body, sys_flag = message.encode_body()
        return self._send(RequestCode.SEND, queue, body, sys_flag, properties, born_ms)[0]

    def send_batch(
        self, queue: MessageQueue, messages: Sequence[OutgoingMessage], born_ms: int | None = None
    ) -> list[SendResult]:
        """Append messages to ``queue`` in one request, with consecutive offsets.

        Bodies are not compressed. Brokers do not check the keys in a batch, so they store messages
        without a key, and compaction drops these.
        """
        if not messages:
            return []
        body = b"".join(
            encode_batch_member(message, secrets.token_hex(16).upper()) for message in messages
        )
        return self._send(RequestCode.SEND_BATCH, queue, body, 0, "", born_ms, len(messages))

    def create_topic(
        self,
        topic: str,
        queues: int,
        attributes: Mapping[str, str] | None = None,
        seconds: float = TIMEOUT_SECONDS,
    ) -> Route:
        """Create or change a topic on every broker, and wait until the name server lists it.

        ``attributes`` has values such as ``{"cleanup.policy": "COMPACTION"}``. Brokers before 5.0
        have no attributes.

        Raises:
            RemoteFailed: a broker does not answer or rejects the request, or the name server does
                not list the topic after ``seconds``.
        """
        fields = {
            "topic": topic,
            "defaultTopic": _DEFAULT_TOPIC,
            "readQueueNums": queues,
            "writeQueueNums": queues,
            "perm": _READ_AND_WRITE,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": False,
            "attributes": ",".join(
                f"+{name}={value}" for name, value in (attributes or {}).items()
            ),
        }
        deadline = time.monotonic() + seconds
        masters = self.masters()
        # A broker registers with the name server a moment after its start.
        while not masters and time.monotonic() < deadline:
            time.sleep(0.1)
            masters = self.masters()
        for address in masters.values():
            self._connection(address).call(
                RequestCode.CREATE_TOPIC, fields, doing=f"creating the topic {topic}"
            )
        while True:
            route = self.find_route(topic)
            if route is not None and len(route.addresses) == len(masters):
                if len(route.writable) >= queues:
                    return route
            if time.monotonic() > deadline:
                raise RemoteFailed(
                    f"the brokers did not register topic {topic} with the name server",
                    path=self._name_servers[0].address,
                    remedy="check that the brokers run and are configured with this name server",
                )
            time.sleep(0.1)

    def set_broker_config(self, broker: str, settings: Mapping[str, str]) -> None:
        """Change settings of a running broker. The broker also writes them to its settings file."""
        body = "".join(f"{name}={value}\n" for name, value in settings.items()).encode()
        self._broker(broker).call(
            RequestCode.SET_BROKER_CONFIG, {}, body, doing=f"changing settings of broker {broker}"
        )

    # ------------------------------------------------------------------ requests

    def _send(
        self,
        request: RequestCode,
        queue: MessageQueue,
        body: bytes,
        sys_flag: int,
        properties: str,
        born_ms: int | None,
        count: int = 1,
    ) -> list[SendResult]:
        doing = f"sending to {queue.topic}-{queue.queue}"
        address = self.route(queue.topic).master_of(queue.broker)
        if address is None:
            raise RemoteFailed(
                f"{doing}: broker {queue.broker} has no master",
                remedy="start the broker's master, then send the message again",
            )
        connection = self._connection(address)
        fields = {
            "a": _PRODUCER_GROUP,
            "b": queue.topic,
            "c": _DEFAULT_TOPIC,
            "d": 4,
            "e": queue.queue,
            "f": sys_flag,
            "g": time.time_ns() // 1_000_000 if born_ms is None else born_ms,
            "h": 0,
            "i": properties,
            "j": 0,
            "k": False,
            "m": request is RequestCode.SEND_BATCH,
            "n": queue.broker,
        }
        answer = connection.request(request, fields, body, doing)
        if answer.code not in _SENT:
            raise refusal(connection.address, doing, answer)
        first = self._number(connection, answer, "queueOffset", doing)
        ids = answer.fields.get("msgId", "").split(",")
        return [SendResult(queue, first + n, ids[n] if n < len(ids) else "") for n in range(count)]

    def _decoded(self, answer: Command, doing: str, decode: Callable[[bytes], T]) -> T:
        """Decode the JSON body of a name server's answer."""
        address = self._name_servers[0].address
        if answer.code != 0:
            raise refusal(address, doing, answer)
        try:
            return decode(answer.body)
        except CorruptLog as error:
            raise self._strange(address, doing, error) from error

    def _request_name_server(
        self, request: RequestCode, fields: Mapping[str, object], doing: str
    ) -> Command:
        failures: list[RemoteFailed] = []
        for n, connection in enumerate(self._name_servers):
            try:
                answer = connection.request(request, fields, doing=doing)
            except RemoteFailed as error:
                failures.append(error)
                continue
            if n:  # from now on, begin with the name server that answered
                self._name_servers.insert(0, self._name_servers.pop(n))
            return answer
        raise failures[0]

    def _with_retries(self, ask: Callable[[], T]) -> T:
        return self._patience.until_answered(ask, self.close_connections)

    def close_connections(self) -> None:
        """Close all connections to brokers, and forget the routes."""
        for connection in self._brokers.values():
            connection.close()
        self._routes.clear()

    def _reader(self, queue: MessageQueue) -> RocketmqConnection:
        addresses = self.route(queue.topic).readers_of(queue.broker)
        if not addresses:
            raise RemoteFailed(
                f"broker {queue.broker} has no running instance that can be read",
                path=self._name_servers[0].address,
                remedy="start the broker, or name another broker of the topic in the address",
            )
        return self._connection(addresses[0])

    def _broker(self, name: str) -> RocketmqConnection:
        for route in self._routes.values():
            if addresses := route.readers_of(name):
                return self._connection(addresses[0])
        masters = self.masters()
        if name not in masters:
            raise RemoteFailed(
                f"no broker named {name} is running",
                path=self._name_servers[0].address,
                remedy="start the broker, or name a running broker",
            )
        return self._connection(masters[name])

    def _connection(self, address: str) -> RocketmqConnection:
        if address not in self._brokers:
            self._brokers[address] = RocketmqConnection(address, self._timeout, self._access)
        return self._brokers[address]

    def _number(
        self, connection: RocketmqConnection, answer: Command, name: str, doing: str
    ) -> int:
        text = answer.fields.get(name, "")
        try:
            return int(text)
        except ValueError as error:
            problem = CorruptLog(f"{name} of the answer is {text!r}, not an integer")
            raise self._strange(connection.address, doing, problem) from error

    @staticmethod
    def _strange(address: str, doing: str, error: CorruptLog) -> RemoteFailed:
        return RemoteFailed(
            f"{doing}: {error.problem}",
            path=address,
            remedy="check that the address belongs to a RocketMQ server",
        )
