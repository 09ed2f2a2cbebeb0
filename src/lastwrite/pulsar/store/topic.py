"""The content of a topic folder: its ledgers, and the log that they form.

::

    ARCHIVE/public/default/persistent/orders/       named after the managed ledger
        managed-ledger, or managed-ledger.json      the topic's own list of its ledgers, if fetched
        2f…-ledger-10, 2f…-ledger-10-index          a raw ledger, as written by the object-store
                                                    offloader
        91…-ledger-13, 91…-ledger-13-index          a compacted ledger, identified by its metadata
        compacted.json                              the valid compacted ledger, and its horizon
        fetched.json                                facts whose data need not be here: see ``known``
        2f…-ledger-10.survey                        the result of one pass over a ledger: see
                                                    ``survey``
        lastwrite.lock                              see ``lock``

The log has the compacted ledger first, then the raw entries beyond its horizon; raw ledgers up to
the horizon may be missing. The log's high watermark is the highest possible next horizon. It is
after the last entry that is neither a marker nor part of an aborted transaction, and before every
undecided transaction.

Source: Pulsar 4.2.4; docs/formats/pulsar-compaction.md, "Markers and transactions" and "A round";
docs/formats/pulsar.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import BinaryIO, NamedTuple
from uuid import NAMESPACE_URL, UUID, uuid5

from lastwrite.archive.manifest import Manifest as ArchiveManifest
from lastwrite.archive.partition_store import partition_store_at, read_versioned_manifest
from lastwrite.errors import CorruptLog, LogError, NotALog, located
from lastwrite.model.log import Problem, ProblemKind, Segment, TopicPartition
from lastwrite.pulsar.format.compacted import decode_record
from lastwrite.pulsar.format.ledger_metadata import LedgerMetadata
from lastwrite.pulsar.format.managed_ledger import LedgerInfo, ManagedLedgerInfo, from_json
from lastwrite.pulsar.format.missing import EntryRange, between, describe_ids, entries_in
from lastwrite.pulsar.format.names import (
    FETCHED,
    INDEX_SUFFIX,
    MANAGED_LEDGER,
    MANAGED_LEDGER_JSON,
    MANIFEST,
    PARTITION_MARK,
    SCHEME,
    TopicName,
    parse_object_name,
)
from lastwrite.pulsar.format.offload import ENTRY_HEAD, IndexObject
from lastwrite.pulsar.format.position import MAX_ENTRY, Position
from lastwrite.pulsar.format.remedy import RESTORE
from lastwrite.pulsar.store import archived
from lastwrite.pulsar.store.archived import StoredLedger
from lastwrite.pulsar.store.known import TopicFacts, expected_entries, read_facts, without_list
from lastwrite.pulsar.store.manifest import CompactionManifest, read_manifest
from lastwrite.pulsar.store.objects import read_entries, read_index
from lastwrite.pulsar.store.place import is_topic_folder, locate, name_of, topics_below
from lastwrite.storage.choice import Topics, choose
from lastwrite.storage.files import to_log_error
from lastwrite.storage.missing import missing_error
from lastwrite.storage.objects.address import is_address
from lastwrite.storage.reading import AGAIN, SegmentReader, reader_of

MADE_BY = "lastwrite"  # a key of the custom metadata of compacted ledgers made by Lastwrite

_FETCH = (
    "nothing was changed, and the other entries can be read; fetch the topic again into this "
    "archive, from bookies, journals, a bucket or a cluster that still have them"
)
_MOST_METADATA_BYTES = 256 << 20
# Number of parallel requests. It may exceed the CPUs, because a request mostly waits for the store.
_REQUESTS_AT_ONCE = 16


# ---------------------------------------------------------------------- names and paths of topics


def partition_of(name: TopicName) -> TopicPartition:
    """The name by which the engine identifies a topic."""
    return TopicPartition(name.base, name.partition)


def find_topics(path: str, topic: Topics = None, partition: int | None = None) -> list[str]:
    """The topic folders at ``path``, sorted by name.

    ``path`` is an archive, one of its folders, a topic's folder or one of its files. ``topic`` has
    full names, ``tenant/namespace/name``, or local names in any namespace, or patterns of them.

    Raises:
        NotALog: there is no topic, or no topic of that name.
    """
    found = archived.find(path)
    place = path if found else locate(path)
    if place is None:
        words = (
            "the path contains no Pulsar topic"
            if os.path.exists(path)
            else "no such file or folder"
        )
        remedy = (
            "give an archive of lastwrite fetch, which contains TENANT/NAMESPACE/persistent/TOPIC"
        )
        raise NotALog(words, path=str(path), remedy=remedy)
    if not found:
        whole = os.path.abspath(place)
        found = [whole] if is_topic_folder(whole) else list(topics_below(whole))
    named = sorted((name_of(folder), folder) for folder in found)
    listed = [(partition_of(name), folder) for name, folder in named]
    return choose(listed, topic, partition, str(path), topic_names)


def topic_names(name: TopicPartition) -> tuple[str, ...]:
    """The accepted names of a topic: ``orders``, ``public/default/orders`` or its URL.

    For a partition, also each of these names with the partition's suffix.
    """
    path = name.topic.removeprefix(SCHEME)
    short = (path.split("/", 2)[2], path, name.topic)
    if name.partition < 0:
        return short
    return (*short, *(f"{each}{PARTITION_MARK}{name.partition}" for each in short))


# ---------------------------------------------------------------------- content of a topic folder


@dataclass(frozen=True, slots=True)
class Ledger:
    """A ledger in a topic folder: its data object, and the content of its index."""

    id: int
    uuid: UUID
    path: str
    size_bytes: int
    mtime_ns: int
    index: IndexObject
    metadata: LedgerMetadata
    # ranges of entries that the index lists as missing, before the last entry
    missing: tuple[EntryRange, ...] = ()
    etag: str = ""  # see ``Segment.etag``
    # id of the first record, only for a part of a compacted ledger in an archive
    first_id: Position | None = None
    survey: bytes = b""  # content of the ledger's survey, if the manifest contains it

    @property
    def entries(self) -> int:
        """The last entry id + 1. Missing entries are included in this count."""
        return (-1 if self.metadata.last_entry is None else self.metadata.last_entry) + 1

    @property
    def stored_entries(self) -> int:
        """The number of entries in the data object."""
        return self.entries - entries_in(self.missing)

    def runs(self) -> Iterator[tuple[int, int, int, int]]:
        """Runs of adjacent entries: first, end, and the start and end bytes in the object."""
        begins = [each.last + 1 for each in self.missing]
        ends = [each.first for each in self.missing if each.first] + [self.entries]
        if len(begins) < len(ends):
            begins.insert(0, 0)
        blocks = map(self.index.block_of, begins[1:])
        places = [block.offset for block in blocks if block is not None]
        yield from zip(begins, ends, [0, *places], [*places, self.size_bytes], strict=True)

    def segment(self, base_offset: int, *, position: int = 0, size: int | None = None) -> Segment:
        """The ledger, or a byte range of it, as a segment for the engine."""
        size = self.size_bytes - position if size is None else size
        return Segment(
            base_offset=base_offset,
            path=self.path,
            size_bytes=size,
            mtime_ns=self.mtime_ns,
            largest_timestamp_ms=self.mtime_ns // 1_000_000,
            unused_bytes=self.size_bytes - position - size,
            position=position,
            etag=self.etag,
            index=archived.small(self.index.encode()) if is_address(self.path) else b"",
        )

    def reader(self) -> SegmentReader:
        """A reader of the ledger's data object.

        Raises:
            CommitConflict: the object is gone or was replaced.
        """
        return reader_of(self.segment(0))

    def is_beyond(self, horizon: Position | None) -> bool:
        """Whether the ledger has entries beyond the horizon."""
        last = Position(self.id, self.entries - 1)
        return self.entries > 0 and (horizon is None or last > horizon)

    @property
    def is_compacted(self) -> bool:
        """Whether this is a compacted ledger, made by any program, and not a raw ledger."""
        return self.metadata.compacted_topic is not None

    @property
    def is_ours(self) -> bool:
        """Whether this is a compacted ledger made by Lastwrite, which may remove it."""
        return is_ours(self.metadata)


def is_ours(metadata: LedgerMetadata) -> bool:
    """Whether the metadata are of a compacted ledger made by Lastwrite."""
    return metadata.compacted_topic is not None and MADE_BY in metadata.custom


@dataclass(frozen=True, slots=True)
class TopicFolder:
    """The content of a topic folder: its ledgers, its metadata files, and the problems found."""

    folder: str
    name: TopicName
    ledgers: tuple[Ledger, ...] = ()  # raw ledgers, in the log's order
    # the ledger that the manifest names (in an archive, its parts); None if absent or damaged
    compacted: tuple[Ledger, ...] | None = None
    manifest: CompactionManifest | None = None
    info: ManagedLedgerInfo | None = None
    strays: tuple[Ledger, ...] = ()  # compacted ledgers that no manifest names
    problems: tuple[Problem, ...] = ()
    # entries that should be in the folder and are missing, by ledger
    missing: tuple[tuple[int, tuple[EntryRange, ...]], ...] = ()

    @property
    def horizon(self) -> Position | None:
        return None if self.manifest is None else self.manifest.horizon

    @property
    def all_ledgers(self) -> tuple[Ledger, ...]:
        """The raw ledgers, then the compacted ledger or its parts."""
        return (*self.ledgers, *(self.compacted or ()))

    @property
    def highest_ledger(self) -> int:
        """The highest ledger id in the topic folder, or -1."""
        known = [ledger.id for ledger in (*self.ledgers, *self.strays)]
        known += [info.ledger for info in self.info.ledgers] if self.info is not None else []
        if self.manifest is not None:
            known += [self.manifest.ledger, self.manifest.horizon.ledger]
        return max(known, default=-1)


def list_topic(folder: str) -> TopicFolder:
    """List a topic folder without reading entries. Problems are in ``problems``.

    Raises:
        LogError: the folder or a file cannot be read.
        InvalidConfig: the folder is not named after a topic.
    """
    if archived.is_archived(folder):
        return topic_of(read_versioned_manifest(folder).manifest, folder)
    return _Listing(os.path.abspath(folder)).topic()


def topic_of(manifest: ArchiveManifest, folder: str, *, reads_small: bool = True) -> TopicFolder:
    """The content of an archived topic, as its manifest describes it.

    Args:
        reads_small: if false, indexes and record counts of objects are taken from the manifest
            where it has them. Otherwise they are read from their own objects.

    Raises:
        LogError: as ``list_topic``.
    """
    return _ArchivedListing(folder, manifest, reads_small).topic()


class _Facts(NamedTuple):
    """The metadata and the ledgers that were found in a topic folder, before they are checked."""

    manifest: CompactionManifest | None
    info: ManagedLedgerInfo | None
    facts: TopicFacts | None
    raw: Sequence[Ledger]
    compacted: tuple[Ledger, ...] | None
    strays: tuple[Ledger, ...]


class _Listing:
    """Lists a topic folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._problems: list[Problem] = []
        self._last_confirmed: Position | None = None
        # whether the folder has a list of the topic's ledgers, even a damaged one
        self._has_list = False
        self._doubtful: set[int] = set()  # ledgers with two objects in the folder
        self._missing: list[tuple[int, tuple[EntryRange, ...]]] = []

    def topic(self) -> TopicFolder:
        name = name_of(self._folder)
        sizes = self._sizes()
        manifest = self._manifest(name)
        info = self._info(sizes)
        known = self._stored_facts(name)
        found = list(self._ledgers(sizes))
        one = next((each for each in found if manifest and _object(each) == manifest.object), None)
        if manifest is not None:
            self._check_compacted(manifest, one)
        raw = [each for each in found if not each.is_compacted and each is not one]
        strays = tuple(each for each in found if each.is_compacted and each is not one)
        compacted = None if one is None else (one,)
        facts = _Facts(manifest, info, known, raw, compacted, strays)
        return self._judged(name, facts)

    def _judged(self, name: TopicName, facts: _Facts) -> TopicFolder:
        """The listed topic, after its files are checked against ``fetched.json``."""
        manifest, info, known, raw, compacted, strays = facts
        listed = {} if info is None else {each.ledger: each for each in info.ledgers}
        ledgers = tuple(self._chosen(raw, listed))
        if manifest is None:
            self._check_forgotten(strays, ledgers)
        if known is not None:
            self._check_horizon(known, manifest)
        self._check_missing(ledgers, info, manifest, known)
        if known is not None and not self._has_list and ledgers:
            self._problems.append(without_list([each.id for each in ledgers], self._folder))
        problems, missing = tuple(self._problems), tuple(self._missing)
        return TopicFolder(
            self._folder, name, ledgers, compacted, manifest, info, strays, problems, missing
        )

    def _damaged(
        self, message: str, path: str, remedy: str = RESTORE, at: int | None = None
    ) -> None:
        self._problems.append(Problem(ProblemKind.DAMAGED, message, path, at, remedy))

    def _unreadable(self, error: LogError, path: str, remedy: str = RESTORE) -> None:
        self._damaged(error.problem, path, error.remedy or remedy, error.at)

    def _note(self, message: str, path: str) -> None:
        self._problems.append(Problem(ProblemKind.RECOVERED, message, path))

    def _sizes(self) -> dict[str, os.stat_result]:
        try:
            with os.scandir(self._folder) as entries:
                return {entry.name: entry.stat() for entry in entries if entry.is_file()}
        except OSError as error:
            raise to_log_error(error, self._folder, "list the folder") from error

    def _manifest(self, name: TopicName) -> CompactionManifest | None:
        path = os.path.join(self._folder, MANIFEST)
        try:
            found = read_manifest(self._folder)
        except LogError as error:
            if error.exit_status != 3:
                raise
            self._unreadable(error, path)
            return None
        if found is not None and found.topic != name.full:
            remedy = (
                "rename the folder to the topic of the manifest, or restore this topic's manifest "
                "from a backup"
            )
            self._damaged(f"the manifest belongs to another topic, {found.topic}", path, remedy)
        return found

    def _info(self, sizes: dict[str, os.stat_result]) -> ManagedLedgerInfo | None:
        for file in (MANAGED_LEDGER, MANAGED_LEDGER_JSON):
            if file not in sizes:
                continue
            path = os.path.join(self._folder, file)
            return self._decoded_info(_read(path), file == MANAGED_LEDGER_JSON, path)
        return None

    def _decoded_info(self, data: bytes, is_json: bool, path: str) -> ManagedLedgerInfo | None:
        self._has_list = True
        try:
            if not is_json:
                return ManagedLedgerInfo.decode_node(data)
            exported = from_json(data.decode("utf-8", "replace"))
            self._last_confirmed = exported.last_confirmed
            return exported.info
        except LogError as error:
            remedy = (
                "fetch the topic again with --metadata, the output of pulsar-admin topics "
                "stats-internal TOPIC"
            )
            self._damaged(error.problem, path, remedy, error.at)
            return None

    def _stored_facts(self, name: TopicName) -> TopicFacts | None:
        path = os.path.join(self._folder, FETCHED)
        try:
            found = read_facts(self._folder)
        except CorruptLog as error:
            self._unreadable(error, path, _FETCH)
            return None
        if found is not None and found.topic != name.full:
            remedy = "rename the folder to the topic of the file, or fetch the topic again"
            self._damaged(f"the file belongs to another topic, {found.topic}", path, remedy)
            return None
        return found

    def _ledgers(self, sizes: dict[str, os.stat_result]) -> Iterator[Ledger]:
        for name in sorted(sizes):
            parsed = parse_object_name(name)
            if parsed is None:
                continue
            uuid, ledger = parsed
            path = os.path.join(self._folder, name)
            if name + INDEX_SUFFIX not in sizes:
                self._note("the data object has no index: its offload was not finished", path)
                continue
            try:
                index = read_index(path)
                metadata, missing = index.metadata, index.missing
            except CorruptLog as error:
                self._damaged(error.problem, path + INDEX_SUFFIX, at=error.at)
                continue
            size, mtime_ns = sizes[name].st_size, sizes[name].st_mtime_ns
            if index.data_bytes != size:
                self._damaged(
                    f"the data object has {size} bytes, but its index states {index.data_bytes}",
                    path,
                )
                continue
            yield Ledger(ledger, uuid, path, size, mtime_ns, index, metadata, missing)

    def _check_compacted(self, manifest: CompactionManifest, ledger: Ledger | None) -> None:
        path = os.path.join(self._folder, manifest.object)
        if ledger is None:
            damaged = (p.path for p in self._problems if p.kind is ProblemKind.DAMAGED)
            if not any(each.startswith(path) for each in damaged):
                self._damaged("the manifest names this object, but it does not exist", path, _FETCH)
        elif ledger.entries != manifest.entries or not ledger.is_compacted:
            words = (
                f"the ledger has {ledger.entries} entries, but the manifest names a compacted "
                "ledger of "
            )
            self._damaged(words + str(manifest.entries), path)

    def _check_forgotten(self, strays: Sequence[Ledger], ledgers: Sequence[Ledger]) -> None:
        """Report compacted ledgers without a manifest that may be the only copy of raw entries.

        A crash of the first compaction usually leaves such a ledger, whose raw ledgers are still
        present. If they are gone, the compacted ledger has the only copy of their values.
        """
        here = {ledger.id: ledger for ledger in ledgers}
        for ledger in strays:
            try:
                ids = _ids_of(ledger)
                alone = next((e for e in ids if not _has(here.get(e.ledger), e.entry)), None)
            except CorruptLog as error:
                self._damaged(error.problem, ledger.path, at=error.at)
                continue
            if alone is not None:
                self._damaged(
                    f"no manifest names this compacted ledger, and it has {alone}, which no "
                    "raw ledger in the folder has",
                    ledger.path,
                    f"nothing was changed; restore {MANIFEST} from a backup, or fetch the "
                    "topic again with its compacted ledger: only this ledger has the values "
                    "that the raw ledgers have lost",
                )

    def _chosen(self, raw: Sequence[Ledger], listed: dict[int, LedgerInfo]) -> Iterator[Ledger]:
        """The valid object of each ledger.

        If a ledger has several objects, the topic's metadata select one.
        """
        by_id = attrgetter("id")
        for number, same in groupby(sorted(raw, key=by_id), key=by_id):
            objects = list(same)
            info = listed.get(number)
            if len(objects) > 1 and info is not None and info.offload is not None:
                objects = [each for each in objects if each.uuid == info.offload.uuid] or objects
            objects = _newest(name_of(self._folder), objects)
            if len(objects) > 1:
                names = " and ".join(_object(each) for each in objects)
                self._doubtful.add(number)
                self._damaged(
                    f"ledger {number} has several objects: {names}",
                    self._folder,
                    "nothing was changed; fetch the topic again, which merges the objects, or "
                    "move the object that the topic's metadata do not name to another folder",
                )
                continue
            (ledger,) = objects
            if info is not None and info.entries and info.entries < ledger.entries:
                words = f"the object has {ledger.entries} entries"
                if number == max(listed):
                    words += ": the ledger has grown since the topic's metadata were fetched"
                    self._note(words, ledger.path)
                else:
                    words += (
                        f", but the topic's ledger list states {info.entries}; all of them "
                        "are read, as a broker would"
                    )
                    self._note(words, ledger.path)
            yield ledger

    def _check_horizon(self, facts: TopicFacts, manifest: CompactionManifest | None) -> None:
        """Check that the compacted ledger of an earlier fetch is present.

        The ledger may have the only copy of some values.
        """
        path = os.path.join(self._folder, MANIFEST)
        if manifest is None and any(problem.path == path for problem in self._problems):
            return
        alone = "only that ledger has the values that the raw ledgers have lost"
        if facts.compacted is not None and (
            manifest is None or manifest.horizon < facts.compacted[1]
        ):
            ledger, horizon = facts.compacted
            words = f"the compacted ledger {ledger}, up to {horizon}, is missing: {alone}"
            self._damaged(words, self._folder, _FETCH)
        elif facts.cursor is not None and manifest is None:
            words = (
                f"ledger {facts.cursor}, which contains the compaction horizon, could not be "
                "fetched: "
            )
            words += f"a compacted ledger, if the topic has one, is missing, and {alone}"
            self._damaged(words, self._folder, _FETCH)

    def _check_missing(
        self,
        ledgers: Sequence[Ledger],
        info: ManagedLedgerInfo | None,
        manifest: CompactionManifest | None,
        facts: TopicFacts | None,
    ) -> None:
        """Report expected entries that are missing. Entries up to the horizon are not needed."""
        here = {ledger.id: ledger for ledger in ledgers}
        expected = expected_entries(info, self._last_confirmed, facts)
        damaged = {} if facts is None else facts.damaged
        for number in sorted({*expected, *here, *(damaged if info is None else ())}):
            if number in self._doubtful or any(_is_of(each, number) for each in self._problems):
                continue
            ledger, count = here.get(number), expected.get(number)
            stored, missing = (0, ()) if ledger is None else (ledger.entries, ledger.missing)
            if count is not None and count > stored:
                missing = (*missing, EntryRange(stored, count - 1))
            if missing:
                self._missing.append((number, missing))
            first = _first_beyond(number, None if manifest is None else manifest.horizon)
            if first is not None and (
                beyond := between(missing, first, missing[-1].last + 1 if missing else 0)
            ):
                self._report_missing_ledgers(number, beyond, ledger, count)
            elif count is None and info is not None and number > max(here, default=-1):
                words = f"ledger {number} is open and missing, and its size is unknown: "
                self._note(words + "the log ends before this ledger", self._folder)
            if first is not None:
                self._report_damaged(
                    number, between(damaged.get(number, ()), max(first, stored), MAX_ENTRY + 1)
                )

    def _report_missing_ledgers(
        self, number: int, beyond: Sequence[EntryRange], ledger: Ledger | None, count: int | None
    ) -> None:
        words = describe_ids(number, beyond)
        words += " is missing" if entries_in(beyond) == 1 else " are missing"
        if ledger is None:
            words = f"ledger {number} of {count} entries is missing: {words}"
        elif count is not None and count > ledger.entries:
            words += (
                f": the object ends with entry {ledger.entries - 1}, but the ledger has {count} "
                "entries"
            )
        self._damaged(words, self._folder if ledger is None else ledger.path, _FETCH)

    def _report_damaged(self, number: int, ranges: Sequence[EntryRange]) -> None:
        if ranges:
            words = (
                f"{describe_ids(number, ranges)}: the fetch found no intact copy, or could not "
                "determine "
            )
            words += "whether the ledger contains them"
            self._damaged(words, self._folder, _FETCH)


