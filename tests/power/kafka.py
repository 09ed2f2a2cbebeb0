"""Power failures in Kafka runs: rounds with retention, cleaned copies, and rounds that
store scans.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lastwrite.kafka.format.names import KafkaFileKind, classify
from lastwrite.kafka.store.retention import make_empty_segment
from lastwrite.scan_cache import files
from tests.crash.rounds import Round, batches_seen, files_of, odd_files, prepare
from tests.crash.trial import CLEANER_OFFSETS, Broken, load, look, run_to_the_end
from tests.power.disk import Journal, record
from tests.power.scene import Scene, difference, files_below
from tests.support.kafka.logs import bases, read_checkpoint
from tests.support.kafka.oracle import Oracle

_PROFILES = ("ext4", "xfs", "apfs")


def scenes(number: int, place: Path) -> list[Scene]:
    """The scenes over the random log root ``number``, below the folder ``place``."""
    round_ = prepare(number, place)
    found: list[Scene] = [RoundScene(round_, place)]
    if not round_.settings.was_killed:
        found.append(KeptScene(round_, place))
    return [*found, found[0], CopyScene(round_, place)]


class RoundScene:
    """A round in place."""

    name = "Kafka round"
    profiles = _PROFILES

    def __init__(self, round_: Round, place: Path) -> None:
        self._round, self._place = round_, place
        disk = place / "disk"
        shutil.copytree(round_.origin, disk)
        self.journal: Journal = record(disk, lambda: self.run(disk))
        shutil.rmtree(disk)

    def run(self, disk: Path) -> None:
        self._round.settings.compact(disk)

    def look(self, disk: Path, met: Counter[str], judges: Any) -> Hashable:
        oracle: Oracle | None = judges("kafka")
        try:
            sides = look(self._round, disk, self._place, oracle, met)
        except Broken:
            if not self._rolls:
                raise
            sides = look(self._a_round_more, disk, self._place, oracle, met)
        return tuple(sorted(sides.items()))

    @property
    def _rolls(self) -> bool:
        """Whether retention deletes all segments of some log, so that an empty one is created."""
        origin, done = self._round.origin, self._place / "done"
        return any(
            bases(done / name)[-1] not in bases(origin / name) for name in self._round.folders
        )

    @cached_property
    def _a_round_more(self) -> Round:
        """The round after a second run, which also compacts the segments that such a roll has
        closed.
        """
        root = self._place / "more"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(self._round.origin, root)
        for name in self._round.folders:
            end = bases(self._place / "done" / name)[-1]
            if end not in bases(root / name):
                self._round.settings.without_retention().compact(root)
                make_empty_segment(str(root / name), end)
        self._round.settings.without_retention().compact(root)
        after = {name: batches_seen(root / name)[1] for name in self._round.folders}
        return replace(self._round, after=after)

    def check_end(self, disk: Path, side: Hashable) -> None:
        if side != tuple((name, 1) for name in self._round.folders):
            raise Broken(f"the run had ended, and a power cut took it back: {side}")
        done = self._place / "done"
        for file in (CLEANER_OFFSETS, "log-start-offset-checkpoint"):
            if read_checkpoint(disk, file) != read_checkpoint(done, file):
                raise Broken(f"the run had ended, and a power cut took {file} back")

    def check_done(self, disk: Path) -> None:
        run_to_the_end(self._round, disk, self._place)


class KeptScene(RoundScene):
    """A round that stores its scans, and a second round over the whole log that uses them.

    A stored scan belongs to a file by its inode and times. Inodes differ on a disk that was written
    again, so only size and modification time are compared here.
    """

    name = "Kafka round with kept scans"

    def run(self, disk: Path) -> None:
        with _loose_identity():
            self._round.settings.compact(disk, keep_scans=True)

    def check_done(self, disk: Path) -> None:
        believing, without = self._place / "believing", self._place / "without"
        for root in (believing, without):
            shutil.rmtree(root, ignore_errors=True)
            shutil.copytree(disk, root)
            (root / CLEANER_OFFSETS).unlink(missing_ok=True)
        for path in _kept_files(without):
            path.unlink()
        with _loose_identity():
            self._round.settings.compact(believing, keep_scans=True)
        self._round.settings.compact(without)
        for root in (believing, without):
            for path in _kept_files(root):
                path.unlink()
        if files_of(believing) != files_of(without):
            raise Broken(
                f"what was kept misled a round: {difference(files_of(believing), files_of(without))}"
            )
        for path in _kept_files(disk):
            path.unlink()
        run_to_the_end(self._round, disk, self._place)


def _kept_files(root: Path) -> list[Path]:
    kinds = (KafkaFileKind.KEPT, KafkaFileKind.KEPT_SECRET)
    return [
        path for path in root.rglob("*") if path.is_file() and classify(path.name).kind in kinds
    ]


@contextmanager
def _loose_identity() -> Iterator[None]:
    whole = files._stamp

    def stamp(path: str) -> tuple[int, int, int, int]:
        size, mtime_ns, *_ = whole(path)
        return size, mtime_ns, 0, 0

    with patch.object(files, "_stamp", stamp):
        yield


class CopyScene:
    """A cleaned copy. The log is unchanged, and each partition's copy is complete or missing."""

    name = "Kafka copy"
    profiles = _PROFILES

    def __init__(self, round_: Round, place: Path) -> None:
        self._round, self._place = round_, place
        self._origin = files_below(round_.origin)
        disk = place / "disk"
        disk.mkdir()
        shutil.copytree(round_.origin, disk / "root")
        self.journal: Journal = record(disk, lambda: self.run(disk))
        self._whole = _partitions(disk / "to")
        self._all = files_of(disk / "to")
        self._batches = {name: batches_seen(disk / "to" / name)[1] for name in self._whole}
        shutil.rmtree(disk)

    def run(self, disk: Path) -> None:
        if _partitions(disk / "to"):  # the command refuses to overwrite partitions
            shutil.rmtree(disk / "to")
        self._round.settings.compact(disk / "root", to=str(disk / "to"))

    def look(self, disk: Path, met: Counter[str], judges: Any) -> Hashable:
        if (left := files_below(disk / "root")) != self._origin:
            raise Broken(f"a copy changed the log: {difference(left, self._origin)}")
        found = _partitions(disk / "to")
        for name, inside in found.items():
            if inside != self._whole[name]:
                raise Broken(
                    f"the copy of {name} is neither whole nor missing: {difference(inside, self._whole[name])}"
                )
            if batches_seen(disk / "to" / name)[1] != self._batches[name]:
                raise Broken(f"the copy of {name} reads other than it should")
            met["copies seen whole"] += 1
        oracle: Oracle | None = judges("kafka")
        if found and oracle is not None:
            there = Round(disk, self._round.settings.alive(), {}, {}, {}, 0, sorted(found))
            load(there, disk / "to", self._place, oracle, met)
        return tuple(sorted(found))

    def check_end(self, disk: Path, side: Hashable) -> None:
        if side != tuple(sorted(self._whole)):
            raise Broken(f"the copy was finished, and a power cut left {side} of it")
        if (left := files_of(disk / "to")) != self._all:
            raise Broken(
                f"the copy was finished, and a power cut changed {difference(left, self._all)}"
            )

    def check_done(self, disk: Path) -> None:
        if (left := files_of(disk / "to")) != self._all:
            raise Broken(f"a copy made again is another one: {difference(left, self._all)}")
        if odd := odd_files(disk / "to"):
            raise Broken(f"left behind: {odd}")


def _partitions(root: Path) -> dict[str, dict[str, bytes]]:
    if not root.is_dir():
        return {}
    return {
        path.name: files_below(path)
        for path in root.iterdir()
        if path.is_dir() and "-delete" not in path.name
    }


def drawn(found: list[Scene], seed: int) -> Scene:
    """The scene of a seed."""
    return random.Random(f"scene-{seed}").choice(found)
