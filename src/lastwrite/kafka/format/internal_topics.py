"""The records of Kafka's own compacted topics: consumer groups' offsets and members, transactions, share groups.

A key begins with two bytes that say what the record is, and so which table reads the rest of the key, and the value.
A value begins with two bytes for its version; a record without a value deletes what its key names. So in
``__consumer_offsets`` the key ``0001 0004 6c617773 0006 6f7264657273 00000002`` is of type 1, OffsetCommit: group
``laws``, topic ``orders``, partition 2.

Nothing here is an error. What is of an unknown type or version, or does not decode, says so in ``problem``; the
record's own bytes stay the truth. ``__cluster_metadata`` is not here: it is no compacted topic.

Source: Kafka 4.4 ``common/message/*.json`` of the jars kafka-group-coordinator, kafka-transaction-coordinator and
kafka-share-coordinator, ``CoordinatorRecordType``, ``ConsumerProtocol{Subscription,Assignment}.json``; KIP-848,
KIP-932, KIP-1071. Held against those classes in tests/corpus/kafka-4.4.0/coordinator-records.jsonl.gz.
"""

from __future__ import annotations

import base64
from typing import Any, NamedTuple

from lastwrite.errors import LogError, TruncatedLog
from lastwrite.formats.kafka.message import (
    BYTES,
    STRING,
    UUID,
    Array,
    Field,
    Message,
    MessageReader,
    Struct,
)
from lastwrite.formats.layout import I8, I16, I32, I64, U16

GROUPS_TOPIC, TRANSACTIONS_TOPIC, SHARES_TOPIC = (
    "__consumer_offsets",
    "__transaction_state",
    "__share_group_state",
)


class RecordType(NamedTuple):
    """What a key's first two bytes announce."""

    name: str
    key: Message
    value: Message


class Decoded(NamedTuple):
    """A record taken apart; None where there is nothing, or nothing that can be read."""

    type: int | None  # the key's first two bytes
    name: str | None
    key: dict[str, Any] | None
    value_version: int | None
    value: dict[str, Any] | None
    problem: str | None = None


def _type(
    name: str, key: tuple[Field, ...], *value: Field, last: int = 0, flexible: int | None = 0
) -> RecordType:
    return RecordType(
        name, Message(f"{name}Key", key), Message(f"{name}Value", value, last, flexible)
    )


_GROUP = (Field("groupId", STRING),)
_MEMBER = (*_GROUP, Field("memberId", STRING))
_COMMIT = (Field("group", STRING), Field("topic", STRING), Field("partition", I32))
_SHARE = (*_GROUP, Field("topicId", UUID), Field("partition", I32))

