"""A topic folder that mirrors a topic of a live cluster. The cluster's metadata are authoritative.

The compaction of a live topic copies the needed ledgers into a topic folder, works there, and
uploads the new compacted ledger. If the folder is kept, the next compaction copies only new
entries::

    9c…-ledger-41             a closed raw ledger: copied once
    9c…-ledger-42             the open raw ledger: replaced by a new copy once it has grown
    5e…-ledger-77             the compacted ledger, under the number that it has in the cluster
    compacted.json            names it, with the cluster's horizon
    fetched.json              facts whose data need not be here, see ``known``

A ledger's objects are written under temporary names and renamed, the index first. They are durable
before the former objects are deleted. A crash in between may leave two objects of one ledger; the
object with more entries is valid (``fetched_uuid``). The manifest is replaced in one step after all
ledgers that it needs are present. After a crash the next run copies the missing ledgers.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from operator import itemgetter

import numpy as np

from lastwrite.errors import CorruptLog, LogError
from lastwrite.pulsar.format.compacted import decode_record
from lastwrite.pulsar.format.ledger_metadata import LedgerMetadata
from lastwrite.pulsar.format.names import (
    INDEX_SUFFIX,
    MANAGED_LEDGER,
    MANAGED_LEDGER_JSON,
    MANIFEST,
    SURVEY_SUFFIX,
    TopicName,
    object_name,
    parse_object_name,
)
from lastwrite.pulsar.format.offload import ENTRY_HEAD, IndexObject
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.format.survey import EntrySurveyor
from lastwrite.pulsar.store import lock
from lastwrite.pulsar.store.known import TopicFacts, read_facts, write_facts
from lastwrite.pulsar.store.manifest import (
    ASIDE_SUFFIX,
    CompactionManifest,
    read_manifest,
    replace_file,
    replace_manifest,
)
from lastwrite.pulsar.store.objects import OffloadWriter, checked_index, find_staged, read_entries
from lastwrite.pulsar.store.topic import fetched_uuid, partition_of
from lastwrite.storage import files

_COUNT_BYTES = 1 << 20  # entries of this many bytes are collected before their messages are counted


def mirror_folder(archive: str, topic: TopicName) -> str:
    """The path of the topic's folder in an archive."""
    return os.path.join(os.path.abspath(archive), *topic.managed_ledger.split("/"))


@contextlib.contextmanager
def mirroring(archive: str, topic: TopicName) -> Iterator[Mirror]:
    """The topic's mirror in an archive, created if missing, and locked while the context is open.

    Raises:
        LogHeld: another run works on the folder.
        LogError: the folder cannot be created or listed.
    """
    folder = mirror_folder(archive, topic)
    files.make_new_folder(folder)
    with lock.hold(folder, [partition_of(topic)]):
        yield Mirror(folder, topic)


