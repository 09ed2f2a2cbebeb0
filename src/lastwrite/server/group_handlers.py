"""Responses to consumer group requests. The server coordinates all groups.

Source: Kafka 4.4 ``GroupCoordinatorService``; the responses of Kafka 4.4.0.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from lastwrite.errors import LogError
from lastwrite.kafka.cluster.commits import Commit, GroupPartition
from lastwrite.kafka.cluster.group_states import GroupKind
from lastwrite.kafka.format.text import topic_id_text
from lastwrite.server.acls import Operation, ResourceType
from lastwrite.server.authorized_catalog import AuthorizedCatalog
from lastwrite.server.consumer_groups import (
    ASSIGNORS,
    HEARTBEAT_S,
    Heartbeat,
    HeartbeatResult,
    Reader,
)
from lastwrite.server.errors import Code
from lastwrite.server.groups import ClassicGroup, Groups, GroupState, JoinRequest
from lastwrite.server.handlers import MALFORMED, NODE, UNASKED, ServerIdentity
from lastwrite.server.messages import ClientRequest, encode_answer, part
from lastwrite.server.offsets import Offsets

_GROUP_KEY, _TRANSACTION_KEY, _SHARE_KEY = 0, 1, 2  # types of coordinators
_NO_GROUP = "Group authorization failed."
_NO_TRANSACTION = "Transactional Id authorization failed."
_NO_TOPIC_OF_GROUP = (
    "The group has described topic(s) that the client is not authorized to describe."
)
_MOST_METADATA_BYTES = 4096  # value of offset.metadata.max.bytes


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The objects that handlers of group requests use, and the client's host."""

    catalog: AuthorizedCatalog
    identity: ServerIdentity
    groups: Groups
    offsets: Offsets
    client_host: str = ""


def find_coordinator(place: Coordinator, request: ClientRequest, body: Any) -> bytes:
    kind = getattr(body, "key_type", _GROUP_KEY)
    if request.version < 4:
        return encode_answer(request, **_coordinator(place, body.key, kind))
    message = "" if kind in (_GROUP_KEY, _TRANSACTION_KEY, _SHARE_KEY) else MALFORMED
    return encode_answer(
        request,
        coordinators=tuple(
            part(
                request,
                "Coordinator",
                key=key,
                **_coordinator(place, key, kind) | {"error_message": message},
            )
            for key in body.coordinator_keys
        ),
    )


def _coordinator(place: Coordinator, key: str, kind: int) -> dict[str, object]:
    who = place.identity
    error: int = Code.NONE
    message = "NONE"  # a broker sends this text as the message if there is no error
    if kind == _GROUP_KEY:
        error = place.catalog.group_error(key)
        message = _NO_GROUP if error else message
    elif kind != _TRANSACTION_KEY:
        error, message = Code.INVALID_REQUEST, MALFORMED
    # if the server has ACLs, no client may use a transactional id
    elif place.catalog.rules() is not None:
        error, message = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, _NO_TRANSACTION
    return {
        "node_id": -1 if error else NODE,
        "host": "" if error else who.host,
        "port": -1 if error else who.port,
        "error_code": error,
        "error_message": message,
    }


def join_group(place: Coordinator, request: ClientRequest, body: Any) -> bytes:
    wrong = place.catalog.group_error(body.group_id)
    if wrong or place.groups.consumer(body.group_id) is not None:
        return encode_answer(
            request,
            error_code=wrong or Code.INCONSISTENT_GROUP_PROTOCOL,
            protocol_name=_name(request, 7, None),
            leader="",
            member_id="" if wrong else body.member_id,
            members=(),
        )
    session_s = body.session_timeout.total_seconds()
    wanted = getattr(body, "rebalance_timeout", None)
    asked = JoinRequest(
        group=body.group_id,
        member=body.member_id,
        instance=getattr(body, "group_instance_id", None),
        client=request.client_id,
        host=place.client_host,
        session_s=session_s,
        rebalance_s=session_s if wanted is None else wanted.total_seconds(),
        protocol_type=body.protocol_type,
        protocols=tuple((each.name, bytes(each.metadata)) for each in body.protocols),
        must_know_id=request.version >= 4,
        may_skip=request.version >= 9,
    )
    found = place.groups.of(body.group_id).join(asked, place.groups.now_s)
    return encode_answer(
        request,
        error_code=found.error,
        generation_id=found.generation,
        protocol_type=found.protocol_type,
        protocol_name=_name(request, 7, found.protocol),
        leader=found.leader,
        skip_assignment=found.skips,
        member_id=found.member,
        members=tuple(
            part(
                request,
                "JoinGroupResponseMember",
                member_id=id,
                group_instance_id=instance,
                metadata=data,
            )
            for id, instance, data in found.members
        ),
    )


