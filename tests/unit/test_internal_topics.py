"""Tests of the records of Kafka's internal topics.

The records were written by Kafka's classes or by a broker, or are damaged.
"""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.cli.dump import as_text
from lastwrite.demo.topic_writer import TopicWriter
from lastwrite.encoding.layout import I32
from lastwrite.kafka.cluster.internal_topics import GROUPS_TOPIC, RECORD_TYPES, TRANSACTIONS_TOPIC
from lastwrite.kafka.cluster.internal_topics import decode_internal_record as decode
from lastwrite.kafka.cluster.message import STRING, Array, MessageSchema, SchemaField
from lastwrite.kafka.cluster.metadata_log import FOLDER
from lastwrite.kafka.cluster.metadata_tables import METADATA_RECORDS
from lastwrite.kafka.format.names import METADATA_TOPIC
from lastwrite.model.log import TopicPartition

CORPUS = Path(__file__).parent.parent / "corpus" / "internal-topics"
WRITTEN = [
    json.loads(line)
    for line in gzip.decompress((CORPUS / "coordinator-records.jsonl.gz").read_bytes()).splitlines()
]
OF_GROUPS = [line for line in WRITTEN if line["topic"] != METADATA_TOPIC]
OF_METADATA = [line for line in WRITTEN if line["topic"] == METADATA_TOPIC]
COMMIT_KEY = bytes.fromhex("0001 0004 6c617773 0006 6f7264657273 00000002")


def unhex(digits: str | None) -> bytes | None:
    return None if digits is None else bytes.fromhex(digits)


def test_every_type_and_version_is_decoded_as_kafka_decodes_it() -> None:
    seen = set()
    for line in WRITTEN:
        found = decode(line["topic"], unhex(line["key"]), bytes.fromhex(line["value"]))
        assert found == (
            line["type"],
            line["name"].removesuffix("Value"),
            line["key_fields"],
            line["version"],
            line["value_fields"],
            None,
        )
        seen.add((line["topic"], line["type"], line["version"]))
    known = {
        (topic, number, version)
        for topic, types in RECORD_TYPES.items()
        for number, kind in types.items()
        for version in range(kind.value.last + 1)
    } | {
        (METADATA_TOPIC, number, version)
        for number, table in METADATA_RECORDS.items()
        for version in range(table.last + 1)
    }
    assert seen == known


def test_truncated_group_record_reports_a_problem_and_never_fails() -> None:
    for line in OF_GROUPS[::3]:
        key, value = bytes.fromhex(line["key"]), bytes.fromhex(line["value"])
        whole = decode(line["topic"], key, value)
        for cut in range(len(value)):
            found = decode(line["topic"], key, value[:cut])
            assert found.key == whole.key
            assert found.value is None
            assert found.problem is not None
        for cut in range(len(key)):
            found = decode(line["topic"], key[:cut], value)
            assert found.key is None or len(found.key) < len(whole.key or {})
            assert found.problem is not None
        more = decode(line["topic"], key + b"x", value + b"xy")
        assert more.key == whole.key
        assert more.value == whole.value
        assert more.problem is not None
        assert "1 bytes follow" in more.problem
        assert "2 bytes follow" in more.problem


def test_truncated_metadata_record_reports_a_problem_and_never_fails() -> None:
    for line in OF_METADATA[::3]:
        value = bytes.fromhex(line["value"])
        for cut in range(len(value)):
            found = decode(METADATA_TOPIC, None, value[:cut])
            assert found.value is None and found.problem is not None
        more = decode(METADATA_TOPIC, None, value + b"x")
        assert more.value == line["value_fields"] and "1 bytes follow" in (more.problem or "")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"\1\x63\3abc", (99, None, None, 3, None, "record type 99 is unknown")),
        (b"\2\x63\0", (None, None, None, None, None, "the record has frame version 2")),
        (
            b"\1\2\1abc",
            (
                2,
                "TopicRecord",
                None,
                1,
                None,
                "TopicRecord: the version is 1, and Lastwrite supports 0 to 0",
            ),
        ),
        (
            None,
            (
                None,
                None,
                None,
                None,
                None,
                "the message is truncated: 1 bytes are needed, but 0 remain",
            ),
        ),
    ],
)
def test_unknown_metadata_record_is_named(value: bytes | None, expected: tuple[Any, ...]) -> None:
    assert decode(METADATA_TOPIC, None, value) == expected