class Mirror:
    """A topic folder that mirrors a topic of a cluster. The caller has locked it."""

    def __init__(self, folder: str, topic: TopicName) -> None:
        self.folder = folder
        self.topic = topic
        for path in find_staged(folder):
            files.unlink(path)
        self._objects: dict[int, list[str]] = {}
        for name in sorted(os.listdir(folder)):
            parsed = parse_object_name(name)
            if parsed is not None:
                self._objects.setdefault(parsed[1], []).append(os.path.join(folder, name))
        if self._objects:  # a killed fetch may have renamed objects and not synced the folder
            files.fsync_dir(folder)

    @property
    def manifest(self) -> CompactionManifest | None:
        """The manifest. None if it is missing or damaged; the cluster can restore its content."""
        with contextlib.suppress(CorruptLog):
            return read_manifest(self.folder)
        return None

    def present(self, ledger: int) -> Iterator[tuple[str, int]]:
        """The ledger's data objects without missing entries, each with its number of entries."""
        for path, index in self.indexes(ledger):
            last = index.metadata.last_entry
            if last is not None and not index.missing:
                yield path, last + 1

    def indexes(self, ledger: int) -> Iterator[tuple[str, IndexObject]]:
        """The ledger's data objects whose indexes are valid, each with its index."""
        for path in self._objects.get(ledger, []):
            try:
                index = checked_index(path)
                _ = index.missing  # checks the metadata too
            except LogError:
                continue
            yield path, index

    def find(
        self,
        ledger: int,
        entries: int,
        uid: uuid.UUID | None = None,
        *,
        or_more: bool = False,
    ) -> str | None:
        """The ledger's data object with this number of entries, and this uuid if given.

        Returns None if there is none. With ``or_more`` it may have more entries.
        """
        for path, count in self.present(ledger):
            parsed = parse_object_name(os.path.basename(path))
            is_enough = count == entries or (or_more and count > entries)
            if is_enough and uid in (None, parsed and parsed[0]):
                return path
        return None

    def fetch(
        self,
        ledger: int,
        metadata: LedgerMetadata,
        entries: Iterable[tuple[int, bytes]],
        uid: uuid.UUID | None = None,
    ) -> str:
        """Write a ledger with these entries. Errors as ``write``, and the errors of ``entries``."""

        def fill(writer: OffloadWriter) -> None:
            for entry, data in entries:
                writer.append(entry, data)

        return self.write(ledger, metadata, fill, uid)

    def write(
        self,
        ledger: int,
        metadata: LedgerMetadata,
        fill: Callable[[OffloadWriter], None],
        uid: uuid.UUID | None = None,
    ) -> str:
        """Write a ledger whose entries ``fill`` appends. Returns the path of the data object.

        Other objects of the ledger are then deleted. ``uid`` is the uuid in the names; None means
        the uuid derived from the number of entries, see ``fetched_uuid``.

        Raises:
            LogError: the ledger cannot be written. Errors of ``fill`` are raised too.
        """
        writer = OffloadWriter(self.folder, ledger, uid=uid)
        try:
            fill(writer)
            if uid is None:
                end = writer.last_entry + 1
                writer.rename(fetched_uuid(self.topic, ledger, end, writer.entries))
            path = writer.finish(metadata)
        finally:
            writer.abandon()
        return self._new_object(ledger, path)

    def merge(
        self,
        ledger: int,
        metadata: LedgerMetadata,
        sources: Iterable[Iterable[tuple[int, bytes]]],
        end: int,
        note: Callable[[CorruptLog], None],
    ) -> str | None:
        """Write a ledger from incomplete sources and from the entries stored in the folder.

        Returns None if there is no intact entry. ``note`` receives the damage to the folder's
        objects. The former object stays until the new object is complete, since it may have the
        only copy of an entry.
        """
        present = list(self.indexes(ledger))

        def here(path: str, index: IndexObject) -> Iterator[tuple[int, bytes]]:
            try:
                yield from read_entries(path, index=index)
            except CorruptLog as error:
                note(error)

        def fill(writer: OffloadWriter) -> None:
            found = heapq.merge(*sources, *(here(*each) for each in present), key=itemgetter(0))
            for entry, data in found:
                if writer.last_entry < entry < end:
                    writer.append(entry, data)
            if not writer.entries:
                raise _NothingToMirror

        try:
            return self.write(ledger, metadata, fill)
        except _NothingToMirror:
            return None

    def link(self, ledger: int, source: str, copies: bool = False) -> str:
        """Hard-link the two objects of a ledger into this folder, or copy them.

        Returns the data object's path.

        Raises:
            LogError: the objects can be neither linked nor copied.
        """
        path = os.path.join(self.folder, os.path.basename(source))
        bring = files.copy if copies else files.link
        for suffix in (INDEX_SUFFIX, ""):
            if os.path.exists(path + suffix) and os.path.samefile(path + suffix, source + suffix):
                continue
            # temporary path of the new object, which is renamed when it is complete
            staged = path + suffix + ASIDE_SUFFIX
            _remove(staged)
            with files.removed_on_failure(staged):
                bring(source + suffix, staged)
                if not copies:  # sync the linked object, because its writer may not have done so
                    files.fsync_file(staged)
                files.rename(staged, path + suffix)
        return self._new_object(ledger, path)

    def _new_object(self, ledger: int, path: str) -> str:
        others = [other for other in self._objects.get(ledger, []) if other != path]
        _remove(path + SURVEY_SUFFIX)
        self._objects[ledger] = [path]
        files.fsync_dir(self.folder)
        for other in others:
            _remove_pair(other)
        if others:
            files.fsync_dir(self.folder)
        return path

    def drop_parts(self, ledger: int, whole: str) -> None:
        """Remove the ledger's objects that have only some entries of the object ``whole``."""
        count = next(entries for path, entries in self.present(ledger) if path == whole)
        for path, index in list(self.indexes(ledger)):
            last = -1 if index.metadata.last_entry is None else index.metadata.last_entry
            if path != whole and last < count and (index.missing or last != count - 1):
                _remove_pair(path)
                self._objects[ledger].remove(path)
                files.fsync_dir(self.folder)

    @property
    def raw_ledgers(self) -> list[int]:
        """The raw ledgers that have an object in the folder."""
        return [
            ledger
            for ledger, paths in sorted(self._objects.items())
            if not any(map(_is_compacted, paths))
        ]

    def clear_compacted(self, kept: int | None) -> None:
        """Remove all compacted ledgers except ``kept``. Raw ledgers stay."""
        for ledger in sorted(self._objects):
            if ledger != kept and any(map(_is_compacted, self._objects[ledger])):
                for path in self._objects.pop(ledger):
                    _remove_pair(path)

    @property
    def facts(self) -> TopicFacts:
        """The content of ``fetched.json`` from an earlier fetch.

        Empty if the file is missing or damaged: this fetch writes the file again.
        """
        with contextlib.suppress(CorruptLog):
            return read_facts(self.folder) or TopicFacts(topic=self.topic.full)
        return TopicFacts(topic=self.topic.full)

    def write_facts(self, facts: TopicFacts) -> None:
        """Write ``fetched.json``, unless the file has this content already."""
        with contextlib.suppress(CorruptLog):
            if read_facts(self.folder) == facts:
                return
        write_facts(self.folder, facts)

    def write_metadata(self, content: bytes, is_json: bool = False) -> None:
        """Write the topic's own list of ledgers, as a metadata store's node or as a JSON export."""
        names = (MANAGED_LEDGER, MANAGED_LEDGER_JSON, MANIFEST)
        node, exported, manifest = (os.path.join(self.folder, name) for name in names)
        path, other = (exported, node) if is_json else (node, exported)
        like = files.owner_of(path, (other, manifest)).as_far_as_may()
        replace_file(path, content, like)
        # Remove a ledger list in the other form, from an earlier fetch: its content may be
        # outdated.
        if os.path.lexists(other):
            files.unlink(other)
            files.fsync_dir(self.folder)

    def is_compacted(self, ledger: int, horizon: Position) -> None:
        """Store ``ledger``, which must be copied already, and ``horizon`` in the manifest."""
        (path,) = self._objects[ledger]
        known = self.manifest
        if known is not None and known.object == os.path.basename(path):
            found = replace(known, horizon=horizon)
        else:
            found = _described(self.topic, path, ledger, horizon)
        if found != known:
            replace_manifest(self.folder, found)

    def is_not_compacted(self) -> None:
        """Remove the manifest: the topic is not compacted."""
        if os.path.lexists(os.path.join(self.folder, MANIFEST)):
            files.unlink(os.path.join(self.folder, MANIFEST))
            files.fsync_dir(self.folder)

    def is_published(self, ledger: int, horizon: Position) -> None:
        """Set the compacted ledger's number and horizon in the manifest to the cluster's values."""
        known = read_manifest(self.folder)
        if known is None or (known.ledger, known.horizon) == (ledger, horizon):
            return
        former = os.path.join(self.folder, known.object)
        parsed = parse_object_name(known.object)
        assert parsed is not None
        name = object_name(parsed[0], ledger)
        path = os.path.join(self.folder, name)
        if path != former:
            for suffix in (INDEX_SUFFIX, ""):
                _remove(path + suffix)
                files.link(former + suffix, path + suffix)
            files.fsync_dir(self.folder)
        replace_manifest(self.folder, replace(known, ledger=ledger, object=name, horizon=horizon))
        if path != former:
            _remove_pair(former)


