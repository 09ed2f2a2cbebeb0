"""Assigns seeds to scenes: ``SEEDS_A_PLACE`` seeds share the recorded runs of one folder."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from tests.power import kafka, pulsar, rocketmq
from tests.power.scene import Broken, Scene, trial

SEEDS_A_PLACE = 40
SYSTEMS = ("kafka", "rocketmq", "pulsar")
_TURNS = ("kafka", "rocketmq", "kafka", "pulsar", "kafka", "kafka", "pulsar", "kafka")
_SCENES = {"kafka": kafka.scenes, "rocketmq": rocketmq.scenes, "pulsar": pulsar.scenes}


class Places:
    """The scenes of the current seed's folder, which are recorded at its first seed."""

    def __init__(self, folder: Path, system: str | None = None) -> None:
        self._folder, self._system = folder, system
        self._number = self._failed = -1
        self._scenes: list[Scene] = []
        self._known: dict[int, set[Hashable]] = {}
        self.scene: Scene | None = None

    def play(self, seed: int, judges: Any, met: Counter[str]) -> None:
        """Play one or two power failures.

        Raises:
            Broken: a condition does not hold.
        """
        self.scene = None
        number = seed // SEEDS_A_PLACE
        if number != self._number:
            if number == self._failed:
                raise Broken("its place could not be laid out")
            self._failed = number
            self._lay_out(number, met)
            self._failed = -1
        self.scene = kafka.drawn(self._scenes, seed)
        trial(self.scene, self._folder, seed, judges, self._known[id(self.scene)], met)

    def _lay_out(self, number: int, met: Counter[str]) -> None:
        self._number = -1
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        system = self._system or _TURNS[number % len(_TURNS)]
        self._scenes = _SCENES[system](number, self._folder)
        for scene in self._scenes:
            if scene.journal.strays:
                raise AssertionError(f"changed past the fault points: {scene.journal.strays}")
        self._known = {id(scene): set() for scene in self._scenes}
        met[f"{system}: places"] += 1
        self._number = number
