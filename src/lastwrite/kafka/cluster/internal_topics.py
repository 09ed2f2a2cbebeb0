"""Records of Kafka's internal topics: committed offsets and group members, transactions, share
groups, and the cluster's metadata.

The first two bytes of a key are the record's type, which selects the tables that decode the rest of
the key and the value. A value begins with a two-byte version. A record without a value deletes its
key. Example from ``__consumer_offsets``: the key ``0001 0004 6c617773 0006 6f7264657273 00000002``
is of type 1, OffsetCommit: group ``laws``, topic ``orders``, partition 2.

No function here raises. If a type or version is unknown, or a record does not decode, ``problem``
contains the reason. Records of ``__cluster_metadata`` have no key; their type precedes the fields,
see ``metadata_tables``.

Source: Kafka 4.4 ``common/message/*.json`` of the jars kafka-group-coordinator,
kafka-transaction-coordinator and kafka-share-coordinator, ``CoordinatorRecordType``,
``ConsumerProtocol{Subscription,Assignment}.json``; KIP-848, KIP-932, KIP-1071. Checked against
those classes in tests/corpus/internal-topics/coordinator-records.jsonl.gz.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from lastwrite.encoding.layout import I8, I16, I32, I64, U16
from lastwrite.errors import LogError, TruncatedLog
from lastwrite.kafka.cluster.message import (
    BYTES,
    STRING,
    UUID,
    Array,
    MessageReader,
    MessageSchema,
    SchemaField,
    Struct,
)
from lastwrite.kafka.cluster.metadata_tables import FRAME_VERSION, METADATA_RECORDS
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.names import METADATA_TOPIC

GROUPS_TOPIC, TRANSACTIONS_TOPIC, SHARES_TOPIC = (
    "__consumer_offsets",
    "__transaction_state",
    "__share_group_state",
)


class RecordType(NamedTuple):
    """A record type: its name, and the schemas of its key and value."""

    name: str
    key: MessageSchema
    value: MessageSchema


class DecodedRecord(NamedTuple):
    """A decoded record. A field is None if it is absent or cannot be decoded."""

    type: int | None  # the key's first two bytes
    name: str | None
    key: dict[str, Any] | None
    value_version: int | None
    value: dict[str, Any] | None
    problem: str | None = None


def _type(
    name: str,
    key: tuple[SchemaField, ...],
    *value: SchemaField,
    last: int = 0,
    flexible: int | None = 0,
) -> RecordType:
    return RecordType(
        name, MessageSchema(f"{name}Key", key), MessageSchema(f"{name}Value", value, last, flexible)
    )


# fmt: off
_GROUP  = (SchemaField("groupId", STRING),)
_MEMBER = (*_GROUP, SchemaField("memberId", STRING))
_COMMIT = (
    SchemaField("group",     STRING),
    SchemaField("topic",     STRING),
    SchemaField("partition", I32),
)
_SHARE  = (*_GROUP, SchemaField("topicId", UUID), SchemaField("partition", I32))

_CLASSIC_MEMBER = Struct((
    SchemaField("memberId",         STRING),
    SchemaField("groupInstanceId",  STRING, since=3),
    SchemaField("clientId",         STRING),
    SchemaField("clientHost",       STRING),
    SchemaField("rebalanceTimeout", I32, since=1),
    SchemaField("sessionTimeout",   I32),
    SchemaField("subscription",     BYTES),  # CONSUMER_SUBSCRIPTION in protocol type "consumer"
    SchemaField("assignment",       BYTES),  # CONSUMER_ASSIGNMENT in protocol type "consumer"
))
_CLASSIC_PROTOCOLS = Struct(nullable=True, fields=(
    SchemaField("sessionTimeoutMs",   I32),
    SchemaField("supportedProtocols", Array(Struct((
        SchemaField("name",     STRING),
        SchemaField("metadata", BYTES),
    )))),
))
_OF_TOPIC = Struct((
    SchemaField("topicId",    UUID),
    SchemaField("partitions", Array(I32)),
))
_OF_TOPIC_WITH_EPOCHS = Struct((
    *_OF_TOPIC.fields,
    SchemaField("assignmentEpochs", Array(I32), tag=0),
))
_NAMED_TOPIC = Struct((
    SchemaField("topicId",   UUID),
    SchemaField("topicName", STRING),
))
_PARTITIONS_OF_TOPIC = Struct((*_NAMED_TOPIC.fields, SchemaField("partitions", Array(I32))))
_PARTITION_RACKS = Struct((
    SchemaField("partition", I32),
    SchemaField("racks",     Array(STRING)),
))
_TOPIC_RACKS = Struct((
    *_NAMED_TOPIC.fields,
    SchemaField("numPartitions",     I32),
    SchemaField("partitionMetadata", Array(_PARTITION_RACKS)),
))
_PAIR = Struct((
    SchemaField("key",   STRING),
    SchemaField("value", STRING),
))
_TASKS = Struct((
    SchemaField("subtopologyId", STRING),
    SchemaField("partitions",    Array(I32)),
))
_TASKS_WITH_EPOCHS = Struct((*_TASKS.fields, SchemaField("assignmentEpochs", Array(I32), tag=0)))
_TOPOLOGY_TOPIC = Struct((
    SchemaField("name",              STRING),
    SchemaField("partitions",        I32),
    SchemaField("replicationFactor", I16),
    SchemaField("topicConfigs",      Array(_PAIR)),
))
_COPARTITION_GROUP = Struct((
    SchemaField("sourceTopics",            Array(I16)),
    SchemaField("sourceTopicRegex",        Array(I16)),
    SchemaField("repartitionSourceTopics", Array(I16)),
))
_SUBTOPOLOGY = Struct((
    SchemaField("subtopologyId",           STRING),
    SchemaField("sourceTopics",            Array(STRING)),
    SchemaField("sourceTopicRegex",        Array(STRING)),
    SchemaField("stateChangelogTopics",    Array(_TOPOLOGY_TOPIC)),
    SchemaField("repartitionSinkTopics",   Array(STRING)),
    SchemaField("repartitionSourceTopics", Array(_TOPOLOGY_TOPIC)),
    SchemaField("copartitionGroups",       Array(_COPARTITION_GROUP)),
))
_STATE_BATCH = Struct((
    SchemaField("firstOffset",   I64),
    SchemaField("lastOffset",    I64),
    SchemaField("deliveryState", I8),
    SchemaField("deliveryCount", I16),
))
_TARGET_METADATA = (
    SchemaField("assignmentEpoch",     I32),
    SchemaField("assignmentTimestamp", I64, tag=0),
)
_CURRENT_ASSIGNMENT = (
    SchemaField("memberEpoch",         I32),
    SchemaField("previousMemberEpoch", I32),
    SchemaField("state",               I8),
)

_GROUP_RECORDS = {
    # Offsets that a group has committed for a partition.
    0: _type("LegacyOffsetCommit", _COMMIT,
        SchemaField("offset",          I64),
        SchemaField("metadata",        STRING),
        SchemaField("commitTimestamp", I64),
        flexible=None),
    1: _type("OffsetCommit", _COMMIT,
        SchemaField("offset",          I64),
        SchemaField("leaderEpoch",     I32, since=3),
        SchemaField("metadata",        STRING),
        SchemaField("commitTimestamp", I64),
        SchemaField("expireTimestamp", I64, since=1, until=1),
        SchemaField("topicId",         UUID, since=4, tag=0),
        last=4, flexible=4),
    # Classic groups.
    2: _type("GroupMetadata", (SchemaField("group", STRING),),
        SchemaField("protocolType",          STRING),
        SchemaField("generation",            I32),
        SchemaField("protocol",              STRING),
        SchemaField("leader",                STRING),
        SchemaField("currentStateTimestamp", I64, since=2),
        SchemaField("members",               Array(_CLASSIC_MEMBER)),
        last=4, flexible=4),
    # Consumer groups of KIP-848.
    3: _type("ConsumerGroupMetadata", _GROUP,
        SchemaField("epoch",        I32),
        SchemaField("metadataHash", I64, tag=0)),
    4: _type("ConsumerGroupPartitionMetadata", _GROUP,
        SchemaField("topics", Array(_TOPIC_RACKS))),
    5: _type("ConsumerGroupMemberMetadata", _MEMBER,
        SchemaField("instanceId",            STRING),
        SchemaField("rackId",                STRING),
        SchemaField("clientId",              STRING),
        SchemaField("clientHost",            STRING),
        SchemaField("subscribedTopicNames",  Array(STRING)),
        SchemaField("subscribedTopicRegex",  STRING),
        SchemaField("rebalanceTimeoutMs",    I32),
        SchemaField("serverAssignor",        STRING),
        SchemaField("classicMemberMetadata", _CLASSIC_PROTOCOLS, tag=0)),
    6: _type("ConsumerGroupTargetAssignmentMetadata", _GROUP, *_TARGET_METADATA),
    7: _type("ConsumerGroupTargetAssignmentMember", _MEMBER,
        SchemaField("topicPartitions", Array(_OF_TOPIC))),
    8: _type("ConsumerGroupCurrentMemberAssignment", _MEMBER,
        *_CURRENT_ASSIGNMENT,
        SchemaField("assignedPartitions",          Array(_OF_TOPIC_WITH_EPOCHS)),
        SchemaField("partitionsPendingRevocation", Array(_OF_TOPIC_WITH_EPOCHS))),
    16: _type("ConsumerGroupRegularExpression", (*_GROUP, SchemaField("regularExpression", STRING)),
        SchemaField("topics",    Array(STRING)),
        SchemaField("version",   I64),
        SchemaField("timestamp", I64)),
    # Share groups of KIP-932.
    10: _type("ShareGroupMemberMetadata", _MEMBER,
        SchemaField("rackId",               STRING),
        SchemaField("clientId",             STRING),
        SchemaField("clientHost",           STRING),
        SchemaField("subscribedTopicNames", Array(STRING))),
    11: _type("ShareGroupMetadata", _GROUP,
        SchemaField("epoch",        I32),
        SchemaField("metadataHash", I64)),
    12: _type("ShareGroupTargetAssignmentMetadata", _GROUP, *_TARGET_METADATA),
    13: _type("ShareGroupTargetAssignmentMember", _MEMBER,
        SchemaField("topicPartitions", Array(_OF_TOPIC))),
    14: _type("ShareGroupCurrentMemberAssignment", _MEMBER,
        *_CURRENT_ASSIGNMENT,
        SchemaField("assignedPartitions", Array(_OF_TOPIC))),
    15: _type("ShareGroupStatePartitionMetadata", _GROUP,
        SchemaField("initializingTopics", Array(_PARTITIONS_OF_TOPIC)),
        SchemaField("initializedTopics",  Array(_PARTITIONS_OF_TOPIC)),
        SchemaField("deletingTopics",     Array(_NAMED_TOPIC))),
    # Streams groups of KIP-1071.
    17: _type("StreamsGroupMetadata", _GROUP,
        SchemaField("epoch",                          I32),
        SchemaField("metadataHash",                   I64),
        SchemaField("validatedTopologyEpoch",         I32, tag=0),
        SchemaField("lastAssignmentConfigs",          Array(_PAIR), tag=1),
        SchemaField("storedDescriptionTopologyEpoch", I32, tag=2),
        SchemaField("failedDescriptionTopologyEpoch", I32, tag=3)),
    19: _type("StreamsGroupMemberMetadata", _MEMBER,
        SchemaField("instanceId",         STRING),
        SchemaField("rackId",             STRING),
        SchemaField("clientId",           STRING),
        SchemaField("clientHost",         STRING),
        SchemaField("rebalanceTimeoutMs", I32),
        SchemaField("topologyEpoch",      I32),
        SchemaField("processId",          STRING),
        SchemaField("userEndpoint",
                    Struct((SchemaField("host", STRING), SchemaField("port", U16)), nullable=True)),
        SchemaField("clientTags",         Array(_PAIR))),
    20: _type("StreamsGroupTargetAssignmentMetadata", _GROUP, *_TARGET_METADATA),
    21: _type("StreamsGroupTargetAssignmentMember", _MEMBER,
        SchemaField("activeTasks",  Array(_TASKS)),
        SchemaField("standbyTasks", Array(_TASKS)),
        SchemaField("warmupTasks",  Array(_TASKS))),
    22: _type("StreamsGroupCurrentMemberAssignment", _MEMBER,
        *_CURRENT_ASSIGNMENT,
        SchemaField("activeTasks",                   Array(_TASKS_WITH_EPOCHS)),
        SchemaField("standbyTasks",                  Array(_TASKS_WITH_EPOCHS)),
        SchemaField("warmupTasks",                   Array(_TASKS_WITH_EPOCHS)),
        SchemaField("activeTasksPendingRevocation",  Array(_TASKS_WITH_EPOCHS)),
        SchemaField("standbyTasksPendingRevocation", Array(_TASKS_WITH_EPOCHS)),
        SchemaField("warmupTasksPendingRevocation",  Array(_TASKS_WITH_EPOCHS))),
    23: _type("StreamsGroupTopology", _GROUP,
        SchemaField("epoch",         I32),
        SchemaField("subtopologies", Array(_SUBTOPOLOGY))),
}
_TRANSACTION_RECORDS = {
    0: _type("TransactionLog", (SchemaField("transactionalId", STRING),),
        SchemaField("producerId",                       I64),
        SchemaField("previousProducerId",               I64, since=1, tag=0),
        SchemaField("nextProducerId",                   I64, since=1, tag=1),
        SchemaField("producerEpoch",                    I16),
        SchemaField("nextProducerEpoch",                I16, since=1, tag=3),
        SchemaField("transactionTimeoutMs",             I32),
        SchemaField("transactionStatus",                I8),   # see TRANSACTION_STATES
        SchemaField("transactionPartitions",            Array(Struct((
            SchemaField("topic",        STRING),
            SchemaField("partitionIds", Array(I32)))))),
        SchemaField("transactionLastUpdateTimestampMs", I64),
        SchemaField("transactionStartTimestampMs",      I64),
        SchemaField("clientTransactionVersion",         I16, since=1, tag=2),
        last=1, flexible=1),
}
_SHARE_SNAPSHOT = (
    SchemaField("leaderEpoch",           I32),
    SchemaField("startOffset",           I64),
    SchemaField("deliveryCompleteCount", I32, tag=0),
)
_SHARE_RECORDS = {
    0: _type("ShareSnapshot", _SHARE,
        SchemaField("snapshotEpoch",   I32),
        SchemaField("stateEpoch",      I32),
        *_SHARE_SNAPSHOT,
        SchemaField("createTimestamp", I64),
        SchemaField("writeTimestamp",  I64),
        SchemaField("stateBatches",    Array(_STATE_BATCH))),
    1: _type("ShareUpdate", _SHARE,
        SchemaField("snapshotEpoch", I32),
        *_SHARE_SNAPSHOT,
        SchemaField("stateBatches",  Array(_STATE_BATCH))),
}

# Messages between the members of a classic group. They begin with an i16 version, and no version is
# flexible.
_ASSIGNED = Array(Struct((SchemaField("topic", STRING), SchemaField("partitions", Array(I32)))))
CONSUMER_SUBSCRIPTION = MessageSchema("ConsumerProtocolSubscription", last=3, fields=(
    SchemaField("topics",          Array(STRING)),
    SchemaField("userData",        BYTES),
    SchemaField("ownedPartitions", _ASSIGNED, since=1),
    SchemaField("generationId",    I32, since=2),
    SchemaField("rackId",          STRING, since=3),
))
CONSUMER_ASSIGNMENT = MessageSchema("ConsumerProtocolAssignment", last=3, fields=(
    SchemaField("assignedPartitions", _ASSIGNED),
    SchemaField("userData",           BYTES),
))
# fmt: on

RECORD_TYPES = {
    GROUPS_TOPIC: _GROUP_RECORDS,
    TRANSACTIONS_TOPIC: _TRANSACTION_RECORDS,
    SHARES_TOPIC: _SHARE_RECORDS,
}

_COMMITS = (0, 1)  # record types of committed offsets
_WITH_EPOCH = 3  # first version of a commit's value with a leader epoch

# Names of the values of ``transactionStatus``, from Kafka 4.4 ``TransactionState``.
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


def is_decoded(topic: str) -> bool:
    """Whether ``topic`` is an internal topic that ``decode_internal_record`` supports."""
    return topic in RECORD_TYPES or topic == METADATA_TOPIC


def decode_internal_record(topic: str, key: bytes | None, value: bytes | None) -> DecodedRecord:
    """Decode a record of a topic for which ``is_decoded`` is true."""
    if topic == METADATA_TOPIC:
        return _metadata_record(value or b"")
    if key is None:
        return DecodedRecord(None, None, None, None, None, "the record has no key")
    if len(key) < 2:
        return DecodedRecord(None, None, None, None, None, f"the key has only {len(key)} bytes")
    number = int.from_bytes(key[:2], "big", signed=True)
    kind = RECORD_TYPES[topic].get(number)
    if kind is None:
        return DecodedRecord(
            number, None, None, _version(value), None, f"record type {number} is unknown"
        )
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
    return DecodedRecord(number, kind.name, fields, version, content, "; ".join(problems) or None)


def is_commit(key: bytes) -> bool:
    """Whether this is the key of a committed offset in ``__consumer_offsets``."""
    return len(key) >= 2 and int.from_bytes(key[:2], "big") in _COMMITS


def commits_elsewhere(records: Iterable[Record]) -> list[Record]:
    """The records of ``__consumer_offsets`` to write to another cluster: only committed offsets.

    The members of groups do not exist in the other cluster, so all other records are dropped. A
    commit is rewritten in version 3 without leader epoch and topic id, because both are of this
    cluster. A consumer would wait for a leader with that epoch, and a broker would not find the
    topic. Versions below 3 have neither and are not changed.
    """
    found = []
    for record in records:
        if not is_commit(record.key or b""):
            continue
        value = record.value
        if value is not None and (_version(value) or 0) >= _WITH_EPOCH:
            fields = _fields(_GROUP_RECORDS[1].value, value, _version(value), [])
            if fields is not None:
                metadata = (fields["metadata"] or "").encode()
                value = (
                    struct.pack(">hqih", _WITH_EPOCH, fields["offset"], -1, len(metadata))
                    + metadata
                    + fields["commitTimestamp"].to_bytes(8, "big", signed=True)
                )
        found.append(replace(record, value=value))
    return found


def _metadata_record(value: bytes) -> DecodedRecord:
    reader = MessageReader(value)
    try:
        frame, number, version = reader.unsigned(), reader.unsigned(), reader.unsigned()
    except LogError as error:
        return DecodedRecord(None, None, None, None, None, error.problem)
    if frame != FRAME_VERSION:
        return DecodedRecord(None, None, None, None, None, f"the record has frame version {frame}")
    table = METADATA_RECORDS.get(number)
    if table is None:
        return DecodedRecord(number, None, None, version, None, f"record type {number} is unknown")
    problems: list[str] = []
    content = _fields(table, value, version, problems, reader.position)
    return DecodedRecord(number, table.name, None, version, content, "; ".join(problems) or None)


def _version(value: bytes | None) -> int | None:
    return (
        None if value is None or len(value) < 2 else int.from_bytes(value[:2], "big", signed=True)
    )


def _fields(
    message: MessageSchema,
    data: bytes,
    version: int | None,
    problems: list[str],
    start: int = 2,
) -> dict[str, Any] | None:
    """Decode the fields of a key or value, which begin at byte ``start``.

    Returns None if they do not decode, and appends the reason to ``problems``.
    """
    try:
        if version is None:
            raise TruncatedLog(f"{message.name} of {len(data)} bytes", 0)
        found, end = message.decode(data, version, start)
    except LogError as error:
        problems.append(f"{message.name}: {error.problem}")
        return None
    if end < len(data):
        problems.append(f"{message.name}: {len(data) - end} bytes follow the last field")
    return found


def _decode_members(members: list[dict[str, Any]]) -> None:
    """Replace each group member's subscription and assignment by their decoded form.

    Bytes that cannot be decoded stay unchanged.
    """
    for member in members:
        for name, message in (
            ("subscription", CONSUMER_SUBSCRIPTION),
            ("assignment", CONSUMER_ASSIGNMENT),
        ):
            said = base64.b64decode(member[name] or "")
            problems: list[str] = []
            if len(said) >= 2:
                version = MessageReader(said).integer(I16)
                # A newer version only adds fields at the end, which Kafka ignores.
                found = _fields(message, said, min(version, message.last), problems)
                if found is not None and (not problems or version > message.last):
                    member[name] = {"version": version, **found}
