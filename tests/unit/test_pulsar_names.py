"""Tests of names of topics, objects and files, and of positions as offsets."""

from __future__ import annotations

from uuid import UUID

import pytest

from lastwrite.errors import InvalidConfig, UnsupportedFormat
from lastwrite.pulsar.format.names import (
    TopicName,
    encode_local,
    entry_log_name,
    map_file_name,
    object_name,
    parse_entry_log_name,
    parse_map_file_name,
    parse_object_name,
    parse_streamed_name,
)
from lastwrite.pulsar.format.position import EARLIEST, MAX_LEDGER, Position

ID = UUID("0123abcd-0000-4000-8000-00000000beef")


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("orders", "persistent://public/default/orders"),
        ("t/n/orders", "persistent://t/n/orders"),
        ("persistent://t/n/orders", "persistent://t/n/orders"),
        ("persistent://t/n/orders-partition-3", "persistent://t/n/orders-partition-3"),
        ("a b", "persistent://public/default/a b"),
    ],
)
def test_topic_names_are_parsed(text: str, full: str) -> None:
    topic = TopicName.parse(text)
    assert topic.full == full == str(topic)
    assert TopicName.parse(topic.full) == topic == TopicName.of_managed_ledger(topic.managed_ledger)


@pytest.mark.parametrize(
    ("local", "base", "partition"),
    [
        ("x-partition-0", "x", 0),
        ("x-partition-12", "x", 12),
        ("x-partition-1-partition-2", "x-partition-1", 2),
        ("x-partition-01", "x-partition-01", -1),
        ("x-partition-", "x-partition-", -1),
        ("x-partition--1", "x-partition--1", -1),
        ("x-partition-99999999999", "x-partition-99999999999", -1),
        ("-partition-1", "-partition-1", -1),
    ],
)
def test_partition_suffix_is_parsed(local: str, base: str, partition: int) -> None:
    topic = TopicName.parse(local)
    assert (topic.local, topic.partition, topic.is_partition) == (base, partition, partition >= 0)
    assert topic.full == f"persistent://public/default/{local}"
    assert topic.base == f"persistent://public/default/{base}"
    assert topic.with_partition(7).full == f"persistent://public/default/{base}-partition-7"


@pytest.mark.parametrize(
    ("local", "encoded"),
    [
        ("orders", "orders"),
        ("a b", "a+b"),
        ("a/b", "a%2Fb"),
        ("ü~*-_.", "%C3%BC%7E*-_."),
        ("a+b%", "a%2Bb%25"),
        ("persistent://x", "persistent%3A%2F%2Fx"),
    ],
)
def test_local_names_are_encoded_as_java_does(local: str, encoded: str) -> None:
    assert encode_local(local) == encoded
    name = f"t/n/persistent/{encoded}"
    assert TopicName.of_managed_ledger(name).local == local
    assert TopicName.of_managed_ledger(name).managed_ledger == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "a/b",
        "t/n/",
        "/n/x",
        "t//x",
        "t/n/c/x",
        "persistent://x",
        "persistent://t/c/n/x",
        "non-persistent://t/n/x",
        "kafka://t/n/x",
        "t/n!/x",
        "../n/x",
        "t/../x",
        "t/n/..",
        ".",
        "a\0b",
    ],
)
def test_invalid_topic_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        TopicName.parse(text)
    assert raised.value.remedy


@pytest.mark.parametrize(
    "name",
    ["t/n/x", "t/n/non-persistent/x", "t/c/n/persistent/x", "t/n/persistent/", "t/n/persistent/.."],
)
def test_invalid_managed_ledger_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfig):
        TopicName.of_managed_ledger(name)


def test_object_names_round_trip() -> None:
    name = object_name(ID, 10)
    assert name == "0123abcd-0000-4000-8000-00000000beef-ledger-10"
    assert parse_object_name(name) == (ID, 10)
    for other in (
        name + "-index",
        name + ".survey",
        name.upper(),
        name[1:],
        f"{ID}-ledger-010",
        f"{ID}-ledger-" + "9" * 19,
    ):
        assert parse_object_name(other) is None
    assert parse_streamed_name(str(ID)) == ID and parse_streamed_name(name) is None


def test_map_file_names_round_trip() -> None:
    assert parse_map_file_name(map_file_name(10, ID)) == (10, ID)
    assert (
        parse_map_file_name(object_name(ID, 10)) is None and parse_map_file_name(f"x-{ID}") is None
    )


def test_entry_log_names_round_trip() -> None:
    assert (
        entry_log_name(255) == "ff.log"
        and parse_entry_log_name("ff.log") == 255
        and parse_entry_log_name("0.log") == 0
    )
    for other in (
        "FF.log",
        "0ff.log",
        ".log",
        "1.log.2.compacted",
        "lastId",
        "1.txt",
        "g.log",
        "f" * 16 + ".log",
    ):
        assert parse_entry_log_name(other) is None


def test_positions_convert_to_offsets() -> None:
    assert Position(10, 5).offset == 42949672965 and Position.of(42949672965) == Position(10, 5)
    assert Position.parse("10:5") == Position(10, 5) and str(Position(10, 5)) == "10:5"
    assert Position.parse("10:-1").offset == Position(10, 0).offset - 1
    assert Position.parse("-1:-1") == EARLIEST < Position(0, 0)
    assert Position(10, 5).next == Position(10, 6) and Position(9, 1 << 31) < Position(10, 0)
    top = Position(MAX_LEDGER, (1 << 32) - 1)
    assert Position.of(top.offset) == top and top.offset < (MAX_LEDGER + 1) << 32 < 1 << 63


@pytest.mark.parametrize(
    "position",
    [Position(MAX_LEDGER + 1, 0), Position(0, 1 << 32), Position(-2, 0), Position(0, -2)],
)
def test_position_that_does_not_fit_in_an_offset_is_refused(position: Position) -> None:
    with pytest.raises(UnsupportedFormat):
        _ = position.offset


@pytest.mark.parametrize("text", ["", "10", "10:", ":5", "a:b", "10:5:1", "-2:0", "10:5x", "٣:1"])
def test_invalid_position_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig):
        Position.parse(text)
