"""A partition of an archive: its manifest, its write transactions, and sweeps.

    manifest.json               replaced only by a writer that has read the current one
    data/<round>-<attempt>/…    written once, under unique names
    rounds/<round>.json         a journal, which exists from before the first object to the commit

There is no lease and no lock. A write transaction is called a *round*. If two rounds run, one
commits its manifest. The objects of the other are waste, and its journal shows them. A round can
replace only the manifest that it read at its start, so its objects can become referenced only while
that manifest is current. Before a sweep deletes objects of a round, it ensures that the manifest is
no longer current. Times are from the store's clock. They only decide how long the objects of other
rounds are kept.

Reasons: docs/decisions/archives.md.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
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
from lastwrite.storage.objects.bucket import AT_ONCE
from lastwrite.storage.objects.store import ObjectInfo, ObjectStore, Version

MANIFEST = "manifest.json"
DATA, ROUNDS = "data/", "rounds/"
RENEW_MS = 600_000  # ms between renewals of a journal
BUSY_MS = 2 * RENEW_MS  # ms; no round starts while another round has a journal younger than this
ABANDONED_MS = 86_400_000  # ms; a round counts as dead if its journal is older than this
GRACE_MS = 3_600_000  # ms for which the objects of a replaced manifest are kept for readers
PINNED_MS = 2 * GRACE_MS  # ms; a reader counts as dead if its pin is older than this
_PIN, _CLOCK = "pin-", "clock-"
# limits of the cache of manifests: age in seconds, number of manifests, bytes of a manifest
_JUST_S, _JUST_READ, _JUST_BYTES = 60.0, 4096, 16 << 10


class VersionedManifest(NamedTuple):
    """A manifest, and the version of the object that it was read from.

    ``modified_ms`` is 0 right after a write, because the store's time is not known.
    """

    manifest: Manifest
    found: ObjectInfo


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """The journal of a round, written before the round's first object."""

    round: str
    generation: int  # generation of the manifest that the round read
    seen: str = ""  # version of that manifest, the only one that the round can replace
    writer: str
    written_ms: int


@dataclass(slots=True)
class WriteTransaction:
    """A round: a write transaction in progress. Its objects' keys begin with ``data/<id>-``."""

    id: str
    replaced: VersionedManifest | None  # the manifest to replace; None for a new partition
    version: Version | None = None  # version of the journal
    renewed_s: float = 0.0
    cleared: frozenset[str] = frozenset()  # keys of unused objects that were deleted

    @property
    def generation(self) -> int:
        """The number of the manifest that the round has read. 0 for a new partition."""
        return 0 if self.replaced is None else self.replaced.manifest.generation

    @property
    def prefix(self) -> str:
        """The prefix of the objects' keys, relative to the partition."""
        return f"{DATA}{self.id}-"


class SweepResult(msgspec.Struct, kw_only=True):
    """The number of journals, objects and bytes that a sweep deleted, or would delete."""

    journals: int = 0
    objects: int = 0
    bytes: int = 0
    is_waiting: bool = False  # whether waste was kept because a round may still run
    attempts: int = 1  # number of attempts, more than 1 if another writer committed first