def test_metadata_log_of_a_broker_is_decoded_completely() -> None:
    root = CORPUS.parent / "kafka-4.4.0" / "stopped"
    rows = list(lastwrite.dump(str(root / FOLDER), decode=True))
    assert rows == list(lastwrite.dump(str(root), topic=METADATA_TOPIC, decode=True))
    said = [row["decoded"] for row in rows if row["control"] is None]
    assert [each["problem"] for each in said] == [None] * len(said)
    by_name = {
        name: [each["value"] for each in said if each["name"] == name]
        for name in {each["name"] for each in said}
    }
    (broker,) = by_name["RegisterBrokerRecord"]
    assert (broker["brokerId"], broker["endPoints"][0]["name"]) == (1, "PLAINTEXT")
    ids = {topic["topicId"]: topic["name"] for topic in by_name["TopicRecord"]}
    said_on_disk = next(lastwrite.dump(str(root / "keyless-0" / "partition.metadata")))["topic_id"]
    assert ids[said_on_disk] == "keyless"
    assert {each["topicId"] for each in by_name["PartitionRecord"]} == ids.keys()
    assert {"name": "metadata.version", "featureLevel": 33} in by_name["FeatureLevelRecord"]
    snapshot = root / FOLDER / f"{0:020}-{0:010}.checkpoint"
    kept = [
        row["control"] or row["decoded"]["name"]
        for row in lastwrite.dump(str(snapshot), decode=True)
    ]
    assert kept == ["snapshot-header", *["FeatureLevelRecord"] * 6, "snapshot-footer"]


def test_metadata_record_is_shown_as_text() -> None:
    root = CORPUS.parent / "kafka-4.4.0" / "stopped"
    lines = [as_text(row) for row in lastwrite.dump(str(root / FOLDER), decode=True)]
    (said,) = [line for line in lines if "ConfigRecord" in line and "append-time" in line][:1]
    assert (
        " = " not in said and "ConfigRecord v0 {resourceType: 2, resourceName: append-time" in said
    )


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (
            COMMIT_KEY,
            None,
            (
                1,
                "OffsetCommit",
                {"group": "laws", "topic": "orders", "partition": 2},
                None,
                None,
                None,
            ),
        ),
        (b"\x00\x63abc", b"\x00\x07xyz", (99, None, None, 7, None, "record type 99 is unknown")),
        (b"\x00\x63abc", None, (99, None, None, None, None, "record type 99 is unknown")),
        (b"\x01", b"", (None, None, None, None, None, "the key has only 1 bytes")),
        (b"", b"", (None, None, None, None, None, "the key has only 0 bytes")),
        (None, b"", (None, None, None, None, None, "the record has no key")),
    ],
)
def test_unknown_group_record_is_named(
    key: bytes | None, value: bytes | None, expected: tuple[Any, ...]
) -> None:
    assert decode(GROUPS_TOPIC, key, value) == expected


def test_record_of_a_newer_version_keeps_its_key() -> None:
    found = decode(GROUPS_TOPIC, COMMIT_KEY, b"\x00\x05" + bytes(30))
    assert found.key == {"group": "laws", "topic": "orders", "partition": 2}
    assert (found.value_version, found.value) == (5, None)
    assert found.problem == "OffsetCommitValue: the version is 5, and Lastwrite supports 0 to 4"


def test_unknown_tagged_fields_are_skipped() -> None:
    message = MessageSchema(
        "M", (SchemaField("a", I32), SchemaField("b", Array(STRING), tag=1)), flexible=0
    )
    data = bytes.fromhex("000000070201030202780901ff")
    assert message.decode(data, 0) == ({"a": 7, "b": ["x"]}, len(data))


