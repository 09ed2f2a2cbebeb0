"""A partition's place in an archive: its manifest, the journals of rounds, and what is waste.

    manifest.json               replaced by whoever has seen what it replaces
    data/<round>-<attempt>/…    written once, under names that nobody else draws
    rounds/<round>.json         the journal: there from before the first object until the commit

No lease and no lock: two rounds may run; one wins the manifest, the other's objects are waste that
its journal names. A round can only replace the very manifest that it read when it began; so what it
wrote can be named later only while that one counts, and a sweep sees to it that it does not before
it removes anything. Clocks, which are the store's, only decide how long others are spared.

Why so: docs/decisions/archives.md.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
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
from lastwrite.encoding.json_structs import decode_struct
from lastwrite.errors import (
    CommitConflict,
    CorruptLog,
    LogError,
    LogHeld,
    NotALog,
    RemoteFailed,
    UnsupportedFormat,
)
from lastwrite.model.attempts import Attempts
from lastwrite.model.stores import StoreSettings
from lastwrite.storage.objects.address import store_at, used
from lastwrite.storage.objects.store import ObjectInfo, ObjectStore, Version

MANIFEST = "manifest.json"
DATA, ROUNDS = "data/", "rounds/"
RENEW_MS = 600_000  # a journal that is younger is of a round that may still run
BUSY_MS = 2 * RENEW_MS  # younger still: who would begin another one waits
ABANDONED_MS = 86_400_000  # one that is older, of a round that does not
GRACE_MS = 3_600_000  # for which readers of a replaced manifest find its objects
PINNED_MS = 2 * GRACE_MS  # a pin that is older is of a reader that has died
_PIN, _CLOCK = "pin-", "clock-"
_JUST_S, _JUST_READ, _JUST_BYTES = 60.0, 4096, 16 << 10  # for so long, so many, each up to


class VersionedManifest(NamedTuple):
    """A manifest, and the object that it was read from. Of one that was just written nobody knows
    yet when, by the store's clock: ``modified_ms`` is 0.
    """

    manifest: Manifest
    found: ObjectInfo


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """What a round says before it writes."""

    round: str
    generation: int  # that it read
    seen: str = ""  # the version of that manifest, which alone it can replace
    writer: str
    written_ms: int


@dataclass(slots=True)
class WriteTransaction:
    """A round that was begun: all its objects' keys begin with ``data/<id>-``."""

    id: str
    seen: (
        VersionedManifest | None
    )  # what it replaces, and nothing else; None: there was no manifest
    version: Version | None = None  # of its journal
    renewed_s: float = 0.0
    cleared: frozenset[str] = frozenset()  # what was unused for long, and is gone now

    @property
    def generation(self) -> int:
        """That it read; 0: there was none."""
        return 0 if self.seen is None else self.seen.manifest.generation

    @property
    def prefix(self) -> str:
        """What the keys of its objects begin with, below the partition."""
        return f"{DATA}{self.id}-"


class SweepResult(msgspec.Struct, kw_only=True):
    """What was removed, or would be."""

    journals: int = 0
    objects: int = 0
    bytes: int = 0
    is_waiting: bool = False  # for a round that runs: something as old was left
    attempts: int = 1  # more than one where another writer committed first


