"""The contenders of a benchmark row, and the figures of their runs.

A contender cleans a fresh copy of a log, and reports how many records remain. ``Side`` collects its
figures. Warm contenders keep one process for all runs, cold ones start one for each.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from bench import peer
from bench.contents import Contents, contents_of
from bench.logs import CHECKPOINT, NOW_MS
from bench.sampling import Peak, Sampler, Stopwatch, children_cpu_seconds


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run, as the contender reports it."""

    seconds: float
    records_left: int
    bytes_written: int = 0
    bytes_left: int = 0  # for a contender that leaves no log in the folder
    stages: dict[str, float] = field(default_factory=dict)
    profile: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(slots=True)
class Side:
    """One contender's runs in a row."""

    name: str
    seconds: list[float] = field(default_factory=list)
    cpu: list[dict[str, float]] = field(default_factory=list)  # by kind of process
    outcomes: list[Outcome] = field(default_factory=list)
    bytes_left: int = 0
    digest: str = ""
    contents: Contents | None = None
    peak: Peak | None = None
    setting_bytes: int = 0  # its memory setting; 0 means none

    def take(self, outcome: Outcome, cpu: dict[str, float], folder: Path | None) -> None:
        """Add a timed run. The log in ``folder`` is only examined after the first run."""
        self.seconds.append(outcome.seconds)
        self.cpu += [cpu] if cpu else []
        self.outcomes.append(outcome)
        self.bytes_left = outcome.bytes_left
        if folder is None:
            return
        logs = sorted(folder.glob("*.log"))
        self.bytes_left = sum(log.stat().st_size for log in logs)
        if self.contents is None:
            whole = hashlib.sha256()
            for log in logs:
                with open(log, "rb") as file:
                    while data := file.read(1 << 24):
                        whole.update(data)
            self.digest = whole.hexdigest()
            self.contents = contents_of(folder)

    def sampled(self, peak: Peak) -> None:
        if self.peak is None or peak.pss_bytes > self.peak.pss_bytes:
            self.peak = peak

    @property
    def median_seconds(self) -> float:
        return median(self.seconds)

    def to_dict(self) -> dict[str, Any]:
        kinds = sorted({kind for found in self.cpu for kind in found})
        return {
            "name": self.name,
            "repeats": len(self.seconds),
            "median_seconds": median(self.seconds),
            "best_seconds": round(min(self.seconds, default=0.0), 3),
            "seconds": [round(s, 3) for s in self.seconds],
            "median_cpu_seconds": median([sum(found.values()) for found in self.cpu]),
            "median_cpu_seconds_of": {
                kind: median([found.get(kind, 0.0) for found in self.cpu]) for kind in kinds
            },
            "records_left": self.outcomes[-1].records_left if self.outcomes else 0,
            "bytes_left": self.bytes_left,
            "bytes_written": self.outcomes[-1].bytes_written if self.outcomes else 0,
            "sha256": self.digest or None,
            "contents": self.contents and self.contents.to_dict(),
            "stage_seconds": self._stages(),
            "profile": self._profile(),
            "memory_setting_mib": self.setting_bytes >> 20,
            **(self.peak.to_dict() if self.peak else {}),
        }

    def _stages(self) -> dict[str, float]:
        names = self.outcomes[-1].stages if self.outcomes else {}
        return {
            name: median([outcome.stages.get(name, 0.0) for outcome in self.outcomes])
            for name in names
        }

    def _profile(self) -> dict[str, dict[str, Any]]:
        """The profile of the run with the median seconds."""
        if not self.outcomes:
            return {}
        middle = statistics.median_low(self.seconds)
        return next(outcome.profile for outcome in self.outcomes if outcome.seconds == middle)


def median(values: list[float]) -> float:
    return round(statistics.median(values), 3) if values else 0.0


class Contender(Protocol):
    """A program that cleans a log.

    ``most`` limits its timed runs. ``leaves_a_log`` tells whether its result is in the folder.
    """

    name: str
    most: int
    leaves_a_log: bool
    setting_bytes: int

    def run(self, folder: Path, sampled: list[Peak] | None) -> tuple[Outcome, dict[str, float]]:
        """Clean the log. Returns the outcome, and the processor seconds by kind of process.

        If ``sampled`` is not None, memory is sampled, and the peak is appended to it.
        """

    def close(self) -> None: ...