class _ArchivedListing(_Listing):
    """Lists a topic of an archive. The manifest names all valid objects."""

    def __init__(self, folder: str, manifest: ArchiveManifest, reads_small: bool) -> None:
        super().__init__(folder)
        self._reads_small = reads_small
        self._seen = archived.contents_of(manifest, folder)

    def topic(self) -> TopicFolder:
        name, seen = name_of(self._folder), self._seen
        manifest = seen.compacted_manifest(name)
        self._problems += archived.gaps_of(seen, self._folder)
        place = partition_store_at(self._folder).address
        info = None
        if seen.metadata is not None:
            info = self._decoded_info(seen.metadata, seen.metadata_is_json, place)
        known = None if seen.known is None else TopicFacts.decode(seen.known)
        stored = (*seen.parts, *seen.ledgers)
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE, "indexes") as pool:
            found = list(pool.map(self._indexed, stored))
        parts, raw = found[: len(seen.parts)], found[len(seen.parts) :]
        compacted = None
        if manifest is not None and None not in parts:
            compacted = tuple(each for each in parts if each is not None)
            self._check_parts(manifest, compacted)
        whole = [each for each in raw if each is not None]
        return self._judged(name, _Facts(manifest, info, known, whole, compacted, ()))

    def _indexed(self, stored: StoredLedger) -> Ledger | None:
        """A ledger with its index. None if the index is damaged."""
        path = stored.path(self._folder)
        # ledger id and uuid; None for a part of a compacted ledger
        parsed = parse_object_name(os.path.basename(path))
        try:
            if stored.index and not self._reads_small:
                index = IndexObject.decode(stored.index)
            else:
                index = read_index(path)
            # Check that the object exists, except in a bucket, where this would cost a request.
            if not is_address(path) and not os.path.exists(path):
                raise missing_error(path, "the object", AGAIN)
            if index.data_bytes != stored.bytes:
                words = (
                    f"the index states {index.data_bytes} bytes, but the manifest states "
                    f"{stored.bytes}"
                )
                raise CorruptLog(words, path=path + INDEX_SUFFIX)
            metadata, missing = index.metadata, index.missing
        except CorruptLog as error:
            self._damaged(error.problem, error.path or path + INDEX_SUFFIX, at=error.at)
            return None
        mtime_ns = stored.mtime_ms * 1_000_000
        identity = stored.ledger, parsed[0] if parsed else UUID(int=0), path, stored.bytes, mtime_ns
        first = None if stored.first is None else Position.parse(stored.first)
        survey = b"" if self._reads_small else stored.survey
        return Ledger(*identity, index, metadata, missing, stored.etag or "-", first, survey)

    def _check_parts(self, manifest: CompactionManifest, parts: tuple[Ledger, ...]) -> None:
        entries = sum(part.entries for part in parts)
        if entries != manifest.entries or not all(part.is_compacted for part in parts):
            words = (
                f"the parts have {entries} entries, but the manifest names a compacted ledger of "
            )
            self._damaged(words + str(manifest.entries), self._folder)