def _name(request: ClientRequest, nullable: int, name: str | None) -> str | None:
    return name if name is not None or request.version >= nullable else ""


def _member_error(place: Coordinator, group: str) -> int:
    """The error code for a member's request on a group.

    It is an error if the client lacks permission, or the group's name is empty.
    """
    wrong = place.catalog.group_error(group)
    return wrong or (Code.NONE if group else Code.INVALID_GROUP_ID)


def sync_group(place: Coordinator, request: ClientRequest, body: Any) -> bytes:
    wrong = place.catalog.group_error(body.group_id)
    if request.version >= 5 and None in (body.protocol_type, body.protocol_name):
        wrong = wrong or Code.INCONSISTENT_GROUP_PROTOCOL
    wrong = wrong or _member_error(place, body.group_id)
    if wrong:
        return encode_answer(
            request, error_code=wrong, protocol_type=None, protocol_name=None, assignment=b""
        )
    group = place.groups.of(body.group_id)
    found = group.sync(
        (body.member_id, getattr(body, "group_instance_id", None), body.generation_id),
        {each.member_id: bytes(each.assignment) for each in body.assignments},
        (getattr(body, "protocol_type", None), getattr(body, "protocol_name", None)),
        place.groups.now_s,
    )
    return encode_answer(
        request,
        error_code=found.error,
        protocol_type=found.protocol_type,
        protocol_name=found.protocol,
        assignment=found.assignment,
    )


def heartbeat(place: Coordinator, request: ClientRequest, body: Any) -> bytes:
    group = place.groups.classic(body.group_id)
    error = _member_error(place, body.group_id) or Code.UNKNOWN_MEMBER_ID
    if group is not None and error == Code.UNKNOWN_MEMBER_ID:
        instance = getattr(body, "group_instance_id", None)
        now_s = place.groups.now_s()
        error = group.heartbeat(body.member_id, instance, body.generation_id, now_s)
    return encode_answer(request, error_code=error)


def leave_group(place: Coordinator, request: ClientRequest, body: Any) -> bytes:
    wrong = _member_error(place, body.group_id)
    if wrong:
        return encode_answer(request, error_code=wrong, members=())
    group, now_s = place.groups.classic(body.group_id), place.groups.now_s()

    def leave(member: str, instance: str | None) -> int:
        return Code.UNKNOWN_MEMBER_ID if group is None else group.leave(member, instance, now_s)

    if request.version < 3:
        return encode_answer(request, error_code=leave(body.member_id, None))
    return encode_answer(
        request,
        error_code=Code.NONE,
        members=tuple(
            part(
                request,
                "MemberResponse",
                member_id=each.member_id,
                group_instance_id=each.group_instance_id,
                error_code=leave(each.member_id, each.group_instance_id),
            )
            for each in body.members
        ),
    )


def consumer_group_heartbeat(place: Coordinator, request: ClientRequest, body: Any) -> bytes:
    told = _beaten(place, request, body)
    beats_on = not told.error and told.epoch >= 0
    assignment = None
    if told.reads is not None:
        parts = _topic_partitions(place, request, told.reads)
        assignment = part(request, "Assignment", topic_partitions=parts)
    return encode_answer(
        request,
        error_code=told.error,
        error_message=told.message,
        member_id=told.member,
        member_epoch=told.epoch,
        heartbeat_interval=timedelta(seconds=HEARTBEAT_S if beats_on else 0),
        assignment=assignment,
    )


