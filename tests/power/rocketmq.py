"""Power failures in RocketMQ runs: rounds on random stores, cleaned copies, publications,
dispatches.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import lastwrite
from lastwrite.rocketmq.format.names import COMPACTION_LOGS
from lastwrite.rocketmq.store import lock, publish
from lastwrite.rocketmq.store.trees import GUARD, ORDER
from lastwrite.spark.inline import INLINE
from tests.crash.trial import Broken
from tests.power.disk import Journal, record
from tests.power.scene import Scene, difference, files_below
from tests.support.rocketmq import dispatch as rocketmq_dispatch
from tests.support.rocketmq import rounds as rocketmq_rounds
from tests.support.rocketmq import trees as rocketmq_trees
from tests.support.rocketmq.dispatch import BATCHED, COMPACTED, Broker, send
from tests.support.rocketmq.trees import LAYOUTS, Layout, contents, fresh, load_like_broker

_PROFILES = ("ext4", "xfs", "apfs", "loose")
_DISPATCH_MS = 1_700_000_500_000
_WITH_WORK = (3, 8, 9, 12)  # seeds of rounds that remove messages; for other seeds this is tested


def scenes(number: int, place: Path) -> list[Scene]:
    """The scenes of a folder. The first two use a random store."""
    seed, include_active = _seed_with_work(number, place)
    found: list[Scene] = [
        RoundScene(seed, include_active, place),
        CopyScene(seed, include_active, place),
    ]
    layouts = [layout for layout in LAYOUTS if layout.after]
    return [
        *found,
        PublicationScene(layouts[number % len(layouts)], place),
        DispatchScene(number, place),
        CutScene(number, place),
    ]


def _seed_with_work(number: int, place: Path) -> tuple[int, bool]:
    """The first seed from ``1000 * number`` on whose round removes messages."""
    seed = 1000 * number
    while True:
        include_active = seed % 4 == 3
        trial = place / "drawn"
        before, after = rocketmq_rounds.lay_out(seed, trial, include_active)
        shutil.rmtree(trial)
        if before != after:
            return seed, include_active
        seed += 1


class RoundScene:
    """A round in place. All queues and positions are old, or all are new."""

    name = "RocketMQ round"
    profiles: Sequence[str] = _PROFILES

    def __init__(self, seed: int, include_active: bool, place: Path) -> None:
        self._include_active, self._place = include_active, place
        disk = place / "disk"
        rocketmq_rounds.lay_out(seed, disk, include_active)
        self._old = rocketmq_rounds.tree_of(disk)
        self._before = Served(disk)
        self.journal: Journal = record(disk, lambda: self.run(disk))
        self._new, self._done = rocketmq_rounds.tree_of(disk), _all_of(disk)
        self._after = Served(disk)
        shutil.rmtree(disk)

    def run(self, disk: Path) -> None:
        rocketmq_rounds.compact(disk, self._include_active)

    def look(self, disk: Path, met: Counter[str], judges: Any) -> Hashable:
        found = rocketmq_rounds.tree_of(disk)
        if found not in (self._old, self._new):
            raise Broken(
                f"neither the old store nor the new one: against the old {difference(found, self._old)}; "
                f"against the new {difference(found, self._new)}"
            )
        oracle = judges("rocketmq")
        if oracle is not None:
            (self._after if found == self._new else self._before).check(
                disk, self._place, oracle, met
            )
        return found == self._new

    def check_end(self, disk: Path, side: Hashable) -> None:
        if not side:
            raise Broken("the run had ended, and a power cut took it back")

    def check_done(self, disk: Path) -> None:
        if (left := _all_of(disk)) != self._done:
            raise Broken(
                f"not the bytes of a run that nobody disturbed: {difference(left, self._done)}"
            )
        if publish.leftovers(str(disk)):
            raise Broken(f"left behind: {publish.leftovers(str(disk))}")


class Served:
    """What RocketMQ's own compaction log reads from each queue of a store. Each queue
    is read once.
    """

    def __init__(self, store: Path) -> None:
        self._content = {
            str(path.relative_to(store)): path.read_bytes()
            for path in store.rglob("*")
            if path.is_file()
        }
        self._answers: dict[tuple[str, int], Any] = {}

    def check(self, disk: Path, place: Path, oracle: Any, met: Counter[str]) -> None:
        """Check that the disk gives the same results as this store."""
        for name in _queues(disk):
            if name not in self._answers:
                self._answers[name] = _asked(self._write(place / "model"), name, oracle)
        copy = fresh(disk, place / "loaded")
        for name in _queues(disk):
            met["queues that RocketMQ's compaction log opened"] += 1
            if _asked(copy, name, oracle) != self._answers[name]:
                raise Broken(f"RocketMQ's compaction log reads {name} otherwise")

    def _write(self, target: Path) -> Path:
        shutil.rmtree(target, ignore_errors=True)
        for name, content in self._content.items():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return target


def _queues(store: Path) -> list[tuple[str, int]]:
    tree = store / "compaction" / COMPACTION_LOGS
    return sorted(
        (queue.parent.name, int(queue.name)) for queue in tree.glob("*/*") if queue.is_dir()
    )


def _asked(store: Path, name: tuple[str, int], oracle: Any) -> list[Any]:
    topic, queue = name
    folder = store / "compaction" / COMPACTION_LOGS / topic / str(queue)
    log_bytes = max((path.stat().st_size for path in folder.iterdir() if path.is_file()), default=0)
    index = store / "compaction" / "compactionCq" / topic / str(queue)
    index_bytes = max(
        (path.stat().st_size for path in index.iterdir() if path.is_file()), default=0
    )
    # If this is a multiple of the unit size, a broker creates files that are one unit longer.
    sizes = {
        "compactionMappedFileSize": log_bytes - index_bytes,
        "compactionCqMappedFileSize": index_bytes,
    }
    answer = oracle.ask("dump", store, sizes, topic=topic, queue=queue, max=100_000)
    if not answer["ok"]:
        raise Broken(f"RocketMQ's compaction log of {name}: {answer}")
    return [
        {key: value for key, value in line.items() if key != "file"} for line in answer["lines"]
    ]


def _all_of(store: Path) -> dict[str, Any]:
    return dict(contents(store))


class CopyScene:
    """A cleaned copy. The store is unchanged, and the copy has all queues or none."""

    name = "RocketMQ copy"
    profiles: Sequence[str] = _PROFILES

    def __init__(self, seed: int, include_active: bool, place: Path) -> None:
        self._include_active = include_active
        disk = place / "disk"
        disk.mkdir()
        rocketmq_rounds.lay_out(seed, disk / "store", include_active)
        self._origin = _all_of(disk / "store")
        self.journal: Journal = record(disk, lambda: self.run(disk))
        self._whole, self._done = rocketmq_rounds.tree_of(disk / "to"), _all_of(disk / "to")
        shutil.rmtree(disk)

    def run(self, disk: Path) -> None:
        to = disk / "to"
        if to.is_dir() and rocketmq_rounds.tree_of(to):  # the command refuses to overwrite queues
            shutil.rmtree(to)
        rocketmq_rounds.compact(disk / "store", self._include_active, to=str(to))

    def look(self, disk: Path, met: Counter[str], judges: Any) -> Hashable:
        if (left := _all_of(disk / "store")) != self._origin:
            raise Broken(f"a copy changed the store: {difference(left, self._origin)}")
        found = rocketmq_rounds.tree_of(disk / "to") if (disk / "to").is_dir() else {}
        if found and found != self._whole:
            raise Broken(f"the copy is neither whole nor missing: {difference(found, self._whole)}")
        met["copies seen whole"] += bool(found)
        return bool(found)

    def check_end(self, disk: Path, side: Hashable) -> None:
        if not side:
            raise Broken("the copy was finished, and a power cut left nothing of it")
        if (left := _all_of(disk / "to")) != self._done:
            if set(difference(left, self._done)) and any(
                "compaction/" in name for name in left.keys() ^ self._done.keys()
            ):
                raise Broken(
                    f"the copy was finished, and a power cut changed {difference(left, self._done)}"
                )

    def check_done(self, disk: Path) -> None:
        if (left := _all_of(disk / "to")) != self._done:
            raise Broken(f"a copy made again is another one: {difference(left, self._done)}")


class PublicationScene:
    """The exchange of trees alone, for a layout of changes.

    The judge is a model of the broker's loader.
    """

    name = "RocketMQ publication"
    profiles: Sequence[str] = _PROFILES

    def __init__(self, layout: Layout, place: Path) -> None:
        self._layout, self._place = layout, place
        disk = place / "disk"
        disk.mkdir()
        rocketmq_trees.write_layout(disk / "store", layout)
        self.journal: Journal = record(disk, lambda: self.run(disk))
        self._done = contents(disk / "store")
        shutil.rmtree(disk)

    def run(self, disk: Path) -> None:
        rocketmq_trees.compact(disk / "store", self._layout)

    def look(self, disk: Path, met: Counter[str], judges: Any) -> Hashable:
        layout, root = self._layout, disk / "store"
        seen = load_like_broker(root)
        if seen not in ((layout.old, layout.positions), (layout.new, layout.new_positions)):
            raise Broken(
                f"{layout.name}: a broker would serve neither the old queues nor the new ones"
            )
        recovered = fresh(disk, self._place / "recovered") / "store"
        with lock.hold(str(recovered), layout.before):
            for name in layout.before:
                publish.recover(str(recovered), name)
        if load_like_broker(recovered) != seen:
            raise Broken(f"{layout.name}: recovery changed what a broker would serve")
        return seen == (layout.new, layout.new_positions)

    def check_end(self, disk: Path, side: Hashable) -> None:
        if not side:
            raise Broken("the run had ended, and a power cut took it back")

    def check_done(self, disk: Path) -> None:
        if (left := contents(disk / "store")) != self._done:
            raise Broken(
                f"not the bytes of a run that nobody disturbed: {difference(dict(left), dict(self._done))}"
            )


class DispatchScene:
    """A dispatch of all kinds of queues.

    Each tree is old or new, in an order that a broker can complete.
    """

    name = "RocketMQ dispatch"
    profiles: Sequence[str] = _PROFILES

    def __init__(self, number: int, place: Path) -> None:
        rng = random.Random(f"dispatch-{number}")
        self._broker = Broker()
        disk = place / "disk"
        disk.mkdir()
        topics = rng.choice(
            [(COMPACTED, BATCHED, "plain"), (COMPACTED, "plain"), (COMPACTED, BATCHED, "plain")]
        )
        numbers = dict.fromkeys(topics, 0)
        half = rng.choice([0, rng.randint(1, 20)])
        for n in range(24):
            if n == half and n:
                rocketmq_dispatch.write_store(disk / "store", self._broker)
                self.run(disk)
            topic = topics[n % len(topics)]
            send(
                self._broker,
                topic,
                0,
                numbers[topic],
                keys=f"k{rng.randint(0, 5)}",
                body=b"v" * rng.randint(0, 60),
            )
            numbers[topic] += 1
        rocketmq_dispatch.write_store(disk / "store", self._broker)
        self._old = _trees(disk / "store")
        self.journal: Journal = record(disk, lambda: self.run(disk))
        self._new, self._all = _trees(disk / "store"), self._broker.dispatched()
        self._names = sorted(path.name for path in (disk / "store").iterdir())
        self._changed = [tree for tree in ORDER if self._old[tree] != self._new[tree]]
        shutil.rmtree(disk)

    def run(self, disk: Path) -> None:
        config = self._broker.sizes.config()
        report = lastwrite.dispatch(
            str(disk / "store"), config=config, now_ms=_DISPATCH_MS, spark=INLINE
        )
        if report.exit_status:
            raise Broken(f"dispatch ended with {report.exit_status}")

    def look(self, disk: Path, met: Counter[str], judges: Any) -> Hashable:
        found = _trees(disk / "store")
        for tree in ORDER:
            if found[tree] not in (self._old[tree], self._new[tree]):
                raise Broken(
                    f"{tree} is neither old nor new: {difference(found[tree], self._new[tree])}"
                )
        is_new = [found[tree] == self._new[tree] for tree in self._changed]
        if is_new != sorted(is_new, reverse=True):
            raise Broken(
                f"trees are new in an order that no broker completes: {is_new} of {self._changed}"
            )
        is_guarded = (disk / "store" / "commitlog" / GUARD).exists()
        if "batchconsumequeue" in self._changed and is_new[-2] != is_new[-1] and not is_guarded:
            raise Broken(
                "one kind of consume queues is new, the other is not, and no guard keeps a broker off"
            )
        return sum(is_new)

    def check_end(self, disk: Path, side: Hashable) -> None:
        if side != len(self._changed):
            raise Broken("the dispatch had ended, and a power cut took it back")
        if (disk / "store" / "commitlog" / GUARD).exists():
            raise Broken("the dispatch had ended, and a power cut brought its guard back")

    def check_done(self, disk: Path) -> None:
        if (left := rocketmq_dispatch.read_dispatched(disk / "store")) != self._all:
            raise Broken(
                f"not the files of a dispatch that nobody disturbed: {difference(left, self._all)}"
            )
        if sorted(path.name for path in (disk / "store").iterdir()) != self._names:
            raise Broken("something was left behind")


class CutScene:
    """A cut of the commit log, or its undo.

    The store is old, new, or has a guard file, and an undo restores the old one.
    """

    name = "RocketMQ cut"
    profiles: Sequence[str] = _PROFILES

    def __init__(self, number: int, place: Path) -> None:
        self._place, self._undoes = place, number % 2 == 1
        broker = Broker()
        numbers = dict.fromkeys((COMPACTED, BATCHED, "plain"), 0)
        rng = random.Random(f"cut-{number}")
        for _ in range(30):
            topic = rng.choice(list(numbers))
            send(
                broker,
                topic,
                0,
                numbers[topic],
                keys=f"k{rng.randint(0, 5)}",
                body=b"v" * rng.randint(1, 90),
            )
            numbers[topic] += 1
        self._at = broker.addresses[rng.randint(12, 28)]
        disk = place / "disk"
        root = rocketmq_dispatch.write_store(disk / "store", broker)
        (root / "config" / "consumerOffset.json").write_bytes(
            b'{"offsetTable":{"plain@g":{0:999}}}'
        )
        lastwrite.dispatch(
            str(root), config=broker.sizes.config(), now_ms=_DISPATCH_MS, spark=INLINE
        )
        self._old = _opened(root)
        if self._undoes:
            lastwrite.cut(str(root), at=self._at)
            self._new = _opened(root)
        self.journal: Journal = record(disk, lambda: self.run(disk))
        if not self._undoes:
            self._new = _opened(root)
        shutil.rmtree(disk)

    def run(self, disk: Path) -> None:
        root = disk / "store"
        is_cut = (root / "commitlog.before-cut").exists()
        if lock.has_stopped_cut(str(root)) or (self._undoes and is_cut):
            lastwrite.cut(str(root), undo=True)
            is_cut = False
        if not self._undoes and not is_cut:
            lastwrite.cut(str(root), at=self._at)

    def look(self, disk: Path, met: Counter[str], judges: Any) -> Hashable:
        root = disk / "store"
        if lock.has_stopped_cut(str(root)):
            again = fresh(disk, self._place / "recovered") / "store"
            lastwrite.cut(str(again), undo=True)
            if (found := _opened(again)) != self._old:
                raise Broken(
                    f"an undo of what was stopped is not the old store: {difference(found, self._old)}"
                )
            return "stopped"
        found = _opened(root)
        if found not in (self._old, self._new):
            raise Broken(
                f"neither the old store nor the new one: against the old {difference(found, self._old)}; "
                f"against the new {difference(found, self._new)}"
            )
        return "new" if found == self._new else "old"

    def check_end(self, disk: Path, side: Hashable) -> None:
        if side != ("old" if self._undoes else "new"):
            raise Broken(f"it had ended, and a power cut left the store {side}")

    def check_done(self, disk: Path) -> None:
        wanted = self._old if self._undoes else self._new
        if (left := _opened(disk / "store")) != wanted:
            raise Broken(f"not what an undisturbed run leaves: {difference(left, wanted)}")


def _opened(store: Path) -> dict[str, bytes]:
    """The files that a broker opens. Our own files beside them are left out."""
    return {
        name: data
        for name, data in files_below(store).items()
        if name != "lock"
        and not any(own in name for own in (".cut", ".before-cut", "lastwrite-cut.json"))
    }


def _trees(store: Path) -> dict[str, dict[str, bytes]]:
    found: dict[str, dict[str, bytes]] = {tree: {} for tree in ORDER}
    for name, data in rocketmq_dispatch.read_dispatched(store).items():
        found[name.split("/")[0]][name] = data
    return found


__all__ = ["files_below", "scenes"]