_CLASSIC_MEMBER = Struct(
    (
        Field("memberId", STRING),
        Field("groupInstanceId", STRING, since=3),
        Field("clientId", STRING),
        Field("clientHost", STRING),
        Field("rebalanceTimeout", I32, since=1),
        Field("sessionTimeout", I32),
        Field("subscription", BYTES),  # of protocol type "consumer": CONSUMER_SUBSCRIPTION
        Field("assignment", BYTES),  # of protocol type "consumer": CONSUMER_ASSIGNMENT
    )
)
_CLASSIC_PROTOCOLS = Struct(
    nullable=True,
    fields=(
        Field("sessionTimeoutMs", I32),
        Field(
            "supportedProtocols", Array(Struct((Field("name", STRING), Field("metadata", BYTES))))
        ),
    ),
)
_OF_TOPIC = Struct(
    (
        Field("topicId", UUID),
        Field("partitions", Array(I32)),
    )
)
_OF_TOPIC_WITH_EPOCHS = Struct((*_OF_TOPIC.fields, Field("assignmentEpochs", Array(I32), tag=0)))
_NAMED_TOPIC = Struct(
    (
        Field("topicId", UUID),
        Field("topicName", STRING),
    )
)
_PARTITIONS_OF_TOPIC = Struct((*_NAMED_TOPIC.fields, Field("partitions", Array(I32))))
_PARTITION_RACKS = Struct(
    (
        Field("partition", I32),
        Field("racks", Array(STRING)),
    )
)
_TOPIC_RACKS = Struct(
    (
        *_NAMED_TOPIC.fields,
        Field("numPartitions", I32),
        Field("partitionMetadata", Array(_PARTITION_RACKS)),
    )
)
_PAIR = Struct(
    (
        Field("key", STRING),
        Field("value", STRING),
    )
)
_TASKS = Struct(
    (
        Field("subtopologyId", STRING),
        Field("partitions", Array(I32)),
    )
)
_TASKS_WITH_EPOCHS = Struct((*_TASKS.fields, Field("assignmentEpochs", Array(I32), tag=0)))
_TOPOLOGY_TOPIC = Struct(
    (
        Field("name", STRING),
        Field("partitions", I32),
        Field("replicationFactor", I16),
        Field("topicConfigs", Array(_PAIR)),
    )
)
_COPARTITION_GROUP = Struct(
    (
        Field("sourceTopics", Array(I16)),
        Field("sourceTopicRegex", Array(I16)),
        Field("repartitionSourceTopics", Array(I16)),
    )
)
_SUBTOPOLOGY = Struct(
    (
        Field("subtopologyId", STRING),
        Field("sourceTopics", Array(STRING)),
        Field("sourceTopicRegex", Array(STRING)),
        Field("stateChangelogTopics", Array(_TOPOLOGY_TOPIC)),
        Field("repartitionSinkTopics", Array(STRING)),
        Field("repartitionSourceTopics", Array(_TOPOLOGY_TOPIC)),
        Field("copartitionGroups", Array(_COPARTITION_GROUP)),
    )
)
_STATE_BATCH = Struct(
    (
        Field("firstOffset", I64),
        Field("lastOffset", I64),
        Field("deliveryState", I8),
        Field("deliveryCount", I16),
    )
)
_TARGET_METADATA = (
    Field("assignmentEpoch", I32),
    Field("assignmentTimestamp", I64, tag=0),
)
_CURRENT_ASSIGNMENT = (
    Field("memberEpoch", I32),
    Field("previousMemberEpoch", I32),
    Field("state", I8),
)