def _beaten(place: Coordinator, request: ClientRequest, body: Any) -> HeartbeatResult:
    if place.catalog.group_error(body.group_id):
        return HeartbeatResult(Code.GROUP_AUTHORIZATION_FAILED)
    if not all(place.catalog.may(name) for name in body.subscribed_topic_names or ()):
        return HeartbeatResult(Code.TOPIC_AUTHORIZATION_FAILED)
    wrong = _beat_problem(request, body)
    if wrong:
        return HeartbeatResult(Code.INVALID_REQUEST, wrong)
    if getattr(body, "subscribed_topic_regex", None):
        return HeartbeatResult(Code.INVALID_REQUEST, "Subscribing by pattern is not supported.")
    classic = place.groups.classic(body.group_id)
    if classic is not None and classic.members:
        return HeartbeatResult(
            Code.INCONSISTENT_GROUP_PROTOCOL, "The group has members of the classic protocol."
        )
    rebalance_s = body.rebalance_timeout.total_seconds()
    reads = None
    if body.topic_partitions is not None:
        reads = frozenset(
            (topic.name, number)
            for each in body.topic_partitions
            if each.topic_id is not None and (topic := place.catalog.of_id(each.topic_id.bytes))
            for number in each.partitions
        )
    is_group = place.groups.consumer(body.group_id) is not None
    if body.member_epoch != 0 and not is_group:
        return HeartbeatResult(Code.GROUP_ID_NOT_FOUND, f"Group {body.group_id} not found.")
    return place.groups.newer(body.group_id).beat(
        Heartbeat(
            body.member_id or topic_id_text(uuid.uuid4().bytes),
            body.member_epoch,
            body.instance_id,
            request.client_id,
            place.client_host,
            rebalance_s if rebalance_s > 0 else None,
            body.subscribed_topic_names,
            body.server_assignor,
            reads,
        ),
        place.groups.now_s(),
    )


def _beat_problem(request: ClientRequest, body: Any) -> str:
    """Why a heartbeat is invalid for any group, in a broker's words. Empty if it is valid.

    Source: Kafka 4.4 ``GroupMetadataManager.throwIfConsumerGroupHeartbeatRequestIsInvalid``.
    """
    epoch = body.member_epoch
    # whether the request needs a member id; otherwise the server generates an id
    needs_id = request.version >= 1 or epoch > 0 or epoch == -1
    has_topics = body.subscribed_topic_names is not None
    has_topics = has_topics or getattr(body, "subscribed_topic_regex", None) is not None
    problems = {
        "MemberId can't be empty.": needs_id and not body.member_id.strip(),
        "GroupId can't be empty.": not body.group_id.strip(),
        "InstanceId can't be empty.": body.instance_id is not None and not body.instance_id.strip(),
        "RackId can't be empty.": body.rack_id is not None and not body.rack_id.strip(),
        "RebalanceTimeoutMs must be provided in first request.": epoch == 0
        and body.rebalance_timeout == timedelta(milliseconds=-1),
        "TopicPartitions must be empty when (re-)joining.": epoch == 0
        and body.topic_partitions != (),
        "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.": (
            epoch == 0 and not has_topics
        ),
        "InstanceId can't be null.": epoch == -2 and body.instance_id is None,
        "MemberEpoch is invalid.": epoch < -2,
    }
    return next((text for text, applies in problems.items() if applies), "")


def _topic_partitions(
    place: Coordinator, request: ClientRequest, parts: Iterable[tuple[str, int]]
) -> tuple[Any, ...]:
    of_topics: dict[str, list[int]] = {}
    for name, number in sorted(parts):
        of_topics.setdefault(name, []).append(number)
    return tuple(
        part(request, "TopicPartitions", **naming, topic_name=name, partitions=tuple(numbers))
        for name, numbers in of_topics.items()
        if (naming := _all_naming(place, True, name)) is not None
    )


# ---------------------------------------------------------------------- positions


