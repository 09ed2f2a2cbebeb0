"""Lastwrite beside Kafka's own cleaner, naive Spark and ``cp``, on the same files in the same run.

    python bench/run.py                     # everything, five repeats; about half an hour, 6 GB of disk
    python bench/run.py none-warm naive     # these rows only
    python bench/run.py --list

A repeat of a row runs each side once, one after the other, so that a noisy minute hits both; the table
shows medians. Every run gets a fresh copy of the log, written and synced before the clock starts. After
each, the records left are compared; where both write plain batches, all bytes of the segments, too.

See README.md beside this file for the rows, the columns and what is not measured.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import peer
from rich.console import Console
from rich.table import Table
from sampling import Sampler, Stopwatch, children_cpu_seconds, machine

HERE = Path(__file__).resolve().parent
NOW_MS = 1_700_001_000_000
CONFIG = {"segment.bytes": "268435456"}
MAP_BYTES = 536_870_912  # Kafka's key map: room for all 4 M keys, so that one round does
BIG = {"records": 16_000_000, "keys": 4_000_000, "batch": 500, "value": 88, "segment_bytes": 268_435_456}
SMALL = {"records": 2_000_000, "keys": 500_000, "batch": 500, "value": 88, "segment_bytes": 67_108_864}
ROWS = {
    "none-warm": "16 M records, plain, warm",
    "none-cold": "16 M records, plain, cold",
    "lz4-warm": "16 M records, lz4, warm",
    "lz4-cold": "16 M records, lz4, cold",
    "zstd-warm": "16 M records, zstd, warm",
    "zstd-cold": "16 M records, zstd, cold",
    "naive": "2 M records, plain, warm",
}


@dataclass(slots=True)
class Side:
    """One contender of a row: what its repeats took."""

    name: str
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    stages: dict[str, list[float]] = field(default_factory=dict)
    records_left: int = 0
    bytes_left: int = 0
    digest: str = ""
    memory: dict[str, object] = field(default_factory=dict)

    def take(self, seconds: float, cpu: float | None, records_left: int, folder: Path, digest: bool) -> None:
        self.seconds.append(seconds)
        self.cpu_seconds += [] if cpu is None else [cpu]
        self.records_left = records_left
        logs = sorted(folder.glob("*.log"))
        self.bytes_left = sum(log.stat().st_size for log in logs)
        if digest and not self.digest:
            whole = hashlib.sha256()
            for log in logs:
                whole.update(log.read_bytes())
            self.digest = whole.hexdigest()

    def to_dict(self) -> dict[str, object]:
        return {
            "name": self.name, "median_seconds": median(self.seconds), "best_seconds": min(self.seconds, default=0.0),
            "median_cpu_seconds": median(self.cpu_seconds), "seconds": rounded(self.seconds),
            "cpu_seconds": rounded(self.cpu_seconds), "records_left": self.records_left,
            "bytes_left": self.bytes_left, "sha256": self.digest or None,
            "stage_seconds": {stage: median(found) for stage, found in self.stages.items()}, **self.memory,
        }  # fmt: skip


def median(values: list[float]) -> float:
    return round(statistics.median(values), 3) if values else 0.0


def rounded(values: list[float]) -> list[float]:
    return [round(value, 3) for value in values]


class Logs:
    """Logs written once by Kafka's own append path, and fresh copies of them."""

    def __init__(self, work: Path) -> None:
        self._work = work

    def source(self, settings: dict[str, int], codec: str) -> tuple[Path, dict[str, Any]]:
        label = "-".join([codec, *(str(value) for value in settings.values())])
        folder = self._work / "logs" / label / "perf-0"
        done = folder.parent / "done"
        if not done.exists():
            shutil.rmtree(folder.parent, ignore_errors=True)
            done.parent.mkdir(parents=True)
            facts = peer.write_log(folder, codec=codec, **settings)
            done.write_text(json.dumps(facts))
        return folder, json.loads(done.read_text())

    def copy(self, source: Path) -> Path:
        """A fresh copy of a partition's folder in a root of its own, on disk and in the page cache."""
        root = self._work / "run"
        shutil.rmtree(root, ignore_errors=True)
        folder = root / source.name
        shutil.copytree(source, folder)
        for file in folder.iterdir():
            with open(file, "rb") as handle:
                os.fsync(handle.fileno())
        return folder

    def clear(self) -> None:
        shutil.rmtree(self._work / "run", ignore_errors=True)


