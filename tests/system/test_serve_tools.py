"""Tests that Kafka's tools print the same for ``serve`` and for a broker 4.4.0 on the same files.

The broker has topics, groups of both protocols, an open transaction, dynamic settings, quotas and
SCRAM credentials. It is stopped, its directory is copied, and it restarts. ``serve`` has the copy
and the broker's properties file.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

import lastwrite
from lastwrite.config.properties import decode_properties
from lastwrite.server.errors import Code
from lastwrite.server.serve import RunningServer
from tests.support.kafka.broker import Broker, Unavailable, kafka_home
from tests.support.kafka.clients import Sent, create_topic, produce
from tests.support.kafka.groups import PROTOCOLS, committed, join_and_commit, transact
from tests.support.kafka.raw import Raw
from tests.support.kafka.tools.console import ConsoleTools
from tests.support.kafka.wrong_requests import WrongRequest

pytestmark = [pytest.mark.broker, pytest.mark.slow]

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32
START_MS = 1_700_000_000_000
COMMANDS = """
kafka-topics --list
kafka-topics --describe
kafka-topics --describe --topic missing
kafka-topics --describe --unavailable-partitions
kafka-configs --describe --entity-type topics
kafka-configs --describe --all --entity-type topics --entity-name t
kafka-configs --describe --all --entity-type topics --entity-name plain
kafka-configs --describe --entity-type brokers
kafka-configs --describe --entity-type brokers --entity-name 1
kafka-configs --describe --all --entity-type brokers --entity-name 1
kafka-configs --describe --entity-type brokers --entity-default
kafka-configs --describe --entity-type users
kafka-configs --describe --entity-type users --entity-name alice
kafka-configs --describe --entity-type users --entity-name nobody
kafka-configs --describe --entity-type users --entity-default
kafka-configs --describe --entity-type clients
kafka-configs --describe --entity-type ips
kafka-configs --describe --entity-type groups
kafka-configs --describe --all --entity-type groups --entity-name of-consumer
kafka-configs --describe --entity-type client-metrics
kafka-configs --describe --all --entity-type client-metrics --entity-name all
kafka-consumer-groups --list
kafka-consumer-groups --list --state
kafka-consumer-groups --list --type
kafka-consumer-groups --describe --all-groups
kafka-consumer-groups --describe --all-groups --state
kafka-consumer-groups --describe --all-groups --members --verbose
kafka-consumer-groups --describe --group missing
kafka-groups --list
kafka-groups --list --consumer
kafka-get-offsets
kafka-get-offsets --time -2
kafka-get-offsets --time -3
kafka-get-offsets --time 1700000000010
kafka-log-dirs --describe
kafka-log-dirs --describe --topic-list t
kafka-metadata-quorum describe --status
kafka-metadata-quorum describe --replication
kafka-features describe
kafka-transactions list
kafka-transactions list --duration-filter 1 --transactional-id-pattern o.*
kafka-transactions describe --transactional-id writer
kafka-transactions describe --transactional-id open
kafka-transactions describe --transactional-id missing
kafka-transactions describe-producers --topic t --partition 0
kafka-transactions describe-producers --topic plain --partition 0
kafka-transactions find-hanging --broker-id 1
kafka-transactions find-hanging --broker-id 1 --max-transaction-timeout 0
""".strip().splitlines()
# Output that only a running cluster has, or that changes while it runs.
_RUNNING = (
    (r"(ClusterId|HighWatermark|LeaderEpoch): \S+", r"\1"),
    (r'(\{"id": 1), "endpoints": \[[^]]*\]', r"\1"),  # the controller
    (r"^(1 A{22}) \d+ 0 -?\d+ \d+ Leader", r"\1"),  # replication: offset and times
    (r"(Epoch:) \d+", r"\1"),  # features: the end of the metadata log
    (r"( \d{13}) \d+ ", r"\1 "),  # transactions: start time and duration
)


class Pair(NamedTuple):
    """A broker, ``serve`` on a copy of its directory, and the tools."""

    broker: Broker
    ours: RunningServer
    copy: Path
    tools: ConsoleTools

    @property
    def addresses(self) -> tuple[str, str]:
        return self.broker.address, self.ours.address


def _set(raw: Raw, kind: int, name: str, settings: dict[str, str]) -> None:
    configs = [{"name": each, "value": value} for each, value in settings.items()]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    _change(raw, "incremental_alter_configs", {"resources": [resource]})


def _set_quota(raw: Raw, key: str, **entity: str | None) -> None:
    named = [
        {"entity_type": kind.replace("_", "-"), "entity_name": name}
        for kind, name in entity.items()
    ]
    entry = {"entity": named, "ops": [{"key": key, "value": 25.0}]}
    _change(raw, "alter_client_quotas", {"entries": [entry]})


def _change(raw: Raw, api: str, body: dict[str, Any]) -> None:
    answer = raw.say(api, 1, WrongRequest(api, 1, body).message)
    results = answer.responses if hasattr(answer, "responses") else answer.entries
    assert [each.error_code for each in results] == [Code.NONE], answer


def _fill(broker: Broker) -> Producer:
    """Fill the broker. Returns the producer of a transaction that stays open."""
    small = {"cleanup.policy": "compact", "internal.segment.bytes": "1500"}
    for name, settings in (("t", small), ("plain", {})):
        create_topic(broker, name, settings)
        produce(broker, name, [Sent(b"k%d" % n, b"v" * 20, START_MS + n) for n in range(20)])
    transact(broker, "writer", "t", [(True, [b"a"]), (False, [b"b"])])
    for protocol in PROTOCOLS:
        places = [{"t": 7, "plain": 3}]
        join_and_commit(broker, f"of-{protocol}", places, protocol=protocol, metadata="here")
    alone = Consumer({"bootstrap.servers": broker.address, "group.id": "without-members"})
    alone.assign([])
    alone.commit(offsets=[TopicPartition("plain", 0, 5)], asynchronous=False)
    alone.close()
    with Raw(broker.address) as raw:
        _set(raw, BROKER, "1", {"log.cleaner.threads": "2", "log.retention.ms": "7777777000"})
        _set(raw, BROKER, "", {"log.retention.ms": "88888888000", "message.max.bytes": "2000000"})
        _set(raw, GROUP, "of-consumer", {"consumer.session.timeout.ms": "50000"})
        _set(raw, CLIENT_METRICS, "all", {"interval.ms": "60000", "metrics": "*"})
        _set_quota(raw, "consumer_byte_rate", user="alice")
        _set_quota(raw, "consumer_byte_rate", user=None)
        _set_quota(raw, "consumer_byte_rate", user="alice", client_id="a")
        _set_quota(raw, "consumer_byte_rate", client_id="b")
        _set_quota(raw, "connection_creation_rate", ip="127.0.0.9")
    admin = AdminClient({"bootstrap.servers": broker.address})
    for user, mechanism in (
        ("alice", ScramMechanism.SCRAM_SHA_256),
        ("alice", ScramMechanism.SCRAM_SHA_512),
        ("bob", ScramMechanism.SCRAM_SHA_256),
    ):
        info = ScramCredentialInfo(mechanism, 4096 + len(user))
        change = UserScramCredentialUpsertion(user, info, b"password", b"salt")
        for done in admin.alter_user_scram_credentials([change]).values():
            done.result()
    settings = {"transactional.id": "open", "transaction.timeout.ms": "900000", "log_level": "0"}
    producer = Producer({"bootstrap.servers": broker.address, **settings})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("t", key=b"o", value=b"open", partition=0)
    producer.flush(60)
    return producer


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("tools")
    try:
        home = kafka_home()
        tools = ConsoleTools(home)
    except Unavailable as reason:
        pytest.skip(str(reason))
    broker = Broker(home, folder / "data")
    try:
        broker.start()
        producer = _fill(broker)
        broker.stop()
        copied = folder / "copy"
        shutil.copytree(broker.data, copied)
        broker.start()
        committed(broker, "without-members", ["plain"])  # the coordinator is available
        properties = decode_properties((folder / "data.properties").read_text())
        with (
            lastwrite.serve(
                str(copied),
                listen="127.0.0.1:0",
                state=str(folder / "state"),
                config=properties,
            ) as ours,
            tools,
        ):
            yield Pair(broker, ours, copied, tools)
        del producer
    finally:
        broker.kill()


def test_tools_print_the_same(pair: Pair) -> None:
    different = []
    for command in COMMANDS:
        tool, *arguments = command.split()
        printed = [
            (found.status, sorted(_comparable(pair, line) for line in found.lines))
            for found in (pair.tools.run(tool, each, *arguments) for each in pair.addresses)
        ]
        if printed[0] != printed[1]:
            theirs, ours = (set(lines) for _, lines in printed)
            different.append((command, printed[0][0], theirs - ours, printed[1][0], ours - theirs))
    assert not different, "\n".join(map(str, different))


def _comparable(pair: Pair, line: str) -> str:
    for own in (*pair.addresses, str(pair.broker.data), str(pair.copy)):
        line = line.replace(own, "HERE")
    line = re.sub(r"\s+", " ", line)
    # A broker returns settings and mechanisms in no fixed order.
    line = re.sub(r"(?<=Configs: )\S+", lambda found: ",".join(sorted(found[0].split(","))), line)
    line = re.sub(r"(?<= are )SCRAM.*", lambda found: ", ".join(sorted(found[0].split(", "))), line)
    for pattern, kept in _RUNNING:
        line = re.sub(pattern, kept, line)
    return line


def test_transaction_without_a_coordinator_is_reported_as_hanging(
    pair: Pair, tmp_path: Path
) -> None:
    for name in ("data", "copy"):
        shutil.copytree(pair.copy, tmp_path / name)
        shutil.rmtree(tmp_path / name / "__transaction_state-0")
    asked = "find-hanging", "--broker-id", "1", "--max-transaction-timeout", "0"
    state = str(tmp_path / "state")
    with (
        Broker(pair.broker.home, tmp_path / "data") as broker,
        lastwrite.serve(str(tmp_path / "copy"), listen="127.0.0.1:0", state=state) as ours,
    ):
        theirs, printed = (
            pair.tools.run("kafka-transactions", each, *asked).lines
            for each in (broker.address, ours.address)
        )
    # The last column is the time since the transaction began.
    assert [line.split()[:-1] for line in printed] == [line.split()[:-1] for line in theirs]
    assert printed[1].split()[:2] == ["t", "0"]


def test_loggers_equal_those_of_a_running_broker(pair: Pair) -> None:
    asked = "--describe", "--entity-type", "broker-loggers", "--entity-name", "1"
    theirs, ours = (pair.tools.run("kafka-configs", each, *asked) for each in pair.addresses)
    assert (ours.status, ours.lines) == (theirs.status, theirs.lines[:1])


@pytest.mark.parametrize("version", [3, 4, 5])
def test_features_of_each_version_equal_the_brokers(pair: Pair, version: int) -> None:
    """Version 3 leaves out features whose minimum level is 0 (KAFKA-17492)."""
    name = {"client_software_name": "a", "client_software_version": "1"}
    answers = []
    for address in pair.addresses:
        with Raw(address) as raw:
            asked = WrongRequest("api_versions", version, name | {"node_id": -1}).message
            answers.append(raw.say("api_versions", version, asked))
    theirs, ours = answers
    assert set(ours.supported_features) == set(theirs.supported_features)
    assert set(ours.finalized_features) == set(theirs.finalized_features)
    has_least = {each.min_version == 0 for each in ours.supported_features}
    assert has_least == ({False} if version == 3 else {False, True})


_GROUPS = ["of-classic", "of-consumer", "without-members", "missing"]
_USERS = [{"name": name} for name in ("bob", "alice", "alice", "nobody")]


@pytest.mark.parametrize(
    ("api", "versions", "body"),
    [
        ("list_groups", (0, 3, 5), {}),
        ("list_groups", (5,), {"types_filter": ["consumer"]}),
        ("describe_groups", (0, 5, 6), {"groups": _GROUPS}),
        ("consumer_group_describe", (0, 1), {"group_ids": _GROUPS}),
        ("list_config_resources", (0, 1), {"resource_types": []}),
        ("list_config_resources", (1,), {"resource_types": [3]}),
        ("list_transactions", (0, 2), {}),
        ("list_transactions", (2,), {"state_filters": ["Ongoing", "Odd"]}),
        ("describe_transactions", (0,), {"transactional_ids": ["writer", "open", "missing", ""]}),
        *(
            (
                "describe_client_quotas",
                (0, 1),
                {
                    "components": [{"entity_type": kind, "match_type": how, "match": name}],
                    "strict": is_strict,
                },
            )
            for kind, how, name in (
                ("user", 0, "alice"),
                ("user", 1, None),
                ("client-id", 2, None),
                ("ip", 0, None),
                ("odd", 2, None),
                ("", 2, None),
            )
            for is_strict in (True, False)
        ),
        ("describe_user_scram_credentials", (0,), {"users": None}),
        ("describe_user_scram_credentials", (0,), {"users": _USERS}),
        *(
            (
                "describe_configs",
                (1, 4),
                {
                    "resources": [{"resource_type": kind, "resource_name": name, **keys}],
                    "include_synonyms": has_synonyms,
                },
            )
            for kind, name in (
                (TOPIC, "t"),
                (TOPIC, "__consumer_offsets"),
                (BROKER, "1"),
                (BROKER, ""),
                (BROKER, "x"),
                (CLIENT_METRICS, "all"),
                (GROUP, "of-consumer"),
                (GROUP, "missing"),
            )
            for keys, has_synonyms in (
                ({"configuration_keys": None}, True),
                ({"configuration_keys": None}, False),
                ({"configuration_keys": ["retention.ms", "log.retention.ms"]}, True),
            )
        ),
    ],
)
def test_responses_to_tools_equal_the_brokers(
    pair: Pair, api: str, versions: tuple[int, ...], body: dict[str, Any]
) -> None:
    for version in versions:
        answers = []
        for address in pair.addresses:
            with Raw(address) as raw:
                found = raw.say(api, version, WrongRequest(api, version, body).message)
                answers.append(_plain(found))
        assert answers[1] == answers[0]


def _plain(found: Any) -> Any:
    """The response without random and permission fields. Lists are sorted, except synonyms."""
    if is_dataclass(found):
        return {
            each.name: list(map(str, value)) if each.name == "synonyms" else _plain(value)
            for each in fields(found)
            for value in (getattr(found, each.name),)
            if each.name not in ("throttle_time", "authorized_operations")
        }
    return sorted(map(_plain, found), key=str) if isinstance(found, tuple) else found