def fetched_uuid(name: TopicName, ledger: int, entries: int, stored: int) -> UUID:
    """The uuid in the names of a ledger's fetched objects.

    The uuid depends on ``entries`` (the ledger's end) and ``stored`` (the number of entries that
    are present).
    """
    return uuid5(NAMESPACE_URL, f"{name.full}/{ledger}/{entries}/{stored}")


def _newest(name: TopicName, objects: list[Ledger]) -> list[Ledger]:
    """Drop objects of earlier fetches if another object has all their entries.

    After a crash a ledger may have several objects. A fetch includes the entries of earlier
    fetches, so only the fetched object with the most entries is needed. It is not needed either if
    an object from another source has at least as many entries.
    """
    ours = [each for each in objects if each.uuid in _fetched_uuids(name, each)]
    others = [each for each in objects if each not in ours]
    most = max((each.stored_entries for each in ours), default=-1)
    if any(each.stored_entries >= most for each in others):
        return others
    return [*others, next(each for each in ours if each.stored_entries == most)]


def _fetched_uuids(name: TopicName, ledger: Ledger) -> tuple[UUID, UUID]:
    """The uuids that this and earlier releases derive for a ledger's fetched objects."""
    told = fetched_uuid(name, ledger.id, ledger.entries, ledger.stored_entries)
    return told, uuid5(NAMESPACE_URL, f"{name.full}/{ledger.id}")


