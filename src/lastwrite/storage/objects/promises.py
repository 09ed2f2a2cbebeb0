"""Test whether a store has the guarantees that compaction depends on.

A store that ignores ``If-Match`` responds like one that supports it. Two writers that replace the
same version then both succeed, and the data of one is lost. The guarantees are therefore tested
with three small objects below ``_lastwrite/probe/``, which are deleted afterwards.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from lastwrite.errors import CommitConflict, LogError
from lastwrite.storage.objects.address import is_address, store_at, used
from lastwrite.storage.objects.store import ObjectStore, Version

FOLDER = "_lastwrite/probe/"
_NOTE = "_lastwrite/promises-kept.json"
# The number of parallel writers, of attempts, and the content that they write. This size detects a
# broken store more often. On s3proxy 4.1.0 with a folder, two writers succeed in every second
# attempt, but with smaller objects only in every fourth.
_AT_ONCE, _TURNS, _PADDING = 8, 10, b" " * (64 << 10)
# largest clock difference at which old and new objects can still be distinguished
_CLOCK_MS = 60_000
_READ_ONLY = (
    "only read from this store, or write a cleaned copy elsewhere with --to: a round in place "
    "could lose data"
)

Clock = Callable[[], int]  # a function that returns the present time in milliseconds


class PromiseResult(NamedTuple):
    """The result of one test. If ``is_met`` is None, the result is for information only."""

    promise: str
    is_met: bool | None
    found: str
    remedy: str | None = None


_known: dict[tuple[str, str], tuple[PromiseResult, ...]] = {}


def probe_store(store: ObjectStore, prefix: str, clock: Clock) -> tuple[PromiseResult, ...]:
    """Test the guarantees of a store, with objects below ``prefix``.

    ``prefix`` is a key without a trailing ``/``, or empty. A process tests a store once. If the
    store rejects requests, the last result has the reason.
    """
    known = (store.address, prefix)
    if known not in _known:
        found = list(_Questions(store, prefix, clock).run())
        # not remembered: a store that did not respond is tested again later
        if found[-1].promise == "store":
            return tuple(found)
        _known[known] = tuple(found)
    return _known[known]


def are_kept(findings: tuple[PromiseResult, ...]) -> bool:
    """Whether the store has all guarantees that compaction in place requires."""
    return all(finding.is_met is not False for finding in findings)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def reject_if_broken(address: str, clock: Clock = _now_ms) -> None:
    """Check that the store has the guarantees that compaction in place and a fetch require.

    Folders and the stores of Amazon, Google and Azure are not tested. For other stores, a passed
    test is recorded in the bucket, below ``address``.

    Raises:
        LogError: a guarantee is broken. The message names it.
        RemoteFailed: the store does not respond.
    """
    if not is_address(address):
        return
    store, prefix = store_at(address)
    if store.is_providers:
        return
    note = f"{prefix}/{_NOTE}".lstrip("/")
    if store.get(note) is not None or used().is_dry:
        return
    findings = probe_store(store, prefix, clock)
    broken = next((each for each in findings if each.is_met is False), None)
    if broken is not None:
        raise LogError(
            f"the store breaks a guarantee that archives require ({broken.promise}): "
            f"{broken.found}",
            path=address,
            remedy=broken.remedy or _READ_ONLY,
        )
    store.create(note, b'{"asked_ms": %d}' % clock())


class _Questions:
    def __init__(self, store: ObjectStore, prefix: str, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._folder = f"{prefix}/{FOLDER}" if prefix else FOLDER
        token = os.urandom(6).hex()
        self._keys = [f"{self._folder}{token}-{number}" for number in range(3)]

    def run(self) -> Iterator[PromiseResult]:
        try:
            yield from self._test_objects()
        except LogError as error:
            yield PromiseResult("store", False, f"{error.path}: {error.problem}", error.remedy)
            self._remove()
            return
        problem = self._remove()
        left = sum(1 for found in self._store.list(self._folder) if found.key in self._keys)
        if problem is None and left:
            problem = f"{left} of {len(self._keys)} objects are still listed after their deletion"
        yield PromiseResult(
            "removal",
            problem is None,
            problem or "deleted objects are no longer listed",
            problem and f"delete the objects below {self._store.address}/{self._folder}",
        )
        if is_address(self._store.address):
            yield PromiseResult(
                "unfinished uploads",
                None,
                "Lastwrite cannot test whether the bucket aborts unfinished uploads",
                "give the bucket a rule that aborts them (AbortIncompleteMultipartUpload); "
                "Azure needs none",
            )

    def _test_objects(self) -> Iterator[PromiseResult]:
        made, finding = self._created(self._keys[0])
        yield finding
        if made is None:
            return
        yield self._listed()
        yield self._read_of(made)
        yield self._replaced(made)
        yield self._test_parallel_writes()
        yield self._clocks()

    def _created(self, key: str) -> tuple[Version | None, PromiseResult]:
        seen = self._put(key, b"first", None)
        if seen is None:
            return None, _broken("create", "a created object is missing")
        again = self._store.create(key, b"second")
        now = self._store.get(key)
        if again is not None or now is None or now[0] != b"first":
            return seen, _broken("create", "an existing object can be created again")
        return seen, PromiseResult("create", True, "an existing object is not created again")

    def _put(self, key: str, content: bytes, version: Version | None) -> Version | None:
        """Write an object, then read it even after a failed write.

        None if the object is missing.
        """
        for _ in range(3):
            if version is None:
                self._store.create(key, content)
            else:
                self._store.replace(key, content, version)
            now = self._store.get(key)
            if now is not None and now[0] == content:
                return now[1].version
        return None

    def _listed(self) -> PromiseResult:
        keys = [found.key for found in self._store.list(self._folder)]
        if self._keys[0] not in keys:
            return _broken("listing", "a created object is not listed")
        return PromiseResult("listing", True, "created objects are listed at once")

    def _read_of(self, version: Version) -> PromiseResult:
        part = np.zeros(3, dtype=np.uint8)
        self._store.read_into(self._keys[0], part, 1, version.etag)
        if part.tobytes() != b"irs":
            return _broken("ranges", "a range read returns other bytes than were written")
        try:
            self._store.read_into(self._keys[0], part, 1, '"none"')
        except CommitConflict:
            return PromiseResult(
                "ranges", True, "a range read fails if the object has another version"
            )
        return _broken("ranges", "a range read ignores the requested version (If-Match)")

    def _replaced(self, first: Version) -> PromiseResult:
        key = self._keys[0]
        second = self._put(key, b"replaced", first)
        if second is None:
            return _broken("replace", "a replaced object is missing")
        stale = self._store.replace(key, b"stale", first)
        now = self._store.get(key)
        if stale is not None or now is None or now[0] != b"replaced":
            return _broken("replace", "a writer with an older version can replace a newer object")
        return PromiseResult(
            "replace", True, "only a writer with the current version can replace an object"
        )

    def _test_parallel_writes(self) -> PromiseResult:
        key = self._keys[1]
        version = self._put(key, b"start", None)
        won = 0
        for turn in range(_TURNS):
            if version is None:
                break
            contents = [_PADDING + f"{turn} {number}".encode() for number in range(_AT_ONCE)]
            answers = _replace_concurrently(self._store, key, contents, version)
            winners = [
                content
                for content, answer in zip(contents, answers, strict=True)
                if answer is not None
            ]
            now = self._store.get(key)
            if len(winners) > 1:
                return _broken(
                    "at once",
                    f"{len(winners)} of {_AT_ONCE} concurrent writers to the same version succeed",
                )
            if now is None or (winners and now[0] != winners[0]):
                return _broken("at once", "the data of the successful writer is lost")
            won += now[0] in contents  # a writer may succeed although its response was lost
            version = now[1].version
        if not won:
            return _broken(
                "at once", f"none of {_AT_ONCE} concurrent writers to the same version succeeds"
            )
        return PromiseResult(
            "at once", True, f"one of {_AT_ONCE} concurrent writers to the same version succeeds"
        )

    def _clocks(self) -> PromiseResult:
        key = self._keys[2]
        before_ms = self._clock()
        self._put(key, b"clock", None)
        after_ms = self._clock()
        found = self._store.head(key)
        modified_ms = after_ms if found is None else found.modified_ms
        # stores report whole seconds, so up to a second is not a difference of the clocks
        apart_ms = max(0, before_ms - modified_ms - 1000, modified_ms - after_ms)
        if apart_ms <= _CLOCK_MS:
            return PromiseResult("clock", True, "the clocks of the store and of this machine agree")
        way = "ahead of" if modified_ms > after_ms else "behind"
        return PromiseResult(
            "clock",
            None,
            f"the store's clock is {apart_ms / 1000:.0f} s {way} this machine's clock",
            "set this machine's clock with NTP: the store's clock decides which objects are "
            "deleted",
        )

    def _remove(self) -> str | None:
        try:
            self._store.remove(self._keys)
        except LogError as error:
            return error.problem
        return None


def _broken(promise: str, found: str) -> PromiseResult:
    return PromiseResult(promise, False, found, _READ_ONLY)


def _replace_concurrently(
    store: ObjectStore, key: str, contents: list[bytes], version: Version
) -> list[Version | None]:
    """The store's responses to simultaneous requests that replace the same version of an object."""
    answers: list[Version | None] = [None] * len(contents)
    errors: list[LogError] = []
    barrier = threading.Barrier(len(contents))

    def replace(number: int) -> None:
        barrier.wait()
        try:
            answers[number] = store.replace(key, contents[number], version)
        except LogError as error:
            errors.append(error)

    threads = [threading.Thread(target=replace, args=(n,)) for n in range(len(contents))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return answers
