"""Tests of selecting partitions by name, pattern and number, and of the errors if none match."""

from __future__ import annotations

import pytest

from lastwrite.errors import InvalidConfig, NotALog
from lastwrite.model.log import TopicPartition
from lastwrite.storage.choice import Topics, choose, is_named, is_selected

THERE = [
    (TopicPartition(topic, partition), f"/logs/{topic}-{partition}")
    for topic, partitions in (("clicks", 4), ("orders", 2), ("orders-dlq", 1))
    for partition in range(partitions)
]


def chosen(topic: Topics, partition: int | None = None) -> list[str]:
    return [each.removeprefix("/logs/") for each in choose(THERE, topic, partition, "/logs")]


@pytest.mark.parametrize(
    ("topic", "partition", "wanted"),
    [
        ("orders", None, ["orders-0", "orders-1"]),
        ("ord*", 0, ["orders-0", "orders-dlq-0"]),
        (["orders-dlq", "c?icks"], 0, ["clicks-0", "orders-dlq-0"]),
        (("orders", "orders"), 1, ["orders-1"]),
        (None, 3, ["clicks-3"]),
        (["[co]*"], 2, ["clicks-2"]),
    ],
)
def test_names_patterns_and_numbers_select_partitions(
    topic: Topics, partition: int | None, wanted: list[str]
) -> None:
    assert chosen(topic, partition) == wanted


def test_no_selection_means_all_partitions() -> None:
    assert chosen(None) == [str(name) for name, _ in THERE]


@pytest.mark.parametrize(
    ("topic", "partition", "said"),
    [
        ("ordrs", None, "no topic 'ordrs' — did you mean orders?"),
        (["clicks", "order-dlq"], None, "no topic 'order-dlq' — did you mean orders-dlq?"),
        ("x*", None, "no topic matches 'x*' — there are: clicks, orders, orders-dlq"),
        (["clicks", "x*"], None, "no topic matches 'x*' — there are: clicks, orders, orders-dlq"),
        ("", None, "no topic '' — there are: clicks, orders, orders-dlq"),
        ("clicks", 9, "clicks has no partition 9 — there are: 0-3"),
        ("ord*", 9, "no topic has a partition 9 — orders has 0-1, orders-dlq has 0"),
    ],
)
def test_missing_topic_or_partition_is_an_error(
    topic: Topics, partition: int | None, said: str
) -> None:
    with pytest.raises(NotALog) as caught:
        chosen(topic, partition)
    assert str(caught.value) == f"/logs: {said} [LW-202]"


def test_empty_list_of_topics_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="the list of topics is empty"):
        chosen([])


def test_pattern_selects_a_topic_but_does_not_name_it() -> None:
    for topic, asked, named in (
        (None, True, False),
        ("orders", True, True),
        (["x", "orders"], True, True),
        ("orders*", True, False),
        (["o*", "orders"], True, True),
        ("x", False, False),
    ):
        assert is_selected(topic, ("orders",)) is asked
        assert is_named(topic, ("orders",)) is named
