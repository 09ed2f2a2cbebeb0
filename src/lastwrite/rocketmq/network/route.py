"""The route of a topic: a name server's answer, and the order of its queues for producers.

A topic's writable queues are numbered over all brokers that have a master: by broker name, then by
queue number, or in the order of the name server's ordered-topic configuration
(``broker-a:4;broker-b:2``). All producers use this numbering, so messages with equal keys are sent
to one queue; see ``queue_of``.

Source: RocketMQ 5.5.0 ``TopicRouteData``, ``MQClientInstance.topicRouteData2TopicPublishInfo``,
``SelectMessageQueueByHash``; docs/formats/rocketmq-compaction.md, "Routing".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lastwrite.errors import CorruptLog
from lastwrite.rocketmq.format.java_hash import string_hash

MASTER = 0  # broker id of the master; brokers of one name have different ids

_READABLE, _WRITABLE = 4, 2
_MOST_QUEUES = 65536  # queues of a broker; a larger number counts as damage

# Older name servers write numbers as member names without quotes: {0:"127.0.0.1:10911"}.
_TEXT_OR_BARE_NAME = re.compile(r'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?\d+)(?=\s*:)')


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic on one broker."""

    topic: str
    broker: str
    queue: int


@dataclass(frozen=True, slots=True)
class Route:
    """The brokers of a topic and its queues."""

    topic: str
    addresses: Mapping[str, Mapping[int, str]]  # broker addresses by name and id
    readable: tuple[MessageQueue, ...]
    writable: tuple[MessageQueue, ...]  # in the order in which producers number them

    def master_of(self, broker: str) -> str | None:
        """The address of the master of ``broker``, which accepts messages, or None."""
        return self.addresses.get(broker, {}).get(MASTER)

    def readers_of(self, broker: str) -> list[str]:
        """The addresses that answer pulls from ``broker``, the master first."""
        known = self.addresses.get(broker, {})
        return [known[number] for number in sorted(known)]


def decode_route(topic: str, body: bytes) -> Route:
    """Decode the route in a name server's answer.

    Raises:
        CorruptLog: the answer is not a route.
    """
    known = _object(decode_json(body), "the route")
    addresses = decode_addresses(_listed(known, "brokerDatas"))
    readable: list[MessageQueue] = []
    writable: list[MessageQueue] = []
    for data in sorted(
        _objects(_listed(known, "queueDatas")), key=lambda data: str(data.get("brokerName"))
    ):
        broker, permission = str(data.get("brokerName")), _number(data, "perm")
        if permission & _READABLE:
            readable += [
                MessageQueue(topic, broker, n) for n in range(_number(data, "readQueueNums"))
            ]
        if permission & _WRITABLE and MASTER in addresses.get(broker, {}):
            writable += [
                MessageQueue(topic, broker, n) for n in range(_number(data, "writeQueueNums"))
            ]
    ordered = known.get("orderTopicConf")
    if isinstance(ordered, str) and ordered:
        writable = _in_given_order(topic, ordered)
    return Route(topic, addresses, tuple(readable), tuple(writable))


def decode_addresses(brokers: object) -> dict[str, dict[int, str]]:
    """The addresses of brokers by name and id, from a name server's JSON.

    The JSON is ``[{"brokerName": …, "brokerAddrs": {"0": …}}, …]``.
    """
    found: dict[str, dict[int, str]] = {}
    for data in _objects(brokers):
        known = _object(data.get("brokerAddrs"), "brokerAddrs")
        try:
            found[str(data.get("brokerName"))] = {
                int(number): str(address) for number, address in known.items()
            }
        except ValueError as error:
            raise CorruptLog(
                f"a broker's number in the route is not an integer: {error}"
            ) from error
    return found


def decode_json(body: bytes) -> Any:
    """Decode JSON from a name server. Old releases write member names that are unquoted numbers.

    Raises:
        CorruptLog: the bytes are not JSON.
    """
    try:
        text = body.decode()
        return json.loads(_TEXT_OR_BARE_NAME.sub(_with_quotes, text))
    except (ValueError, RecursionError) as error:
        raise CorruptLog(f"the name server's answer is not JSON: {error}") from error


def queue_of(key: str, queues: Sequence[MessageQueue]) -> MessageQueue:
    """The queue to which all messages with ``key`` are sent.

    The queue is selected by the key's Java hash, as by RocketMQ's ``SelectMessageQueueByHash``.
    """
    # Java's remainder has the sign of the dividend, so its absolute value equals the remainder of
    # the absolute value.
    return queues[abs(string_hash(key)) % len(queues)]


def _in_given_order(topic: str, given: str) -> list[MessageQueue]:
    queues: list[MessageQueue] = []
    for part in given.split(";"):
        broker, _, count = part.partition(":")
        is_number = count.isascii() and count.isdigit() and len(count) < 10
        if not is_number or int(count) > _MOST_QUEUES:
            raise CorruptLog(f"the queue order of topic {topic} is {given!r}, which is invalid")
        queues += [MessageQueue(topic, broker, number) for number in range(int(count))]
    return queues


def _with_quotes(found: re.Match[str]) -> str:
    return found[0] if found[2] is None else f'{found[1]}"{found[2]}"'


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CorruptLog(f"{what} in the name server's answer is not a JSON object")
    return value


def _listed(known: Mapping[str, Any], name: str) -> object:
    return [] if known.get(name) is None else known[name]


def _objects(value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise CorruptLog("a value in the name server's answer is not a JSON list")
    return [_object(item, "an item") for item in value]


def _number(data: Mapping[str, Any], name: str) -> int:
    value = data.get(name, 0)
    if not isinstance(value, int) or not 0 <= value <= _MOST_QUEUES:
        raise CorruptLog(f"{name} in the route is {value!r}, which is invalid")
    return value