def offset_commit(place: Coordinator, request: ClientRequest, body: Any) -> bytes:
    wrong = _may_commit(place, request, body)
    denied = place.catalog.group_error(body.group_id)
    commits: list[tuple[GroupPartition, Commit | None]] = []
    answers = []
    for topic in body.topics:
        name, unknown = _named(place.catalog, request.version >= 10, topic)
        parts = []
        for each in topic.partitions:
            error = denied or _commit_error(place.catalog, name, each) or unknown or wrong
            if not error and name is not None:
                where = GroupPartition(body.group_id, name, each.partition_index)
                epoch = getattr(each, "committed_leader_epoch", -1)
                commit = Commit(each.committed_offset, epoch, each.committed_metadata or "")
                commits.append((where, commit))
            parts.append((each.partition_index, error))
        answers.append((topic, parts))
    if commits:
        try:
            place.offsets.commit(commits, _now_ms())
        except LogError:  # the commits were not stored, so each gets an error
            answers = [
                (topic, [(number, error or Code.KAFKA_STORAGE_ERROR) for number, error in parts])
                for topic, parts in answers
            ]
    return encode_answer(
        request,
        topics=tuple(
            part(
                request,
                "OffsetCommitResponseTopic",
                **_naming(request.version >= 10, topic),
                partitions=tuple(
                    part(
                        request,
                        "OffsetCommitResponsePartition",
                        partition_index=number,
                        error_code=error,
                    )
                    for number, error in parts
                ),
            )
            for topic, parts in answers
        ),
    )


def _may_commit(place: Coordinator, request: ClientRequest, body: Any) -> int:
    """The error code for committing a group's offsets. As on a broker, topics are checked first."""
    denied = place.catalog.group_error(body.group_id)
    if denied:
        return denied
    epoch = getattr(body, "generation_id_or_member_epoch", -1)
    newer = place.groups.consumer(body.group_id)
    if newer is not None:
        return newer.may_commit(body.member_id, epoch)
    is_known = place.groups.classic(body.group_id) or body.group_id in place.offsets.groups()
    if epoch >= 0 and not is_known:
        return Code.GROUP_ID_NOT_FOUND if request.version >= 9 else Code.ILLEGAL_GENERATION
    instance = getattr(body, "group_instance_id", None)
    group = place.groups.of(body.group_id)
    return group.may_commit(body.member_id, instance, epoch, place.groups.now_s())


def _commit_error(catalog: AuthorizedCatalog, name: str | None, asked: Any) -> int:
    if name is None:
        return Code.NONE
    unknown = _unknown(catalog, name, asked.partition_index)
    if unknown:
        return unknown
    if len((asked.committed_metadata or "").encode()) > _MOST_METADATA_BYTES:
        return Code.OFFSET_METADATA_TOO_LARGE
    return Code.NONE


def _named(catalog: AuthorizedCatalog, by_id: bool, topic: Any) -> tuple[str | None, int]:
    if not by_id:
        return topic.name, Code.NONE
    found = None if topic.topic_id is None else catalog.of_id(topic.topic_id.bytes)
    if found is not None:
        return found.name, Code.NONE
    id = b"" if topic.topic_id is None else topic.topic_id.bytes
    return None, catalog.unknown_id(id)


def _naming(by_id: bool, topic: Any) -> dict[str, Any]:
    return {"topic_id": topic.topic_id} if by_id else {"name": topic.name}


def offset_fetch(place: Coordinator, request: ClientRequest, body: Any) -> bytes:
    if request.version < 8:
        wrong = place.catalog.group_error(body.group_id)
        topics = () if wrong else _positions(place, request, body.group_id, body.topics, "")
        return encode_answer(request, topics=topics, error_code=wrong)
    return encode_answer(
        request,
        groups=tuple(
            part(
                request,
                "OffsetFetchResponseGroup",
                group_id=each.group_id,
                topics=()
                if (wrong := _may_fetch(place, each))
                else _positions(place, request, each.group_id, each.topics, "s"),
                error_code=wrong,
            )
            for each in body.groups
        ),
    )


def _may_fetch(place: Coordinator, asked: Any) -> int:
    wrong = place.catalog.group_error(asked.group_id)
    newer = place.groups.consumer(asked.group_id)
    # an OffsetFetch request has a member only from version 9 on
    if wrong or newer is None or not hasattr(asked, "member_id"):
        return wrong
    return newer.may_fetch(asked.member_id, asked.member_epoch)


