"""Responses about settings of topics, the broker, groups and client metrics.

Source: Kafka 4.4 ``ConfigHelper``; the responses of Kafka 4.4.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lastwrite.errors import LogError
from lastwrite.kafka.cluster.cluster_state import BROKER, CLIENT_METRICS, GROUP
from lastwrite.kafka.rules.described_settings import (
    BrokerSettings,
    ConfigSource,
    DescribedSetting,
    Synonym,
    is_broker_setting,
)
from lastwrite.kafka.rules.topic_settings import POLICY
from lastwrite.kafka.store import archived
from lastwrite.server.acls import Operation
from lastwrite.server.authorized_catalog import AuthorizedCatalog
from lastwrite.server.catalog import ServedTopic, name_problem
from lastwrite.server.errors import Code
from lastwrite.server.handlers import MALFORMED, NODE, ServerContext
from lastwrite.server.messages import ClientRequest, encode_answer, part

TOPIC, LOGGER = 2, 8  # two types of resources; ``cluster_state`` defines the other types
_NO_CLUSTER = "Cluster authorization failed."
_INTEGER = re.compile(r"[+-]?[0-9]+")


def configured_settings(config: Mapping[str, object], roots: Sequence[str]) -> dict[str, str]:
    """The broker settings in ``config``, with the log roots and this server's node id."""
    given = {name: str(value) for name, value in config.items() if is_broker_setting(name)}
    own = dict.fromkeys(("node.id", "broker.id"), str(NODE))
    dirs = {"log.dirs": ",".join(roots)} if roots else {}
    return dirs | given | own


def describe_configs(place: ServerContext, request: ClientRequest, body: Any) -> bytes:
    """The response with the settings of resources, their sources and synonyms.

    Loggers have no settings.
    """
    return encode_answer(
        request,
        results=tuple(
            _result(request, each, body.include_synonyms, *_settings(place, each))
            for each in body.resources
        ),
    )


def _result(
    request: ClientRequest,
    asked: Any,
    has_synonyms: bool,
    error: int,
    message: str,
    found: Iterable[DescribedSetting],
) -> Any:
    keys = asked.configuration_keys
    return part(
        request,
        "DescribeConfigsResult",
        error_code=error,
        error_message=message,
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
        configs=tuple(
            part(
                request,
                "DescribeConfigsResourceResult",
                name=each.name,
                value=each.value,
                read_only=not each.is_dynamic,
                config_source=each.source,
                is_default=each.source == ConfigSource.DEFAULT,
                is_sensitive=each.is_sensitive,
                synonyms=tuple(_synonym(request, one) for one in each.synonyms)
                if has_synonyms
                else (),
                config_type=each.type,
                documentation=None,
            )
            for each in found
            if not keys or each.name in keys
        ),
    )


def _synonym(request: ClientRequest, each: Synonym) -> Any:
    return part(request, "DescribeConfigsSynonym", **each._asdict())


_Found = tuple[int, str, list[DescribedSetting]]


def _settings(place: ServerContext, asked: Any) -> _Found:
    """A resource's settings: (error code, error message, settings)."""
    kind, name = asked.resource_type, asked.resource_name
    try:
        if kind == TOPIC:
            return _of_topic(place, name)
        error, message = _error(place.catalog, kind, name)
        if error or kind == LOGGER:
            return error, message, []
        configs = place.files.state().configs
        node = place.files.node()
        broker = BrokerSettings(
            {} if node is None else configs.get((BROKER, node)),
            configs.get((BROKER, "")),
            place.broker_file,
        )
    except LogError as failed:
        return Code.KAFKA_STORAGE_ERROR, str(failed), []
    if kind == BROKER:
        return error, message, broker.describe() if name else broker.describe_defaults()
    settings = configs.get((kind, name), {})
    if kind == GROUP:
        return error, message, broker.describe_group(settings)
    return error, message, broker.describe_client_metrics(settings)


def _of_topic(place: ServerContext, name: str) -> _Found:
    topic = place.catalog.topic(name)
    if topic is not None:
        return Code.NONE, "", _topic_settings(place, topic)
    message = name_problem(name)
    code = Code.INVALID_TOPIC if message else Code.UNKNOWN_TOPIC_OR_PARTITION
    error = place.catalog.unknown(name, code)
    if error == Code.TOPIC_AUTHORIZATION_FAILED:
        message = "Topic authorization failed."
    return error, message, []


def _topic_settings(place: ServerContext, topic: ServedTopic) -> list[DescribedSetting]:
    """All settings of a topic, with sources and synonyms.

    Raises:
        LogError: the settings cannot be read.
    """
    folder = topic.partitions[min(topic.partitions)].settings_folder
    known = place.system.topic_metadata(folder)
    if known is None:
        found = BrokerSettings(file=place.broker_file).describe_topic({})
        # cleanup.policy is unknown, so it is omitted instead of returning Kafka's default
        return [each for each in found if each.name != POLICY.replace("_", ".")]
    file = _texts(known.file) if archived.is_archived(folder) else place.broker_file
    broker = BrokerSettings(_texts(known.broker), _texts(known.brokers), file)
    return broker.describe_topic(_texts(known.topic))


def _texts(settings: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in settings.items() if value is not None}


def _error(catalog: AuthorizedCatalog, kind: int, name: str) -> tuple[int, str]:
    """The error code and message for a settings request, if the resource is not a topic."""
    if kind not in (BROKER, LOGGER, CLIENT_METRICS, GROUP):
        return Code.INVALID_REQUEST, MALFORMED
    if kind == GROUP:
        if not catalog.may_describe_group_settings(name):
            return Code.GROUP_AUTHORIZATION_FAILED, "Group authorization failed."
        return (Code.NONE, "") if name else (Code.INVALID_REQUEST, "Group name must not be empty")
    if not catalog.of_cluster(Operation.DESCRIBE_CONFIGS):
        return Code.CLUSTER_AUTHORIZATION_FAILED, _NO_CLUSTER
    text = None
    if not name:
        text = {
            CLIENT_METRICS: "Client metrics subscription name must not be empty",
            LOGGER: "Broker id must not be empty",
        }.get(kind)
    elif kind != CLIENT_METRICS and not _INTEGER.fullmatch(name):
        text = f"Broker id must be an integer, but it is: {name}"
    elif kind != CLIENT_METRICS and int(name) != NODE:
        expected = f"{NODE} or empty string," if kind == BROKER else str(NODE)
        text = f"Unexpected broker id, expected {expected} but received {name}"
    return (Code.NONE, "") if text is None else (Code.INVALID_REQUEST, text)


CONFIG_HANDLERS = {"describe_configs": describe_configs}
