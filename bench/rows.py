"""The benchmark rows: log, contenders and targets."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench import logs
from bench.generate import drawn
from bench.logs import MAP_BYTES, LogSpec, written_by_kafka
from bench.sides import ColdKafka, ColdLastwrite, Contender, WarmKafka, WarmLastwrite, workers_of
from lastwrite.spark.memory import fixed_bytes

SMALL_MAP_BYTES = 25_165_824  # 24 MiB, for about a million keys, so that Kafka needs 15 rounds
_BIG = {
    "records": 16_000_000,
    "keys": 4_000_000,
    "batch": 500,
    "value": 88,
    "segment_bytes": 268_435_456,
}
_LARGE = {
    "records": 200_000,
    "keys": 50_000,
    "batch": 50,
    "value": 10_240,
    "segment_bytes": 268_435_456,
}
FIRST = written_by_kafka("none", **_BIG)


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a row: a ratio of two sides, or one of the row's figures.

    Args:
        other: A side whose seconds are divided by those of ``ours``, or the name of a figure.
        goal: The ratio to aim for. None means that the ratio is only reported.
        must: The ratio that is required.
        at_most: Whether the ratio is inverted, and the limits are upper ones.
        ours: The side to compare.
    """

    other: str
    goal: float | None
    must: float | None = None
    at_most: bool = False
    ours: str = "lastwrite"

    def judged(self, seconds: dict[str, float], figures: dict[str, float]) -> dict[str, Any]:
        """The target's result for tables and JSON. ``seconds`` has the time of each side."""
        value = figures.get(self.other)
        if value is None:
            ratio = seconds[self.other] / seconds[self.ours]
            value = round(1 / ratio if self.at_most else ratio, 3)

        def holds(bar: float | None) -> bool:
            return bar is None or (value <= bar if self.at_most else value >= bar)

        return {
            "other": self.other,
            "ours": self.ours,
            "value": value,
            "goal": self.goal,
            "must": self.must,
            "at_most": self.at_most,
            "reached": ""
            if self.goal is None
            else "goal"
            if holds(self.goal)
            else "no"
            if not holds(self.must)
            else "must"
            if self.must is not None
            else "not the goal",
        }


@dataclass(frozen=True, slots=True)
class Row:
    """One benchmark. ``contenders`` makes its sides from the Spark master and the log's settings.

    Lastwrite's side is named lastwrite.
    """

    title: str
    spec: LogSpec
    contenders: Callable[[str, dict[str, str]], list[Contender]]
    targets: tuple[Target, ...]
    same_bytes: bool = False  # whether segments must be equal byte for byte, not only their records
    # share of the input's bytes in segments that lose records; 0 means unknown
    loud_share: float = 0.0


def warm(master: str, config: dict[str, str]) -> list[Contender]:
    return [WarmKafka(config, MAP_BYTES), WarmLastwrite(master, config)]


def second(master: str, config: dict[str, str]) -> list[Contender]:
    """Kafka, Lastwrite, and Lastwrite with its first round's stored scans."""
    return [
        *warm(master, config),
        WarmLastwrite(master, config, name="kept scans", kept_below=logs.CLEAN_END),
    ]


def cold(master: str, config: dict[str, str]) -> list[Contender]:
    return [ColdKafka(config, MAP_BYTES), ColdLastwrite(master, config)]


def cores(master: str, config: dict[str, str]) -> list[Contender]:
    """One worker with a second core for Spark, one worker on one core in all, two workers."""
    return [
        WarmLastwrite("local[1]", config, name="1 worker"),
        WarmLastwrite("local[1]", config, name="1 core", processors={min(os.sched_getaffinity(0))}),
        WarmLastwrite(master, config),
    ]


def small_map(master: str, config: dict[str, str]) -> list[Contender]:
    return [
        WarmKafka(config, SMALL_MAP_BYTES, rounds=100, most=1),
        WarmLastwrite(master, config, memory=fixed_bytes(workers_of(master)) + SMALL_MAP_BYTES),
    ]


def naive(master: str, config: dict[str, str]) -> list[Contender]:
    plain = WarmLastwrite(master, config, kind="naive", name="naive spark", most=1)
    return [plain, WarmLastwrite(master, config)]


ROWS: dict[str, Row] = {
    "none-warm": Row(
        "16 M records, plain, warm",
        FIRST,
        warm,
        (Target("kafka", 20, 14), Target("cp", 1.1, 1.3, at_most=True)),
        True,
    ),
    "none-cold": Row("16 M records, plain, cold", FIRST, cold, (Target("kafka", 7, 5),), True),
    "lz4-warm": Row(
        "16 M records, lz4, warm", written_by_kafka("lz4", **_BIG), warm, (Target("kafka", 12, 9),)
    ),
    "zstd-warm": Row(
        "16 M records, zstd, warm", written_by_kafka("zstd", **_BIG), warm, (Target("kafka", 9, 7),)
    ),
    "large-none": Row(
        "200 k records of 10 KiB, plain",
        written_by_kafka("none", **_LARGE),
        warm,
        (Target("kafka", 3, 2), Target("cp", 2, at_most=True)),
        True,
    ),
    "large-zstd": Row(
        "200 k records of 10 KiB, zstd",
        written_by_kafka("zstd", **_LARGE),
        warm,
        (Target("kafka", 3, 2), Target("cp", 2, at_most=True)),
    ),
    "second-spread": Row(
        "16 M clean, 1 M dirty over all keys",
        logs.second_round("second-spread", drawn(16_000_000)),
        second,
        (Target("kafka", 11, 8), Target("kafka", 11, 8, ours="kept scans")),
    ),
    "second-hot": Row(
        "16 M clean, 1 M dirty over the newest tenth",
        logs.second_round("second-hot", drawn(1_600_000, lowest=14_400_000)),
        second,
        (Target("kafka", 25, 15), Target("kafka", 25, 15, ours="kept scans")),
    ),
    "second-first-row": Row(
        "the first row's log after a round, 1 M dirty",
        logs.second_first_row(FIRST),
        second,
        (Target("kafka", None), Target("kafka", None, ours="kept scans")),
    ),
    "quiet-90": Row(
        "nothing to remove in 90 % of the segments",
        logs.quiet_log(),
        warm,
        (Target("kafka", 20, 10), Target("written", 1, 1, at_most=True)),
        loud_share=logs.QUIET_SHARE,
    ),
    "cores": Row(
        "the first row on 1 core and on 2",
        FIRST,
        cores,
        (Target("1 core", 1.9, 1.75), Target("1 worker", 1.9, 1.75)),
        True,
    ),
    "map24": Row(
        "a map of 24 MiB beside as much of our memory",
        FIRST,
        small_map,
        (Target("kafka", 30, 15), Target("of the setting", 1, 1, at_most=True)),
    ),
    "naive": Row(
        "naive Spark on the first row's input", FIRST, naive, (Target("naive spark", 30, 15),)
    ),
}