def _positions(
    place: Coordinator, request: ClientRequest, group: str, topics: Any, plural: str
) -> tuple[Any, ...]:
    """A group's committed offsets in ``topics``, or in all topics if None.

    A missing offset is -1.
    """
    by_id = request.version >= 10
    if topics is None:
        names: dict[str, list[int]] = {}
        for where, _ in place.offsets.of_group(group):
            if not place.catalog.may(where.topic):
                continue
            names.setdefault(where.topic, []).append(where.partition)
        asked: Iterable[Any] = [
            ((name, Code.NONE), _all_naming(place, by_id, name), numbers)
            for name, numbers in names.items()
        ]
    else:
        asked = [
            (_named(place.catalog, by_id, each), _naming(by_id, each), each.partition_indexes)
            for each in topics
        ]
    # In kio, the names of these classes are plural from version 8 on.
    return tuple(
        part(
            request,
            f"OffsetFetchResponseTopic{plural}",
            **naming,
            partitions=tuple(
                _position(place, request, plural, group, named, number) for number in numbers
            ),
        )
        for named, naming, numbers in asked
        if naming is not None
    )


def _all_naming(place: Coordinator, by_id: bool, name: str) -> dict[str, Any] | None:
    if not by_id:
        return {"name": name}
    topic = place.catalog.topic(name)
    try:
        return None if topic is None else {"topic_id": uuid.UUID(bytes=topic.id)}
    except LogError:
        return None


def _position(
    place: Coordinator,
    request: ClientRequest,
    plural: str,
    group: str,
    named: tuple[str | None, int],
    number: int,
) -> Any:
    name, error = named
    if name is not None and not place.catalog.may(name):
        name, error = None, Code.TOPIC_AUTHORIZATION_FAILED
    where = None if name is None else GroupPartition(group, name, number)
    found = None if where is None else place.offsets.of(where)
    if where is not None and found is None and place.offsets.is_unread(where):
        # Return an error, because offset -1 means that there is no committed offset: a consumer
        # would then skip or repeat records.
        error = Code.KAFKA_STORAGE_ERROR
    return part(
        request,
        f"OffsetFetchResponsePartition{plural}",
        partition_index=number,
        committed_offset=-1 if found is None else found.offset,
        committed_leader_epoch=-1 if found is None else found.leader_epoch,
        metadata="" if found is None else found.metadata,
        error_code=error,
    )


# ---------------------------------------------------------------------- deleting


def delete_groups(place: Coordinator, request: ClientRequest, body: Any) -> bytes:
    """Delete the committed offsets of groups without members."""
    return encode_answer(
        request,
        results=tuple(
            part(
                request,
                "DeletableGroupResult",
                group_id=name,
                error_code=_delete_group(place, name),
                error_message=None,
            )
            for name in dict.fromkeys(body.groups_names)
        ),
    )


def _delete_group(place: Coordinator, name: str) -> int:
    wrong = place.catalog.group_error(name)
    if wrong or _state_of(place, name)[0] == GroupState.DEAD:
        return wrong or Code.GROUP_ID_NOT_FOUND
    with place.groups.locked(name) as (group, newer):
        if group.members or newer.members:
            return Code.NON_EMPTY_GROUP
        return _take_away(place, [where for where, _ in place.offsets.of_group(name)])


def offset_delete(place: Coordinator, request: ClientRequest, body: Any) -> bytes:
    """Delete a group's committed offsets in topics to which none of its members subscribes."""
    wrong = _member_error(place, body.group_id)
    if not wrong and _state_of(place, body.group_id)[0] == GroupState.DEAD:
        wrong = Code.GROUP_ID_NOT_FOUND
    if wrong:
        return encode_answer(request, error_code=wrong, topics=())
    errors = {
        GroupPartition(body.group_id, topic.name, each.partition_index): _unknown(
            place.catalog, topic.name, each.partition_index
        )
        for topic in body.topics
        for each in topic.partitions
    }
    asked = [where for where, error in errors.items() if not error]
    if asked:
        wrong, found = _delete_positions(place, body.group_id, asked)
        if wrong:
            return encode_answer(request, error_code=wrong, topics=())
        errors |= found
    return encode_answer(
        request,
        error_code=Code.NONE,
        topics=tuple(
            part(
                request,
                "OffsetDeleteResponseTopic",
                name=topic.name,
                partitions=tuple(
                    part(
                        request,
                        "OffsetDeleteResponsePartition",
                        partition_index=each.partition_index,
                        error_code=errors[
                            GroupPartition(body.group_id, topic.name, each.partition_index)
                        ],
                    )
                    for each in topic.partitions
                ),
            )
            for topic in body.topics
        ),
    )