class Warm:
    """A contender with a long-lived process. ``_answer`` does the work in it."""

    most = 1_000_000
    leaves_a_log = True
    setting_bytes = 0
    name: str

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def run(self, folder: Path, sampled: list[Peak] | None) -> tuple[Outcome, dict[str, float]]:
        if sampled is not None:
            with Sampler(self.pid) as sampler:
                outcome = self._answer(folder)
            sampled.append(sampler.peak)
            return outcome, {}
        with Stopwatch(self.pid) as watch:
            outcome = self._answer(folder)
        return outcome, watch.cpu_seconds_of

    def _answer(self, folder: Path) -> Outcome:
        raise NotImplementedError


class WarmKafka(Warm):
    """Kafka's cleaner in a JVM that has cleaned such a log before.

    ``seconds`` are Kafka's own for its rounds.
    """

    name = "kafka"

    def __init__(
        self, config: dict[str, str], map_bytes: int, rounds: int = 1, most: int = 1_000_000
    ) -> None:
        self._cleaner = peer.WarmCleaner()
        super().__init__(self._cleaner.pid)
        self._config, self._map_bytes, self._rounds = config, map_bytes, rounds
        self.most = most

    def _answer(self, folder: Path) -> Outcome:
        return kafka_outcome(
            self._cleaner.clean(folder, self._config, NOW_MS, self._map_bytes, self._rounds)
        )

    def close(self) -> None:
        self._cleaner.close()


def kafka_outcome(answer: dict[str, Any]) -> Outcome:
    rounds = answer.get("rounds", [answer])
    done = [one for one in rounds if not one.get("skipped")]
    return Outcome(
        seconds=answer.get("rounds_seconds", answer["seconds"]),
        records_left=done[-1]["messages_written"],
        bytes_written=sum(one["bytes_written"] for one in done),
        stages={
            "rounds": len(done),
            "map": sum(one["map_seconds"] for one in done),
            "clean": sum(one["clean_seconds"] for one in done),
        },
    )