class PartitionStore:
    """One partition in one store. ``prefix``: what its keys begin with, without a ``/`` behind."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self.store = store
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""

    @property
    def address(self) -> str:
        """Of the manifest, for errors."""
        return f"{self.store.address}/{self._prefix}{MANIFEST}"

    def key(self, name: str) -> str:
        """The store's key of what the partition calls so."""
        return self._prefix + name

    def read(self) -> VersionedManifest | None:
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
        return VersionedManifest(decode(bytes(content), self.address), place)

    def put(self, name: str, content: bytes) -> ObjectInfo:
        """Write a small object under a name that nobody else draws."""
        writer = self.store.writer(self.key(name))
        writer.write(content)
        return writer.close()

    # ------------------------------------------------------------------ a round

    def begin(
        self, seen: VersionedManifest | None, grace_ms: int | None = None
    ) -> WriteTransaction:
        """Draw a round's id and write its journal, before any object of it is there; remove what
        was replaced longer ago than ``grace_ms`` (None: than ``storage.keepReplacedMs`` says), for
        which readers of old manifests need it.
        """
        begun = WriteTransaction(uuid.uuid4().hex, seen)
        _running.add(begun.id)
        key = self.journal(begun.id)
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
            begun.cleared = self._clear(seen, key, _grace_ms(grace_ms))
        return begun

    def note_round(self, id: str) -> None:
        """Write the journal of a round that several processes write objects for, and that never
        commits here itself; it may be there.
        """
        self.store.create(self.journal(id), _journal_of(WriteTransaction(id, None)))

    def renew(self, begun: WriteTransaction) -> None:
        """Say that the round still runs, where it has not said so for a while.

        Raises:
            CommitConflict: a sweep took it for one that had died, and it can no longer win.
        """
        if begun.version is None or time.monotonic() - begun.renewed_s < RENEW_MS / 1000:
            return
        key = self.journal(begun.id)
        with contextlib.suppress(RemoteFailed):  # there is a day for it
            version = self.store.replace(key, _journal_of(begun), begun.version)
            found = None if version else self.store.head(key)
            if version is None and found is None:
                raise CommitConflict(
                    "a sweep took the round for one that had died",
                    path=self.address,
                    remedy="run again: it begins with what counts; nothing is lost",
                )
            begun.version = version or (found and found.version)
            begun.renewed_s = time.monotonic()

    def newer_writer(self, begun: WriteTransaction) -> str | None:
        """Who had begun a round before this one, and has not been silent for ``BUSY_MS``; None:
        nobody. It spares work that would be lost, and is no lock.
        """
        notes = {each.key: each for each in self.store.list(self.key(ROUNDS)) if _round_of(each)}
        own = notes.pop(self.journal(begun.id), None)
        if own is None:
            return None  # the commit will say so
        since_ms = own.modified_ms - BUSY_MS
        for each in notes.values():
            if since_ms < each.modified_ms and _order(each) < _order(own):
                journal = self._read_journal(each.key)
                if journal is not None and not _has_died(journal):
                    return journal.writer
        return None

    def yield_to_other(self, begun: WriteTransaction) -> None:
        """Remove the journal of a round that has written nothing else."""
        _running.discard(begun.id)
        self.store.remove([self.journal(begun.id)])

    def begin_after_others(self, seen: VersionedManifest) -> WriteTransaction:
        """``begin``, where nobody else has a round under way.

        Raises:
            LogHeld: somebody has.
        """
        begun = self.begin(seen)
        rival = self.newer_writer(begun)
        if rival is None:
            return begun
        self.yield_to_other(begun)
        raise LogHeld(
            f"{rival} has begun a round there",
            path=self.address.removesuffix(f"/{MANIFEST}"),
            remedy="it is waited for: the next turn brings what is new",
        )

    def journal(self, id: str) -> str:
        """The store's key of a round's journal."""
        return self.key(f"{ROUNDS}{id}.json")

    def _clear(self, seen: VersionedManifest, just_written: str, grace_ms: int) -> frozenset[str]:
        """Remove what no reader of an old manifest needs any more; which objects that were.

        The store's clock, as it dates ``just_written``, is asked, and not ours.
        """
        found = self.store.head(just_written)
        if found is None:
            return frozenset()
        old = self._needless(seen, found.modified_ms, grace_ms)
        self.store.remove([self.key(each.key) for each in old])
        return frozenset(each.key for each in old)

    def _needless(self, seen: VersionedManifest, now_ms: int, grace_ms: int) -> list[Unused]:
        """The unused objects that no reader needs."""
        old = [
            each
            for each in seen.manifest.unused
            if (_since_ms(each, seen) or now_ms) <= now_ms - grace_ms
        ]
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
    def pin(self, seen: VersionedManifest) -> Iterator[Callable[[], None]]:
        """Keep every object of what was seen as long as the context lasts; it gives what is to be
        called at least once in a ``RENEW_MS``.
        """
        key = self.key(f"{ROUNDS}{_PIN}{seen.manifest.generation}-{uuid.uuid4().hex}.json")
        self.store.create(key, b"{}")

        def renew() -> None:
            found = self.store.head(key)
            if found is None:
                self.store.create(key, b"{}")
            else:
                self.store.replace(key, b"{}", found.version)

        try:
            yield renew
        finally:
            self.store.remove([key])

    def commit(
        self, begun: WriteTransaction, made: Manifest, *, keeps_journal: bool = False
    ) -> VersionedManifest:
        """Let ``made`` count in the place of what the round has seen; generation, nonces and what
        is unused are set here. ``keeps_journal``: the caller removes it, with those of others.

        Any error but ``CommitConflict`` leaves open whether ``made`` counts: then nothing may be
        removed, neither old objects nor new ones. A sweep finds out.

        Returns:
            What counts now: ``made``, or what others have built on it since.

        Raises:
            CommitConflict: another round has committed since; what this one wrote is removed.
            RemoteFailed: the store does not say whether it was written, or refuses.
        """
        try:
            return self._commit(begun, made, keeps_journal)
        finally:
            _running.discard(begun.id)

    def _commit(
        self, begun: WriteTransaction, made: Manifest, keeps_journal: bool
    ) -> VersionedManifest:
        made = self._successor(begun, made)
        content, key = encode(made), self.key(MANIFEST)
        last = None if begun.seen is None else begun.seen.found.version
        for wait in _waits():
            refused, now = None, None
            try:
                if last is None:
                    won = self.store.create(key, content)
                else:
                    won = self.store.replace(key, content, last)
            except RemoteFailed as error:
                won, refused = None, error
            if won is not None:
                now = VersionedManifest(made, ObjectInfo(key, len(content), won, 0))
                break
            # Perhaps it was written, and the answer was lost.
            with contextlib.suppress(RemoteFailed):
                now = self.read()
                if now is not None and now.manifest.has_made(made.nonce):
                    break
                if (None if now is None else now.found.version) != last:
                    self.abandon(begun)
                    raise CommitConflict(
                        f"another round has committed since generation {begun.generation} was read",
                        path=self.address,
                        remedy="run again: it begins with what that round left; nothing is lost",
                    )
            if refused is not None:
                raise refused
            time.sleep(wait)
        else:
            raise RemoteFailed(
                "nobody can say whether the new manifest was written",
                path=self.address,
                remedy="look again when the store answers (lastwrite inspect); nothing was removed",
            )
        if not keeps_journal:
            with contextlib.suppress(LogError):  # the next sweep finds it
                self.store.remove([self.journal(begun.id)])
        assert now is not None
        return now

    def abandon(self, begun: WriteTransaction) -> None:
        """Remove what a round has written that has lost, or that nobody will commit; what cannot
        be removed, a sweep will. Never after a commit whose end is unknown.
        """
        _running.discard(begun.id)
        with contextlib.suppress(LogError):
            self.store.remove(each.key for each in self.store.list(self.key(begun.prefix)))
            self.store.remove([self.journal(begun.id)])

    @contextlib.contextmanager
    def abort_on_error(self, begun: WriteTransaction) -> Iterator[None]:
        """Before a commit was tried: let nothing stay of what an error, or Ctrl-C, breaks off."""
        try:
            yield
        except BaseException:
            self.abandon(begun)
            raise

    def _successor(self, begun: WriteTransaction, made: Manifest) -> Manifest:
        unused: tuple[Unused, ...] = ()
        former: tuple[str, ...] = ()
        seen = begun.seen
        known = frozenset[str]() if seen is None else seen.manifest.own_keys
        for key in sorted(made.own_keys - known):
            if not key.startswith(begun.prefix):  # it may be removed at any time
                raise LogError(f"{key} is no object of this round", path=self.address)
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
        grace_ms: int | None = None,
        everything: bool = False,
        dry_run: bool = False,
    ) -> SweepResult:
        """Remove what rounds left that have not won, and what was replaced longer ago than
        ``grace_ms``.

        A round that read another manifest than the last cannot win any more. One that read the last
        may still run: where its journal is older than ``older_than_ms``, a new generation with the
        same log is committed first, and whoever wakes then has lost; but not while a round with a
        younger journal runs, which would lose as well. ``everything`` goes through all objects,
        also those of which no journal is left. Where another writer commits before that
        generation, the sweep is repeated: see ``Attempts``.

        Raises:
            NotALog: there is no manifest, so nobody knows what is waste.
            CommitConflict: other writers committed first, in each attempt.
            CorruptLog, RemoteFailed: nothing that a manifest names was removed.
        """
        attempts, cleared = Attempts(), dict[str, Unused]()
        swept = attempts.run(
            lambda: self._sweep(older_than_ms, _grace_ms(grace_ms), everything, dry_run, cleared)
        )
        swept.objects += len(cleared)
        swept.bytes += sum(each.bytes for each in cleared.values())
        swept.attempts = attempts.count
        return swept

    def _sweep(
        self,
        older_than_ms: int,
        grace_ms: int,
        everything: bool,
        dry_run: bool,
        cleared: dict[str, Unused],
    ) -> SweepResult:
        """One attempt. ``cleared``: the unused objects that are removed so far, by key."""
        # In this order: an object that is seen has a journal that is seen, unless its round has
        # ended; then the manifest tells.
        data = list(self.store.list(self.key(DATA))) if everything else []
        notes = list(self.store.list(self.key(ROUNDS)))
        seen = self.read()
        if seen is None:
            raise NotALog("there is no manifest, so nobody knows what is waste", path=self.address)
        if not dry_run:
            self.store.remove_unfinished(self._prefix, older_than_ms)
        swept = SweepResult()
        if not (notes or seen.manifest.unused or data):
            return swept
        now_ms = _now_ms() if dry_run else self._store_ms()
        old = [each for each in notes if _is_old(each, now_ms, older_than_ms)]
        ended = {id: each for each in old if (id := _round_of(each))}
        running = {_round_of(each) for each in notes} - {"", *ended}
        loose = [
            each
            for each in self._unnamed(data, seen)
            if _is_old(each, now_ms, older_than_ms) and self._writer_of(each) not in running
        ]
        cleared.update((each.key, each) for each in self._needless(seen, now_ms, grace_ms))
        if not dry_run:
            self.store.remove([self.key(key) for key in sorted(cleared)])
        awake = {id for id, each in ended.items() if self._may_win(each.key, seen)}
        awake |= {self._writer_of(each) for each in loose} - {*ended}
        if running:
            swept.is_waiting = bool(awake)
        elif (awake or cleared) and not dry_run:
            fence = WriteTransaction(uuid.uuid4().hex, seen, cleared=frozenset(cleared))
            seen = self.commit(fence, seen.manifest)
            awake = set()
        elif dry_run:
            awake = set()
        waste = {each.key: each for each in loose if self._writer_of(each) not in awake}
        for id in sorted({*ended} - awake):
            found = self._unnamed(self.store.list(self.key(f"{DATA}{id}-")), seen)
            waste.update((each.key, each) for each in found)
        waste = {each.key: each for each in self._unnamed(waste.values(), seen)}
        gone = [
            each.key
            for each in old
            if _round_of(each) not in awake
            and (_round_of(each) or _is_old(each, now_ms, PINNED_MS))
        ]
        swept.journals = len(ended.keys() - awake)
        swept.objects = len(waste)
        swept.bytes = sum(each.size_bytes for each in waste.values())
        if not dry_run:
            self.store.remove(waste)
            self.store.remove(gone)
        return swept

    def _store_ms(self) -> int:
        """What time it is by the store's clock, which dates what is written now."""
        key = self.key(f"{ROUNDS}{_CLOCK}{uuid.uuid4().hex}.json")
        self.store.create(key, b"{}")
        found = self.store.head(key)
        self.store.remove([key])
        if found is None:
            raise RemoteFailed(
                "an object that was just written is not there",
                path=f"{self.store.address}/{key}",
                remedy="let nothing else remove objects there, and run again",
            )
        return found.modified_ms

    def _may_win(self, key: str, seen: VersionedManifest) -> bool:
        """Whether the journal is of a round that read this very manifest, or of one unknown."""
        journal = self._read_journal(key)
        return journal is None or journal.seen in ("", _token(seen))

    def _unnamed(
        self, found: Iterable[ObjectInfo], seen: VersionedManifest
    ) -> Iterator[ObjectInfo]:
        """What the manifest neither names nor lists as unused."""
        kept = seen.manifest.own_keys | {each.key for each in seen.manifest.unused}
        return (each for each in found if each.key.removeprefix(self._prefix) not in kept)

    def _writer_of(self, found: ObjectInfo) -> str:
        """The round that wrote an object."""
        return found.key.removeprefix(self._prefix + DATA).partition("/")[0].partition("-")[0]

    def _read_journal(self, key: str) -> Journal | None:
        found = self.store.get(key)
        try:
            return None if found is None else decode_struct(found[0], Journal)
        except msgspec.MsgspecError:
            return None


