"""Tests of ``serve`` beside a real broker with the same users, ACLs and certificates.

Both must allow the same access and return the same errors.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

import lastwrite
from lastwrite.server.serve import RunningServer
from tests.support.certificates import certificates
from tests.support.jars import free_ports
from tests.support.kafka.broker import Broker, Unavailable, kafka_home
from tests.support.kafka.clients import Sent, create_topic, produce
from tests.support.kafka.raw import Raw, part
from tests.support.sample import some

pytestmark = [pytest.mark.broker, pytest.mark.slow]

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PASSWORDS = {"alice": "alice's secret", "bob": "bob's secret", "carol": "hers", "admin": "boss"}
TOPICS = ("open", "closed", "told", "eu-1")
LIFE_MS = 4000
SASL, BOTH, TLS = free_ports(3)
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
JAVA = Path(__file__).parents[1] / "support" / "kafka" / "SecuredConsume.java"
# user, operation, resource type, name, whether the name is a prefix
RULES = (
    ("alice", "READ", "TOPIC", "open", False),
    ("alice", "DESCRIBE", "TOPIC", "told", False),
    ("alice", "READ", "TOPIC", "eu-", True),
    ("alice", "READ", "TOPIC", "gone", False),
    ("alice", "READ", "GROUP", "a-", True),
    ("carol", "DESCRIBE", "CLUSTER", "kafka-cluster", False),
    ("CN=client", "READ", "TOPIC", "open", False),
    ("CN=client", "READ", "GROUP", "*", False),
)


class Pair(NamedTuple):
    """A broker and ``serve`` on a copy of its log directory, each with three listeners.

    The listeners use SASL, SASL in TLS, and client certificates. ``ports`` are by these names.
    """

    broker: Broker
    ours: Mapping[str, RunningServer]
    keys: Path
    folder: Path

    def address(self, of: str, how: str) -> str:
        ports = {"SASL": SASL, "BOTH": BOTH, "TLS": TLS}
        return f"127.0.0.1:{ports[how]}" if of == "theirs" else self.ours[how].address


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("keys"))


def _settings(keys: Path) -> dict[str, str]:
    known = " ".join(f'user_{name}="{word}"' for name, word in PASSWORDS.items())
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required "
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keys / "broker.both"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(keys / "client.pem"),
        "listener.name.tls.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "connections.max.reauth.ms": str(LIFE_MS),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin",
    }
    for name in ("sasl", "both"):
        front = f"listener.name.{name}"
        settings[f"{front}.plain.sasl.jaas.config"] = (
            f'{plain} username="admin" password="boss" {known};'
        )
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            settings[f"{front}.{mechanism}.sasl.jaas.config"] = SCRAM
    return settings


def _tell(broker: Broker) -> None:
    """Create the same users and ACLs in the broker."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        for name, word in PASSWORDS.items():
            told = UserScramCredentialUpsertion(
                name, ScramCredentialInfo(mechanism, 4096), word.encode()
            )
            for done in admin.alter_user_scram_credentials([told]).values():
                done.result(30)
    rules = [
        AclBinding(
            ResourceType[kind.replace("CLUSTER", "BROKER")],
            name,
            ResourcePatternType.PREFIXED if is_prefix else ResourcePatternType.LITERAL,
            f"User:{who}",
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )
        for who, operation, kind, name, is_prefix in RULES
    ]
    for done in admin.create_acls(rules).values():
        done.result(30)


def _write_users(path: Path) -> None:
    for name, word in PASSWORDS.items():
        lastwrite.users(str(path), add=name, password=word)
    import json

    document = json.loads(path.read_text())
    document["acls"] = [
        {
            "principal": f"User:{who}",
            "operation": operation,
            "resource": kind,
            "name": name,
            "pattern": "PREFIXED" if is_prefix else "LITERAL",
        }
        for who, operation, kind, name, is_prefix in RULES
    ]
    path.write_text(json.dumps(document))