class WarmLastwrite(Warm):
    """``session.py`` as a child: a Spark session that has run before.

    ``seconds`` are for the whole call. With ``kept_below``, a first round cleans the log below that
    offset and stores its scans. Then the dirty records are added, and the clock starts.
    """

    def __init__(
        self,
        master: str,
        config: dict[str, str],
        memory: int | None = None,
        kind: str = "lastwrite",
        name: str = "lastwrite",
        processors: set[int] | None = None,
        most: int = 1_000_000,
        kept_below: int = 0,
    ) -> None:
        self._said = tempfile.TemporaryFile("w+")
        words = ["taskset", "-c", ",".join(map(str, sorted(processors)))] if processors else []
        self._process = subprocess.Popen(
            [*words, sys.executable, "-m", "bench.session", kind, master],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )
        super().__init__(self._process.pid)
        self.name, self._config, self._memory = name, config, memory
        self._kept_below = kept_below
        self.leaves_a_log = kind == "lastwrite"
        self.most = most
        default_bytes = self._read()["memory_bytes"]
        self.setting_bytes = default_bytes if memory is None else memory

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._said.seek(0)
            raise RuntimeError(f"the session ended: {self._said.read()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def run(self, folder: Path, sampled: list[Peak] | None) -> tuple[Outcome, dict[str, float]]:
        if self._kept_below:
            self._keep_scans(folder)
        return Warm.run(self, folder, sampled)

    def _answer(self, folder: Path) -> Outcome:
        answer = self._ask(folder)
        if answer.get("statuses", ["cleaned"]) != ["cleaned"]:
            raise RuntimeError(f"not cleaned: {answer}")
        return lastwrite_outcome(answer, answer["seconds"])

    def _ask(self, folder: Path) -> dict[str, Any]:
        assert self._process.stdin is not None
        request = {
            "path": str(folder),
            "now_ms": NOW_MS,
            "config": self._config,
            "memory": self._memory,
            "keep_scans": bool(self._kept_below),
        }
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._read()

    def _keep_scans(self, folder: Path) -> None:
        """Run the first round over the clean part only.

        Its stored scans are only valid for these files.
        """
        active = folder / f"{self._kept_below:020d}.log"
        staged = folder.parent / "dirty"
        staged.mkdir()
        dirty = [
            file
            for file in folder.iterdir()
            if file.name[:20].isdigit()
            and int(file.name[:20]) >= self._kept_below
            and file.name != active.with_suffix(".snapshot").name
        ]
        for file in dirty:
            file.rename(staged / file.name)
        (folder.parent / CHECKPOINT).unlink()
        active.touch()
        answer = self._ask(folder)
        if not list(folder.glob("*.kept")):
            raise RuntimeError(f"nothing was kept: {answer}")
        for file in dirty:
            (staged / file.name).replace(file)
        staged.rmdir()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def lastwrite_outcome(totals: dict[str, Any], seconds: float) -> Outcome:
    stages = dict(totals.get("stage_seconds", {}))
    if stages:
        stages["rest"] = seconds - sum(stages.values())
    return Outcome(
        seconds=seconds,
        records_left=totals["records_after"],
        bytes_written=totals.get("bytes_written", 0),
        bytes_left=totals["bytes_after"],
        stages=stages,
        profile=totals.get("profile", {}),
    )


class ColdKafka:
    """Kafka's cleaner in a new JVM for each run, timed from the command to its end."""

    name, most, leaves_a_log, setting_bytes = "kafka", 1_000_000, True, 0

    def __init__(self, config: dict[str, str], map_bytes: int) -> None:
        self._config, self._map_bytes = config, map_bytes

    def run(self, folder: Path, sampled: list[Peak] | None) -> tuple[Outcome, dict[str, float]]:
        cpu, begin = children_cpu_seconds(), time.perf_counter()
        process = peer.start_cold(folder, self._config, NOW_MS, self._map_bytes)
        answer = peer.answer_of(*watched(process, sampled))
        outcome = kafka_outcome({**answer, "seconds": time.perf_counter() - begin})
        return outcome, {"jvm": children_cpu_seconds() - cpu}

    def close(self) -> None:
        pass


class ColdLastwrite:
    """``lastwrite compact``, timed from the command to its end, with compiled kernels.

    Its processor seconds are unknown, because Spark's workers are not waited for.
    """

    name, most, leaves_a_log = "lastwrite", 1_000_000, True

    def __init__(self, master: str, config: dict[str, str], memory: int | None = None) -> None:
        from lastwrite.spark.memory import plan_memory

        self._words = ["--json", "--master", master, "--now", str(NOW_MS)]
        self._words += [word for item in config.items() for word in ("--config", "=".join(item))]
        self._words += [] if memory is None else ["--memory", str(memory)]
        self.setting_bytes = plan_memory(memory, workers_of(master)).total_bytes

    def run(self, folder: Path, sampled: list[Peak] | None) -> tuple[Outcome, dict[str, float]]:
        begin = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "lastwrite.cli", "compact", str(folder), *self._words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        status, said = watched(process, sampled)
        seconds = time.perf_counter() - begin
        report = json.loads(said) if said else {}
        if status or report["totals"]["cleaned"] != 1:
            raise RuntimeError(f"not cleaned: {said[-2000:]}")
        return lastwrite_outcome(report["totals"], seconds), {}

    def close(self) -> None:
        pass


def workers_of(master: str) -> int:
    count = master.removeprefix("local[").removesuffix("]")
    return int(count) if count.isdigit() else os.cpu_count() or 1


def watched(process: subprocess.Popen[str], sampled: list[Peak] | None) -> tuple[int, str]:
    """Wait for a process. Returns its status and its standard output.

    If ``sampled`` is not None, the peak of its memory is appended to it.
    """
    if sampled is None:
        said, _ = process.communicate()
        return process.returncode, said
    with Sampler(process.pid) as sampler:
        said, _ = process.communicate()
    sampled.append(sampler.peak)
    return process.returncode, said


def copy_floor(source: Path, result: Path, floor: Side) -> None:
    """Time ``cp`` of the input and the output, which no compaction can beat."""
    target = result.parent / "floor"
    cpu, seconds, size = children_cpu_seconds(), 0.0, 0
    for folder in (source, result):
        logs = sorted(folder.glob("*.log"))
        target.mkdir()
        begin = time.perf_counter()
        subprocess.run(["cp", *map(str, logs), str(target)], check=True)
        seconds += time.perf_counter() - begin
        size += sum(log.stat().st_size for log in logs)
        shutil.rmtree(target)
    floor.take(Outcome(seconds, 0, size, size), {"cp": children_cpu_seconds() - cpu}, None)
