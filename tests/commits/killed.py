"""A server's state folder over several processes.

Each process commits offsets and is killed at a random moment. The next one that opens the folder
must find every acknowledged commit.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

from lastwrite.kafka.cluster.commits import Commit, GroupPartition
from lastwrite.server.offsets import Offsets
from tests.support.engine import compact

_PLACES = [GroupPartition(f"g{n % 3}", f"t{n % 4}", n) for n in range(12)]
_NOW_MS = 1_700_000_000_000


def live(state: Path, seed: int, lives: int = 3) -> int:
    """Run the processes of one seed. Returns the number of acknowledged commits.

    Raises:
        AssertionError: an acknowledged commit was lost.
    """
    rng = random.Random(seed)
    answered: dict[GroupPartition, int | None] = {}
    total = 0
    for number in range(lives):
        asked, count = _one_life(state, rng)
        total += count
        offsets = Offsets(str(state))
        for place in _PLACES:
            found = offsets.of(place)
            position = None if found is None else found.offset
            # The last requested commits may be stored without having been acknowledged.
            allowed = [asked.get(place, answered.get(place)), *asked.get((place, "last"), ())]
            assert position in allowed, (
                f"seed {seed}, life {number}: {place}: {position}, {allowed}"
            )
            answered[place] = position
        offsets.close()
        if rng.random() < 0.03 and total:  # our own cleaner may run between two processes
            compact(state, {"cleanup.policy": "compact"}, _NOW_MS, include_active=True)
    return total


def _one_life(state: Path, rng: random.Random) -> tuple[dict[object, object], int]:
    read, write = os.pipe()
    seed, stop_after = rng.random(), rng.randrange(60)
    pid = os.fork()
    if not pid:
        os.close(read)
        _commit_for_ever(state, seed, write)
    os.close(write)
    script = _Script(seed)
    asked: dict[object, object] = {}
    count = 0
    with os.fdopen(read, "rb") as pipe:
        while count < stop_after and pipe.read(1):
            _note(asked, script.next())
            count += 1
        time.sleep(rng.random() * 0.002)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for _ in pipe.read():  # acknowledged before the kill
            _note(asked, script.next())
            count += 1
    for place, position in script.next():
        asked[place, "last"] = (position,)
    return asked, count


def _note(asked: dict[object, object], commits: list[tuple[GroupPartition, int | None]]) -> None:
    for place, position in commits:
        asked[place] = position


class _Script:
    """The commits of a child process, which its parent generates again from the same seed."""

    def __init__(self, seed: float) -> None:
        self._rng = random.Random(seed)

    def next(self) -> list[tuple[GroupPartition, int | None]]:
        rng = self._rng
        places = rng.sample(_PLACES, rng.randint(1, 5))
        return [(each, None if rng.random() < 0.1 else rng.randrange(2**40)) for each in places]


def _commit_for_ever(state: Path, seed: float, write: int) -> None:
    try:
        offsets, script = Offsets(str(state)), _Script(seed)
        while True:
            commits = [
                (place, None if position is None else Commit(position))
                for place, position in script.next()
            ]
            offsets.commit(commits, _NOW_MS)
            os.write(write, b".")
    finally:
        os._exit(1)