def _delete_positions(
    place: Coordinator, name: str, asked: list[GroupPartition]
) -> tuple[int, dict[GroupPartition, int]]:
    """Delete committed offsets. Returns the group's error code, and an error code by partition."""
    with place.groups.locked(name) as (group, newer):
        if group.members and group.protocol_type != "consumer":
            return Code.NON_EMPTY_GROUP, {}
        read = group.subscribed()
        if read is not None:
            read |= {topic for each in newer.members.values() for topic in each.topics}
        free = [where for where in asked if read is not None and where.topic not in read]
        errors: dict[GroupPartition, int] = dict.fromkeys(asked, Code.GROUP_SUBSCRIBED_TO_TOPIC)
        return Code.NONE, errors | dict.fromkeys(free, _take_away(place, free))


def _unknown(catalog: AuthorizedCatalog, name: str, number: int) -> int:
    is_there = catalog.partition(catalog.topic(name), number) is not None
    return Code.NONE if is_there else catalog.unknown(name)


def _take_away(place: Coordinator, places: list[GroupPartition]) -> int:
    """Delete committed offsets by their keys ``places``, all or none. Returns the error code."""
    known = [(each, None) for each in places if place.offsets.of(each)]
    try:
        if known:
            place.offsets.commit(known, _now_ms())
    except LogError:
        return Code.KAFKA_STORAGE_ERROR
    return Code.NONE


# ---------------------------------------------------------------------- looking


def list_groups(place: Coordinator, request: ClientRequest, body: Any) -> bytes:
    states = {each.lower() for each in getattr(body, "states_filter", ())}
    types = {each.lower() for each in getattr(body, "types_filter", ())}
    names = sorted(place.offsets.groups() | set(place.groups.names()))
    if not place.catalog.of_cluster(Operation.DESCRIBE):
        names = [name for name in names if not place.catalog.group_error(name)]
    listed = []
    for name in names:
        state, kind, _ = _state_of(place, name)
        is_wanted = not states or state.lower() in states
        group_type = "consumer" if kind.is_newer else "classic"
        if state != GroupState.DEAD and is_wanted and (not types or group_type in types):
            listed.append(
                part(
                    request,
                    "ListedGroup",
                    group_id=name,
                    protocol_type=kind.protocol_type,
                    group_state=state,
                    group_type=group_type,
                )
            )
    return encode_answer(request, error_code=Code.NONE, groups=tuple(listed))


def _state_of(place: Coordinator, name: str) -> tuple[str, GroupKind, ClassicGroup | None]:
    """The state and protocol of a group, and the group itself if it is classic and has members."""
    group = place.groups.classic(name)
    if group is not None and group.members:
        return group.state, GroupKind(group.protocol_type or ""), group
    newer = place.groups.consumer(name)
    if newer is not None:
        kind = GroupKind("consumer", True, newer.epoch, newer.epoch)
        return ("Stable" if newer.is_stable else "Reconciling"), kind, None
    if name not in place.offsets.groups():
        return GroupState.DEAD, GroupKind(), None
    kind = place.groups.kind_of(name) or place.offsets.kind_of(name)
    return GroupState.EMPTY, kind, None


def describe_groups(place: Coordinator, request: ClientRequest, body: Any) -> bytes:
    described = []
    for name in body.groups:
        wrong = place.catalog.group_error(name)
        if wrong:
            described.append(_no_group(request, wrong, name))
            continue
        state, kind, group = _state_of(place, name)
        members = []
        if group is not None:
            with group.changed:
                members = [
                    part(
                        request,
                        "DescribedGroupMember",
                        member_id=each.id,
                        group_instance_id=each.instance,
                        client_id=each.client,
                        client_host=each.host,
                        member_metadata=each.metadata(group.protocol),
                        member_assignment=each.assignment,
                    )
                    for each in group.members.values()
                ]
        text = "not found"
        if kind.is_newer:
            state, kind, text = GroupState.DEAD, GroupKind(), "is not a classic group"
        # Before version 6, the response describes an unknown group as dead, without an error
        # (KIP-1043).
        is_missing = state == GroupState.DEAD and request.version >= 6
        described.append(
            part(
                request,
                "DescribedGroup",
                error_code=Code.GROUP_ID_NOT_FOUND if is_missing else Code.NONE,
                error_message=f"Group {name} {text}." if is_missing else None,
                group_id=name,
                group_state=state,
                protocol_type=kind.protocol_type,
                protocol_data=(group.protocol or "") if group is not None else "",
                members=tuple(members),
                authorized_operations=_operations(place, body, name),
            )
        )
    return encode_answer(request, groups=tuple(described))


