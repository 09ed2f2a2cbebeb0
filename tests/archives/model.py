"""A model of one archived partition in a bucket, and of its concurrent writers and readers.

Each request to the store is a turn of its actor, and the next turn is drawn at random. Before any
turn its actor may be killed. Any response may be lost. A write may be refused (409) without a
reason, be lost, or take effect after its sender has given up. The store's clock advances, and
sometimes jumps past the grace periods.

Each seed checks these conditions:

- After every turn the objects in the newest manifest exist with the bytes that were written.
- A reader gets all objects of one generation. An object may be missing only if the grace period
  has passed since the reader read the manifest or last wrote its pin, and if there is a newer
  manifest.
- A round that was reported as lost has created no generation, and one reported as won has.
- At the end, one more round and a sweep leave only the manifest and its objects, without journals.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any
from unittest.mock import patch

from lastwrite.archive import partition_store as places
from lastwrite.archive.manifest import DataObject, Manifest, decode
from lastwrite.archive.partition_store import (
    ABANDONED_MS,
    GRACE_MS,
    MANIFEST,
    PINNED_MS,
    PartitionStore,
    VersionedManifest,
    WriteTransaction,
)
from lastwrite.errors import CommitConflict, LogError, NotALog, RemoteFailed
from lastwrite.storage.objects.store import ObjectInfo, Requests, Version, Writer
from tests.support.objects import MemoryStore

PREFIX = "kafka/orders/0"
_BEGIN_MS = 1_000_000
_STEP_MS = 60_000  # maximum clock step of a turn
# additional steps, to jump past the grace periods
_JUMPS_MS = [GRACE_MS // 2, GRACE_MS, PINNED_MS, ABANDONED_MS]


class Killed(BaseException):
    """The actor's process has been killed."""


class Actor:
    """A process that works on the archive, as a thread that runs only during its turns."""

    def __init__(self, model: Model, name: str, work: Callable[[PartitionStore], None]) -> None:
        self.name, self.is_over, self.is_killed = name, False, False
        self.problem: BaseException | None = None
        # probability that a read gets no response
        self.mute = model.draw.choice([0.0, 0.03, 0.2, 0.6])
        self.faulty = model.draw.choice([0.0, 0.1, 0.4])  # probability that a write fails
        self.turn = threading.Semaphore(0)
        self._model, self._work = model, work
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self.turn.acquire()
        try:
            if not self.is_killed:
                self._work(PartitionStore(ActorStore(self._model, self), PREFIX))
        except Killed:
            pass
        except BaseException as problem:
            self.problem = problem
        self.is_over = True
        self._model.turn.release()

    def wait(self) -> None:
        """End the turn, and wait for the next one."""
        if not self.is_killed:
            self._model.turn.release()
            self.turn.acquire()
        if self.is_killed:
            raise Killed