class _NothingToMirror(Exception):
    """Raised if a ledger has no intact entry."""


def _is_compacted(path: str) -> bool:
    """Whether the data object at ``path`` is a compacted ledger. False if it cannot be read."""
    with contextlib.suppress(LogError):
        return checked_index(path).metadata.compacted_topic is not None
    return False


def _described(topic: TopicName, path: str, ledger: int, horizon: Position) -> CompactionManifest:
    """Describe a compacted ledger that another program wrote, as a manifest.

    The order of the compaction is unknown and not set.
    """
    first = last = None
    count = size = messages = 0
    has_parts = False
    surveyor = EntrySurveyor()
    waiting: list[bytes] = []

    def survey() -> None:
        """Count the messages of the collected entries in the way compaction counts them."""
        nonlocal messages, has_parts
        framed = np.frombuffer(b"".join(waiting), dtype=np.uint8)
        rows, done, _ = surveyor.take(framed, 0, len(framed), 0)
        if done != len(framed):
            raise CorruptLog("a record of the compacted ledger cannot be read", None, path)
        messages += int(rows["records"].sum())
        has_parts = has_parts or bool(rows["is_part"].any())
        waiting.clear()

    waiting_bytes = 0
    for entry, data in read_entries(path):
        if first is None:
            first = decode_record(data)[0]
        last = data
        count += 1
        size += len(data)
        waiting += (ENTRY_HEAD.pack(len(data), entry), data)
        waiting_bytes += len(data)
        if waiting_bytes >= _COUNT_BYTES:
            survey()
            waiting_bytes = 0
    if waiting:
        survey()
    return CompactionManifest(
        topic=topic.full,
        ledger=ledger,
        object=os.path.basename(path),
        from_=first or horizon,
        to=horizon if last is None else decode_record(last)[0],
        horizon=horizon,
        entries=count,
        size_bytes=size,
        messages=messages,
        parts=has_parts,
    )


def _remove_pair(path: str) -> None:
    """Remove a ledger's two objects.

    The index is removed last, since it identifies the data.
    """
    for suffix in (SURVEY_SUFFIX, "", INDEX_SUFFIX):
        _remove(path + suffix)


def _remove(path: str) -> None:
    if os.path.lexists(path):
        files.unlink(path)
