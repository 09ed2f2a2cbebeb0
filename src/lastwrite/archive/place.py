"""A partition's place in an archive: its manifest, the journals of rounds, and what is waste.

    manifest.json               replaced by whoever has seen what it replaces
    data/<round>-<attempt>/…    written once, under names that nobody else draws
    rounds/<round>.json         the journal: there from before the first object until the commit

No lease and no lock: two rounds may run; one wins the manifest, the other's objects are waste that
its journal names. Waste goes by name and by age, and age is by the store's clock: what a journal
names, once it is old and its round has not won; what a manifest lists as unused, once no reader can
need it.

Why so: docs/decisions/archives.md.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import NamedTuple

import msgspec
from msgspec import structs

from lastwrite.archive.manifest import (
    FORMER,
    LIMIT_BYTES,
    Manifest,
    Unused,
    decode,
    encode,
)
from lastwrite.errors import CommitConflict, CorruptLog, NotALog, RemoteFailed
from lastwrite.storage.objects.store import Found, Store, Version

MANIFEST = "manifest.json"
DATA, ROUNDS = "data/", "rounds/"
RENEW_MS = 600_000  # a journal that is younger is of a round that may still run
ABANDONED_MS = 86_400_000  # one that is older, of a round that does not
GRACE_MS = 3_600_000  # for which readers of a replaced manifest find its objects
PINNED_MS = 2 * GRACE_MS  # a pin that is older is of a reader that has died
_PIN = "pin-"


class Seen(NamedTuple):
    """A manifest, and the object that it was read from."""

    manifest: Manifest
    found: Found


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """What a round says before it writes."""

    round: str
    generation: int  # that it read
    writer: str
    written_ms: int


@dataclass(slots=True)
class Round:
    """A round that was begun: all its objects' keys begin with ``data/<id>-``."""

    id: str
    generation: int  # that it read; 0: there was none
    version: Version | None = None  # of its journal
    renewed_s: float = 0.0
    cleared: frozenset[str] = frozenset()  # what was unused for long, and is gone now


class Swept(msgspec.Struct, kw_only=True):
    """What was removed, or would be."""

    journals: int = 0
    objects: int = 0
    bytes: int = 0


