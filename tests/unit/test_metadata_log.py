"""Tests of topic settings from a KRaft metadata log: hand-made records, and a real broker's log."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastwrite.errors import CorruptLog, LogError, TruncatedLog, UnsupportedFormat
from lastwrite.kafka.cluster.metadata_log import (
    FOLDER,
    ClusterPartition,
    cluster_configs,
    cluster_topics,
)
from lastwrite.kafka.cluster.metadata_record import (
    BrokerConfigRecord,
    RemoveTopicRecord,
    TopicConfigRecord,
    TopicRecord,
    Transaction,
    decode_metadata_record,
)
from lastwrite.kafka.format.text import topic_id_text
from tests.support.kafka.metadata import TOPIC_ID as ID
from tests.support.kafka.metadata import new_leader, partition, setting, topic
from tests.support.kafka.metadata import write_records as write

CORPUS = Path(__file__).parents[1] / "corpus" / "kafka-4.4.0" / "stopped"
OTHER_ID = b"fedcba9876543210"


def topic_configs(root: str) -> dict[str, dict[str, str]] | None:
    found = cluster_configs(str(Path(root) / FOLDER))
    return None if found is None else found.topics


def removed(topic_id: bytes = ID) -> bytes:
    return b"\1\x09\0" + topic_id + b"\0"


BEGIN, END, ABORT = b"\1\x17\0\0", b"\1\x18\0\0", b"\1\x19\0\0"


def test_metadata_records_are_decoded_completely_or_refused() -> None:
    expected = {
        topic("orders"): TopicRecord("orders", ID),
        setting("orders", "cleanup.policy", "compact"): TopicConfigRecord(
            "orders", "cleanup.policy", "compact"
        ),
        setting("orders", "cleanup.policy", None): TopicConfigRecord(
            "orders", "cleanup.policy", None
        ),
        removed(): RemoveTopicRecord(ID),
    }
    for encoded, record in expected.items():
        assert decode_metadata_record(encoded) == record
        # The last byte states that there are no tagged fields, and is not read.
        for cut in range(len(encoded) - 1):
            with pytest.raises(TruncatedLog):
                decode_metadata_record(encoded[:cut])
    assert decode_metadata_record(BEGIN) is Transaction.BEGIN
    of_broker = setting("1", "log.retention.ms", "1", kind=4)
    assert decode_metadata_record(of_broker) == BrokerConfigRecord("1", "log.retention.ms", "1")
    assert decode_metadata_record(setting("10.0.0.0", "x", "1", kind=32)) is None, (
        "of a client's metrics, or a group"
    )
    assert decode_metadata_record(b"\1\x14\0\0") is None
    with pytest.raises(UnsupportedFormat):
        decode_metadata_record(b"\2\2\0")
    with pytest.raises(UnsupportedFormat):
        decode_metadata_record(b"\1\2\5")
    with pytest.raises(CorruptLog, match="varint"):
        decode_metadata_record(b"\xff" * 6)
    with pytest.raises(CorruptLog, match="UTF-8"):
        decode_metadata_record(b"\1\2\0\3\xff\xff" + ID)


LOG = f"{0:020d}.log"


def test_settings_are_set_changed_and_removed(tmp_path: Path) -> None:
    write(
        tmp_path,
        LOG,
        0,
        topic("a"),
        setting("a", "cleanup.policy", "compact"),
        setting("a", "retention.ms", "5"),
        topic("b", OTHER_ID),
        setting("b", "retention.ms", "7"),
        setting("a", "cleanup.policy", "compact,delete"),
        setting("a", "retention.ms", None),
    )
    assert topic_configs(str(tmp_path)) == {
        "a": {"cleanup.policy": "compact,delete"},
        "b": {"retention.ms": "7"},
    }


def test_dynamic_broker_settings_are_separate_from_topic_settings(tmp_path: Path) -> None:
    write(
        tmp_path,
        LOG,
        0,
        topic("1"),
        setting("", "log.cleanup.policy", "compact", kind=4),
        setting("1", "log.retention.ms", "5", kind=4),
        setting("1", "log.retention.bytes", "6", kind=4),
        setting("1", "log.retention.ms", None, kind=4),
    )
    found = cluster_configs(str(tmp_path / FOLDER))
    assert found is not None
    assert found.topics == {"1": {}}
    assert found.brokers == {
        "": {"log.cleanup.policy": "compact"},
        "1": {"log.retention.bytes": "6"},
    }


def test_deleted_topic_loses_its_settings(tmp_path: Path) -> None:
    write(
        tmp_path,
        LOG,
        0,
        topic("a"),
        setting("a", "cleanup.policy", "compact"),
        removed(),
        topic("a", OTHER_ID),
        topic("b"),
    )
    assert topic_configs(str(tmp_path)) == {"a": {}, "b": {}}


def test_metadata_transaction_applies_only_if_it_ended(tmp_path: Path) -> None:
    write(
        tmp_path,
        LOG,
        0,
        topic("a"),
        BEGIN,
        setting("a", "x", "1"),
        ABORT,
        BEGIN,
        setting("a", "y", "2"),
        END,
        BEGIN,
        setting("a", "z", "3"),
    )
    assert topic_configs(str(tmp_path)) == {"a": {"y": "2"}}


def test_newest_snapshot_is_read_before_the_log_after_it(tmp_path: Path) -> None:
    write(tmp_path, f"{2:020d}-0000000001.checkpoint", 0, topic("old"))
    write(tmp_path, f"{4:020d}-0000000001.checkpoint", 0, topic("a"), setting("a", "x", "1"))
    write(tmp_path, f"{9:020d}-0000000001.checkpoint.deleted", 0, topic("gone"))
    write(
        tmp_path,
        LOG,
        0,
        topic("gone"),
        topic("gone"),
        topic("gone"),
        topic("gone"),
        setting("a", "x", "2"),
    )
    assert topic_configs(str(tmp_path)) == {"a": {"x": "2"}}


def test_torn_tail_ends_the_log_and_damage_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, LOG, 0, topic("a"), topic("b", OTHER_ID))
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    assert topic_configs(str(tmp_path)) == {"a": {}}
    path.write_bytes(whole[:70] + bytes([whole[70] ^ 1]) + whole[71:])
    with pytest.raises(LogError) as raised:
        topic_configs(str(tmp_path))
    assert raised.value.path == str(path)
    write(tmp_path, LOG, 0, topic("a"), topic("b")[:-5])
    with pytest.raises(CorruptLog, match="truncated.*in the batch") as raised:
        topic_configs(str(tmp_path))
    assert raised.value.at is not None and raised.value.at > 0


def test_missing_metadata_log_gives_none(tmp_path: Path) -> None:
    assert topic_configs(str(tmp_path)) is None


def test_log_of_a_real_broker_gives_its_topic_settings() -> None:
    configs = topic_configs(str(CORPUS))
    assert configs is not None
    assert configs["client-lz4"] == {
        "cleanup.policy": "compact",
        "index.interval.bytes": "200",
        "segment.index.bytes": "1024",
        "delete.retention.ms": "0",
        "internal.segment.bytes": "1500",
    }
    assert configs["keyless"]["cleanup.policy"] == "compact", (
        "it was created with delete, and changed"
    )
    assert configs["broker-gzip"]["compression.type"] == "gzip"
    assert {path.name.rsplit("-", 1)[0] for path in CORPUS.glob("*-0")} - {
        "__cluster_metadata"
    } <= configs.keys()


def test_partitions_have_their_replicas_and_directories(tmp_path: Path) -> None:
    write(
        tmp_path,
        f"{0:020d}.log",
        0,
        topic("orders"),
        partition(0, ID, (1, 2), 3, (b"d" * 16, b"e" * 16)),
        partition(1, ID, (2,)),
        new_leader(0, ID),
        new_leader(0, ID, 2),
        BEGIN,
        topic("broken-off", OTHER_ID),
        ABORT,
        BEGIN,
        topic("made", OTHER_ID),
        partition(0, OTHER_ID),
        END,
        new_leader(7, b"no topic's id ..."[:16]),
        topic("gone", b"g" * 16),
        removed(b"g" * 16),
    )
    found = cluster_topics(str(tmp_path / FOLDER))
    assert set(found) == {"orders", "made"}
    assert found["orders"].topic_id == topic_id_text(ID)
    roots = topic_id_text(b"d" * 16), topic_id_text(b"e" * 16)
    assert found["orders"].partitions == {
        0: ClusterPartition((1, 2), roots, 5),
        1: ClusterPartition((2,), (), 0),
    }
    assert found["made"].partitions == {0: ClusterPartition((1,), (), 0)}


def test_partitions_of_a_real_cluster_are_found() -> None:
    found = cluster_topics(str(CORPUS / FOLDER))
    settings = topic_configs(str(CORPUS))
    assert settings is not None and set(found) == set(settings)
    for name, known in found.items():
        for folder in CORPUS.glob(f"{name}-[0-9]"):
            said = (folder / "partition.metadata").read_text()
            assert said == f"version: 0\ntopic_id: {known.topic_id}"
        assert all(each.replicas == (1,) for each in known.partitions.values())


def test_partition_record_of_a_later_version_is_refused(tmp_path: Path) -> None:
    later = partition(0, ID)[:2] + b"\x63" + partition(0, ID)[3:]
    write(tmp_path, f"{0:020d}.log", 0, topic("orders"), later)
    with pytest.raises(LogError, match="version is 99"):
        cluster_topics(str(tmp_path / FOLDER))
