"""Runs inputs in child processes, which may crash."""

from __future__ import annotations

import json
import mmap
import multiprocessing
import os
import random
import resource
import signal
import sys
import time
import traceback
from bisect import bisect
from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.fuzz import decoding, kafka, meaning, pulsar, rocketmq, serving, shared
from tests.fuzz.target import Target

SYSTEMS: dict[str, Callable[[], list[Target]]] = {
    "kafka": kafka.targets,
    "rocketmq": rocketmq.targets,
    "pulsar": pulsar.targets,
    "shared": shared.targets,
    "decoding": decoding.targets,
    "serve": serving.targets,
    "meaning": meaning.targets,
}
_CHUNK = 500  # inputs between two messages to the parent
_SLOW_SECONDS = 1.0
_HUNG_SECONDS = 20  # of processor time; then the kernel kills the child
_MEMORY_BYTES = 1 << 30  # in addition to what a child has at its start
_WARM_UP = 40  # inputs of each target that are not timed, because kernels are compiled
_MOST_ALIKE = 3  # saved findings of the same kind
_PROGRESS_SECONDS = 60


class Run:
    """A run over the targets of a system. ``findings`` has one line for each finding."""

    def __init__(
        self,
        system: str,
        seed: int,
        save: Path,
        only: str | None = None,
        targets: list[Target] | None = None,
    ) -> None:
        self.system, self.seed = system, seed
        self.findings: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self.inputs = 0
        self._save = save
        self._targets = targets or targets_of(system)
        if only:
            self._targets = [target for target in self._targets if only in target.name]
        self._bounds = list(accumulate(target.share for target in self._targets))
        self._alike: Counter[str] = Counter()
        self._begin = self._told = time.monotonic()

    def drawn(self, number: int) -> tuple[Target, random.Random]:
        """The target of input ``number``, and the random generator that makes the input."""
        rng = random.Random(self.seed * 1_000_000_007 + number)
        place = bisect(self._bounds, rng.random() * self._bounds[-1])
        return self._targets[min(place, len(self._targets) - 1)], rng

    # ------------------------------------------------------------------ the parent process

    def through(self, first: int, count: int, jobs: int = 1) -> None:
        """Run ``count`` inputs from number ``first`` on.

        Each child takes every ``jobs``-th chunk.
        """
        self._warm_up()
        place = mmap.mmap(-1, 8 * jobs)  # the number of the input that each child is running
        numbers = memoryview(place).cast("q")
        live: dict[Connection, tuple[int, Any]] = {}
        context = multiprocessing.get_context("fork")
        chunks = [
            range(at, min(at + _CHUNK, first + count)) for at in range(first, first + count, _CHUNK)
        ]

        def start(job: int, todo: list[range]) -> None:
            here, there = context.Pipe(duplex=False)
            child = context.Process(
                target=self._work, args=(todo, there, numbers, job), daemon=True
            )
            child.start()
            there.close()
            live[here] = (job, child)

        left = {job: chunks[job::jobs] for job in range(jobs)}
        for job, todo in left.items():
            if todo:
                start(job, todo)
        while live:
            for here in wait(list(live), timeout=5):
                assert isinstance(here, Connection)
                job, child = live[here]
                try:
                    self._heard(here.recv(), left[job])
                    continue
                except (EOFError, OSError):
                    pass
                child.join()
                del live[here]
                if child.exitcode:
                    number = numbers[job]
                    self._fell(number, child.exitcode)
                    rest = left[job]
                    if rest and number in rest[0]:
                        self.inputs += number + 1 - rest[0].start
                        rest[0] = range(number + 1, rest[0].stop)
                    if rest:
                        start(job, rest)
            if time.monotonic() - self._told > _PROGRESS_SECONDS:
                self._told = time.monotonic()
                print(self.summary(), file=sys.stderr, flush=True)

    def _warm_up(self) -> None:
        """Compile the kernels once for all children, before inputs are timed."""
        for target in self._targets:
            rng = random.Random(target.name)
            for _ in range(_WARM_UP if target.share >= 0.2 else 4):
                try:
                    data, context = target.make(rng)
                    target.check(data, context, rng)
                except Exception:  # noqa: BLE001, S110 - the run itself will meet it
                    pass

    def _heard(self, said: tuple[str, Any], left: list[range]) -> None:
        kind, what = said
        if kind == "done":
            self.inputs += len(left.pop(0))
            self.outcomes.update(what)
        else:
            self._found(*what)

    def _fell(self, number: int, status: int) -> None:
        name = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        self._found(number, "hang" if name == "SIGPROF" else f"crash: {name}", "")

    def _found(self, number: int, kind: str, trace: str) -> None:
        """Record, save and print a finding: its input and the command that runs it again."""
        target, rng = self.drawn(number)
        self._alike[f"{target.name}: {kind}"] += 1
        if self._alike[f"{target.name}: {kind}"] > _MOST_ALIKE:
            return
        data, _ = target.make(rng)
        self._save.mkdir(parents=True, exist_ok=True)
        path = self._save / f"{target.name.replace(' ', '-')}-{self.seed}-{number}.json"
        about = {
            "system": self.system,
            "seed": self.seed,
            "number": number,
            "target": target.name,
            "kind": kind,
        }
        path.write_text(json.dumps({**about, "input": data.hex(), "trace": trace}, indent=1))
        self.findings.append(
            f"{target.name}: {kind} (--seed {self.seed} --first {number} --inputs 1, {path})"
        )
        print(f"FOUND {self.findings[-1]}\n{trace}", file=sys.stderr, flush=True)

    def summary(self) -> dict[str, Any]:
        """A summary of the run so far."""
        seconds = time.monotonic() - self._begin
        return {
            "inputs": self.inputs,
            "seed": self.seed,
            "system": self.system,
            "seconds": round(seconds, 1),
            "inputs_a_second": round(self.inputs / max(seconds, 1e-9)),
            "findings": len(self.findings),
            "alike": dict(self._alike),
            "outcomes": dict(sorted(self.outcomes.items())),
        }

    # ------------------------------------------------------------------ a child process

    def _work(self, todo: list[range], parent: Connection, numbers: Any, job: int) -> None:
        size = (
            int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
            if os.path.exists("/proc")
            else 0
        )
        if size:
            resource.setrlimit(resource.RLIMIT_AS, (size + _MEMORY_BYTES, resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        for chunk in todo:
            outcomes: Counter[str] = Counter()
            for number in chunk:
                numbers[job] = number
                kind, trace = self.one(number)
                if kind and kind.startswith("slow"):
                    again, more = self.one(number)  # the first run may have compiled a kernel
                    kind, trace = (again, more) if again else ("slow once, then not", "")
                    if kind == "slow once, then not":
                        outcomes[kind] += 1
                        continue
                if trace is not None and kind:
                    parent.send(("found", (number, kind, trace)))
                else:
                    outcomes[self._outcome] += 1
            parent.send(("done", dict(outcomes)))
        parent.close()
        os._exit(0)

    def one(self, number: int) -> tuple[str | None, str | None]:
        """Run one input. Returns the kind of the finding and its traceback, or (None, None)."""
        target, rng = self.drawn(number)
        signal.setitimer(signal.ITIMER_PROF, _HUNG_SECONDS)
        begin = time.process_time()
        try:
            data, context = target.make(rng)
            self._outcome = f"{target.name}: {target.check(data, context, rng)}"
        except Exception as error:  # noqa: BLE001 - each is a finding
            return kind_of(error), traceback.format_exc()
        seconds = time.process_time() - begin
        return (
            (f"slow: more than {_SLOW_SECONDS} s", f"{seconds:.1f} s")
            if seconds > _SLOW_SECONDS
            else (None, None)
        )

    _outcome = ""


def kind_of(error: BaseException) -> str:
    """The error and the line that raised it, which identify a kind of finding."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__} at {place}"


def targets_of(system: str) -> list[Target]:
    """All targets of a system, or of all systems."""
    return [
        target for name, make in SYSTEMS.items() if system in (name, "all") for target in make()
    ]


def replay(path: Path) -> int:
    """Run the bytes of a saved finding again, in this process."""
    known = json.loads(path.read_text())
    (target,) = (each for each in targets_of(known["system"]) if each.name == known["target"])
    run = Run(known["system"], known["seed"], path.parent)
    _, rng = run.drawn(known["number"])
    _, context = target.make(rng)
    begin = time.process_time()
    print(
        target.check(bytes.fromhex(known["input"]), context, rng),
        f"{time.process_time() - begin:.3f} s",
    )
    return 0