@pytest.fixture(scope="module")
def pair(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("security")
    listeners = {
        "SASL": ("SASL_PLAINTEXT", SASL, SASL),
        "BOTH": ("SASL_SSL", BOTH, BOTH),
        "TLS": ("SSL", TLS, TLS),
    }
    try:
        broker = Broker(kafka_home(), folder / "data", _settings(keys), listeners=listeners)
    except Unavailable as reason:
        pytest.skip(str(reason))
    users = folder / "users.json"
    _write_users(users)
    with broker:
        for topic in TOPICS:
            create_topic(broker, topic, {})
            produce(broker, topic, [Sent(b"%d" % n, b"v", 1) for n in range(10)])
        _tell(broker)
        with Raw(broker.address) as raw:  # the coordinator needs a moment
            while raw.ask("find_coordinator", 3, key="a-0", key_type=0).error_code:
                time.sleep(0.2)
        shutil.copytree(broker.data, folder / "copy")
        mine: dict[str, Any] = {"connections.max.reauth.ms": LIFE_MS}
        tls = {
            "ssl.certificate.location": str(keys / "broker.pem"),
            "ssl.key.location": str(keys / "broker.key"),
        }
        shown = {"ssl.client.auth": "required", "ssl.ca.location": str(keys / "client.pem")}
        ours: dict[str, RunningServer] = {}
        try:
            for how, more in {"SASL": {}, "BOTH": tls, "TLS": tls | shown}.items():
                ours[how] = lastwrite.serve(
                    str(folder / "copy"),
                    topic=list(TOPICS),
                    listen="127.0.0.1:0",
                    state=str(folder / f"state-{how}"),
                    users=str(users),
                    config=mine | more,
                ).__enter__()
            yield Pair(broker, ours, keys, folder)
        finally:
            for each in ours.values():
                each.close()


# ---------------------------------------------------------------------- librdkafka


def settings_of(
    pair: Pair, of: str, how: str, mechanism: str, user: str, word: str
) -> dict[str, Any]:
    found: dict[str, Any] = {"bootstrap.servers": pair.address(of, how), "log_level": 0}
    if how != "TLS":
        found |= {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": word}
    if how != "SASL":
        found["ssl.ca.location"] = str(pair.keys / "broker.pem")
    if how == "TLS":
        found["ssl.certificate.location"] = str(pair.keys / f"{user}.pem")
        found["ssl.key.location"] = str(pair.keys / f"{user}.key")
    protocols = {"SASL": "SASL_PLAINTEXT", "BOTH": "SASL_SSL", "TLS": "SSL"}
    return found | {"security.protocol": protocols[how]}


def told(settings: dict[str, Any], topic: str = "open", group: str = "a-1") -> Any:
    """What a client gets: the listed topics, the records and the errors."""
    errors: set[str] = set()
    consumer = Consumer(
        settings
        | {
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "error_cb": lambda error: errors.add(_words(error)),
            "enable.partition.eof": True,
        }
    )
    listed = None
    until = time.monotonic() + 60
    while listed is None and not (errors - {"_ALL_BROKERS_DOWN"}) and time.monotonic() < until:
        with suppress(KafkaException):
            consumer.poll(0.1)  # delivers errors
            listed = sorted(set(consumer.list_topics(timeout=2).topics) - {"__consumer_offsets"})
    if listed is None:
        consumer.close()
        return sorted(errors - {"_ALL_BROKERS_DOWN"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Any] = []
    until = time.monotonic() + 60
    while time.monotonic() < until and len(found) < 10:
        message = consumer.poll(0.5)
        error = None if message is None else message.error()
        if error is not None:
            found.append(error.name())
            break
        if message is not None:
            found.append(message.offset())
    try:
        committed = consumer.committed([TopicPartition(topic, 0)], 5)[0].offset
    except KafkaException as failed:
        committed = failed.args[0].name()
    consumer.close()
    return listed, found, committed


def _words(error: Any) -> str:
    text = str(error.str())
    said = text[text.find("SASL auth") :].partition(" (after")[0] if "SASL auth" in text else ""
    return f"{error.name()} {said}".strip()


@pytest.mark.parametrize("mechanism", some(MECHANISMS[::-1], 1))
def test_right_and_wrong_passwords_are_treated_like_the_brokers(pair: Pair, mechanism: str) -> None:
    right = [
        told(settings_of(pair, of, how, mechanism, "alice", PASSWORDS["alice"]))
        for of in ("theirs", "ours")
        for how in ("SASL", "BOTH")
    ]
    # the user has committed no offsets, and topics without permission are not listed
    assert all(each == (["eu-1", "open", "told"], list(range(10)), -1001) for each in right), right
    for user, word in (("alice", "guess"), ("nobody", "guess")):
        theirs, ours = (
            told(settings_of(pair, of, "SASL", mechanism, user, word)) for of in ("theirs", "ours")
        )
        assert ours == theirs and "guess" not in str(ours), (user, ours, theirs)


@pytest.mark.long
def test_forbidden_access_has_the_brokers_errors(pair: Pair) -> None:
    for user, topic, group in (
        ("alice", "told", "a-1"),
        ("alice", "closed", "a-1"),
        ("alice", "missing", "a-1"),
        ("alice", "open", "b-1"),
        ("bob", "open", "b-1"),
    ):
        theirs, ours = (
            told(
                settings_of(pair, of, "SASL", "SCRAM-SHA-512", user, PASSWORDS[user]), topic, group
            )
            for of in ("theirs", "ours")
        )
        assert ours == theirs, (user, topic, group)


def test_certificates_are_treated_like_the_brokers(pair: Pair) -> None:
    theirs, ours = (
        told(settings_of(pair, of, "TLS", "", "client", "")) for of in ("theirs", "ours")
    )
    assert ours == theirs == (["open"], list(range(10)), -1001)
    theirs, ours = (
        told(settings_of(pair, of, "TLS", "", "stranger", "")) for of in ("theirs", "ours")
    )
    assert isinstance(ours, list) and isinstance(theirs, list)
    assert {each.partition(" ")[0] for each in ours} == {"_SSL"} or ours == theirs, (ours, theirs)


def test_consumer_survives_reauthentication(pair: Pair) -> None:
    """A consumer that reads for longer than two sessions gets no error."""
    errors: list[Any] = []
    consumers = []
    for of in ("theirs", "ours"):
        settings = settings_of(pair, of, "SASL", "SCRAM-SHA-256", "alice", PASSWORDS["alice"])
        settings |= {"group.id": "a-2", "error_cb": errors.append, "enable.partition.eof": True}
        consumers.append(Consumer(settings))
        consumers[-1].assign([TopicPartition("open", 0, 0)])
    until = time.monotonic() + 2.2 * LIFE_MS / 1000
    found = [0, 0]
    while time.monotonic() < until:
        for number, consumer in enumerate(consumers):
            message = consumer.poll(0.2)
            found[number] += message is not None and message.error() is None
    for consumer in consumers:
        consumer.close()
    assert found == [10, 10] and not errors


# ---------------------------------------------------------------------- Java


@pytest.mark.long
def test_java_client_reports_the_same_for_both(pair: Pair) -> None:
    if shutil.which("javac") is None:
        pytest.skip("no JDK")
    cases = [
        *((mechanism, "alice", PASSWORDS["alice"], "a-9") for mechanism in MECHANISMS),
        *((mechanism, "alice", "guess", "a-9") for mechanism in MECHANISMS),
        ("PLAIN", "bob", PASSWORDS["bob"], "a-9"),
        ("SCRAM-SHA-256", "alice", PASSWORDS["alice"], "b-9"),
    ]
    said = {}
    for of in ("theirs", "ours"):
        files = [_java_file(pair, of, n, *case) for n, case in enumerate(cases)]
        jars = str(pair.broker.home / "lib" / "*")
        command = ["java", "-cp", jars, str(JAVA), "open", *files]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        said[of] = ended.stdout.splitlines()
    assert said["ours"] == said["theirs"]
    assert [line[:4] for line in said["ours"]] == ["read"] * 3 + ["noth"] * 5, said["ours"]


def _java_file(
    pair: Pair, of: str, number: int, mechanism: str, user: str, word: str, group: str
) -> str:
    kind = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    login = f"org.apache.kafka.common.security.{kind}LoginModule required"
    path = pair.folder / f"{of}-{number}.properties"
    path.write_text(
        f"bootstrap.servers={pair.address(of, 'SASL')}\ngroup.id={group}\n"
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f'sasl.jaas.config={login} username="{user}" password="{word}";\n'
    )
    return str(path)


# ---------------------------------------------------------------------- the matrix, frame by frame


def known(address: str, user: str) -> Raw:
    raw = Raw(address)
    assert not raw.ask("sasl_handshake", 1, mechanism="PLAIN").error_code
    token = f"\0{user}\0{PASSWORDS[user]}".encode()
    assert not raw.ask("sasl_authenticate", 2, auth_bytes=token).error_code
    return raw


def ids_of(address: str) -> dict[str, Any]:
    with Raw(address) as raw:
        found = raw.ask("metadata", 12, **_metadata(None))
        return {str(each.name): each.topic_id for each in found.topics}


def _metadata(topics: Any) -> dict[str, Any]:
    return {
        "topics": topics,
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": True,
        "include_topic_authorized_operations": True,
    }


Asked = Iterator[tuple[str, int, dict[str, Any]]]


def requests(ids: Mapping[str, Any]) -> Asked:
    """One request of each kind with topics or groups, permitted and not permitted."""
    names = (*TOPICS, "missing", "gone")
    yield from _of_topics(names, ids)
    yield from _of_records(names, ids)
    yield from _of_offsets(names)
    yield from _of_rules()
    for group in ("a-5", "b-5"):
        yield from _of_members(group)
        yield from _of_positions(group, names)
        yield from _of_groups(group)


def _of_topics(names: tuple[str, ...], ids: Mapping[str, Any]) -> Asked:
    yield "metadata", 8, _metadata(None)
    for version in (1, 9, 12):
        wanted = tuple(
            part("metadata", version, "MetadataRequestTopic", name=name, topic_id=None)
            for name in names
        )
        yield "metadata", version, _metadata(wanted)
    yield (
        "metadata",
        12,
        _metadata(
            tuple(
                part("metadata", 12, "MetadataRequestTopic", name=None, topic_id=id)
                for id in ids.values()
            )
        ),
    )
    yield (
        "describe_topic_partitions",
        0,
        {
            "topics": tuple(
                part("describe_topic_partitions", 0, "TopicRequest", name=name) for name in names
            ),
            "response_partition_limit": 2000,
            "cursor": None,
        },
    )


def _of_records(names: tuple[str, ...], ids: Mapping[str, Any]) -> Asked:
    for version in (4, 12, 13):
        asked = part(
            "fetch",
            version,
            "FetchPartition",
            partition=0,
            fetch_offset=10,
            partition_max_bytes=100,
        )
        naming: list[dict[str, Any]] = [{"topic": name} for name in names]
        if version == 13:
            naming = [{"topic_id": id} for id in ids.values()]
        yield (
            "fetch",
            version,
            {
                "max_wait": timedelta(0),
                "min_bytes": 0,
                "max_bytes": 1000,
                "topics": tuple(
                    part("fetch", version, "FetchTopic", partitions=(asked,), **each)
                    for each in naming
                ),
                "forgotten_topics_data": (),
                "session_epoch": -1,
            },
        )


def _of_offsets(names: tuple[str, ...]) -> Asked:
    wanted_offset = part(
        "list_offsets",
        7,
        "ListOffsetsPartition",
        partition_index=0,
        timestamp=-2,
        current_leader_epoch=-1,
    )
    yield (
        "list_offsets",
        7,
        {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": tuple(
                part("list_offsets", 7, "ListOffsetsTopic", name=name, partitions=(wanted_offset,))
                for name in names
            ),
        },
    )
    wanted_epoch = part(
        "offset_for_leader_epoch",
        4,
        "OffsetForLeaderPartition",
        partition=0,
        current_leader_epoch=-1,
        leader_epoch=0,
    )
    yield (
        "offset_for_leader_epoch",
        4,
        {
            "replica_id": -1,
            "topics": tuple(
                part(
                    "offset_for_leader_epoch",
                    4,
                    "OffsetForLeaderTopic",
                    topic=name,
                    partitions=(wanted_epoch,),
                )
                for name in names
            ),
        },
    )


def _of_members(group: str) -> Asked:
    minute = timedelta(minutes=1)
    yield "find_coordinator", 3, {"key": group, "key_type": 0}
    yield "find_coordinator", 4, {"coordinator_keys": (group,), "key_type": 0}
    for version in (2, 7):
        yield (
            "join_group",
            version,
            {
                "group_id": group,
                "member_id": "ghost",
                "session_timeout": minute,
                "rebalance_timeout": minute,
                "protocol_type": "consumer",
                "group_instance_id": None,
                "protocols": (
                    part("join_group", version, "JoinGroupRequestProtocol", name="r", metadata=b""),
                ),
            },
        )
    member = {"group_id": group, "generation_id": 1, "member_id": "ghost"}
    protocol = {"protocol_type": "consumer", "protocol_name": "r"}
    yield "sync_group", 5, {**member, **protocol, "group_instance_id": None, "assignments": ()}
    yield "heartbeat", 4, {**member, "group_instance_id": None}
    yield "leave_group", 1, member
    leaving = part("leave_group", 5, "MemberIdentity", member_id="ghost", group_instance_id=None)
    yield "leave_group", 5, {"group_id": group, "members": (leaving,)}


def _of_positions(group: str, names: tuple[str, ...]) -> Asked:
    # without a member; with a member of an unknown group; with an unknown member
    for version, named, epoch in (
        (8, group, -1),
        (8, f"{group}?", 3),
        (9, f"{group}?", 3),
        (9, group, 3),
    ):
        committed = part(
            "offset_commit",
            version,
            "OffsetCommitRequestPartition",
            partition_index=0,
            committed_offset=3,
            committed_leader_epoch=-1,
            committed_metadata="",
        )
        topics_of = "OffsetCommitRequestTopic"
        yield (
            "offset_commit",
            version,
            {
                "group_id": named,
                "generation_id_or_member_epoch": epoch,
                "member_id": "" if epoch < 0 else "ghost",
                "group_instance_id": None,
                "topics": tuple(
                    part("offset_commit", version, topics_of, name=name, partitions=(committed,))
                    for name in names
                ),
            },
        )
    for version in (5, 7):
        wanted = tuple(
            part("offset_fetch", version, "OffsetFetchRequestTopic", name=n, partition_indexes=(0,))
            for n in names
        )
        yield (
            "offset_fetch",
            version,
            {"group_id": group, "topics": wanted, "require_stable": False},
        )
    wanted = tuple(
        part("offset_fetch", 8, "OffsetFetchRequestTopics", name=n, partition_indexes=(0,))
        for n in names
    )
    for topics in (wanted, None):
        each = part("offset_fetch", 8, "OffsetFetchRequestGroup", group_id=group, topics=topics)
        yield "offset_fetch", 8, {"groups": (each,), "require_stable": False}


def _of_groups(group: str) -> Asked:
    minute = timedelta(minutes=1)
    yield "describe_groups", 5, {"groups": (group,), "include_authorized_operations": True}
    yield (
        "consumer_group_describe",
        1,
        {"group_ids": (group,), "include_authorized_operations": False},
    )
    yield "list_groups", 4, {"states_filter": ()}
    # requests without permission are refused; each group permits other requests
    for topics_of in (("open", "closed"), *([("open",)] if group == "b-5" else [])):
        yield (
            "consumer_group_heartbeat",
            1,
            {
                "group_id": group,
                "member_id": "ghost",
                "member_epoch": 5,
                "instance_id": None,
                "rack_id": None,
                "rebalance_timeout": minute,
                "subscribed_topic_names": topics_of,
                "subscribed_topic_regex": None,
                "server_assignor": None,
                "topic_partitions": None,
            },
        )


def _of_rules() -> Asked:
    everything = {
        "resource_type_filter": ResourceType.ANY.value,
        "resource_name_filter": None,
        "pattern_type_filter": ResourcePatternType.ANY.value,
        "principal_filter": None,
        "host_filter": None,
        "operation": AclOperation.ANY.value,
        "permission_type": AclPermissionType.ANY.value,
    }
    changes: tuple[dict[str, Any], ...] = (
        {},
        {"resource_type_filter": ResourceType.GROUP.value},
        {"resource_name_filter": "a-"},
        {"resource_name_filter": "a-5", "pattern_type_filter": ResourcePatternType.MATCH.value},
        {"resource_name_filter": "open", "pattern_type_filter": ResourcePatternType.MATCH.value},
        {"pattern_type_filter": ResourcePatternType.PREFIXED.value},
        {"pattern_type_filter": ResourcePatternType.LITERAL.value, "principal_filter": "User:bob"},
        {"host_filter": "10.0.0.1"},
        {"operation": AclOperation.READ.value},
        {"permission_type": AclPermissionType.DENY.value},
    )
    for change in changes:
        for version in (1, 3):
            yield "describe_acls", version, everything | change


_OWN = ("host=", "port=", "node_id=", "cluster_id=", "controller_id=", "rack=")


def plain(answer: Any) -> str:
    """The response without the fields that differ between servers."""
    from dataclasses import fields, is_dataclass

    def of(value: Any) -> Any:
        if is_dataclass(value):
            return {
                each.name: of(getattr(value, each.name))
                for each in fields(value)
                if f"{each.name}=" not in _OWN
                and each.name
                not in (
                    "brokers",
                    "throttle_time",
                    "leader_id",
                    "leader_epoch",
                    "replica_nodes",
                    "isr_nodes",
                    "eligible_leader_replicas",
                    "last_known_elr",
                    "node_endpoints",
                    "session_id",
                    # the broker has no type for a group that only committed; after a restart we
                    # cannot distinguish it from a group that had members
                    "protocol_type",
                )
            }
        if isinstance(value, tuple):
            return sorted((of(each) for each in value), key=str)
        return value

    # the broker prints the request in Java's notation
    return re.sub(r"Request Request\(.*\) needs", "The request needs", str(of(answer)))


@pytest.mark.parametrize("user", some(["alice", "bob", "carol"], 1))
def test_refusals_by_rules_equal_the_brokers(pair: Pair, user: str) -> None:
    ids = ids_of(pair.broker.address)
    ids = {name: id for name, id in ids.items() if name in TOPICS}
    wrong = []
    for name, version, values in requests(ids):
        said = []
        for of in ("theirs", "ours"):
            # sessions expire soon, so each request gets its own connection
            with known(pair.address(of, "SASL"), user) as raw:
                said.append(plain(raw.ask(name, version, **values)))
        if said[0] != said[1]:
            wrong.append(f"{name} {version}\n  theirs {said[0]}\n  ours   {said[1]}")
    assert not wrong, "\n".join(wrong)
