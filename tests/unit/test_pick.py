"""Tests of the order in which partitions are cleaned, and of grouping them, by example."""

from __future__ import annotations

from dataclasses import replace

from lastwrite.cleaner.pick import Candidate, in_order, in_waves
from lastwrite.model.log import TopicPartition
from lastwrite.reports.compaction import Quarantined

NOW_MS = 1_700_000_000_000


def candidate(
    name: str, ratio: float = 0.0, *, due: bool = True, size: int = 100, root: str = "/r"
) -> Candidate:
    return Candidate(
        root=root,
        folder=f"{root}/{name}-0",
        name=TopicPartition(name, 0),
        size_bytes=size,
        compacts=True,
        is_due=due,
        dirty_ratio=ratio,
    )


def names(order: list[Candidate]) -> str:
    return " ".join(each.name.topic for each in order)


def test_dirtiest_comes_first_and_overdue_has_no_precedence() -> None:
    overdue = replace(candidate("c", 0.1), overdue_ms=10_000_000)
    order = in_order([candidate("a", 0.5), overdue, candidate("b", 0.9)], (), {}, NOW_MS, False)
    assert names(order) == "b a c"


def test_equal_ratios_are_ordered_by_root_and_name() -> None:
    found = [
        candidate("b", 0.5, root="/s"),
        candidate("b", 0.5),
        candidate("a", 0.5, root="/s"),
        candidate("c", 0.6),
    ]
    assert [each.folder for each in in_order(found, (), {}, NOW_MS, False)] == [
        "/r/c-0",
        "/r/b-0",
        "/s/a-0",
        "/s/b-0",
    ]


def test_partitions_not_due_or_in_progress_are_skipped() -> None:
    found = [candidate("a", 0.9, due=False), candidate("b", 0.8), candidate("c", 0.7)]
    assert names(in_order(found, {"/r/b-0"}, {}, NOW_MS, True)) == "c"


def test_quarantined_partition_waits_for_its_retry_time() -> None:
    def staged(next_try_ms: int) -> dict[str, Quarantined]:
        return {"/r/a-0": Quarantined(reason="x", since_ms=0, tries=1, next_try_ms=next_try_ms)}

    found = [candidate("a", 0.9), candidate("b", 0.8)]
    assert names(in_order(found, (), staged(NOW_MS + 1), NOW_MS, False)) == "b"
    assert names(in_order(found, (), staged(NOW_MS), NOW_MS, False)) == "a b"


def test_retention_comes_after_rounds() -> None:
    deletes = replace(
        candidate("a", due=False), compacts=False, expired_segments=2, expired_bytes=50
    )
    both = replace(candidate("b", due=False), expired_segments=1)
    found = [deletes, both, candidate("c", 0.6)]
    assert names(in_order(found, (), {}, NOW_MS, False)) == "c b"
    assert names(in_order(found, (), {}, NOW_MS, True)) == "c a b"


def test_damaged_partition_is_tried_last() -> None:
    damaged = replace(candidate("a", due=False), problem="bytes contradict")
    assert names(in_order([damaged, candidate("b", 0.1)], (), {}, NOW_MS, False)) == "b a"


def test_small_partitions_share_a_wave_and_large_ones_are_alone() -> None:
    order = [
        candidate("a", size=40),
        candidate("b", size=50),
        candidate("c", size=500),
        candidate("d", size=1),
    ]
    assert [names(wave) for wave in in_waves(order, 1, wave_bytes=100)] == ["a b", "c", "d"]
    assert [names(wave) for wave in in_waves(order, 2, wave_bytes=1000)] == ["a b", "c d"]
    assert [names(wave) for wave in in_waves(order, 9, wave_bytes=1000)] == ["a", "b", "c", "d"]
    assert list(in_waves([], 3)) == []


def test_members_of_a_failed_wave_are_retried_alone() -> None:
    order = [candidate(name) for name in "abcd"]
    assert [names(wave) for wave in in_waves(order, 1, alone={"/r/b-0", "/r/c-0"})] == [
        "a",
        "b",
        "c",
        "d",
    ]
