"""Tests of file and folder names, Kafka's own and foreign ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.kafka.format.names import (
    FOREIGN,
    SEGMENT_KINDS,
    FileName,
    FolderName,
    FolderState,
    KafkaFileKind,
    Suffix,
    classify,
    decode_folder_name,
    folder_name,
    segment_file_name,
)
from lastwrite.model.log import TopicPartition

LARGEST = 2**63 - 1
HEX = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("00000000000000000000.log", FileName(KafkaFileKind.LOG, Suffix.LIVE, 0)),
        ("00000000000000004711.index", FileName(KafkaFileKind.INDEX, Suffix.LIVE, 4711)),
        (
            "09223372036854775807.timeindex",
            FileName(KafkaFileKind.TIME_INDEX, Suffix.LIVE, LARGEST),
        ),
        (
            "00000000000000000007.txnindex.swap",
            FileName(KafkaFileKind.TRANSACTION_INDEX, Suffix.SWAP, 7),
        ),
        ("00000000000000000007.log.cleaned", FileName(KafkaFileKind.LOG, Suffix.CLEANED, 7)),
        (
            "00000000000000000007.log.r1-a_2.cleaned",
            FileName(KafkaFileKind.LOG, Suffix.CLEANED, 7, "r1-a_2"),
        ),
        ("00000000000000000007.index.deleted", FileName(KafkaFileKind.INDEX, Suffix.DELETED, 7)),
        ("00000000000000000007.snapshot", FileName(KafkaFileKind.SNAPSHOT, Suffix.LIVE, 7)),
        (
            "00000000000000000007.snapshot.deleted",
            FileName(KafkaFileKind.SNAPSHOT, Suffix.DELETED, 7),
        ),
        ("leader-epoch-checkpoint", FileName(KafkaFileKind.LEADER_EPOCHS)),
        ("leader-epoch-checkpoint.tmp", FileName(KafkaFileKind.LEADER_EPOCHS, Suffix.TEMPORARY)),
        ("partition.metadata", FileName(KafkaFileKind.PARTITION_METADATA)),
        ("partition.metadata.tmp", FileName(KafkaFileKind.PARTITION_METADATA, Suffix.TEMPORARY)),
        (
            "00000000000000000010-0000000001.checkpoint",
            FileName(KafkaFileKind.METADATA_SNAPSHOT, Suffix.LIVE, 10),
        ),
        (
            "00000000000000000010-0000000001.checkpoint.deleted",
            FileName(KafkaFileKind.METADATA_SNAPSHOT, Suffix.DELETED, 10),
        ),
        (
            "00000000000000000010-0000000001.checkpoint.part",
            FileName(KafkaFileKind.METADATA_SNAPSHOT, Suffix.TEMPORARY, 10),
        ),
        ("quorum-state", FileName(KafkaFileKind.QUORUM_STATE)),
        ("00000000000000000007.kept", FileName(KafkaFileKind.KEPT, Suffix.LIVE, 7)),
        (
            "00000000000000000007.kept.r1-a_2.tmp",
            FileName(KafkaFileKind.KEPT, Suffix.TEMPORARY, 7, "r1-a_2"),
        ),
        ("lastwrite.secret", FileName(KafkaFileKind.KEPT_SECRET)),
        (
            "lastwrite.secret.a.tmp",
            FileName(KafkaFileKind.KEPT_SECRET, Suffix.TEMPORARY, attempt="a"),
        ),
    ],
)
def test_kafkas_file_names_are_classified(name: str, expected: FileName) -> None:
    assert classify(name) == expected
    assert not expected.is_foreign


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "5.log",
        "00000000000000000005",
        "00000000000000000005.",
        "00000000000000000005.LOG",
        "000000000000000000005.log",
        "-0000000000000000005.log",
        "+0000000000000000005.log",
        "09223372036854775808.log",
        "99999999999999999999.log",
        "00000000000000000005.log\n",
        "00000000000000000005.log.bak",
        "00000000000000000005.log.a.swap",
        "00000000000000000005.log.a.b.cleaned",
        "00000000000000000005.log..cleaned",
        "00000000000000000005.snapshot.swap",
        "00000000000000000005.snapshot.cleaned",
        "00000000000000000005.log.tmp",
        "\u0660" * 20 + ".log",
        "a.log",
        "notes.txt",
        ".DS_Store",
        "00000000000000000005.log.cleaned.swap",
        "99999999999999999999-0000000001.checkpoint",
        "7.kept",
        "99999999999999999999.kept",
        "lastwrite.secret.tmp",
        "00000000000000000007.kept.tmp",
        "00000000000000000007.kept.deleted",
        "00000000000000000007.kept.a",
    ],
)
def test_foreign_file_names_are_recognised(name: str) -> None:
    assert classify(name) is FOREIGN
    assert FOREIGN.is_foreign


@given(
    st.integers(0, LARGEST),
    st.sampled_from(SEGMENT_KINDS),
    st.sampled_from([Suffix.LIVE, Suffix.CLEANED, Suffix.SWAP, Suffix.DELETED]),
)
def test_segment_file_names_round_trip(offset: int, kind: KafkaFileKind, suffix: Suffix) -> None:
    assert classify(segment_file_name(offset, kind, suffix)) == FileName(kind, suffix, offset)


@given(st.lists(st.integers(0, LARGEST), max_size=5))
def test_file_names_sort_like_offsets(offsets: list[int]) -> None:
    names = sorted(segment_file_name(offset, KafkaFileKind.LOG) for offset in offsets)
    assert [classify(name).offset for name in names] == sorted(offsets)


def test_invalid_file_names_are_refused() -> None:
    assert (
        segment_file_name(3, KafkaFileKind.LOG, Suffix.CLEANED, attempt="0-1")
        == "00000000000000000003.log.0-1.cleaned"
    )
    for offset, kind, suffix, attempt in (
        (-1, KafkaFileKind.LOG, Suffix.LIVE, None),
        (LARGEST + 1, KafkaFileKind.LOG, Suffix.LIVE, None),
        (0, KafkaFileKind.FOREIGN, Suffix.LIVE, None),
        (0, KafkaFileKind.LOG, Suffix.SWAP, "a"),
        (0, KafkaFileKind.LOG, Suffix.CLEANED, "../x"),
        (0, KafkaFileKind.LOG, Suffix.TEMPORARY, None),
        (0, KafkaFileKind.SNAPSHOT, Suffix.SWAP, None),
    ):
        with pytest.raises(ValueError):
            segment_file_name(offset, kind, suffix, attempt=attempt)


@pytest.mark.parametrize(
    ("name", "topic", "partition", "state"),
    [
        ("orders-0", "orders", 0, FolderState.LIVE),
        ("a-b.c_d-12", "a-b.c_d", 12, FolderState.LIVE),
        ("a--0", "a-", 0, FolderState.LIVE),
        ("x-1-2147483647", "x-1", 2**31 - 1, FolderState.LIVE),
        ("__consumer_offsets-49", "__consumer_offsets", 49, FolderState.LIVE),
        (f"orders-3.{HEX}-delete", "orders", 3, FolderState.DELETED),
        (f"orders-3.{HEX}-future", "orders", 3, FolderState.FUTURE),
        (f"a.b-c-3.{HEX}-stray", "a.b-c", 3, FolderState.STRAY),
    ],
)
def test_folder_names_are_decoded(
    name: str, topic: str, partition: int, state: FolderState
) -> None:
    assert decode_folder_name(name) == FolderName(TopicPartition(topic, partition), state)
    if state is FolderState.LIVE:
        assert folder_name(TopicPartition(topic, partition)) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "orders",
        "-0",
        "orders-",
        "orders-x",
        "orders-01",
        "orders-+1",
        "orders-2147483648",
        "or ders-0",
        "..-0",
        ".-0",
        "orders-0\n",
        "ordérs-0",
        "a" * 250 + "-0",
        "orders-\u0661",
        "remote-log-index-cache",
        f"orders-3.{HEX}-gone",
        f"orders-3.{HEX[:-1]}-delete",
        f"orders-3.{HEX}delete",
    ],
)
def test_folder_name_without_a_partition_is_none(name: str) -> None:
    assert decode_folder_name(name) is None


@pytest.mark.parametrize(
    "partition", [TopicPartition("", 0), TopicPartition("a", -1), TopicPartition("a/b", 0)]
)
def test_partition_without_a_valid_folder_name_is_refused(partition: TopicPartition) -> None:
    with pytest.raises(ValueError):
        folder_name(partition)