class ActorStore:
    """The store as one actor accesses it."""

    def __init__(self, model: Model, actor: Actor) -> None:
        self.address, self.requests = "memory", Requests()
        self._model, self._actor = model, actor

    def head(self, key: str) -> ObjectInfo | None:
        return self._read(lambda: self._model.store.head(key))

    def get(self, key: str) -> tuple[bytes, ObjectInfo] | None:
        return self._read(lambda: self._model.store.get(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter(self._read(lambda: [*self._model.store.list(prefix)]))

    def remove_unfinished(self, prefix: str, older_than_ms: int) -> None:
        """Does nothing, because the model has no unfinished uploads."""

    def folders(self, prefix: str) -> Sequence[str]:
        return self._read(lambda: self._model.store.folders(prefix))

    def create(self, key: str, content: bytes) -> Version | None:
        return self._write(lambda: self._model.put(key, content, None))

    def replace(self, key: str, content: bytes, seen: Version) -> Version | None:
        return self._write(lambda: self._model.put(key, content, seen))

    def write(self, key: str, content: bytes) -> Version:
        """Write an object. If its creation is not confirmed, the upload has failed."""
        made = self._write(lambda: self._model.put(key, content, None))
        if made is None:
            raise RemoteFailed("the upload failed")
        return made

    def remove(self, keys: Iterable[str]) -> None:
        for key in keys:
            if self._write(lambda key=key: self._model.remove(key)) is None:  # type: ignore[misc]
                raise RemoteFailed("no answer to a removal")

    def read_into(self, key: str, target: Any, position: int, etag: str = "") -> None:
        self._read(lambda: self._model.store.read_into(key, target, position, etag))

    def writer(self, key: str, part_bytes: int = 0) -> Writer:
        raise NotImplementedError

    def _read(self, do: Callable[[], Any]) -> Any:
        self._actor.wait()
        if self._model.chance(self._actor.mute):
            self._model.met["no answer to a question"] += 1
            raise RemoteFailed("no answer")
        return do()

    def _write(self, do: Callable[[], Any]) -> Any:
        """The result of a write. None if the outcome is unknown or the object already exists."""
        self._actor.wait()
        model = self._model
        if not model.chance(self._actor.faulty):
            return do()
        fault = model.draw.choice(["lost answer", "late", "lost", "refused", "forbidden"])
        model.met[fault] += 1
        if fault in ("lost answer", "late"):  # others may continue meanwhile
            model.asleep.add(self._actor)
        if fault == "lost answer":
            do()
        elif fault == "late":
            model.late.append(do)
        elif fault == "forbidden":
            raise RemoteFailed("forbidden")
        return None


class Model:
    """The model of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed, self.draw = seed, random.Random(seed)
        self.store = MemoryStore()
        self.store.now_ms = _BEGIN_MS
        self.turn = threading.Semaphore(0)
        self.late: list[Callable[[], Any]] = []
        self.history: list[Manifest] = []
        self.content: dict[str, bytes] = {}  # the bytes of every object ever written, by key
        self.won: set[str] = set()
        self.lost: set[str] = set()
        self.asleep: set[Actor] = set()
        self.met: Counter[str] = Counter()
        self.said: list[str] = []  # the actor of each turn, printed if the seed fails

    def chance(self, of: float) -> bool:
        return self.draw.random() < of

    # ------------------------------------------------------------------ the store

    def put(self, key: str, content: bytes, seen: Version | None) -> Version | None:
        if seen is None:
            made = self.store.create(key, content)
        else:
            made = self.store.replace(key, content, seen)
        if made is not None:
            self.content[key] = content
            if key.endswith(MANIFEST):
                self.history.append(decode(content, key))
        return made

    def remove(self, key: str) -> bool:
        self.store.remove([key])
        return True

    def check(self) -> None:
        """Check that all objects in the newest manifest exist with their original bytes."""
        if self.history:
            for each in self.history[-1].objects:
                found = self.store.get(f"{PREFIX}/{each.key}")
                assert found is not None, f"{each.key} counts, and is gone"
                assert found[0] == self.content[f"{PREFIX}/{each.key}"]

    # ------------------------------------------------------------------ who works on it

    def compact(self, place: PartitionStore) -> None:
        now = None
        for _ in range(3):
            now = self._round(place, now, adds=False)

    def fetch(self, place: PartitionStore) -> None:
        now = None
        for _ in range(2):
            now = self._round(place, now, adds=True)

    def _round(
        self, place: PartitionStore, known: VersionedManifest | None, *, adds: bool
    ) -> VersionedManifest | None:
        """Run one round. ``known`` is the manifest that a previous commit returned, or None to read
        it.
        """
        try:
            begun = place.begin(place.read() if known is None else known)
        except RemoteFailed:
            return None
        before = [] if begun.replaced is None else [*begun.replaced.manifest.objects]
        kept = before if adds else [each for each in before if self.chance(0.4)]
        try:
            made = [self._object(place, begun, n) for n in range(self.draw.randint(1, 2))]
            begun.renewed_s -= self.draw.choice([0.0, 1e6])
            place.renew(begun)
        except RemoteFailed:
            if self.chance(0.5):
                place.abandon(begun)
            return None
        except CommitConflict:  # a sweep has removed the round
            return None
        manifest = Manifest(system="kafka", topic="orders", partition=0, objects=(*kept, *made))
        try:
            now = place.commit(begun, manifest)
        except CommitConflict:
            self.lost.add(begun.id)
        except RemoteFailed:
            self.met["end unknown"] += 1
        else:
            self.won.add(begun.id)
            assert any(now.manifest == each for each in self.history)
            self.met["others had built on it"] += now.manifest.round != begun.id
            return now if self.chance(0.5) else None
        return None

    def _object(self, place: PartitionStore, begun: WriteTransaction, number: int) -> DataObject:
        key = f"{begun.prefix}{number}/0.log"
        content = f"{begun.id} {number}".encode() * self.draw.randint(1, 3)
        store: Any = place.store
        made = store.write(place.key(key), content)
        return DataObject(key=key, bytes=len(content), etag=made.etag)

    def sweep(self, place: PartitionStore) -> None:
        for _ in range(3):
            try:
                place.sweep(everything=self.chance(0.3), dry_run=self.chance(0.1))
            except (NotALog, RemoteFailed):
                self.met["sweep ended early"] += 1

    def clear(self, place: PartitionStore) -> None:
        """A round without new data, which only removes unused objects."""
        for _ in range(2):
            try:
                seen = place.read()
                if seen is not None:
                    place.abandon(place.begin(seen))
            except RemoteFailed:
                pass

    def read(self, place: PartitionStore) -> None:
        for _ in range(3):
            try:
                seen = place.read()
                if seen is not None:
                    self._read_by(place, seen, self.store.now_ms)
            except RemoteFailed:
                pass

    def pin(self, place: PartitionStore) -> None:
        try:
            seen = place.read()
            if seen is None:
                return
            began_ms = self.store.now_ms
            with place.pin(seen) as renew:
                if self.store.now_ms - began_ms < GRACE_MS:
                    self._read_by(place, seen, self.store.now_ms, renew)
        except RemoteFailed:
            pass

    def _read_by(
        self,
        place: PartitionStore,
        seen: VersionedManifest,
        since_ms: int,
        renew: Callable[[], None] | None = None,
    ) -> None:
        """Read all objects of one manifest, unless it is too old."""
        grace_ms = GRACE_MS if renew is None else PINNED_MS
        assert any(seen.manifest == each for each in self.history)
        # A pinned reader reads several times and renews its pin.
        for each in seen.manifest.objects * (1 if renew is None else 6):
            if renew is not None and self.chance(0.7):
                before_ms = self.store.now_ms
                renew()
                # ``renew`` may have written the pin or not, so the earliest possible time counts.
                since_ms = before_ms if self.store.now_ms - since_ms < grace_ms else since_ms
            data: Any = bytearray(each.bytes)
            try:
                place.store.read_into(place.key(each.key), data, 0, each.etag)
            except CommitConflict:
                passed_ms = self.store.now_ms - since_ms
                assert passed_ms >= grace_ms, f"{each.key} is gone after {passed_ms} ms"
                now = place.read()
                assert now is None or now.found.version != seen.found.version
                self.met["reader too late"] += 1
                return
            assert bytes(data) == self.content[place.key(each.key)]
        self.met["read whole"] += 1

    # ------------------------------------------------------------------ a run

    def run(self) -> None:
        """Run all actors and check the conditions in the module's docstring.

        Raises:
            AssertionError: a condition does not hold.
        """
        ids = random.Random(-self.seed - 1)
        with (
            patch.object(places, "_waits", lambda: [0.0] * 6),
            patch.object(uuid, "uuid4", lambda: uuid.UUID(int=ids.getrandbits(128))),
        ):
            works = [self.compact, self.compact, self.fetch, self.sweep, self.sweep]
            works += [self.clear, self.read, self.read, self.pin]
            some = self.draw.sample(works, self.draw.randint(2, len(works)))
            actors = [Actor(self, f"{w.__name__} {n}", w) for n, w in enumerate(some)]
            if self.chance(0.7):  # most archives are not empty at first
                first = Actor(self, "first", self.fetch)
                self._play([first], deadly=0.0)
            self._play(actors, deadly=self.draw.choice([0.0, 0.01, 0.05]))
            self._end()

    def _play(self, actors: list[Actor], deadly: float) -> None:
        for each in actors:
            each.thread.start()
        jumps = self.draw.choice([0.0, 0.03, 0.2])
        sizes_ms = self.draw.choice([_JUMPS_MS, *([each] for each in _JUMPS_MS)])
        alive = list(actors)
        while alive:
            self._pass_time(jumps, sizes_ms)
            if self.chance(0.05):
                self.asleep = {each for each in alive if self.chance(0.4)}
            if self.late and self.chance(0.1):
                self.late.pop(self.draw.randrange(len(self.late)))()
                self.check()
            actor = self.draw.choice([each for each in alive if each not in self.asleep] or alive)
            actor.is_killed |= self.chance(deadly)
            self.said.append(f"{self.store.now_ms} {actor.name}{' killed' * actor.is_killed}")
            actor.turn.release()
            self.turn.acquire()
            self.check()
            if actor.is_over:
                alive.remove(actor)
                actor.thread.join()
                self.met["killed"] += actor.is_killed
                if actor.problem is not None:
                    raise AssertionError(f"{actor.name}: {actor.problem}") from actor.problem

    def _pass_time(self, jumps: float, sizes_ms: Sequence[int]) -> None:
        step_ms = self.draw.randrange(_STEP_MS)
        if self.chance(jumps):
            step_ms += self.draw.choice(sizes_ms)
        self.store.now_ms += step_ms

    def _end(self) -> None:
        """Apply the late writes, then check a last round and a sweep."""
        has_strays = self.met["late"] > 0
        # an actor may have slept longer than a round may take
        has_slept = self.store.now_ms - _BEGIN_MS >= ABANDONED_MS
        for do in self.late:
            do()
            self.check()
        made = {each.round for each in self.history}
        assert self.won <= made, "a round was told that it won, and did not"
        assert not self.lost & made, "a round was told that it lost, and won"
        numbers = [each.generation for each in self.history]
        assert numbers == [*range(1, len(numbers) + 1)]
        for before, after in pairwise(self.history):
            assert after.former[0] == before.nonce, "a round has undone another"
        self.met["rounds won"] += len(self.won)
        self.met["rounds lost"] += len(self.lost)
        place = PartitionStore(self.store, PREFIX)
        begun = place.begin(place.read())
        key = f"{begun.prefix}0/0.log"
        self.put(place.key(key), b"last", None)
        last = Manifest(
            system="kafka", topic="orders", partition=0, objects=(DataObject(key=key, bytes=4),)
        )
        place.commit(begun, last)
        self.store.now_ms += ABANDONED_MS
        # A round that was swept during its sleep has no journal for objects that it wrote
        # afterwards.
        place.sweep(everything=has_slept or has_strays)
        left = [each.key for each in self.store.list("")]
        assert left == sorted([place.key(key), place.key(MANIFEST)]), f"there is left: {left}"


def play(seed: int) -> Counter[str]:
    """Play one seed. Returns counts of what happened.

    Raises:
        AssertionError: with the seed and the last turns.
    """
    model = Model(seed)
    try:
        model.run()
    except (AssertionError, LogError) as error:
        turns = "\n".join(model.said[-40:])
        raise AssertionError(f"seed {seed}: {error}\nthe last turns:\n{turns}") from error
    return model.met
