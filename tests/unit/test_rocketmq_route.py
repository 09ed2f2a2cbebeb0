"""Tests of routes: brokers, queues, and the queue of a key."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.errors import CorruptLog, LogError
from lastwrite.rocketmq.format.java_hash import string_hash
from lastwrite.rocketmq.network.route import MessageQueue, decode_json, decode_route, queue_of

TWO_BROKERS = {
    "brokerDatas": [
        {
            "brokerName": "b",
            "cluster": "c",
            "brokerAddrs": {"0": "10.0.0.2:10911", "1": "10.0.0.3:10911"},
        },
        {"brokerName": "a", "cluster": "c", "brokerAddrs": {"0": "10.0.0.1:10911"}},
        {"brokerName": "d", "cluster": "c", "brokerAddrs": {"1": "10.0.0.4:10911"}},
    ],
    "queueDatas": [
        {"brokerName": "b", "perm": 6, "readQueueNums": 2, "writeQueueNums": 1},
        {"brokerName": "a", "perm": 4, "readQueueNums": 1, "writeQueueNums": 1},
        {"brokerName": "d", "perm": 6, "readQueueNums": 1, "writeQueueNums": 1},
    ],
}


def decoded(route: object) -> object:
    return decode_route("t", json.dumps(route).encode())


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("t", "a", number) for number in range(count)]


def test_queues_are_listed_by_broker_and_number() -> None:
    route = decode_route("t", json.dumps(TWO_BROKERS).encode())
    assert route.readable == (
        MessageQueue("t", "a", 0),
        MessageQueue("t", "b", 0),
        MessageQueue("t", "b", 1),
        MessageQueue("t", "d", 0),
    )
    # broker a is not writable, and broker d has no master
    assert route.writable == (MessageQueue("t", "b", 0),)
    assert route.master_of("b") == "10.0.0.2:10911"
    assert route.master_of("d") is None
    assert route.readers_of("b") == ["10.0.0.2:10911", "10.0.0.3:10911"]


def test_order_of_the_name_server_takes_precedence() -> None:
    route = decode_route("t", json.dumps({**TWO_BROKERS, "orderTopicConf": "b:1;a:2"}).encode())
    assert route.writable == (
        MessageQueue("t", "b", 0),
        MessageQueue("t", "a", 0),
        MessageQueue("t", "a", 1),
    )


def test_unquoted_numbers_of_old_name_servers_are_decoded() -> None:
    body = b'{"brokerDatas":[{"brokerAddrs":{0:"x:1",1:"{2:y"},"brokerName":"a"}],"note":"{3: 4}"}'
    assert decode_json(body) == {
        "brokerDatas": [{"brokerAddrs": {"0": "x:1", "1": "{2:y"}, "brokerName": "a"}],
        "note": "{3: 4}",
    }


@pytest.mark.parametrize(
    "route",
    [
        [],
        7,
        {"brokerDatas": {}},
        {"brokerDatas": [1]},
        {"brokerDatas": [{"brokerName": "a"}]},
        {"brokerDatas": [{"brokerName": "a", "brokerAddrs": {"x": "y"}}]},
        {"queueDatas": [{"brokerName": "a", "perm": 4, "readQueueNums": 2**40}]},
        {"queueDatas": [{"brokerName": "a", "perm": 4, "readQueueNums": -1}]},
        {"orderTopicConf": "a:x"},
        {"orderTopicConf": "a:999999999"},
    ],
)
def test_invalid_route_is_refused(route: object) -> None:
    with pytest.raises(CorruptLog):
        decoded(route)


@given(st.binary(max_size=80))
def test_random_bytes_are_a_route_or_raise_a_log_error(body: bytes) -> None:
    try:
        decode_route("t", body)
    except LogError:
        pass


@pytest.mark.parametrize(("key", "queue"), [("order-1", 6), ("order-2", 5), ("key1", 2)])
def test_key_has_the_queue_that_the_stock_client_chooses(key: str, queue: int) -> None:
    assert queue_of(key, queues(8)).queue == queue  # docs/formats/rocketmq-compaction.md, "Routing"


@given(st.text(), st.integers(1, 20))
def test_queue_is_the_absolute_value_of_javas_remainder(key: str, count: int) -> None:
    value = string_hash(key)
    java = (
        abs(value) % count if value >= 0 else -(-value % count)
    )  # Java's % keeps the sign of the left
    assert queue_of(key, queues(count)).queue == abs(java)