class Place:
    """One partition in one store. ``prefix``: what its keys begin with, without a ``/`` behind."""

    def __init__(self, store: Store, prefix: str) -> None:
        self.store = store
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""

    @property
    def address(self) -> str:
        """Of the manifest, for errors."""
        return f"{self.store.address}/{self._prefix}{MANIFEST}"

    def key(self, name: str) -> str:
        """The store's key of what the partition calls so."""
        return self._prefix + name

    def read(self) -> Seen | None:
        """The manifest; None: there is none.

        Raises:
            CorruptLog, UnsupportedFormat: it cannot be understood.
            RemoteFailed: the store does not answer.
        """
        found = self.store.get(self.key(MANIFEST))
        if found is None:
            return None
        content, place = found
        if len(content) > LIMIT_BYTES:
            raise CorruptLog(f"a manifest of {len(content)} bytes", LIMIT_BYTES, self.address)
        return Seen(decode(bytes(content), self.address), place)

    def put(self, name: str, content: bytes) -> Found:
        """Write a small object under a name that nobody else draws."""
        writer = self.store.writer(self.key(name))
        writer.write(content)
        return writer.close()

    # ------------------------------------------------------------------ a round

    def begin(self, seen: Seen | None, grace_ms: int = GRACE_MS) -> Round:
        """Draw a round's id and write its journal, before any object of it is there; remove what
        was replaced longer ago than ``grace_ms``, for which readers of old manifests need it.
        """
        begun = Round(uuid.uuid4().hex, 0 if seen is None else seen.manifest.generation)
        key = self._journal(begun.id)
        for wait in _waits():
            begun.version = self.store.create(key, _journal_of(begun))
            found = None if begun.version else self.store.head(key)
            if found is not None:  # nobody else draws this name: what is there is ours
                begun.version = found.version
            if begun.version is not None:
                break
            time.sleep(wait)
        else:
            raise RemoteFailed(
                "the journal of a round could not be written",
                path=f"{self.store.address}/{key}",
                remedy="run again when the store answers; nothing was changed",
            )
        begun.renewed_s = time.monotonic()
        if seen is not None and seen.manifest.unused:
            begun.cleared = self._clear(seen, key, grace_ms)
        return begun

    def renew(self, begun: Round) -> None:
        """Say that the round still runs, where it has not said so for a while."""
        if begun.version is None or time.monotonic() - begun.renewed_s < RENEW_MS / 1000:
            return
        key = self._journal(begun.id)
        begun.version = self.store.replace(key, _journal_of(begun), begun.version)
        found = None if begun.version else self.store.head(key)
        begun.version = begun.version or (found.version if found else None)
        begun.renewed_s = time.monotonic()

    def _journal(self, id: str) -> str:
        return self.key(f"{ROUNDS}{id}.json")

    def _clear(self, seen: Seen, just_written: str, grace_ms: int) -> frozenset[str]:
        """Remove what no reader of an old manifest needs any more; which objects that were.

        The store's clock, as it dates ``just_written``, is asked, and not ours.
        """
        found = self.store.head(just_written)
        if found is None:
            return frozenset()
        old = self._needless(seen, found.modified_ms, grace_ms)
        self.store.remove([self.key(each.key) for each in old])
        return frozenset(each.key for each in old)

    def _needless(self, seen: Seen, now_ms: int, grace_ms: int) -> list[Unused]:
        """The unused objects that no reader needs."""
        old = [each for each in seen.manifest.unused if _since_ms(each, seen) <= now_ms - grace_ms]
        pinned = self._pinned(now_ms) if old else None
        return [each for each in old if pinned is None or each.generation <= pinned]

    def _pinned(self, now_ms: int) -> int | None:
        """The oldest generation that a reader has asked to keep; None: no reader has."""
        pins = [
            int(each.key.rpartition("/")[2].split("-")[1])
            for each in self.store.list(self.key(f"{ROUNDS}{_PIN}"))
            if now_ms - each.modified_ms < PINNED_MS
        ]
        return min(pins, default=None)

    @contextlib.contextmanager
    def pin(self, seen: Seen) -> Iterator[Callable[[], None]]:
        """Keep every object of what was seen as long as the context lasts; it gives what is to be
        called at least once in a ``RENEW_MS``.
        """
        key = self.key(f"{ROUNDS}{_PIN}{seen.manifest.generation}-{uuid.uuid4().hex}.json")
        version = self.store.create(key, b"{}")

        def renew() -> None:
            nonlocal version
            if version is not None:
                version = self.store.replace(key, b"{}", version)

        try:
            yield renew
        finally:
            self.store.remove([key])

    def commit(self, begun: Round, seen: Seen | None, made: Manifest) -> Seen:
        """Let ``made`` count in the place of what was seen; generation, nonces and what is unused
        are set here. Returns it as it counts.

        Raises:
            CommitConflict: another round has committed since; this one's objects are waste.
            RemoteFailed: nobody knows: nothing may be removed, neither old objects nor new ones.
        """
        made = self._successor(begun, seen, made)
        content, key = encode(made), self.key(MANIFEST)
        last = None if seen is None else seen.found.version
        for wait in _waits():
            won: Version | None = None
            with contextlib.suppress(RemoteFailed):
                if last is None:
                    won = self.store.create(key, content)
                else:
                    won = self.store.replace(key, content, last)
            if won is None:
                # Perhaps it was written, and the answer was lost.
                now = self._asked()
                if now is not None and now.manifest.has_made(made.nonce):
                    won = now.found.version
                elif now is not None and now.found.version != last:
                    self._give_up(begun)
                    raise CommitConflict(
                        f"another round has committed since generation {begun.generation} was read",
                        path=self.address,
                        remedy="run again: it begins with what that round left; nothing is lost",
                    )
            if won is not None:
                break
            time.sleep(wait)
        else:
            raise RemoteFailed(
                "nobody can say whether the new manifest was written",
                path=self.address,
                remedy="look again when the store answers (lastwrite inspect); nothing was removed",
            )
        with contextlib.suppress(RemoteFailed):  # the next sweep finds it
            self.store.remove([self._journal(begun.id)])
        return Seen(made, Found(key, len(content), won, 0))

    def _asked(self) -> Seen | None:
        """The manifest as it is now; None: there is none, or nobody says."""
        with contextlib.suppress(RemoteFailed):
            return self.read()
        return None

    def _give_up(self, begun: Round) -> None:
        """Remove what a round has written that has lost; what cannot be removed, a sweep will."""
        with contextlib.suppress(RemoteFailed):
            self._remove(self.store.list(self.key(f"{DATA}{begun.id}-")), (), Swept())
            self.store.remove([self._journal(begun.id)])

    def _successor(self, begun: Round, seen: Seen | None, made: Manifest) -> Manifest:
        unused: tuple[Unused, ...] = ()
        former: tuple[str, ...] = ()
        if seen is not None:
            last, named = seen.manifest, made.own_keys
            former = (last.nonce, *last.former)[:FORMER]
            stay = (
                structs.replace(each, since_ms=_since_ms(each, seen))
                for each in last.unused
                if each.key not in begun.cleared
            )
            gone = sorted(last.own_keys - named)
            sizes = {each.key: each.bytes for each in last.objects}
            new = (
                Unused(key=key, bytes=sizes[key], since_ms=0, generation=last.generation + 1)
                for key in gone
            )
            unused = (*stay, *new)
        return structs.replace(
            made,
            generation=begun.generation + 1,
            nonce=uuid.uuid4().hex,
            former=former,
            round=begun.id,
            written_ms=_now_ms(),
            writer=_writer(),
            unused=unused,
        )

    # ------------------------------------------------------------------ waste

    def sweep(
        self,
        older_than_ms: int = ABANDONED_MS,
        *,
        grace_ms: int = GRACE_MS,
        everything: bool = False,
        dry_run: bool = False,
    ) -> Swept:
        """Remove what rounds left that have not won, and what was replaced longer ago than
        ``grace_ms``.

        A round that read an older generation than the last cannot win any more: what it wrote is
        waste at once. One that read the last may still run. Where its journal is older than
        ``older_than_ms``, a new generation with the same log is committed first: whoever wakes then
        has lost. ``everything`` goes through all objects, also those of which no journal is left.

        Raises:
            NotALog: there is no manifest, so nobody knows what is waste.
            CorruptLog, CommitConflict, RemoteFailed: nothing that a manifest names was removed.
        """
        # In this order: an object that is seen has a journal that is seen, unless its round has
        # ended; then the manifest tells.
        data = list(self.store.list(self.key(DATA))) if everything else []
        journals = [
            each for each in self.store.list(self.key(ROUNDS)) if f"/{_PIN}" not in each.key
        ]
        seen = self.read()
        if seen is None:
            raise NotALog("there is no manifest, so nobody knows what is waste", path=self.address)
        swept = Swept()
        if not (journals or seen.manifest.unused or data):
            return swept
        begun = None if dry_run else self.begin(seen, grace_ms)
        mine = None if begun is None else self.store.head(self._journal(begun.id))
        now_ms = _now_ms() if mine is None else mine.modified_ms
        needless = self._needless(seen, now_ms, grace_ms)
        swept.objects += len(needless)
        swept.bytes += sum(each.bytes for each in needless)
        seen = self._fence(
            begun, seen, [each for each in journals if _is_old(each, now_ms, older_than_ms)]
        )
        kept = seen.manifest.own_keys | {each.key for each in seen.manifest.unused}
        live: list[str] = []
        for each in journals:
            id = _round_of(each)
            is_old = _is_old(each, now_ms, older_than_ms)
            if is_old or self._has_lost(each.key, seen):
                below = self.store.list(self.key(f"{DATA}{id}-"))
                self._remove(below, kept, swept, dry_run)
            else:
                live.append(f"{DATA}{id}-")
            if is_old:
                swept.journals += 1
                if not dry_run:
                    self.store.remove([each.key])
        loose = (
            each
            for each in data
            if _is_old(each, now_ms, older_than_ms)
            and not each.key.removeprefix(self._prefix).startswith(tuple(live))
        )
        self._remove(loose, kept, swept, dry_run)
        if begun is not None:
            self.store.remove([self._journal(begun.id)])
        return swept

    def _fence(self, begun: Round | None, seen: Seen, old: Sequence[Found]) -> Seen:
        """Let the rounds of these journals lose, should they wake: by a new generation with the
        same log, where one of them could still win.
        """
        if begun is None or all(self._has_lost(each.key, seen) for each in old):
            return seen
        return self.commit(begun, seen, seen.manifest)

    def _has_lost(self, key: str, seen: Seen) -> bool:
        """Whether the journal is of a round that cannot win any more, or has won before ``seen``.
        Of one that is gone nobody knows: its round may have won since.
        """
        journal = self._read_journal(key)
        return journal is not None and journal.generation < seen.manifest.generation

    def _read_journal(self, key: str) -> Journal | None:
        found = self.store.get(key)
        try:
            return None if found is None else msgspec.json.decode(found[0], type=Journal)
        except msgspec.MsgspecError:
            return None

    def _remove(
        self, found: Iterable[Found], kept: Collection[str], swept: Swept, dry_run: bool = False
    ) -> None:
        """Remove what was found, but for what is ``kept``."""
        waste = [each for each in found if each.key.removeprefix(self._prefix) not in kept]
        swept.objects += len(waste)
        swept.bytes += sum(each.size_bytes for each in waste)
        if not dry_run:
            self.store.remove([each.key for each in waste])


def _is_old(found: Found, now_ms: int, older_than_ms: int) -> bool:
    return now_ms - found.modified_ms >= older_than_ms


def _round_of(journal: Found) -> str:
    return journal.key.rpartition("/")[2].removesuffix(".json")


def _since_ms(unused: Unused, seen: Seen) -> int:
    """Since when an object is unused, by the store's clock: of the newest ones since the manifest
    was written that says so.
    """
    return unused.since_ms or seen.found.modified_ms


def _journal_of(begun: Round) -> bytes:
    journal = Journal(
        round=begun.id, generation=begun.generation, writer=_writer(), written_ms=_now_ms()
    )
    return msgspec.json.encode(journal)


def _writer() -> str:
    return f"lastwrite {version('lastwrite')} {socket.gethostname()}:{os.getpid()}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _waits() -> Iterator[float]:
    """How long to wait before each next try: two minutes in all at most, never in step."""
    for wait in (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, *[5.0] * 23):
        yield wait * random.uniform(0.5, 1.0)