def place_at(folder: str, stores: StoreSettings | None = None) -> PartitionStore:
    """The place of the partition at that address; ``stores``: as ``store_at``."""
    return PartitionStore(*store_at(folder, stores))


_just_read: dict[str, tuple[float, VersionedManifest]] = {}
_running: set[str] = set()  # rounds of this process that may still commit


def is_partition(folder: str) -> bool:
    """Whether a partition lies at that address. What is read to find out is kept for a moment for
    ``read_versioned_manifest``: whoever looks for partitions reads them next, and each is one request then.

    Raises:
        RemoteFailed: the store does not answer.
    """
    _just_read.pop(folder, None)
    try:
        seen = place_at(folder).read()
    except (CorruptLog, UnsupportedFormat):  # whoever reads it learns why
        return True
    now_s = time.monotonic()
    if len(_just_read) >= _JUST_READ and now_s - next(iter(_just_read.values()))[0] > _JUST_S:
        _just_read.clear()
    if seen and seen.found.size_bytes <= _JUST_BYTES and len(_just_read) < _JUST_READ:
        _just_read[folder] = now_s, seen
    return seen is not None


def read_versioned_manifest(folder: str) -> VersionedManifest:
    """The manifest of the partition at that address, and the version by which it can be replaced;
    as it was a moment ago, where it was searched for then.

    Raises:
        NotALog: there is none.
        CorruptLog, UnsupportedFormat, RemoteFailed: it cannot be read.
    """
    since_s, seen = _just_read.pop(folder, (0.0, None))
    if seen is None or time.monotonic() - since_s > _JUST_S:
        seen = place_at(folder).read()
    if seen is None:
        raise NotALog("no manifest of an archive", path=folder, remedy="check the address")
    return seen