def _no_group(request: ClientRequest, error: int, name: str) -> Any:
    return part(
        request,
        "DescribedGroup",
        error_code=error,
        error_message=None,
        group_id=name,
        group_state="",
        protocol_type="",
        protocol_data="",
        members=(),
    )


def _operations(place: Coordinator, body: Any, name: str) -> int:
    if not getattr(body, "include_authorized_operations", False):
        return UNASKED
    return place.catalog.operations(ResourceType.GROUP, name)


def consumer_group_describe(place: Coordinator, request: ClientRequest, body: Any) -> bytes:
    """Describe groups of KIP-848. A classic group is an error: clients then use DescribeGroups."""
    described = []
    for name in body.group_ids:
        group = place.groups.consumer(name)
        state, kind, _ = _state_of(place, name)
        found: dict[str, Any] = {
            "error_code": Code.NONE,
            "error_message": None,
            "group_state": state,
            "group_epoch": kind.epoch,
            "assignment_epoch": kind.assignment_epoch,
            "assignor_name": ASSIGNORS[0],
            "members": (),
        }
        no_group = {"group_state": "", "group_epoch": 0, "assignment_epoch": 0, "assignor_name": ""}
        wrong = _member_error(place, name)
        if wrong:
            found |= no_group | {"error_code": wrong}
        elif not kind.is_newer:
            text = "not found" if state == GroupState.DEAD else "is not a consumer group"
            found |= no_group | {
                "error_code": Code.GROUP_ID_NOT_FOUND,
                "error_message": f"Group {name} {text}.",
            }
        elif group is not None:
            with group.lock:
                found |= {
                    "assignor_name": group.assignor,
                    "members": tuple(
                        _reader(place, request, each) for each in group.members.values()
                    ),
                }
                if not all(
                    place.catalog.may(topic)
                    for each in group.members.values()
                    for topic in each.topics
                ):
                    found |= {
                        "error_code": Code.TOPIC_AUTHORIZATION_FAILED,
                        "error_message": _NO_TOPIC_OF_GROUP,
                        "members": (),
                    }
        operations = UNASKED if found["error_code"] else _operations(place, body, name)
        described.append(
            part(
                request,
                "DescribedGroup",
                group_id=name,
                **found,
                authorized_operations=operations,
            )
        )
    return encode_answer(request, groups=tuple(described))


def _reader(place: Coordinator, request: ClientRequest, each: Reader) -> Any:
    def assigned(parts: Iterable[tuple[str, int]]) -> Any:
        found = _topic_partitions(place, request, parts)
        return part(request, "Assignment", topic_partitions=found)

    return part(
        request,
        "Member",
        member_id=each.id,
        instance_id=each.instance,
        rack_id=None,
        member_epoch=each.epoch,
        client_id=each.client,
        client_host=each.host,
        subscribed_topic_names=each.topics,
        subscribed_topic_regex=None,
        assignment=assigned(each.assigned),
        target_assignment=assigned(each.target),
        member_type=1,
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


GROUP_HANDLERS: dict[str, Callable[[Coordinator, ClientRequest, Any], bytes]] = {
    "find_coordinator": find_coordinator,
    "join_group": join_group,
    "sync_group": sync_group,
    "heartbeat": heartbeat,
    "leave_group": leave_group,
    "consumer_group_heartbeat": consumer_group_heartbeat,
    "consumer_group_describe": consumer_group_describe,
    "offset_commit": offset_commit,
    "offset_fetch": offset_fetch,
    "delete_groups": delete_groups,
    "offset_delete": offset_delete,
    "list_groups": list_groups,
    "describe_groups": describe_groups,
}