class PartitionStore:
    """One partition in an object store.

    Its keys begin with ``prefix``, which has no trailing ``/``.
    """

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self.store = store
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""

    @property
    def address(self) -> str:
        """The address of the manifest, for error messages."""
        return f"{self.store.address}/{self._prefix}{MANIFEST}"

    def key(self, name: str) -> str:
        """The store's key of the partition's object ``name``."""
        return self._prefix + name

    def read(self) -> VersionedManifest | None:
        """Read the current manifest. None if there is none.

        Raises:
            CorruptLog, UnsupportedFormat: the manifest cannot be decoded.
            RemoteFailed: the store does not respond.
        """
        found = self.store.get(self.key(MANIFEST))
        if found is None:
            return None
        content, place = found
        if len(content) > LIMIT_BYTES:
            raise CorruptLog(
                f"the manifest has {len(content)} bytes, more than a manifest can have",
                LIMIT_BYTES,
                self.address,
            )
        return VersionedManifest(decode(bytes(content), self.address), place)

    def put(self, name: str, content: bytes) -> ObjectInfo:
        """Write a small object under a unique name."""
        writer = self.store.writer(self.key(name))
        writer.write(content)
        return writer.close()

    # ------------------------------------------------------------------ a round

    def begin(
        self, current: VersionedManifest | None, grace_ms: int | None = None, *, clears: bool = True
    ) -> WriteTransaction:
        """Start a round: choose its id and write its journal, before any of its objects exists.

        Also deletes objects that were replaced more than ``grace_ms`` ago, unless a reader has
        pinned them. None means ``storage.keepReplacedMs``. Without ``clears``, the caller calls
        ``clear_unused`` for several rounds together.
        """
        transaction = WriteTransaction(uuid.uuid4().hex, current)
        _running.add(transaction.id)
        key = self.journal(transaction.id)
        for wait in _waits():
            transaction.version = self.store.create(key, _journal_of(transaction))
            found = None if transaction.version else self.store.head(key)
            if found is not None:  # the name is unique, so an existing object is this journal
                transaction.version = found.version
            if transaction.version is not None:
                break
            time.sleep(wait)
        else:
            raise RemoteFailed(
                "could not write the journal of the round",
                path=f"{self.store.address}/{key}",
                remedy="nothing was changed; run the command again when the store answers",
            )
        transaction.renewed_s = time.monotonic()
        if clears:
            clear_unused([(self, transaction)], grace_ms)
        return transaction

    def note_round(self, id: str) -> None:
        """Write the journal of a round that another process commits. The journal may exist already.

        Several processes may write the objects of such a round.
        """
        self.store.create(self.journal(id), _journal_of(WriteTransaction(id, None)))

    def renew(self, transaction: WriteTransaction) -> None:
        """Renew the round's journal if ``RENEW_MS`` have passed since the last renewal.

        Raises:
            CommitConflict: a sweep considered the round dead, so it can no longer commit.
        """
        if (
            transaction.version is None
            or time.monotonic() - transaction.renewed_s < RENEW_MS / 1000
        ):
            return
        key = self.journal(transaction.id)
        # errors are ignored, because a journal is valid for a day without renewal
        with contextlib.suppress(RemoteFailed):
            version = self.store.replace(key, _journal_of(transaction), transaction.version)
            found = None if version else self.store.head(key)
            if version is None and found is None:
                raise CommitConflict(
                    "a sweep removed this round's files, because it considered the round abandoned",
                    path=self.address,
                    remedy="nothing is lost; run the command again, which starts from the "
                    "archive's current state",
                )
            transaction.version = version or (found and found.version)
            transaction.renewed_s = time.monotonic()

    def newer_writer(self, transaction: WriteTransaction) -> str | None:
        """The writer of an earlier round that is in progress. None if there is none.

        Its journal must be younger than ``BUSY_MS``. The check only avoids work that would be lost:
        it is not a lock.
        """
        notes = {each.key: each for each in self.store.list(self.key(ROUNDS)) if _round_of(each)}
        own = notes.pop(self.journal(transaction.id), None)
        if own is None:
            return None  # the journal is gone, which the commit reports
        since_ms = own.modified_ms - BUSY_MS
        for each in notes.values():
            if since_ms < each.modified_ms and _order(each) < _order(own):
                journal = self._read_journal(each.key)
                if journal is not None and not _has_died(journal):
                    return journal.writer
        return None

    def yield_to_other(self, transaction: WriteTransaction) -> None:
        """Give up a round that has written only its journal. Deletes the journal."""
        _running.discard(transaction.id)
        self.store.remove([self.journal(transaction.id)])

    def begin_after_others(self, current: VersionedManifest) -> WriteTransaction:
        """Start a round as ``begin`` does, unless another round is in progress.

        Raises:
            LogHeld: another round is in progress.
        """
        transaction = self.begin(current)
        rival = self.newer_writer(transaction)
        if rival is None:
            return transaction
        self.yield_to_other(transaction)
        raise LogHeld(
            f"{rival} has a round in progress in this archive",
            path=self.address.removesuffix(f"/{MANIFEST}"),
            remedy="no action is needed; the next fetch gets the new records",
        )

    def journal(self, id: str) -> str:
        """The store's key of a round's journal."""
        return self.key(f"{ROUNDS}{id}.json")

    def expired(self, seen: VersionedManifest, now_ms: int, grace_ms: int) -> list[Unused]:
        """The objects that have been unused for ``grace_ms``.

        Some of them may be pinned by readers of an earlier manifest.
        """
        return [
            each
            for each in seen.manifest.unused
            if (_since_ms(each, seen) or now_ms) <= now_ms - grace_ms
        ]

    def _needless(self, current: VersionedManifest, now_ms: int, grace_ms: int) -> list[Unused]:
        """The unused objects that no reader of an earlier manifest needs."""
        old = self.expired(current, now_ms, grace_ms)
        return _unpinned(old, self.pins(), now_ms) if old else []

    def pins(self) -> list[ObjectInfo]:
        """The pins, small objects by which readers prevent the deletion of a manifest's objects.

        The reader that wrote a pin may have ended without deleting it.
        """
        return list(self.store.list(self.key(f"{ROUNDS}{_PIN}")))

    @contextlib.contextmanager
    def pin(self, current: VersionedManifest) -> Iterator[Callable[[], None]]:
        """Prevent the deletion of a manifest's objects while this context is open.

        Yields a function that has to be called at least once per ``RENEW_MS``.
        """
        key = self.key(f"{ROUNDS}{_PIN}{current.manifest.generation}-{uuid.uuid4().hex}.json")
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
        self, transaction: WriteTransaction, manifest: Manifest, *, keeps_journal: bool = False
    ) -> VersionedManifest:
        """Replace the manifest that the round has read by the new manifest ``manifest``.

        Sets the generation, the nonces and the unused objects of ``manifest``. With
        ``keeps_journal``, the caller deletes the journal later.

        After any error but ``CommitConflict`` it is unknown whether ``manifest`` was committed. The
        caller must then delete neither old nor new objects. A sweep decides later.

        Returns:
            The current manifest: ``manifest``, or the manifest of a later round that is based on
            it.

        Raises:
            CommitConflict: another round has committed first. This round's objects are deleted.
            RemoteFailed: the store does not confirm the write, or rejects it.
        """
        try:
            return self._commit(transaction, manifest, keeps_journal)
        finally:
            _running.discard(transaction.id)

    def _commit(
        self, transaction: WriteTransaction, manifest: Manifest, keeps_journal: bool
    ) -> VersionedManifest:
        manifest = self._successor(transaction, manifest)
        content, key = encode(manifest), self.key(MANIFEST)
        last = None if transaction.replaced is None else transaction.replaced.found.version
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
                now = VersionedManifest(manifest, ObjectInfo(key, len(content), won, 0))
                break
            # the response may have been lost after a successful write
            with contextlib.suppress(RemoteFailed):
                now = self.read()
                if now is not None and now.manifest.has_committed(manifest.nonce):
                    break
                if (None if now is None else now.found.version) != last:
                    self.abandon(transaction)
                    raise CommitConflict(
                        "another round has committed since generation "
                        f"{transaction.generation} was read",
                        path=self.address,
                        remedy="nothing is lost; run the command again, which starts from "
                        "that round",
                    )
            if refused is not None:
                raise refused
            time.sleep(wait)
        else:
            raise RemoteFailed(
                "Lastwrite cannot determine whether the new manifest was written",
                path=self.address,
                remedy="nothing was deleted; run lastwrite inspect when the store answers",
            )
        if not keeps_journal:
            with contextlib.suppress(LogError):  # the next sweep deletes the journal
                self.store.remove([self.journal(transaction.id)])
        assert now is not None
        return now

    def abandon(self, transaction: WriteTransaction) -> None:
        """Delete the objects of a round that failed to commit, or will not commit.

        A sweep deletes the objects that cannot be deleted now. Never call this after a commit whose
        result is unknown.
        """
        _running.discard(transaction.id)
        with contextlib.suppress(LogError):
            self.store.remove(each.key for each in self.store.list(self.key(transaction.prefix)))
            self.store.remove([self.journal(transaction.id)])

    @contextlib.contextmanager
    def abort_on_error(self, transaction: WriteTransaction) -> Iterator[None]:
        """A context that deletes the round's objects after an error. Do not commit inside it."""
        try:
            yield
        except BaseException:
            self.abandon(transaction)
            raise

    def _successor(self, transaction: WriteTransaction, manifest: Manifest) -> Manifest:
        unused: tuple[Unused, ...] = ()
        former: tuple[str, ...] = ()
        seen = transaction.replaced
        known = frozenset[str]() if seen is None else seen.manifest.own_keys
        for key in sorted(manifest.own_keys - known):
            # do not refer to another round's new object, which that round may delete
            if not key.startswith(transaction.prefix):
                raise LogError(f"{key} does not belong to this round", path=self.address)
        if seen is not None:
            last, named = seen.manifest, manifest.own_keys
            former = (last.nonce, *last.former)[:FORMER]
            stay = (
                structs.replace(each, since_ms=_since_ms(each, seen))
                for each in last.unused
                if each.key not in transaction.cleared
            )
            removed = sorted(last.own_keys - named)
            sizes = {each.key: each.bytes for each in last.objects}
            new = (
                Unused(key=key, bytes=sizes[key], since_ms=0, generation=last.generation + 1)
                for key in removed
            )
            unused = (*stay, *new)
        return structs.replace(
            manifest,
            generation=transaction.generation + 1,
            nonce=uuid.uuid4().hex,
            former=former,
            round=transaction.id,
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
        """Delete objects of rounds that did not commit, and objects replaced ``grace_ms`` ago.

        A round that read an earlier manifest than the current one can no longer commit. A round
        that read the current manifest may still run. If its journal is older than
        ``older_than_ms``, the sweep first commits a new generation with the same log, so that the
        round fails if it resumes. While a round with a younger journal runs, the sweep does not
        commit, because that round would fail, too.

        ``everything`` checks all objects, also objects whose journal is gone. If another writer
        commits first, the sweep is retried: see ``Attempts``.

        Raises:
            NotALog: there is no manifest, which is needed to identify waste.
            CommitConflict: other writers committed first, in each attempt.
            CorruptLog, RemoteFailed: the store or the manifest cannot be read. No object of a
                    manifest was deleted.
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
        """One attempt of ``sweep``. ``cleared`` are the unused objects deleted so far, by key."""
        # The order matters: a listed object either has a listed journal, or its round has ended and
        # the manifest shows the result.
        data = list(self.store.list(self.key(DATA))) if everything else []
        notes = list(self.store.list(self.key(ROUNDS)))
        current = self.read()
        if current is None:
            raise NotALog(
                "the archive has no manifest, so unused objects cannot be identified",
                path=self.address,
            )
        if not dry_run:
            self.store.remove_unfinished(self._prefix, older_than_ms)
        swept = SweepResult()
        if not (notes or current.manifest.unused or data):
            return swept
        now_ms = _now_ms() if dry_run else self._store_ms()
        old = [each for each in notes if _is_old(each, now_ms, older_than_ms)]
        ended = {id: each for each in old if (id := _round_of(each))}
        running = {_round_of(each) for each in notes} - {"", *ended}
        loose = [
            each
            for each in self._unnamed(data, current)
            if _is_old(each, now_ms, older_than_ms) and self._writer_of(each) not in running
        ]
        cleared.update((each.key, each) for each in self._needless(current, now_ms, grace_ms))
        if not dry_run:
            self.store.remove([self.key(key) for key in sorted(cleared)])
        awake = {id for id, each in ended.items() if self._may_win(each.key, current)}
        awake |= {self._writer_of(each) for each in loose} - {*ended}
        if running:
            swept.is_waiting = bool(awake)
        else:
            if (awake or cleared) and not dry_run:
                fence = WriteTransaction(uuid.uuid4().hex, current, cleared=frozenset(cleared))
                current = self.commit(fence, current.manifest)
            awake = set()
        waste = {each.key: each for each in loose if self._writer_of(each) not in awake}
        for id in sorted({*ended} - awake):
            found = self._unnamed(self.store.list(self.key(f"{DATA}{id}-")), current)
            waste.update((each.key, each) for each in found)
        waste = {each.key: each for each in self._unnamed(waste.values(), current)}
        removed = [
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
            self.store.remove(removed)
        return swept

    def _store_ms(self) -> int:
        """The current time of the store's clock, taken from a new object."""
        key = self.key(f"{ROUNDS}{_CLOCK}{uuid.uuid4().hex}.json")
        self.store.create(key, b"{}")
        found = self.store.head(key)
        self.store.remove([key])
        if found is None:
            raise RemoteFailed(
                "an object that Lastwrite has just written is missing",
                path=f"{self.store.address}/{key}",
                remedy="make sure that no other program deletes objects of the archive, and run "
                "the same command again",
            )
        return found.modified_ms

    def _may_win(self, key: str, current: VersionedManifest) -> bool:
        """Whether the round that wrote a journal may still commit.

        True if the round read this manifest, or if it is unknown which manifest it read.
        """
        journal = self._read_journal(key)
        return journal is None or journal.seen in ("", _token(current))

    def _unnamed(
        self, found: Iterable[ObjectInfo], current: VersionedManifest
    ) -> Iterator[ObjectInfo]:
        """The objects that the manifest lists neither as current nor as unused."""
        kept = current.manifest.own_keys | {each.key for each in current.manifest.unused}
        return (each for each in found if each.key.removeprefix(self._prefix) not in kept)

    def _writer_of(self, found: ObjectInfo) -> str:
        """The id of the round that wrote an object."""
        return found.key.removeprefix(self._prefix + DATA).partition("/")[0].partition("-")[0]

    def _read_journal(self, key: str) -> Journal | None:
        found = self.store.get(key)
        try:
            return None if found is None else decode_struct(found[0], Journal)
        except msgspec.MsgspecError:
            return None


def clear_unused(
    begun: Sequence[tuple[PartitionStore, WriteTransaction]], grace_ms: int | None = None
) -> None:
    """Delete the unused objects that no reader of an old manifest needs, for rounds just begun.

    Sets ``cleared`` of each round. In a bucket, the rounds share one request for the time, one
    listing of pins if it is short, and the requests that delete. ``grace_ms`` is as in ``begin``.
    """
    by_store: dict[str, list[tuple[PartitionStore, WriteTransaction, VersionedManifest]]] = {}
    for place, round in begun:
        if round.replaced is not None and round.replaced.manifest.unused:
            by_store.setdefault(place.store.address, []).append((place, round, round.replaced))
    for rounds in by_store.values():
        place, round, _ = rounds[0]
        # The time is read before the pins are listed. A reader that pins later has read its
        # manifest within the grace period, so it needs none of the objects deleted here.
        found = place.store.head(place.journal(round.id))
        if found is None:
            continue
        now_ms = found.modified_ms
        old = [
            (place, round, unused)
            for place, round, seen in rounds
            if (unused := place.expired(seen, now_ms, _grace_ms(grace_ms)))
        ]
        pins = _all_pins([place for place, _, _ in old])
        cleared = [
            (place, round, _unpinned(unused, found, now_ms))
            for (place, round, unused), found in zip(old, pins, strict=True)
        ]
        place.store.remove([place.key(each.key) for place, _, unused in cleared for each in unused])
        for _, round, unused in cleared:
            round.cleared = frozenset(each.key for each in unused)


def _all_pins(places: Sequence[PartitionStore]) -> list[list[ObjectInfo]]:
    """The pins of each partition of a store, if one listing with few pages finds them."""
    most = len(places) // 4 * AT_ONCE
    if most:
        keys = [place.key(f"{ROUNDS}{_PIN}") for place in places]
        above = os.path.commonprefix(keys).rpartition("/")[0]
        listed = list(islice(places[0].store.list(f"{above}/" if above else ""), most))
        if len(listed) < most:
            found: dict[str, list[ObjectInfo]] = {key: [] for key in keys}
            for each in listed:
                key = each.key[: each.key.rfind("/") + 1] + _PIN
                if key in found and each.key.startswith(key):
                    found[key].append(each)
            return list(found.values())
    return [place.pins() for place in places]


def _unpinned(unused: list[Unused], pins: Sequence[ObjectInfo], now_ms: int) -> list[Unused]:
    """The objects of ``unused`` that are in no pinned manifest.

    The name of a pin contains the number (generation) of the manifest that its reader uses.
    """
    pinned = min(
        (
            int(each.key.rpartition("/")[2].split("-")[1])
            for each in pins
            if now_ms - each.modified_ms < PINNED_MS
        ),
        default=None,
    )
    return [each for each in unused if pinned is None or each.generation <= pinned]


def partition_store_at(folder: str, stores: StoreSettings | None = None) -> PartitionStore:
    """The partition at the address ``folder``. ``stores`` is as for ``store_at``."""
    return PartitionStore(*store_at(folder, stores))


_just_read: dict[str, tuple[float, VersionedManifest]] = {}
_running: set[str] = set()  # rounds of this process that may still commit


def is_partition(folder: str) -> bool:
    """Whether there is a partition at the address ``folder``.

    The manifest is cached for up to 60 s for ``read_versioned_manifest``: callers that search
    partitions read them next. This saves a request per partition.

    Raises:
        RemoteFailed: the store does not respond.
    """
    _just_read.pop(folder, None)
    try:
        current = partition_store_at(folder).read()
    except (CorruptLog, UnsupportedFormat):  # the error is reported when the partition is read
        return True
    now_s = time.monotonic()
    if len(_just_read) >= _JUST_READ and now_s - next(iter(_just_read.values()))[0] > _JUST_S:
        _just_read.clear()
    if current and current.found.size_bytes <= _JUST_BYTES and len(_just_read) < _JUST_READ:
        _just_read[folder] = now_s, current
    return current is not None


def read_versioned_manifest(folder: str) -> VersionedManifest:
    """The manifest of the partition at ``folder``, with the version that a writer can replace.

    The manifest may be up to 60 s old if ``is_partition`` has read it.

    Raises:
        NotALog: there is no manifest.
        CorruptLog, UnsupportedFormat, RemoteFailed: the manifest cannot be read.
    """
    since_s, seen = _just_read.pop(folder, (0.0, None))
    if seen is None or time.monotonic() - since_s > _JUST_S:
        seen = partition_store_at(folder).read()
    if seen is None:
        raise NotALog(
            "the path has no manifest of an archive", path=folder, remedy="check the address"
        )
    return seen


def _grace_ms(given: int | None) -> int:
    return used().keep_replaced_ms if given is None else given


def _is_old(found: ObjectInfo, now_ms: int, older_than_ms: int) -> bool:
    return now_ms - found.modified_ms >= older_than_ms


def _round_of(note: ObjectInfo) -> str:
    """The id of the round whose journal this is. Empty for a pin or a clock object."""
    name = note.key.rpartition("/")[2].removesuffix(".json")
    return "" if name.startswith((_PIN, _CLOCK)) else name


def _order(note: ObjectInfo) -> tuple[int, str]:
    return note.modified_ms, note.key


def _has_died(journal: Journal) -> bool:
    """Whether a round, or the process that ran it, has ended.

    False if it ran on another machine, because the process id cannot be checked there.
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
    except OSError:  # the process belongs to another user
        return False
    return False


def _token(current: VersionedManifest) -> str:
    version = current.found.version
    return f"{version.etag} {version.generation or ''}"


def _since_ms(unused: Unused, current: VersionedManifest) -> int:
    """The time at which an object became unused, by the store's clock. 0 if unknown.

    If the current manifest replaced the object, this is the time when that manifest was written.
    """
    return unused.since_ms or current.found.modified_ms


def _journal_of(transaction: WriteTransaction) -> bytes:
    journal = Journal(
        round=transaction.id,
        generation=transaction.generation,
        seen="none" if transaction.replaced is None else _token(transaction.replaced),
        writer=_writer(),
        written_ms=_now_ms(),
    )
    return msgspec.json.encode(journal)


def _writer() -> str:
    from importlib.metadata import version  # imported here: the import takes 13 ms

    return f"lastwrite {version('lastwrite')} {socket.gethostname()}:{os.getpid()}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _waits() -> Iterator[float]:
    """The seconds to wait before each retry, with random jitter. At most two minutes in total."""
    for wait in (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, *[5.0] * 23):
        yield wait * random.uniform(0.5, 1.0)
