"""A run over files, whatever the system, and what must hold of them when the power failed in it."""

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

AGAIN = 0.3  # of the seeds: the power fails in the next run too
# the run is killed first, and the power fails in the run after that, of which nothing was synced
# more
KILLED = 0.2


class Scene(Protocol):
    """One run. All that it reads and changes lies below a single folder, the disk."""

    name: str
    journal: Journal
    profiles: Sequence[str]  # those that it is held against

    def run(self, disk: Path) -> None:
        """Do the run, or do it again, from whatever a cut left."""

    def look(self, disk: Path, met: Counter[str], judges: Any) -> Hashable:
        """What lies there is what was or what shall be, for us and where asked for the system;
        returns which.

        Raises:
            Broken: it is neither.
        """

    def check_end(self, disk: Path, side: Hashable) -> None:
        """``side`` is what an ended run leaves, and so durable: no power cut after it takes it
        back.
        """

    def check_done(self, disk: Path) -> None:
        """A run that came to its end left what a run that nobody disturbed leaves."""


def trial(
    scene: Scene, place: Path, seed: int, judges: Any, known: set[Hashable], met: Counter[str]
) -> None:
    """Cut the power once, or twice, look, and let the run come to its end.

    ``known``: states of this scene that were judged; the same one again is not.

    Raises:
        Broken: a promise did not hold.
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
    """Let the disk be what a cut leaves of it; False: that was seen before."""
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
    """The names of what is other."""
    names = sorted(
        name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name)
    )
    return ", ".join(
        f"{name} ({'missing' if name not in found else 'too much' if name not in wanted else 'other'})"
        for name in names[:6]
    )


def files_below(root: Path) -> dict[str, bytes]:
    """Every file by its place."""
    if not os.path.isdir(root):
        return {}
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


__all__ = ["Broken", "Scene", "difference", "files_below", "trial"]
