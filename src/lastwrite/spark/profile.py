"""The profile of a stage: the seconds of its tasks by step, and their object-store requests.

In the remaining time of a stage, the workers wait, or execute Spark's code
(``StageProfile.outside_seconds``).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from lastwrite.engine import profile
from lastwrite.reports.compaction import StageFigures
from lastwrite.storage.objects.address import sent_requests
from lastwrite.storage.objects.store import Requests


@dataclass(frozen=True, slots=True)
class TaskProfile:
    """The times of one task in seconds: duration, processor time, and time by step."""

    seconds: float
    cpu_seconds: float
    steps: dict[str, float]
    requests: Requests  # object-store requests of the task


class TaskClock:
    """Measures the times of a task, or of a part of it, from the creation of this object."""

    def __init__(self) -> None:
        self._first_profile = dict(profile.taken)
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        self._first_requests = sent_requests()

    def measure(self) -> TaskProfile:
        return TaskProfile(
            time.perf_counter() - self._wall,
            time.process_time() - self._cpu,
            {
                name: seconds - self._first_profile.get(name, 0.0)
                for name, seconds in profile.taken.items()
                if seconds != self._first_profile.get(name)
            },
            sent_requests() - self._first_requests,
        )


@dataclass(slots=True)
class StageProfile:
    """The times of all tasks of one stage, over all waves."""

    seconds: float = 0.0  # seconds that the driver waited for the stage
    worker_seconds: float = 0.0  # seconds that the driver waited, times the number of workers
    tasks: int = 0
    task_seconds: float = 0.0
    task_cpu_seconds: float = 0.0
    steps: dict[str, float] = field(default_factory=dict)
    requests: Requests = field(default_factory=Requests)

    def add(self, seconds: float, workers: int, tasks: Iterable[TaskProfile]) -> None:
        self.seconds += seconds
        self.worker_seconds += seconds * workers
        for task in tasks:
            self.tasks += 1
            self.task_seconds += task.seconds
            self.task_cpu_seconds += task.cpu_seconds
            self.requests += task.requests
            for name, spent in task.steps.items():
                self.steps[name] = self.steps.get(name, 0.0) + spent

    @property
    def outside_seconds(self) -> float:
        """Seconds in which workers had no task, because a stage started, ended or waited."""
        return max(0.0, self.worker_seconds - self.task_seconds)

    def figures(self) -> StageFigures:
        """The figures of this profile for a report."""
        return StageFigures(
            seconds=self.seconds,
            tasks=self.tasks,
            task_seconds=self.task_seconds,
            task_cpu_seconds=self.task_cpu_seconds,
            outside_seconds=self.outside_seconds,
            between_seconds=max(0.0, self.task_seconds - sum(self.steps.values())),
            steps=dict(sorted(self.steps.items())),
        )