_GROUP_RECORDS = {
    # What each member of a group has committed for a partition.
    0: _type(
        "LegacyOffsetCommit",
        _COMMIT,
        Field("offset", I64),
        Field("metadata", STRING),
        Field("commitTimestamp", I64),
        flexible=None,
    ),
    1: _type(
        "OffsetCommit",
        _COMMIT,
        Field("offset", I64),
        Field("leaderEpoch", I32, since=3),
        Field("metadata", STRING),
        Field("commitTimestamp", I64),
        Field("expireTimestamp", I64, since=1, until=1),
        Field("topicId", UUID, since=4, tag=0),
        last=4,
        flexible=4,
    ),
    # Classic groups.
    2: _type(
        "GroupMetadata",
        (Field("group", STRING),),
        Field("protocolType", STRING),
        Field("generation", I32),
        Field("protocol", STRING),
        Field("leader", STRING),
        Field("currentStateTimestamp", I64, since=2),
        Field("members", Array(_CLASSIC_MEMBER)),
        last=4,
        flexible=4,
    ),
    # Consumer groups of KIP-848.
    3: _type(
        "ConsumerGroupMetadata", _GROUP, Field("epoch", I32), Field("metadataHash", I64, tag=0)
    ),
    4: _type("ConsumerGroupPartitionMetadata", _GROUP, Field("topics", Array(_TOPIC_RACKS))),
    5: _type(
        "ConsumerGroupMemberMetadata",
        _MEMBER,
        Field("instanceId", STRING),
        Field("rackId", STRING),
        Field("clientId", STRING),
        Field("clientHost", STRING),
        Field("subscribedTopicNames", Array(STRING)),
        Field("subscribedTopicRegex", STRING),
        Field("rebalanceTimeoutMs", I32),
        Field("serverAssignor", STRING),
        Field("classicMemberMetadata", _CLASSIC_PROTOCOLS, tag=0),
    ),
    6: _type("ConsumerGroupTargetAssignmentMetadata", _GROUP, *_TARGET_METADATA),
    7: _type(
        "ConsumerGroupTargetAssignmentMember", _MEMBER, Field("topicPartitions", Array(_OF_TOPIC))
    ),
    8: _type(
        "ConsumerGroupCurrentMemberAssignment",
        _MEMBER,
        *_CURRENT_ASSIGNMENT,
        Field("assignedPartitions", Array(_OF_TOPIC_WITH_EPOCHS)),
        Field("partitionsPendingRevocation", Array(_OF_TOPIC_WITH_EPOCHS)),
    ),
    16: _type(
        "ConsumerGroupRegularExpression",
        (*_GROUP, Field("regularExpression", STRING)),
        Field("topics", Array(STRING)),
        Field("version", I64),
        Field("timestamp", I64),
    ),
    # Share groups of KIP-932.
    10: _type(
        "ShareGroupMemberMetadata",
        _MEMBER,
        Field("rackId", STRING),
        Field("clientId", STRING),
        Field("clientHost", STRING),
        Field("subscribedTopicNames", Array(STRING)),
    ),
    11: _type("ShareGroupMetadata", _GROUP, Field("epoch", I32), Field("metadataHash", I64)),
    12: _type("ShareGroupTargetAssignmentMetadata", _GROUP, *_TARGET_METADATA),
    13: _type(
        "ShareGroupTargetAssignmentMember", _MEMBER, Field("topicPartitions", Array(_OF_TOPIC))
    ),
    14: _type(
        "ShareGroupCurrentMemberAssignment",
        _MEMBER,
        *_CURRENT_ASSIGNMENT,
        Field("assignedPartitions", Array(_OF_TOPIC)),
    ),
    15: _type(
        "ShareGroupStatePartitionMetadata",
        _GROUP,
        Field("initializingTopics", Array(_PARTITIONS_OF_TOPIC)),
        Field("initializedTopics", Array(_PARTITIONS_OF_TOPIC)),
        Field("deletingTopics", Array(_NAMED_TOPIC)),
    ),
    # Streams groups of KIP-1071.
    17: _type(
        "StreamsGroupMetadata",
        _GROUP,
        Field("epoch", I32),
        Field("metadataHash", I64),
        Field("validatedTopologyEpoch", I32, tag=0),
        Field("lastAssignmentConfigs", Array(_PAIR), tag=1),
        Field("storedDescriptionTopologyEpoch", I32, tag=2),
        Field("failedDescriptionTopologyEpoch", I32, tag=3),
    ),
    19: _type(
        "StreamsGroupMemberMetadata",
        _MEMBER,
        Field("instanceId", STRING),
        Field("rackId", STRING),
        Field("clientId", STRING),
        Field("clientHost", STRING),
        Field("rebalanceTimeoutMs", I32),
        Field("topologyEpoch", I32),
        Field("processId", STRING),
        Field("userEndpoint", Struct((Field("host", STRING), Field("port", U16)), nullable=True)),
        Field("clientTags", Array(_PAIR)),
    ),
    20: _type("StreamsGroupTargetAssignmentMetadata", _GROUP, *_TARGET_METADATA),
    21: _type(
        "StreamsGroupTargetAssignmentMember",
        _MEMBER,
        Field("activeTasks", Array(_TASKS)),
        Field("standbyTasks", Array(_TASKS)),
        Field("warmupTasks", Array(_TASKS)),
    ),
    22: _type(
        "StreamsGroupCurrentMemberAssignment",
        _MEMBER,
        *_CURRENT_ASSIGNMENT,
        Field("activeTasks", Array(_TASKS_WITH_EPOCHS)),
        Field("standbyTasks", Array(_TASKS_WITH_EPOCHS)),
        Field("warmupTasks", Array(_TASKS_WITH_EPOCHS)),
        Field("activeTasksPendingRevocation", Array(_TASKS_WITH_EPOCHS)),
        Field("standbyTasksPendingRevocation", Array(_TASKS_WITH_EPOCHS)),
        Field("warmupTasksPendingRevocation", Array(_TASKS_WITH_EPOCHS)),
    ),
    23: _type(
        "StreamsGroupTopology",
        _GROUP,
        Field("epoch", I32),
        Field("subtopologies", Array(_SUBTOPOLOGY)),
    ),
}
_TRANSACTION_RECORDS = {
    0: _type(
        "TransactionLog",
        (Field("transactionalId", STRING),),
        Field("producerId", I64),
        Field("previousProducerId", I64, since=1, tag=0),
        Field("nextProducerId", I64, since=1, tag=1),
        Field("producerEpoch", I16),
        Field("nextProducerEpoch", I16, since=1, tag=3),
        Field("transactionTimeoutMs", I32),
        Field("transactionStatus", I8),  # see TRANSACTION_STATES
        Field(
            "transactionPartitions",
            Array(Struct((Field("topic", STRING), Field("partitionIds", Array(I32))))),
        ),
        Field("transactionLastUpdateTimestampMs", I64),
        Field("transactionStartTimestampMs", I64),
        Field("clientTransactionVersion", I16, since=1, tag=2),
        last=1,
        flexible=1,
    ),
}
_SHARE_SNAPSHOT = (
    Field("leaderEpoch", I32),
    Field("startOffset", I64),
    Field("deliveryCompleteCount", I32, tag=0),
)
_SHARE_RECORDS = {
    0: _type(
        "ShareSnapshot",
        _SHARE,
        Field("snapshotEpoch", I32),
        Field("stateEpoch", I32),
        *_SHARE_SNAPSHOT,
        Field("createTimestamp", I64),
        Field("writeTimestamp", I64),
        Field("stateBatches", Array(_STATE_BATCH)),
    ),
    1: _type(
        "ShareUpdate",
        _SHARE,
        Field("snapshotEpoch", I32),
        *_SHARE_SNAPSHOT,
        Field("stateBatches", Array(_STATE_BATCH)),
    ),
}

