"""Tests of requests to ``serve`` about the cluster.

They cover features, quorum, quotas, settings and transactions. Requests for changes are refused as
read-only.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.kafka.cluster.cluster_state import ClusterState
from lastwrite.server.cluster_handlers import _filter_error, _matches
from lastwrite.server.errors import Code
from lastwrite.server.handlers import READ_ONLY
from lastwrite.server.messages import APIS
from lastwrite.server.refused_writes import REFUSED_WRITES
from tests.golden.commands import CORPUS
from tests.support.kafka.raw import Raw, part
from tests.support.kafka.wrong_requests import WrongRequest

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Raw]:
    folder = tmp_path_factory.mktemp("cluster")
    shutil.copytree(CORPUS / "kafka-4.4.0" / "stopped", folder / "root")
    with (
        lastwrite.serve(
            str(folder / "root"), listen="127.0.0.1:0", state=str(folder / "state")
        ) as serving,
        Raw(serving.address) as connection,
    ):
        yield connection


@pytest.mark.parametrize(("version", "transactions"), [(3, None), (4, (0, 2))])
def test_api_versions_response_lists_features(
    raw: Raw, version: int, transactions: tuple[int, int] | None
) -> None:
    answer = raw.ask("api_versions", version, client_software_name="a", client_software_version="1")
    supported = {
        each.name: (each.min_version, each.max_version) for each in answer.supported_features
    }
    assert supported.get("transaction.version") == transactions
    assert supported["metadata.version"] == (7, 33)
    finalized = {each.name: each.max_version_level for each in answer.finalized_features}
    assert finalized == {
        "metadata.version": 33,
        "eligible.leader.replicas.version": 1,
        "group.version": 1,
        "share.version": 2,
        "streams.version": 1,
        "transaction.version": 2,
    }
    assert answer.finalized_features_epoch == 170


@pytest.mark.parametrize("version", [0, 1, 2])
def test_quorum_is_described(raw: Raw, version: int) -> None:
    name = "describe_quorum"
    topics = tuple(
        part(
            name,
            version,
            "TopicData",
            topic_name=topic,
            partitions=(part(name, version, "PartitionData", partition_index=0),),
        )
        for topic in ("__cluster_metadata", "keyless")
    )
    answer = raw.ask(name, version, topics=topics)
    found, other = (each.partitions[0] for each in answer.topics)
    assert answer.error_code == found.error_code == Code.NONE
    assert (found.leader_id, found.leader_epoch, found.high_watermark) == (1, 1, 171)
    assert [(each.replica_id, each.log_end_offset) for each in found.current_voters] == [(1, 171)]
    assert other.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_resources_with_settings_are_listed(raw: Raw) -> None:
    answer = raw.ask("list_config_resources", 1, resource_types=())
    found = {(each.resource_type, each.resource_name) for each in answer.config_resources}
    assert {(TOPIC, "keyless"), (BROKER, "1"), (LOGGER, "1")} < found
    answer = raw.ask("list_config_resources", 1, resource_types=(3,))
    assert (answer.error_code, answer.config_resources) == (Code.UNSUPPORTED_VERSION, ())
    assert raw.ask("list_config_resources", 0).config_resources == ()


def _settings(raw: Raw, kind: int, name: str, has_synonyms: bool = True) -> Any:
    api = "describe_configs"
    keys = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    asked = part(api, 4, "DescribeConfigsResource", **keys)
    said = {"include_synonyms": has_synonyms, "include_documentation": False}
    (answer,) = raw.ask(api, 4, resources=(asked,), **said).results
    return answer


@pytest.mark.parametrize(
    ("kind", "name", "error", "count"),
    [
        (BROKER, "1", Code.NONE, 351),
        (BROKER, "", Code.NONE, 1),
        (GROUP, "readers", Code.NONE, 21),
        (CLIENT_METRICS, "all", Code.NONE, 3),
        (LOGGER, "1", Code.NONE, 0),
        (GROUP, "", Code.INVALID_REQUEST, 0),
        (LOGGER, "7", Code.INVALID_REQUEST, 0),
        (BROKER, "7", Code.INVALID_REQUEST, 0),
        (BROKER, "x", Code.INVALID_REQUEST, 0),
    ],
)
def test_describe_configs_returns_all_settings(
    raw: Raw, kind: int, name: str, error: Code, count: int
) -> None:
    answer = _settings(raw, kind, name)
    assert (answer.error_code, len(answer.configs)) == (error, count)


def test_settings_have_sources_and_synonyms(raw: Raw) -> None:
    def found(kind: int, resource: str, setting: str, has_synonyms: bool = True) -> Any:
        configs = _settings(raw, kind, resource, has_synonyms).configs
        (each,) = (each for each in configs if each.name == setting)
        synonyms = [(one.name, one.value, one.source) for one in each.synonyms]
        return each.value, each.config_source, each.read_only, synonyms

    assert found(BROKER, "1", "node.id") == ("1", 4, True, [("node.id", "1", 4)])
    replicas = [("min.insync.replicas", "1", 3), ("min.insync.replicas", "1", 5)]
    assert found(BROKER, "1", "min.insync.replicas") == ("1", 3, False, replicas)
    assert found(TOPIC, "keyless", "min.insync.replicas") == ("1", 3, False, replicas)
    policy = [("cleanup.policy", "compact", 1), ("log.cleanup.policy", "delete", 5)]
    assert found(TOPIC, "keyless", "cleanup.policy") == ("compact", 1, False, policy)
    assert found(TOPIC, "keyless", "cleanup.policy", False) == ("compact", 1, False, [])


def test_group_without_members_has_no_protocol(raw: Raw) -> None:
    place = {"name": "keyless", "partitions": [{"committed_offset": 1}]}
    body = {"group_id": "alone", "generation_id_or_member_epoch": -1, "topics": [place]}
    raw.say("offset_commit", 8, WrongRequest("offset_commit", 8, body).message)
    (listed,) = raw.ask("list_groups", 5, states_filter=(), types_filter=()).groups
    assert (listed.group_id, listed.protocol_type, listed.group_type) == ("alone", "", "classic")
    asked = {"groups": ("alone",), "include_authorized_operations": False}
    (found,) = raw.ask("describe_groups", 6, **asked).groups
    assert (found.group_state, found.protocol_type) == ("Empty", "")


def test_scram_credentials_are_tracked_by_user() -> None:
    state = ClusterState()
    for name, mechanism in (("alice", 1), ("alice", 2), ("bob", 1)):
        state.apply(11, {"name": name, "mechanism": mechanism, "iterations": 4096})
    state.apply(22, {"name": "alice", "mechanism": 1})
    state.apply(22, {"name": "bob", "mechanism": 1})
    assert state.scram == {"alice": {2: 4096}}


def test_log_without_quotas_and_transactions_lists_none(raw: Raw) -> None:
    answer = raw.ask("describe_client_quotas", 1, components=(), strict=False)
    assert (answer.error_code, answer.entries) == (Code.NONE, ())
    for version in (0, 1, 2):
        answer = raw.ask("list_transactions", version, state_filters=("Ongoing", "Odd"))
        assert (answer.unknown_state_filters, answer.transaction_states) == (("Odd",), ())
    answer = raw.ask("describe_transactions", 0, transactional_ids=("missing",))
    assert answer.transaction_states[0].error_code == Code.TRANSACTIONAL_ID_NOT_FOUND


def test_transactions_of_a_stopped_broker_are_listed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(CORPUS / "internal-topics", root)
    state = str(tmp_path / "state")
    with (
        lastwrite.serve(str(root), listen="127.0.0.1:0", state=state) as serving,
        Raw(serving.address) as raw,
    ):
        listed = raw.ask("list_transactions", 2).transaction_states
        answer = raw.ask(
            "describe_transactions", 0, transactional_ids=[each.transactional_id for each in listed]
        )
        only = raw.ask("list_transactions", 2, transactional_id_pattern="abo.*", state_filters=())
        bad = raw.ask("list_transactions", 2, transactional_id_pattern="(", state_filters=())
    state = "CompleteAbort"
    assert [(each.transactional_id, each.producer_id) for each in listed] == [
        ("aborted", 1),
        ("exactly-once", 0),
    ]
    assert {each.transaction_state for each in listed} == {state}
    first = answer.transaction_states[0]
    assert (first.error_code, first.transaction_state, first.producer_epoch) == (0, state, 0)
    assert first.transaction_timeout.total_seconds() == 60
    assert first.transaction_start_time.timestamp() == 1795249789.6
    assert [each.transactional_id for each in only.transaction_states] == ["aborted"]
    assert bad.error_code == Code.INVALID_REGULAR_EXPRESSION


_RESOURCE = {"resource_type": TOPIC, "resource_name": "t", "configs": []}
_CHANGES: dict[str, dict[str, Any]] = {
    "create_topics": {"topics": [{"name": "t", "num_partitions": 1, "replication_factor": 1}]},
    "delete_topics": {"topics": [{"name": "t"}], "topic_names": ["t"]},
    "delete_records": {"topics": [{"name": "t", "partitions": [{"partition_index": 0}]}]},
    "create_acls": {"creations": [{"resource_name": "t"}]},
    "delete_acls": {"filters": [{}]},
    "alter_configs": {"resources": [_RESOURCE]},
    "create_partitions": {"topics": [{"name": "t", "count": 2}]},
    "elect_leaders": {"topic_partitions": [{"topic": "t", "partitions": [0]}]},
    "incremental_alter_configs": {"resources": [_RESOURCE]},
    "alter_partition_reassignments": {"topics": []},
    "alter_client_quotas": {"entries": [{"entity": [{"entity_type": "user"}]}]},
    "alter_user_scram_credentials": {"deletions": [{"name": "alice", "mechanism": 1}]},
    "update_features": {"feature_updates": [{"feature": "group.version"}]},
}
_HAVE_NO_MESSAGE = {("delete_records", version) for version in range(3)} | {
    ("delete_topics", version) for version in range(1, 5)
}


@pytest.mark.parametrize("api", REFUSED_WRITES)
def test_changes_are_refused_as_read_only(raw: Raw, api: str) -> None:
    for version in range(APIS[api].oldest, APIS[api].newest + 1):
        answer = raw.say(api, version, WrongRequest(api, version, _CHANGES[api]).message)
        assert "AUTHORIZATION_FAILED" in repr(answer).upper()
        if (api, version) not in _HAVE_NO_MESSAGE:
            assert READ_ONLY in repr(answer), version


def test_quota_filters_match_entities() -> None:
    state = ClusterState()
    entities = (("user", None),), (("user", "alice"),), (("client-id", "a"), ("user", "alice"))
    for entity in entities:
        said = [{"entityType": kind, "entityName": name} for kind, name in reversed(entity)]
        fields = {"entity": said, "key": "producer_byte_rate", "value": 1.5, "remove": False}
        state.apply(14, fields)
        state.apply(14, fields | {"key": "consumer_byte_rate"})
        state.apply(14, fields | {"key": "consumer_byte_rate", "remove": True})
    assert state.quotas == {entity: {"producer_byte_rate": 1.5} for entity in entities}

    def found(*components: tuple[str, int, str | None], strict: bool = False) -> list[Any]:
        body = _Filter(tuple(_Component(*each) for each in components), strict)
        assert _filter_error(body.components) == (Code.NONE, "")
        return [entity for entity in state.quotas if _matches(entity, body)]

    default, alice, both = entities
    assert found() == list(entities)
    assert found(("user", 1, None)) == [default]
    assert found(("user", 0, "alice")) == [alice, both]
    assert found(("user", 0, "alice"), strict=True) == [alice]
    assert found(("user", 2, None), ("client-id", 2, None)) == [both]
    state.apply(
        14,
        {"entity": [{"entityType": "user", "entityName": None}]}
        | {"key": "producer_byte_rate", "value": 0.0, "remove": True},
    )
    assert list(state.quotas) == [alice, both]


@dataclass
class _Component:
    entity_type: str
    match_type: int
    match: str | None


@dataclass
class _Filter:
    components: tuple[_Component, ...]
    strict: bool