class WarmSession:
    """``session.py`` as a child: a Spark session that has run before."""

    def __init__(self, kind: str, master: str) -> None:
        self._said = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "session.py"), kind, master], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._said, text=True,
        )  # fmt: skip
        self.pid = self._process.pid
        self.start_seconds = self._answer()["start_seconds"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._said.seek(0)
            raise RuntimeError(f"the session ended: {self._said.read()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def compact(self, folder: Path) -> dict[str, Any]:
        assert self._process.stdin is not None
        request = {"path": str(folder), "now_ms": NOW_MS, "config": CONFIG}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._answer()
        if answer.get("statuses", ["cleaned"]) != ["cleaned"]:
            raise RuntimeError(f"not cleaned: {answer}")
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


class Bench:
    """Runs rows and gathers what they took."""

    def __init__(self, logs: Logs, master: str, repeats: int, say: Callable[[str], None]) -> None:
        self._logs = logs
        self._master = master
        self._repeats = repeats
        self._say = say

    def row(self, name: str) -> dict[str, Any]:
        codec, _, how = name.partition("-")
        settings, codec = (SMALL, "none") if name == "naive" else (BIG, codec)
        source, facts = self._logs.source(settings, codec)
        run = self._naive if name == "naive" else self._warm if how == "warm" else self._cold
        begin = os.getloadavg()[0]
        sides = run(source, digest=codec == "none")
        check_equal(sides, exact=codec == "none")
        ours = next(side for side in sides if side.name == "lastwrite")
        return {
            "row": name, "title": ROWS[name], "records": facts["records"], "bytes": facts["bytes"],
            "segments": facts["segments"], "keys": settings["keys"], "cores": self._master, "repeats": self._repeats,
            "codec": codec, "equal": True, "sides": [side.to_dict() for side in sides],
            "ratios": {
                side.name: round(median(side.seconds) / median(ours.seconds), 2) for side in sides if side is not ours
            },
            "load_average": [begin, os.getloadavg()[0]],
        }  # fmt: skip

    def _warm(self, source: Path, digest: bool) -> list[Side]:
        """A JVM that has cleaned such a log before, against a session that has."""
        theirs, ours, floor = Side("kafka"), Side("lastwrite"), Side("cp")
        cleaner, session = peer.WarmCleaner(), WarmSession("lastwrite", self._master)
        try:
            for repeat in range(-1, self._repeats):  # the first only warms up, and is where memory is sampled
                is_timed = repeat >= 0
                folder = self._logs.copy(source)
                with Stopwatch(cleaner.pid) as watch, Maybe(not is_timed, cleaner.pid, theirs):
                    answer = cleaner.clean(folder, CONFIG, NOW_MS, MAP_BYTES)
                if is_timed:
                    theirs.take(answer["seconds"], watch.cpu_seconds, answer["messages_written"], folder, digest)
                folder = self._logs.copy(source)
                with Stopwatch(session.pid) as watch, Maybe(not is_timed, session.pid, ours):
                    report = session.compact(folder)
                if is_timed:
                    ours.take(report["seconds"], watch.cpu_seconds, report["records_after"], folder, digest)
                    for stage, seconds in report["stage_seconds"].items():
                        ours.stages.setdefault(stage, []).append(seconds)
                    copy_floor(source, folder, floor)
                self._tell(repeat, theirs, ours)
        finally:
            cleaner.close()
            session.close()
        return [theirs, ours, floor]

    def _cold(self, source: Path, digest: bool) -> list[Side]:
        """From the shell to the end, each in a new process; our kernels were compiled once before."""
        theirs, ours = Side("kafka"), Side("lastwrite")
        for repeat in range(-1, self._repeats):
            folder = self._logs.copy(source)
            with Timed() as watch:
                answer = peer.clean_cold(folder, CONFIG, NOW_MS, MAP_BYTES)
            if repeat >= 0:
                theirs.take(watch.seconds, watch.cpu_seconds, answer["messages_written"], folder, digest)
            folder = self._logs.copy(source)
            with Timed() as watch:
                report = self._command(folder)
            if repeat >= 0:
                ours.take(watch.seconds, None, report["totals"]["records_after"], folder, digest)
                stages = dict(report["totals"]["stage_seconds"])
                stages["start and stop"] = watch.seconds - sum(stages.values())
                for stage, seconds in stages.items():
                    ours.stages.setdefault(stage, []).append(seconds)
            self._tell(repeat, theirs, ours)
        return [theirs, ours]

    def _command(self, folder: Path) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "lastwrite.cli", "compact", str(folder), "--json", "--master", self._master,
             "--now", str(NOW_MS), *(word for item in CONFIG.items() for word in ("--config", "=".join(item)))],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def _naive(self, source: Path, digest: bool) -> list[Side]:
        """DataFrames against a session that has run before; Kafka's cleaner stands by for scale."""
        theirs, plain, ours = Side("kafka"), Side("naive spark"), Side("lastwrite")
        cleaner, naive = peer.WarmCleaner(), WarmSession("naive", self._master)
        session = WarmSession("lastwrite", self._master)
        try:
            for repeat in range(-1, self._repeats):
                is_timed = repeat >= 0
                folder = self._logs.copy(source)
                with Stopwatch(cleaner.pid) as watch, Maybe(not is_timed, cleaner.pid, theirs):
                    answer = cleaner.clean(folder, CONFIG, NOW_MS, MAP_BYTES)
                if is_timed:
                    theirs.take(answer["seconds"], watch.cpu_seconds, answer["messages_written"], folder, digest)
                with Stopwatch(naive.pid) as watch, Maybe(not is_timed, naive.pid, plain):
                    report = naive.compact(source)
                if is_timed:
                    plain.seconds.append(report["seconds"])
                    plain.cpu_seconds.append(watch.cpu_seconds)
                    plain.records_left, plain.bytes_left = report["records_after"], report["bytes_after"]
                folder = self._logs.copy(source)
                with Stopwatch(session.pid) as watch, Maybe(not is_timed, session.pid, ours):
                    report = session.compact(folder)
                if is_timed:
                    ours.take(report["seconds"], watch.cpu_seconds, report["records_after"], folder, digest)
                    for stage, seconds in report["stage_seconds"].items():
                        ours.stages.setdefault(stage, []).append(seconds)
                self._tell(repeat, theirs, plain, ours)
        finally:
            for child in (cleaner, naive, session):
                child.close()
        return [theirs, plain, ours]

    def _tell(self, repeat: int, *sides: Side) -> None:
        figures = ", ".join(f"{side.name} {side.seconds[-1]:.2f} s" for side in sides if side.seconds)
        self._say(f"  {'warm-up' if repeat < 0 else f'repeat {repeat + 1}'}: {figures or 'done'}")


class Maybe:
    """Samples memory of a tree while ``wanted``; leaves what it saw in ``side``."""

    def __init__(self, wanted: bool, pid: int, side: Side) -> None:
        self._sampler = Sampler(pid) if wanted else None
        self._side = side

    def __enter__(self) -> None:
        if self._sampler:
            self._sampler.__enter__()

    def __exit__(self, *error: object) -> None:
        if self._sampler:
            self._sampler.__exit__(*error)
            self._side.memory = self._sampler.peak.to_dict()


class Timed:
    """Wall seconds, and processor seconds of children that came and went.

    Spark's workers are nobody's children to wait for, so a cold row of ours has no processor seconds.
    """

    def __enter__(self) -> Timed:
        self._cpu = children_cpu_seconds()
        self._begin = time.perf_counter()
        self.seconds = self.cpu_seconds = 0.0
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self._begin
        self.cpu_seconds = children_cpu_seconds() - self._cpu


def copy_floor(source: Path, result: Path, floor: Side) -> None:
    """What ``cp`` takes for the input and for the output: nobody rewrites a log in less."""
    target = result.parent / "floor"
    before = children_cpu_seconds()
    seconds = 0.0
    for folder in (source, result):
        target.mkdir()
        begin = time.perf_counter()
        subprocess.run(["cp", *(str(log) for log in sorted(folder.glob("*.log"))), str(target)], check=True)
        seconds += time.perf_counter() - begin
        shutil.rmtree(target)
    floor.seconds.append(seconds)
    floor.cpu_seconds.append(children_cpu_seconds() - before)
    floor.bytes_left = sum(log.stat().st_size for folder in (source, result) for log in folder.glob("*.log"))


def check_equal(sides: list[Side], exact: bool) -> None:
    """Hold the results against each other.

    Raises:
        SystemExit: they differ, so that no figure of this run means anything.
    """
    judged = [side for side in sides if side.records_left]
    if len({side.records_left for side in judged}) != 1:
        raise SystemExit(f"records left differ: { {side.name: side.records_left for side in judged} }")
    digests = {side.name: (side.bytes_left, side.digest) for side in judged if side.digest}
    if exact and len(set(digests.values())) != 1:
        raise SystemExit(f"bytes left differ: {digests}")


def table_of(rows: list[dict[str, Any]]) -> Table:
    table = Table(title=None, header_style="bold")
    for column in ("Work", "", "Median s", "Best s", "CPU s", "M records/s", "MB/s in", "Left", "MB left",
                   "Peak MiB (PSS)", "Lastwrite is"):  # fmt: skip
        table.add_column(column, justify="left" if column in ("Work", "") else "right")
    for row in rows:
        for n, side in enumerate(row["sides"]):
            seconds = side["median_seconds"]
            is_floor = side["name"] == "cp"
            ratio = row["ratios"].get(side["name"])
            table.add_row(
                row["title"] if n == 0 else "", side["name"], f"{seconds:.2f}", f"{side['best_seconds']:.2f}",
                f"{side['median_cpu_seconds']:.2f}" if side["cpu_seconds"] else "",
                "" if is_floor else f"{row['records'] / seconds / 1e6:.2f}",
                f"{(side['bytes_left'] if is_floor else row['bytes']) / seconds / 1e6:.0f}",
                "" if is_floor else f"{side['records_left']:,}", f"{side['bytes_left'] / 1e6:.1f}",
                str(side.get("peak_pss_mib", "")),
                "" if ratio is None else f"{ratio:.1f}x as fast" if ratio >= 1 else f"{1 / ratio:.1f}x slower",
                end_section=n == len(row["sides"]) - 1,
            )  # fmt: skip
    return table


def stages_of(rows: list[dict[str, Any]]) -> Table:
    names: list[str] = []
    found = [(row["title"], side["stage_seconds"]) for row in rows for side in row["sides"] if side["stage_seconds"]]
    for _, stages in found:
        names += [name for name in stages if name not in names]
    table = Table(title="Lastwrite, stage by stage, median seconds", title_justify="left", header_style="bold")
    for column in ("Work", *names):
        table.add_column(column, justify="left" if column == "Work" else "right")
    for title, stages in found:
        table.add_row(title, *(f"{stages[name]:.2f}" if name in stages else "" for name in names))
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description="Lastwrite beside Kafka's cleaner, naive Spark and cp.")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of: {', '.join(ROWS)}; default: all")
    parser.add_argument("--list", action="store_true", help="say what the rows are")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--work", type=Path, default=Path(os.environ.get("TMPDIR", "/tmp")) / "lastwrite-bench",
                        help="where logs and copies lie; the logs stay for the next run")  # fmt: skip
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    given = parser.parse_args()
    if given.list:
        for name, title in ROWS.items():
            print(f"{name:10}  {title}")
        return 0
    unknown = [name for name in given.rows if name not in ROWS]
    if unknown:
        parser.error(f"no such row: {', '.join(unknown)}")
    console = Console(width=None if sys.stdout.isatty() else 160)
    logs = Logs(given.work)
    bench = Bench(logs, given.master, given.repeats, lambda text: print(text, file=sys.stderr, flush=True))
    rows: list[dict[str, Any]] = []
    result: dict[str, Any] = {"machine": machine(), "rows": rows}
    try:
        for name in given.rows or ROWS:
            print(f"{name}: {ROWS[name]}", file=sys.stderr, flush=True)
            rows.append(bench.row(name))
            if given.json:
                given.json.write_text(json.dumps(result, indent=1) + "\n")
    finally:
        logs.clear()
    seen = result["machine"]
    console.print(
        f"{seen['processor']}, {seen['cores']} cores, {seen['memory_mib'] / 1024:.0f} GiB; master {given.master}; "
        f"medians of {given.repeats}; load average at the begin {seen['load_average']:.1f}"
    )
    console.print(table_of(rows))
    console.print(stages_of(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