# What clients say to each other through a classic group; a version in two bytes, never flexible.
_ASSIGNED = Array(Struct((Field("topic", STRING), Field("partitions", Array(I32)))))
CONSUMER_SUBSCRIPTION = Message(
    "ConsumerProtocolSubscription",
    last=3,
    fields=(
        Field("topics", Array(STRING)),
        Field("userData", BYTES),
        Field("ownedPartitions", _ASSIGNED, since=1),
        Field("generationId", I32, since=2),
        Field("rackId", STRING, since=3),
    ),
)
CONSUMER_ASSIGNMENT = Message(
    "ConsumerProtocolAssignment",
    last=3,
    fields=(
        Field("assignedPartitions", _ASSIGNED),
        Field("userData", BYTES),
    ),
)

RECORD_TYPES = {
    GROUPS_TOPIC: _GROUP_RECORDS,
    TRANSACTIONS_TOPIC: _TRANSACTION_RECORDS,
    SHARES_TOPIC: _SHARE_RECORDS,
}

# Of ``transactionStatus``; from Kafka 4.4 ``TransactionState``.
TRANSACTION_STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)


def decode_internal_record(topic: str, key: bytes | None, value: bytes | None) -> Decoded:
    """The record of one of the topics in ``RECORD_TYPES``, taken apart."""
    if key is None:
        return Decoded(None, None, None, None, None, "no key")
    if len(key) < 2:
        return Decoded(None, None, None, None, None, f"key of {len(key)} bytes")
    number = int.from_bytes(key[:2], "big", signed=True)
    kind = RECORD_TYPES[topic].get(number)
    if kind is None:
        return Decoded(number, None, None, _version(value), None, f"type {number} is not known")
    problems: list[str] = []
    fields = _fields(kind.key, key, 0, problems)
    version = _version(value)
    content = None if value is None else _fields(kind.value, value, version, problems)
    if (
        content is not None
        and kind.name == "GroupMetadata"
        and content["protocolType"] == "consumer"
    ):
        _decode_members(content["members"] or [])
    return Decoded(number, kind.name, fields, version, content, "; ".join(problems) or None)


def _version(value: bytes | None) -> int | None:
    return (
        None if value is None or len(value) < 2 else int.from_bytes(value[:2], "big", signed=True)
    )


def _fields(
    message: Message, data: bytes, version: int | None, problems: list[str]
) -> dict[str, Any] | None:
    """The fields behind the two bytes in front."""
    try:
        if version is None:
            raise TruncatedLog(f"{message.name} of {len(data)} bytes", 0)
        found, end = message.decode(data, version, 2)
    except LogError as error:
        problems.append(f"{message.name}: {error.problem}")
        return None
    if end < len(data):
        problems.append(f"{message.name}: {len(data) - end} bytes behind the last field")
    return found


def _decode_members(members: list[dict[str, Any]]) -> None:
    """Replace what a consumer's members said to each other by its fields, where it is of that form."""
    for member in members:
        for name, message in (
            ("subscription", CONSUMER_SUBSCRIPTION),
            ("assignment", CONSUMER_ASSIGNMENT),
        ):
            said = base64.b64decode(member[name] or "")
            problems: list[str] = []
            if len(said) >= 2:
                version = MessageReader(said).integer(I16)
                # A newer version only adds fields at the end; Kafka reads what it knows of it.
                found = _fields(message, said, min(version, message.last), problems)
                if found is not None and (not problems or version > message.last):
                    member[name] = {"version": version, **found}