def _grace_ms(given: int | None) -> int:
    return used().keep_replaced_ms if given is None else given


def _is_old(found: ObjectInfo, now_ms: int, older_than_ms: int) -> bool:
    return now_ms - found.modified_ms >= older_than_ms


def _round_of(note: ObjectInfo) -> str:
    """Whose journal it is; empty: a pin, or what the time was asked by."""
    name = note.key.rpartition("/")[2].removesuffix(".json")
    return "" if name.startswith((_PIN, _CLOCK)) else name


def _order(note: ObjectInfo) -> tuple[int, str]:
    return note.modified_ms, note.key


def _has_died(journal: Journal) -> bool:
    """Whether a round was of a process of this machine that is there no more, or of this one, and
    has ended, though its journal could not be removed.
    """
    if journal.writer == _writer():
        return journal.round not in _running
    host, _, pid = journal.writer.rpartition(" ")[2].rpartition(":")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:  # it is another user's
        return False
    return False


def _token(seen: VersionedManifest) -> str:
    version = seen.found.version
    return f"{version.etag} {version.generation or ''}"


def _since_ms(unused: Unused, seen: VersionedManifest) -> int:
    """Since when an object is unused, by the store's clock: of the newest ones since the manifest
    was written that says so. 0: the store was not asked.
    """
    return unused.since_ms or seen.found.modified_ms


def _journal_of(begun: WriteTransaction) -> bytes:
    journal = Journal(
        round=begun.id,
        generation=begun.generation,
        seen="none" if begun.seen is None else _token(begun.seen),
        writer=_writer(),
        written_ms=_now_ms(),
    )
    return msgspec.json.encode(journal)


def _writer() -> str:
    from importlib.metadata import version  # 13 ms that who only looks never needs

    return f"lastwrite {version('lastwrite')} {socket.gethostname()}:{os.getpid()}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _waits() -> Iterator[float]:
    """How long to wait before each next try: two minutes in all at most, never in step."""
    for wait in (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, *[5.0] * 23):
        yield wait * random.uniform(0.5, 1.0)
