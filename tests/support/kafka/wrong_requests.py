"""Invalid requests for a broker and for ``serve``, each with one error: name, version and body.

A body is plain data by kio's field names. A missing field is zero, empty or null.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from types import NoneType
from typing import Any, NamedTuple, get_args, get_origin

from lastwrite.kafka.network.messages import schema
from lastwrite.server.messages import APIS

# a topic with one partition and 20 records; a group with the committed offset 7 there
TOPIC, GROUP = "wrong", "positions"
NAMELESS: dict[str, Any] = {"name": None, "topic_id": None}
_NAMES = ("missing", "a/b", "", "x" * 300)


class WrongRequest(NamedTuple):
    """One request. ``label`` identifies it in a failure."""

    api: str
    version: int
    body: dict[str, Any]

    @property
    def label(self) -> str:
        return f"{self.api} {self.version} {self.body}"

    @property
    def message(self) -> Any:
        """The request as a kio message."""
        name = "".join(each.capitalize() for each in self.api.split("_"))
        return _message(getattr(schema(self.api, self.version), f"{name}Request"), self.body)


def _message(kind: Any, values: dict[str, Any]) -> Any:
    there = {each.name: each for each in fields(kind)}
    known = {name: value for name, value in values.items() if name in there}
    return kind(**{name: _value(each, known) for name, each in there.items()})


def _value(field: Any, values: dict[str, Any]) -> Any:
    inner = [each for each in get_args(field.type) if each is not NoneType]
    is_nullable = NoneType in get_args(field.type) and get_origin(field.type) is not tuple
    kind = inner[0] if is_nullable else field.type
    if field.name not in values:
        if field.default is not MISSING:
            return field.default
        return None if is_nullable else _zero(kind, field.metadata.get("kafka_type"))
    value = values[field.name]
    if get_origin(kind) is tuple and value is not None:
        element = get_args(kind)[0]
        is_struct = is_dataclass(element)
        return tuple(_message(element, each) if is_struct else each for each in value)
    return _message(kind, value) if is_dataclass(kind) and value is not None else value


def _zero(kind: Any, name: str | None) -> Any:
    if get_origin(kind) is tuple:
        return ()
    if name and name.startswith("timedelta"):
        return timedelta(0)
    return {"string": "", "bytes": b"", "bool": False, "uuid": uuid.UUID(int=0)}.get(name or "", 0)


def wrong_requests(topic_id: uuid.UUID) -> Iterator[WrongRequest]:
    """All invalid requests. ``topic_id`` is the id of ``TOPIC``."""
    for api, versions, bodies in (
        *_about_versions(),
        *_about_records(topic_id),
        *_about_topics(topic_id),
        *_about_positions(topic_id),
        *_about_members(),
        *_about_groups(),
        *_about_the_cluster(),
    ):
        for version in versions or sorted({APIS[api].oldest, APIS[api].newest}):
            for body in bodies:
                yield WrongRequest(api, version, body)


def difference_on_purpose(asked: WrongRequest) -> str:
    """The reason for which ``serve`` answers differently from a broker. Empty if both must agree.

    docs/guide/serve.md has the same list.
    """
    api, body = asked.api, asked.body
    if api == "api_versions":
        valid = {body["client_software_name"], body["client_software_version"]}
        return "other requests are served" if valid <= {"1", "a", "a-b.c9", "a" * 300} else ""
    if api == "fetch" and "-1" in (
        str(body["max_bytes"]),
        str(_first(body, "partition_max_bytes")),
    ):
        return "a negative size is taken as 0, where a broker fails"
    if body.get("isolation_level") == 7:
        return "an unknown isolation level is taken as read_uncommitted, where a broker fails"
    if api == "metadata" and asked.version >= 12 and body["topics"][0] == NAMELESS:
        return "a topic without name and id is unknown, where a broker fails"
    if api == "describe_topic_partitions" and body["topics"] == [{"name": ""}]:
        return "a topic without a name is invalid, where a broker fails"
    if api == "find_coordinator" and asked.version == 6 and body.get("key_type") == 2:
        return "share groups are not served"
    if api == "consumer_group_heartbeat" and "subscribed_topic_regex" in body:
        return "topics are not subscribed by a pattern"
    return ""


def _first(body: dict[str, Any], name: str) -> Any:
    topics = body["topics"]
    return topics[0]["partitions"][0].get(name) if topics else None


_Cases = Iterator[tuple[str, Sequence[int], list[dict[str, Any]]]]


def _about_versions() -> _Cases:
    names = ("", " ", "a b", "-a", "a-", ".a", "a_b", "é", "a" * 300, "a-b.c9")
    bodies = [{"client_software_name": name, "client_software_version": "1"} for name in names]
    bodies += [{"client_software_name": "a", "client_software_version": name} for name in names]
    yield "api_versions", (3, 4, 5), bodies
    yield "sasl_handshake", (), [{"mechanism": "PLAIN"}, {"mechanism": ""}]
    yield "sasl_authenticate", (), [{"auth_bytes": b"\0a\0b"}]


# A list of cases, read from top to bottom.
def _about_records(topic_id: uuid.UUID) -> _Cases:
    def fetch(**more: Any) -> dict[str, Any]:
        part = {"fetch_offset": 3, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
        part |= {"last_fetched_epoch": -1, **more.pop("part", {})}
        topic = {
            "topic": TOPIC,
            "topic_id": topic_id,
            "partitions": [part],
            **more.pop("named", {}),
        }
        values = {"session_epoch": -1, "max_bytes": 1 << 20, "topics": [topic], **more}
        return values

    yield (
        "fetch",
        (4, 7, 12, 18),
        [
            *(
                fetch(session_id=id, session_epoch=epoch)
                for id in (0, 5)
                for epoch in (-2, -1, 0, 1, 7)
            ),
            *(fetch(part={"fetch_offset": at}) for at in (-1, 20, 21, 1 << 60)),
            *(fetch(part={"partition": number}) for number in (-1, 1, 9)),
            *(fetch(part={"current_leader_epoch": epoch}) for epoch in (7, -2)),
            *(fetch(part={"partition_max_bytes": size}) for size in (-1, 0)),
            *(fetch(named={"topic": name, "topic_id": uuid.UUID(int=9)}) for name in _NAMES),
            fetch(max_bytes=-1),
            fetch(isolation_level=7),
            fetch(topics=[]),
            fetch(part={"last_fetched_epoch": 9}),
        ],
    )

    def listed(timestamp: int = -1, name: str = TOPIC, **more: Any) -> dict[str, Any]:
        part = {"timestamp": timestamp, "current_leader_epoch": -1} | more
        return {"replica_id": -1, "topics": [{"name": name, "partitions": [part]}]}

    yield (
        "list_offsets",
        (1, 4, 6, 7, 8, 9, 11),
        [
            *(listed(timestamp) for timestamp in (-1, -2, -3, -4, -5, -6, -7, -100, 1 << 62)),
            *(listed(name=name) for name in _NAMES),
            *(listed(partition_index=number) for number in (-1, 1)),
            *(listed(current_leader_epoch=epoch) for epoch in (7, -2)),
            listed() | {"isolation_level": 7},
            listed() | {"topics": []},
            {"replica_id": -1, "topics": listed()["topics"] * 2},
            {
                "replica_id": -1,
                "topics": [{"name": TOPIC, "partitions": listed()["topics"][0]["partitions"] * 2}],
            },
        ],
    )

    def epochs(name: str = TOPIC, **more: Any) -> dict[str, Any]:
        part = {"current_leader_epoch": -1, "leader_epoch": 0} | more
        return {"replica_id": -1, "topics": [{"topic": name, "partitions": [part]}]}

    yield (
        "offset_for_leader_epoch",
        (2, 4),
        [
            *(epochs(name) for name in _NAMES),
            *(epochs(partition=number) for number in (-1, 1)),
            *(epochs(leader_epoch=epoch) for epoch in (-1, -2, 99)),
            *(epochs(current_leader_epoch=epoch) for epoch in (-2, 99)),
        ],
    )


def _about_topics(topic_id: uuid.UUID) -> _Cases:
    nobody = uuid.UUID(int=9)
    yield "metadata", (1, 10, 13), [{"topics": [{"name": name}]} for name in _NAMES]
    yield "metadata", (0, 4, 13), [{"topics": [{"name": TOPIC}, {"name": TOPIC}]}]
    ids = (topic_id, nobody, None)
    yield "metadata", (10, 11), [{"topics": [{"name": TOPIC, "topic_id": id}]} for id in ids]
    yield "metadata", (11, 12, 13), [{"topics": [{"name": None, "topic_id": id}]} for id in ids]
    yield "metadata", (12, 13), [{"topics": [{"name": "missing", "topic_id": nobody}]}]
    pages = [{"topics": [{"name": name}], "response_partition_limit": 10} for name in _NAMES]
    for limit in (0, -1):
        pages.append({"topics": [{"name": TOPIC}], "response_partition_limit": limit})
    for name, number in ((TOPIC, 9), (TOPIC, -1), ("missing", 0), ("zzz", 0)):
        cursor = {"topic_name": name, "partition_index": number}
        asked = {"topics": [{"name": TOPIC}], "cursor": cursor, "response_partition_limit": 10}
        pages.append(asked)
    yield "describe_topic_partitions", (), pages
    named = [{"resources": [{"resource_type": 2, "resource_name": name}]} for name in _NAMES]
    kinds = [
        {"resources": [{"resource_type": kind, "resource_name": name}]}
        for kind in (0, 1, 3, 5, 7, 99, -1)
        for name in ("", "1")
    ]
    kinds += [{"resources": [{"resource_type": kind, "resource_name": "7"}]} for kind in (4, 8)]
    yield "describe_configs", (), named + kinds
    yield (
        "describe_producers",
        (),
        [
            {"topics": [{"name": name, "partition_indexes": [number]}]}
            for name in (TOPIC, *_NAMES)
            for number in (-1, 1)
        ],
    )
    dirs = [{"topics": [{"topic": name, "partitions": [0]}]} for name in _NAMES]
    yield "describe_log_dirs", (), [*dirs, {"topics": []}]


def _about_positions(topic_id: uuid.UUID) -> _Cases:
    def commit(group: str = "new", topic: str = TOPIC, **more: Any) -> dict[str, Any]:
        whole = {"member_id": "", "generation_id_or_member_epoch": -1, "group_id": group}
        known = {name: more.pop(name) for name in tuple(more) if name in whole}
        part = {"committed_offset": 1, "committed_leader_epoch": -1} | more
        id = topic_id if topic == TOPIC else uuid.UUID(int=9)
        named = {"name": topic, "topic_id": id, "partitions": [part]}
        return whole | known | {"retention_time": timedelta(milliseconds=-1), "topics": [named]}

    yield (
        "offset_commit",
        (2, 8, 10),
        [
            commit(""),
            *(commit(topic=name) for name in _NAMES),
            *(commit(partition_index=number) for number in (-1, 1)),
            commit(committed_metadata="x" * 5000),
            commit(member_id="nobody"),
            *(commit(group, generation_id_or_member_epoch=3) for group in ("nobody", GROUP)),
            commit("nobody", generation_id_or_member_epoch=3, member_id="m"),
            commit(GROUP, generation_id_or_member_epoch=0, member_id="m"),
            {"group_id": "new", "generation_id_or_member_epoch": -1, "topics": []},
        ],
    )

    def fetch(group: str, topic: str = TOPIC, number: int = 0, **more: Any) -> dict[str, Any]:
        id = topic_id if topic == TOPIC else uuid.UUID(int=9)
        topics = [{"name": topic, "topic_id": id, "partition_indexes": [number]}]
        asked = {"group_id": group, "member_epoch": -1, "topics": topics} | more
        return asked | {"groups": [asked]}

    yield (
        "offset_fetch",
        (1, 7, 8, 10),
        [
            *(fetch(group) for group in ("", "nobody", GROUP)),
            *(fetch(GROUP, name) for name in _NAMES),
            *(fetch(GROUP, TOPIC, number) for number in (-1, 1)),
            fetch(GROUP, member_id="nobody", member_epoch=3),
            fetch("nobody", member_id="nobody", member_epoch=3),
            fetch("nobody", member_id="", member_epoch=0),
        ],
    )
    yield "offset_fetch", (2, 7, 8, 10), [fetch("nobody") | {"topics": None}]
    yield "offset_fetch", (8, 9), [{"groups": []}]

    def delete(group: str, *topics: str, number: int = 0) -> dict[str, Any]:
        parts = [{"partition_index": number}]
        return {
            "group_id": group,
            "topics": [{"name": each, "partitions": parts} for each in topics],
        }

    yield (
        "offset_delete",
        (),
        [
            delete(group, *topics, number=number)
            for group in ("", "nobody", GROUP)
            for topics in ((), (TOPIC,), ("missing",), ("a/b", TOPIC))
            for number in (0, -1)
            if group != GROUP or TOPIC not in topics or number
        ],
    )


# A list of cases, read from top to bottom.
def _about_members() -> _Cases:
    keys = ("g", "", "g:AAAAAAAAAAAAAAAAAAAAAA:0")
    yield "find_coordinator", (0, 1, 3), [{"key": key} for key in keys[:2]]
    for kind in (2, 3, 9, -1):
        yield "find_coordinator", (1, 3), [{"key": key, "key_type": kind} for key in keys]
        yield "find_coordinator", (4, 5, 6), [{"coordinator_keys": keys, "key_type": kind}]
    yield "find_coordinator", (4, 6), [{"coordinator_keys": []}, {"coordinator_keys": ["", "g"]}]

    def join(group: str = "joined", **more: Any) -> dict[str, Any]:
        values = {"group_id": group, "member_id": "", "protocol_type": "consumer"}
        values["protocols"] = [{"name": "range", "metadata": b""}]
        seconds = timedelta(seconds=10)
        return values | {"session_timeout": seconds, "rebalance_timeout": seconds} | more

    yield (
        "join_group",
        (0, 5, 9),
        [
            join(""),
            *(join(session_timeout=timedelta(seconds=number)) for number in (-1, 0, 1, 10_000)),
            join(protocols=[]),
            join(protocol_type=""),
            join(member_id="nobody"),
            join(member_id="nobody", group_instance_id="i"),
        ],
    )
    whole = {"generation_id": 3, "member_id": "nobody"}
    cases = [whole | {"group_id": group} for group in ("", "nobody", GROUP)]
    yield "heartbeat", (), cases
    yield "heartbeat", (4,), [each | {"group_instance_id": "i"} for each in cases]
    yield (
        "sync_group",
        (),
        [each | {"protocol_type": "consumer", "protocol_name": "range"} for each in cases],
    )
    yield "sync_group", (5,), cases
    yield "leave_group", (0, 1, 2), cases
    yield "leave_group", (3, 5), [each | {"members": [{"member_id": "nobody"}]} for each in cases]
    yield "leave_group", (3, 5), [{"group_id": GROUP, "members": []}]

    def beat(**more: Any) -> dict[str, Any]:
        values = {"group_id": "beaten", "member_id": "AAAAAAAAAAAAAAAAAAAAAA", "member_epoch": 0}
        values |= {"rebalance_timeout": timedelta(seconds=10), "subscribed_topic_names": [TOPIC]}
        return values | {"topic_partitions": []} | more

    yield (
        "consumer_group_heartbeat",
        (),
        [
            beat(group_id=""),
            beat(group_id="  "),
            beat(member_id=""),
            beat(member_epoch=5),
            beat(member_epoch=-1),
            beat(member_epoch=-2),
            beat(member_epoch=-2, instance_id="i"),
            beat(member_epoch=-3),
            beat(member_epoch=-3, instance_id="i"),
            beat(instance_id=""),
            beat(rack_id=""),
            beat(rebalance_timeout=timedelta(milliseconds=-1)),
            beat(subscribed_topic_names=None),
            beat(topic_partitions=None),
            beat(topic_partitions=[{"topic_id": uuid.UUID(int=9), "partitions": [0]}]),
            beat(server_assignor=""),
            beat(server_assignor="nothing"),
        ],
    )
    yield "consumer_group_heartbeat", (1,), [beat(subscribed_topic_regex="(")]


def _about_groups() -> _Cases:
    several = ("", "nobody", "nobody")
    yield "describe_groups", (0, 5, 6), [{"groups": several}, {"groups": []}]
    yield "consumer_group_describe", (), [{"group_ids": [*several, GROUP]}, {"group_ids": []}]
    yield "list_groups", (4, 5), [{"states_filter": ["nothing"]}]
    yield "list_groups", (5,), [{"types_filter": ["nothing"]}, {"types_filter": ["share"]}]
    yield "delete_groups", (0, 1, 2, 3), [{"groups_names": several}, {"groups_names": []}]


def _about_the_cluster() -> _Cases:
    yield "describe_cluster", (1, 2), [{"endpoint_type": kind} for kind in (0, 2, 3, -1)]
    moving = ([{"name": "missing", "partition_indexes": [0]}], [])
    yield "list_partition_reassignments", (), [{"topics": each} for each in moving]
    base = {
        "pattern_type_filter": 1,
        "operation": 1,
        "permission_type": 1,
        "resource_type_filter": 1,
    }
    yield "describe_acls", (), [base | {name: kind} for name in base for kind in (0, 99)]