def decoded_rows() -> list[dict[str, Any]]:
    return list(lastwrite.dump(str(CORPUS), decode=True))


def test_records_of_a_broker_are_decoded() -> None:
    rows = decoded_rows()
    assert {row["topic"] for row in rows} == {GROUPS_TOPIC, TRANSACTIONS_TOPIC}
    assert all(row["decoded"] is None for row in rows if row["control"])
    records = [row["decoded"] for row in rows if not row["control"]]
    assert [record["problem"] for record in records if record["problem"]] == []
    assert {record["name"] for record in records} == {
        "OffsetCommit",
        "GroupMetadata",
        "ConsumerGroupMetadata",
        "ConsumerGroupMemberMetadata",
        "ConsumerGroupTargetAssignmentMember",
        "ConsumerGroupTargetAssignmentMetadata",
        "ConsumerGroupCurrentMemberAssignment",
        "ConsumerGroupRegularExpression",
        "TransactionLog",
    }
    offsets: dict[tuple[str, str], int | None] = {}
    for row in rows:
        record = row["decoded"]
        if record and record["name"] == "OffsetCommit" and not row["transactional"]:
            key, value = record["key"], record["value"]
            offsets[key["group"], key["topic"]] = value and value["offset"]
    assert offsets == {
        ("classic", "orders"): 6,
        ("classic", "payments"): 7,
        ("static", "orders"): 1,
        ("new", "orders"): 11,
        ("new", "payments"): 12,
        ("pattern", "orders"): 21,
        ("gone", "orders"): None,
    }


def test_classic_group_members_show_subscription_and_assignment() -> None:
    members = [
        member
        for row in decoded_rows()
        if row["decoded"] and row["decoded"]["name"] == "GroupMetadata" and row["decoded"]["value"]
        for member in row["decoded"]["value"]["members"]
    ]
    static = next(member for member in members if member["groupInstanceId"] == "first")
    assert static["subscription"]["topics"] == ["orders"]
    assert static["assignment"] == {
        "version": 0,
        "assignedPartitions": [{"topic": "orders", "partitions": [0]}],
        "userData": "",
    }


def test_transaction_records_show_their_state() -> None:
    lines = [as_text(row) for row in decoded_rows() if row["topic"] == TRANSACTIONS_TOPIC]
    states = [
        line.split("transactionStatus: ")[1].split(",")[0] for line in lines if "aborted}" in line
    ]
    assert states == ["Empty", "Ongoing", "PrepareAbort", "CompleteAbort"]


def test_group_records_are_shown_as_text() -> None:
    line = next(as_text(row) for row in decoded_rows() if row["offset"] == 2)
    when, said = line.split("  ", 2)[1:]
    assert when.endswith("Z")
    assert said.startswith(
        "OffsetCommit {group: classic, topic: orders, partition: 0} = v4 {offset: 5, leaderEpoch: -1, metadata: "
    )
    gone = [
        as_text(row) for row in decoded_rows() if row["value"] is None and "gone" in as_text(row)
    ]
    assert [line.split("  ")[2] for line in gone] == [
        "OffsetCommit {group: gone, topic: orders, partition: 0} = null",
        "GroupMetadata {group: gone} = null",
    ]


def test_user_topics_are_decoded_as_text(tmp_path: Path) -> None:
    with TopicWriter(str(tmp_path), TopicPartition("orders", 0)) as writer:
        writer.append("schlüssel".encode(), b"\xff", 1000)
        writer.append(b"", None, 1000)
    rows = list(lastwrite.dump(str(tmp_path), decode=True))
    assert [row["decoded"] for row in rows] == [
        {"key": "schlüssel", "value": None},
        {"key": "", "value": None},
    ]
    assert rows[0]["value"] == base64.b64encode(b"\xff").decode()
    assert as_text(rows[0]).endswith('"schlüssel" = 0xff')
