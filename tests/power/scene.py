"""A run over files of any system, and the conditions that must hold after a power failure in it."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.crash.trial import Broken
from tests.power.disk import Journal, record, record_killed

# Share of seeds in which the power also fails in the next run.
AGAIN = 0.3
# Share of seeds in which the run is killed first, which syncs nothing, and the power fails in the
# next run.
KILLED = 0.2


class Scene(Protocol):
    """One run. Everything that it reads and changes is below one folder, the disk."""

    name: str
    journal: Journal
    profiles: Sequence[str]  # the file system profiles under which it is tested

    def run(self, disk: Path) -> None:
        """Run, or run again after a power failure."""

    def look(self, disk: Path, met: Counter[str], judges: Any) -> Hashable:
        """Check that the disk has the old or the new state, also by ``judges``. Returns which.

        Raises:
            Broken: it has neither.
        """

    def check_end(self, disk: Path, side: Hashable) -> None:
        """Check that ``side`` is the durable result of a completed run."""

    def check_done(self, disk: Path) -> None:
        """Check that a completed run has the result of an undisturbed run."""


def trial(
    scene: Scene, place: Path, seed: int, judges: Any, known: set[Hashable], met: Counter[str]
) -> None:
    """Simulate one or two power failures, look at the disk, and complete the run.

    ``known`` has the states of this scene that were already judged. They are skipped.

    Raises:
        Broken: a condition does not hold.
    """
    rng = random.Random(f"power-{seed}")
    profile = rng.choice(list(scene.profiles))
    disk = place / "disk"
    met[f"{scene.name}: cuts"] += 1
    met[f"profile {profile}"] += 1
    journal = scene.journal
    if rng.random() < KILLED:
        journal = _killed(scene, disk, rng) or journal
        met["cuts of the run after a kill"] += journal is not scene.journal
    if not _cut(journal, profile, rng, disk, known if journal is scene.journal else set(), met):
        return
    is_over = _place(disk) == len(journal.events)
    side = scene.look(disk, met, judges)
    if is_over:
        scene.check_end(disk, side)
    if rng.random() < AGAIN:
        second = record(disk, lambda: scene.run(disk))
        met["cuts of the run after a cut"] += 1
        if _cut(second, profile, rng, disk, set(), met):
            then = scene.look(disk, met, judges)
            if _place(disk) == len(second.events):
                scene.check_end(disk, then)
    scene.run(disk)
    scene.check_done(disk)


def _killed(scene: Scene, disk: Path, rng: random.Random) -> Journal | None:
    shutil.rmtree(disk, ignore_errors=True)
    scene.journal.first.materialise(disk)
    operations = sum(1 for event in scene.journal.events if not event.is_sync)
    return record_killed(disk, lambda: scene.run(disk), rng.randint(1, operations))


def _cut(
    journal: Journal,
    profile: str,
    rng: random.Random,
    disk: Path,
    known: set[Hashable],
    met: Counter[str],
) -> bool:
    """Replace the disk by a state after a power failure. Returns False for a known state."""
    count = len(journal.events)
    cut = count if rng.random() < 0.08 else rng.randint(0, count)
    state = journal.state(cut, profile, rng)
    key = (cut == count, state.key())
    if key in known:
        met["states met again"] += 1
        return False
    known.add(key)
    met["states judged"] += 1
    shutil.rmtree(disk, ignore_errors=True)
    state.materialise(disk)
    _places[str(disk)] = cut
    return True


_places: dict[str, int] = {}


def _place(disk: Path) -> int:
    return _places[str(disk)]


def difference(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    """The names of files that differ."""
    names = sorted(
        name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name)
    )
    return ", ".join(
        f"{name} ({'missing' if name not in found else 'too much' if name not in wanted else 'other'})"
        for name in names[:6]
    )


def files_below(root: Path) -> dict[str, bytes]:
    """The content of every file by its relative path."""
    if not os.path.isdir(root):
        return {}
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


__all__ = ["Broken", "Scene", "difference", "files_below", "trial"]