def _first_beyond(ledger: int, horizon: Position | None) -> int | None:
    """The ledger's first entry beyond the horizon. None if the horizon is in a later ledger."""
    if horizon is None or ledger > horizon.ledger:
        return 0
    return horizon.entry + 1 if ledger == horizon.ledger else None


def is_beyond(horizon: Position | None, ledger: int, ranges: Sequence[EntryRange]) -> bool:
    """Whether any entry in these ranges of a ledger is beyond the horizon."""
    first = _first_beyond(ledger, horizon)
    return first is not None and any(each.last >= first for each in ranges)


def _ids_of(ledger: Ledger) -> Iterator[Position]:
    """The entry ids in a compacted ledger's records.

    Raises:
        CorruptLog: a record is broken.
        LogError: the object cannot be read.
    """
    for _, data in read_entries(ledger.path, index=ledger.index):
        with located(ledger.path):
            position = decode_record(data)[0]
        yield position


def _has(ledger: Ledger | None, entry: int) -> bool:
    """Whether the ledger has the entry."""
    return (
        ledger is not None
        and entry < ledger.entries
        and not between(ledger.missing, entry, entry + 1)
    )


def decode_record_at(file: BinaryIO, size_bytes: int) -> Position:
    """The id of the compacted record at the current position of an open data object.

    The object has ``size_bytes`` bytes.
    """
    at = file.tell()
    head = file.read(ENTRY_HEAD.size)
    size = int(ENTRY_HEAD.unpack_from(head)[0]) if len(head) == ENTRY_HEAD.size else -1
    if not 0 <= size <= size_bytes - at - ENTRY_HEAD.size:
        raise CorruptLog("no entry begins at this byte", at)
    return decode_record(file.read(size))[0]


def _is_of(problem: Problem, ledger: int) -> bool:
    parsed = parse_object_name(os.path.basename(problem.path).removesuffix(INDEX_SUFFIX))
    return problem.kind is ProblemKind.DAMAGED and parsed is not None and parsed[1] == ledger


def _object(ledger: Ledger) -> str:
    return os.path.basename(ledger.path)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size > _MOST_METADATA_BYTES:
                raise LogError(
                    "the file is too large to be the metadata of a topic", path=path, remedy=_FETCH
                )
            return file.read(_MOST_METADATA_BYTES)
    except OSError as error:
        raise to_log_error(error, path, "read the file") from error
