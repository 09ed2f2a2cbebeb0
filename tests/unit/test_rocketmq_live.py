"""Tests of selecting queues of a live cluster, and of credentials.

For real brokers see ``tests/system/test_rocketmq_live.py``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from pathlib import Path
from typing import cast

import pytest

import lastwrite
from lastwrite.errors import InvalidConfig, RemoteFailed
from lastwrite.rocketmq.format.sides import TopicConfig
from lastwrite.rocketmq.live import sources_of
from lastwrite.rocketmq.network.access import RequestCredentials
from lastwrite.rocketmq.network.client import RocketmqClient
from lastwrite.rocketmq.network.route import MessageQueue, Route
from lastwrite.rocketmq.rules.live_settings import RocketmqClientConfig, cluster_of
from tests.unit.test_rocketmq_connection import listening


@pytest.mark.parametrize(
    ("url", "servers", "broker"),
    [
        ("rocketmq://a:9876", "a:9876", None),
        ("rocketmq://a:9876,b:9877/", "a:9876;b:9877", None),
        ("rocketmq://a:9876;[::1]:9877/broker-a", "a:9876;[::1]:9877", "broker-a"),
    ],
)
def test_url_names_name_servers_and_optionally_a_broker(
    url: str, servers: str, broker: str | None
) -> None:
    assert cluster_of(url) == (servers, broker)


@pytest.mark.parametrize("url", ["rocketmq://", "rocketmq://a", "rocketmq://a:1/b/c"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidConfig):
        cluster_of(url)


def test_signature_covers_fields_by_name_and_the_body() -> None:
    access = RequestCredentials(
        RocketmqClientConfig(access_key="me", secret_key="s", security_token="t")
    )
    signed = access.signed({"b": "2", "a": "1"}, b"body")
    # in the order of Java's strings: AccessKey, SecurityToken, a, b
    digest = hmac.new(b"s", b"met12body", hashlib.sha1).digest()
    assert signed["Signature"] == base64.b64encode(digest).decode()
    assert RequestCredentials().signed({"a": "1"}, b"") == {"a": "1"}


def test_access_key_without_a_secret_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="only one of accessKey and secretKey"):
        RocketmqClientConfig(access_key="me")


class TwoBrokers:
    """A cluster whose topic ``t`` is on brokers a and b."""

    def topics(self) -> list[str]:
        return ["TBW102", "t"]

    def find_route(self, topic: str) -> Route:
        queues = tuple(MessageQueue(topic, broker, 0) for broker in "ab")
        return Route(topic, {}, queues, queues)

    def topic_config(self, queue: MessageQueue) -> TopicConfig:
        return TopicConfig(queue.topic, 1, 1, 6, attributes={"cleanup.policy": "COMPACTION"})

    def broker_config(self, broker: str) -> dict[str, str]:
        return {"searchBcqByCacheEnable": "false", "compactionMappedFileSize": "5060"}


def test_topic_on_two_brokers_needs_a_broker_name() -> None:
    client = cast("RocketmqClient", TwoBrokers())
    with pytest.raises(
        InvalidConfig, match=r"rocketmq://h:1/a; fetch each broker into another --to"
    ):
        sources_of(client, cluster_of("rocketmq://h:1"), None, None, ())
    (source,) = sources_of(client, cluster_of("rocketmq://h:1/b"), None, None, ())
    assert source.queue == MessageQueue("t", "b", 0)


def test_silent_name_server_ends_with_the_timeout(tmp_path: Path) -> None:
    settings = {"request.timeout.ms": 200, "default.api.timeout.ms": 100}
    with (
        listening(lambda connection: time.sleep(1)) as address,
        pytest.raises(RemoteFailed, match=r"within 0\.2 s"),
    ):
        lastwrite.fetch([f"rocketmq://{address}"], str(tmp_path), topic="t", config=settings)
