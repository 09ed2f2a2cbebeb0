"""The rows: which log, who runs, what is to be reached."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import logs
from generate import drawn
from logs import MAP_BYTES, LogSpec, written_by_kafka
from sides import ColdKafka, ColdLastwrite, Contender, WarmKafka, WarmLastwrite, workers_of

from lastwrite.errors import InvalidConfig
from lastwrite.pipeline.memory import plan_memory

SMALL_MAP_BYTES = 25_165_824  # 24 MiB: about a million keys, so 15 rounds
_BIG = {"records": 16_000_000, "keys": 4_000_000, "batch": 500, "value": 88, "segment_bytes": 268_435_456}
_LARGE = {"records": 200_000, "keys": 50_000, "batch": 50, "value": 10_240, "segment_bytes": 268_435_456}
FIRST = written_by_kafka("none", **_BIG)


@dataclass(frozen=True, slots=True)
class Target:
    """A ratio of the row, and what it should and must be: at least, or with ``at_most`` at most."""

    ratio: str  # its name among the row's ratios: the contender beside us, or a figure's
    goal: float
    must: float | None = None
    at_most: bool = False

    def judged(self, ratios: dict[str, float]) -> dict[str, Any]:
        value = ratios[self.ratio]

        def holds(bar: float | None) -> bool:
            return bar is None or (value <= bar if self.at_most else value >= bar)

        return {
            "ratio": self.ratio, "value": value, "goal": self.goal, "must": self.must, "at_most": self.at_most,
            "reached": "goal" if holds(self.goal) else "no" if not holds(self.must) else
                       "must" if self.must is not None else "not the goal",
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """``contenders`` are made from (master, the log's settings); ours is named lastwrite."""

    title: str
    spec: LogSpec
    contenders: Callable[[str, dict[str, str]], list[Contender]]
    targets: tuple[Target, ...]
    same_bytes: bool = False  # segments must be equal to the byte, not only in their records
    loud_share: float = 0.0  # of the input's bytes lie in segments that lose records; 0: not told


def warm(master: str, config: dict[str, str]) -> list[Contender]:
    return [WarmKafka(config, MAP_BYTES), WarmLastwrite(master, config)]


def cold(master: str, config: dict[str, str]) -> list[Contender]:
    return [ColdKafka(config, MAP_BYTES), ColdLastwrite(master, config)]


def cores(master: str, config: dict[str, str]) -> list[Contender]:
    """One worker that has the machine's other core for Spark, one worker that has one core for all, and two."""
    return [
        WarmLastwrite("local[1]", config, name="1 worker"),
        WarmLastwrite("local[1]", config, name="1 core", processors={min(os.sched_getaffinity(0))}),
        WarmLastwrite(master, config),
    ]


def small_map(master: str, config: dict[str, str]) -> list[Contender]:
    return [
        WarmKafka(config, SMALL_MAP_BYTES, rounds=100, most=1),
        WarmLastwrite(master, config, memory=fixed_and(SMALL_MAP_BYTES, workers_of(master))),
    ]


def naive(master: str, config: dict[str, str]) -> list[Contender]:
    plain = WarmLastwrite(master, config, kind="naive", name="naive spark", most=1)
    return [plain, WarmLastwrite(master, config)]


def fixed_and(more_bytes: int, workers: int) -> int:
    """A memory setting: what Spark and Python take before the first byte of a log, and ``more_bytes``.

    Where a setting that small is refused, the least that is not.
    """
    roomy = plan_memory(1 << 40, workers)
    fixed = roomy.total_bytes - workers * roomy.worker_bytes
    least = fixed + more_bytes
    while True:
        try:
            return plan_memory(least, workers).total_bytes
        except InvalidConfig:
            least += 8 << 20


_CLEANER = Target("kafka", 15, 8)

ROWS: dict[str, Row] = {
    "none-warm": Row("16 M records, plain, warm", FIRST, warm, (_CLEANER, Target("cp", 1.5, 3, at_most=True)), True),
    "none-cold": Row("16 M records, plain, cold", FIRST, cold, (Target("kafka", 3, 1.5),), True),
    "lz4-warm": Row("16 M records, lz4, warm", written_by_kafka("lz4", **_BIG), warm, (Target("kafka", 7, 4),)),
    "zstd-warm": Row("16 M records, zstd, warm", written_by_kafka("zstd", **_BIG), warm, (Target("kafka", 7, 4),)),
    "large-none": Row(
        "200 k records of 10 KiB, plain", written_by_kafka("none", **_LARGE), warm,
        (Target("kafka", 1.5, 1), Target("cp", 2, at_most=True)), True,
    ),
    "large-zstd": Row(
        "200 k records of 10 KiB, zstd", written_by_kafka("zstd", **_LARGE), warm,
        (Target("kafka", 4, 2), Target("cp", 2, at_most=True)),
    ),
    "second-spread": Row(
        "16 M clean, 1 M dirty over all keys", logs.second_round("second-spread", drawn(16_000_000)), warm, (_CLEANER,)
    ),
    "second-hot": Row(
        "16 M clean, 1 M dirty over the newest tenth",
        logs.second_round("second-hot", drawn(1_600_000, lowest=14_400_000)), warm, (_CLEANER,),
    ),
    "second-first-row": Row(
        "the first row's log after a round, 1 M dirty", logs.second_first_row(FIRST), warm, (_CLEANER,)
    ),
    "quiet-90": Row(
        "nothing to remove in 90 % of the segments", logs.quiet_log(), warm,
        (Target("kafka", 20, 10), Target("written", 1, 1, at_most=True)), loud_share=logs.QUIET_SHARE,
    ),
    "cores": Row(
        "the first row on 1 core and on 2", FIRST, cores,
        (Target("1 core", 1.8, 1.6), Target("1 worker", 1.8, 1.6)), True,
    ),
    "map24": Row("a map of 24 MiB beside as much of our memory", FIRST, small_map, (Target("kafka", 30, 15),)),
    "naive": Row("naive Spark on the first row's input", FIRST, naive, (Target("naive spark", 30, 15),)),
}  # fmt: skip
