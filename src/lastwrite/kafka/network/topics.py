"""Create topics, read and change their settings."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from lastwrite.kafka.network.cluster import KafkaCluster
from lastwrite.kafka.network.messages import build_message

_TOPIC, _BROKER = 2, 4  # resource types in DescribeConfigs
_LARGEST_REQUEST = "socket.request.max.bytes"
_OF_TOPIC = 1  # config source of a value that is set for the topic
_SET, _DELETE = 0, 1
_EXISTS = 36
_PATIENCE = timedelta(seconds=30)


class TopicSetting(NamedTuple):
    """A topic's setting as a broker reports it: the effective value and its source."""

    value: str | None
    is_own: bool  # whether the value is set for the topic, and not a default


def settings(cluster: KafkaCluster, topic: str) -> dict[str, TopicSetting]:
    """All settings that a broker reports for the topic, by name.

    Raises:
        RemoteFailed: the request is refused, or not answered within the timeout.
    """
    doing = f"read the settings of topic {topic}"

    def asked() -> dict[str, TopicSetting]:
        resource = {"resource_type": _TOPIC, "resource_name": topic, "configuration_keys": None}
        address = cluster.controller
        with cluster.connection(address) as connection:
            module = connection.schema("describe_configs", doing)
            resources = (build_message(module, "DescribeConfigsResource", **resource),)
            answer = connection.request("describe_configs", doing, resources=resources)
        (found,) = answer.results
        rights = "DescribeConfigs of the topic"
        cluster.check(found.error_code, doing, address, found.error_message, rights)
        return {
            each.name: TopicSetting(each.value, each.config_source == _OF_TOPIC)
            for each in found.configs
        }

    return cluster.with_retries(asked)


def largest_request(cluster: KafkaCluster) -> int | None:
    """The largest request in bytes that every broker accepts: ``socket.request.max.bytes``.

    A broker closes the connection on a larger request. None if no broker reports the setting.

    Raises:
        RemoteFailed: no broker answers within the timeout.
    """
    doing = "read the brokers' largest request size"
    asked = {"resource_type": _BROKER, "configuration_keys": (_LARGEST_REQUEST,)}

    def ask(node: int, address: str) -> list[int]:
        with cluster.connection(address) as connection:
            module = connection.schema("describe_configs", doing)
            resource = build_message(
                module, "DescribeConfigsResource", resource_name=str(node), **asked
            )
            answer = connection.request("describe_configs", doing, resources=(resource,))
        return [int(config.value) for found in answer.results for config in found.configs]

    def ask_all() -> list[int]:
        return [size for each in cluster.brokers.items() for size in ask(*each)]

    return min(cluster.with_retries(ask_all), default=None)


def create(
    cluster: KafkaCluster, topic: str, partitions: int, replication: int, own: Mapping[str, str]
) -> None:
    """Create a topic unless it exists, and wait for its leaders.

    ``replication`` -1 means the brokers' default. ``own`` has the topic's settings.

    Raises:
        RemoteFailed: the request is refused, or not answered within the timeout.
    """
    doing = f"create topic {topic}"

    def values(module: Any) -> Mapping[str, object]:
        configs = tuple(
            build_message(module, "CreatableTopicConfig", name=name, value=value)
            for name, value in own.items()
        )
        wanted = build_message(
            module,
            "CreatableTopic",
            name=topic,
            num_partitions=partitions,
            replication_factor=replication,
            assignments=(),
            configs=configs,
        )
        return {"topics": (wanted,), "timeout": _PATIENCE, "validate_only": False}

    def asked() -> None:
        address = cluster.controller
        with cluster.connection(address) as connection:
            said = values(connection.schema("create_topics", doing))
            (found,) = connection.request("create_topics", doing, **said).topics
        if found.error_code != _EXISTS:
            rights = "Create of the topic"
            cluster.check(found.error_code, doing, address, found.error_message, rights)

    cluster.with_retries(asked)

    def seen() -> None:
        cluster.refresh()
        for number in cluster.topic(topic).partitions:
            cluster.leader(topic, number)

    cluster.with_retries(seen)


def alter(cluster: KafkaCluster, topic: str, own: Mapping[str, str | None]) -> None:
    """Change a topic's settings. The value None removes a setting.

    Raises:
        RemoteFailed: the request is refused, or not answered within the timeout.
    """
    doing = f"set {', '.join(own)} of {topic}"

    def asked() -> None:
        address = cluster.controller
        with cluster.connection(address) as connection:
            module = connection.schema("incremental_alter_configs", doing)
            configs = tuple(
                module.AlterableConfig(
                    name=name, config_operation=_DELETE if value is None else _SET, value=value
                )
                for name, value in own.items()
            )
            resource = module.AlterConfigsResource(
                resource_type=_TOPIC, resource_name=topic, configs=configs
            )
            answer = connection.request(
                "incremental_alter_configs", doing, resources=(resource,), validate_only=False
            )
        (found,) = answer.responses
        rights = "AlterConfigs of the topic"
        cluster.check(found.error_code, doing, address, found.error_message, rights)

    cluster.with_retries(asked)
