"""What lies in a topic folder: its ledgers, which of them counts as the compacted one, and the log that they make.

::

    ARCHIVE/public/default/persistent/orders/       named as the managed ledger is
        managed-ledger, or managed-ledger.json      the topic's own list of its ledgers, if somebody brought it
        2f…-ledger-10, 2f…-ledger-10-index          a raw ledger, as the object-store offloader writes it
        91…-ledger-13, 91…-ledger-13-index          a compacted ledger: its metadata say so
        compacted.json                              which compacted ledger counts, and its horizon
        2f…-ledger-10.survey                        what one pass over a ledger found: see ``survey``
        lastwrite.lock                              see ``lock``

As a log: the compacted ledger first, then the raw entries beyond its horizon; raw ledgers up to it need not exist.
The log's high watermark is where the next horizon may lie: behind the last entry that is neither a marker nor of an
aborted transaction and lies before every transaction that is not decided.

Source: Pulsar 4.2.4; spec/pulsar.md sections 4.7, 5, 8, 22, 23, 27.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import BinaryIO
from uuid import UUID

from lastwrite.errors import CorruptLog, InvalidConfig, LogError, NotALog
from lastwrite.formats.pulsar.compacted import decode_record
from lastwrite.formats.pulsar.ledger_metadata import LedgerMetadata
from lastwrite.formats.pulsar.managed_ledger import LedgerInfo, ManagedLedgerInfo, from_json
from lastwrite.formats.pulsar.names import (
    INDEX_SUFFIX,
    MANAGED_LEDGER,
    MANAGED_LEDGER_JSON,
    MANIFEST,
    PERSISTENT,
    TopicName,
    parse_object_name,
)
from lastwrite.formats.pulsar.offload import BLOCK_HEADER_BYTES, ENTRY_HEAD, EntryHead, IndexObject
from lastwrite.formats.pulsar.position import Position
from lastwrite.logstore.files import to_log_error
from lastwrite.logstore.pulsar.manifest import Manifest, read_manifest
from lastwrite.logstore.pulsar.objects import read_index
from lastwrite.model.log import Problem, ProblemKind, TopicPartition

MADE_BY = "lastwrite"  # a custom metadatum of the compacted ledgers that we made

_RESTORE = "nothing was changed; bring the object once more from where it was offloaded to"
_MOST_METADATA_BYTES = 256 << 20
_LEVELS = 4  # tenant, namespace, "persistent", topic
_LOG_ROOT_FILES = ("meta.properties", "recovery-point-offset-checkpoint", ".kafka_cleanshutdown")


# ---------------------------------------------------------------------- where topics lie


def is_topic_folder(folder: str) -> bool:
    """Whether the folder is named as a topic's and holds something of one."""
    if (
        os.path.basename(os.path.dirname(os.path.abspath(folder))) != PERSISTENT
        or name_or_none(folder) is None
    ):
        return False
    try:
        with os.scandir(folder) as entries:
            return any(_is_of_topic(entry.name) for entry in entries)
    except OSError:
        return False


def _is_of_topic(name: str) -> bool:
    return (
        name in (MANAGED_LEDGER, MANAGED_LEDGER_JSON, MANIFEST)
        or parse_object_name(name) is not None
    )


def name_or_none(folder: str) -> TopicName | None:
    """The topic that a folder is named after, None where it is named after none."""
    try:
        return name_of(folder)
    except InvalidConfig:
        return None


def name_of(folder: str) -> TopicName:
    """The topic that a folder is named after.

    Raises:
        InvalidConfig: the last four parts of the path are no managed ledger's name.
    """
    return TopicName.of_managed_ledger("/".join(os.path.abspath(folder).split(os.sep)[-_LEVELS:]))


def partition_of(name: TopicName) -> TopicPartition:
    """A topic as the engine names it."""
    return TopicPartition(name.base, name.partition)


def locate(path: str) -> str | None:
    """The topic folder at or above ``path``, else ``path`` where there is one below; None: nothing of Pulsar's."""
    whole = os.path.abspath(str(path))
    above = whole if os.path.isdir(whole) else os.path.dirname(whole)
    for folder in (above, os.path.dirname(above)):
        if is_topic_folder(folder):
            return folder
    if not os.path.isdir(whole) or any(
        os.path.exists(os.path.join(whole, name)) for name in _LOG_ROOT_FILES
    ):
        return None
    return str(path) if next(_topics_below(whole), None) is not None else None


def _topics_below(folder: str, depth: int = _LEVELS) -> Iterator[str]:
    """Topic folders in ``folder``, at most ``depth`` levels below it, in no order."""
    if os.path.basename(folder) == PERSISTENT:
        depth = 1
    for below in _folders_in(folder):
        if os.path.basename(folder) == PERSISTENT:
            if is_topic_folder(below):
                yield below
        elif depth > 1:
            yield from _topics_below(below, depth - 1)


def _folders_in(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_dir()]
    except OSError:
        return []  # who looks for topics may not be allowed to look everywhere


def find_topics(path: str, topic: str | None = None, partition: int | None = None) -> list[str]:
    """The topic folders at ``path`` (an archive, one of its folders, a topic's or one of its files), sorted by name.

    ``topic``: a full name, ``tenant/namespace/name``, or a local name, of any namespace.

    Raises:
        NotALog: there is none, or none of that name.
    """
    place = locate(path)
    if place is None:
        raise NotALog(
            "no topic of Pulsar lies here" if os.path.exists(path) else "no such file or folder",
            path=str(path),
            remedy="give an archive that lastwrite fetch made, TENANT/NAMESPACE/persistent/TOPIC below it",
        )
    whole = os.path.abspath(place)
    found = [whole] if is_topic_folder(whole) else list(_topics_below(whole))
    named = sorted((name_of(folder), folder) for folder in found)
    chosen = [
        folder
        for name, folder in named
        if (topic is None or _is_named(name, topic)) and partition in (None, name.partition)
    ]
    if not chosen:
        listed = ", ".join(name.full for name, _ in named[:5])
        raise NotALog("no such topic", path=str(path), remedy=f"there are: {listed}")
    return chosen


def _is_named(name: TopicName, text: str) -> bool:
    wanted = TopicName.parse(text)
    if "/" not in text:
        wanted = TopicName(name.tenant, name.namespace, wanted.local, wanted.partition)
    return wanted.with_partition(-1) == name.with_partition(-1) and wanted.partition in (
        -1,
        name.partition,
    )


# ---------------------------------------------------------------------- what lies in one


@dataclass(frozen=True, slots=True)
class Ledger:
    """A ledger in a topic folder: its data object, and what its index says."""

    id: int
    uuid: UUID
    path: str
    size_bytes: int
    mtime_ns: int
    index: IndexObject
    metadata: LedgerMetadata

    @property
    def entries(self) -> int:
        """How many there are by the ledger's metadata."""
        return (-1 if self.metadata.last_entry is None else self.metadata.last_entry) + 1

    @property
    def is_compacted(self) -> bool:
        """A compacted ledger, of whatever make; else a raw one."""
        return self.metadata.compacted_topic is not None

    @property
    def is_ours(self) -> bool:
        """A compacted ledger that we made, and may remove."""
        return is_ours(self.metadata)


def is_ours(metadata: LedgerMetadata) -> bool:
    """Whether the metadata are of a compacted ledger that we made."""
    return metadata.compacted_topic is not None and MADE_BY in metadata.custom


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic folder as it lies there."""

    folder: str
    name: TopicName
    ledgers: tuple[Ledger, ...] = ()  # raw ones, in the log's order
    compacted: Ledger | None = None  # the one that the manifest names
    manifest: Manifest | None = None
    info: ManagedLedgerInfo | None = None
    strays: tuple[Ledger, ...] = ()  # compacted ones that no manifest names
    problems: tuple[Problem, ...] = ()

    @property
    def horizon(self) -> Position | None:
        return None if self.manifest is None else self.manifest.horizon

    @property
    def highest_ledger(self) -> int:
        """The highest ledger id that anything here mentions; -1: none."""
        known = [ledger.id for ledger in (*self.ledgers, *self.strays)]
        known += [info.ledger for info in self.info.ledgers] if self.info is not None else []
        if self.manifest is not None:
            known += [self.manifest.ledger, self.manifest.horizon.ledger]
        return max(known, default=-1)


def list_topic(folder: str) -> Topic:
    """What lies in a topic folder; no entry is read. What is wrong stands in ``problems``.

    Raises:
        LogError: the folder or a file cannot be read.
        InvalidConfig: the folder is not named after a topic.
    """
    return _Listing(os.path.abspath(folder)).topic()


class _Listing:
    """A topic folder on its way to a ``Topic``."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._problems: list[Problem] = []

    def topic(self) -> Topic:
        name = name_of(self._folder)
        sizes = self._sizes()
        manifest = self._manifest(name)
        info = self._info(sizes)
        found = list(self._ledgers(sizes))
        compacted = next(
            (each for each in found if manifest and _object(each) == manifest.object), None
        )
        if manifest is not None:
            self._check_compacted(manifest, compacted)
        raw = [ledger for ledger in found if not ledger.is_compacted and ledger is not compacted]
        strays = tuple(
            ledger for ledger in found if ledger.is_compacted and ledger is not compacted
        )
        listed = {} if info is None else {each.ledger: each for each in info.ledgers}
        ledgers = tuple(self._chosen(raw, listed))
        if manifest is None:
            self._check_forgotten(strays, ledgers)
        self._check_missing(ledgers, info, manifest)
        return Topic(
            self._folder, name, ledgers, compacted, manifest, info, strays, tuple(self._problems)
        )

    def _damaged(
        self, message: str, path: str, position: int | None = None, remedy: str = _RESTORE
    ) -> None:
        self._problems.append(Problem(ProblemKind.DAMAGED, message, path, position, remedy))

    def _note(self, message: str, path: str) -> None:
        self._problems.append(Problem(ProblemKind.RECOVERED, message, path))

    def _sizes(self) -> dict[str, os.stat_result]:
        try:
            with os.scandir(self._folder) as entries:
                return {entry.name: entry.stat() for entry in entries if entry.is_file()}
        except OSError as error:
            raise to_log_error(error, self._folder, "list the folder") from error

    def _manifest(self, name: TopicName) -> Manifest | None:
        path = os.path.join(self._folder, MANIFEST)
        try:
            found = read_manifest(self._folder)
        except LogError as error:
            if error.exit_status != 3:
                raise
            self._damaged(error.problem, path, error.at, error.remedy or _RESTORE)
            return None
        if found is not None and found.topic != name.full:
            self._damaged(
                f"the manifest is of {found.topic}",
                path,
                None,
                "rename the folder, or remove the manifest",
            )
        return found

    def _info(self, sizes: dict[str, os.stat_result]) -> ManagedLedgerInfo | None:
        for file in (MANAGED_LEDGER, MANAGED_LEDGER_JSON):
            if file not in sizes:
                continue
            path = os.path.join(self._folder, file)
            data = _read(path)
            try:
                if file == MANAGED_LEDGER:
                    return ManagedLedgerInfo.decode_node(data)
                return from_json(data.decode("utf-8", "replace")).info
            except LogError as error:
                self._damaged(
                    error.problem,
                    path,
                    error.at,
                    "bring the topic's metadata once more, or remove the file",
                )
                return None
        return None

    def _ledgers(self, sizes: dict[str, os.stat_result]) -> Iterator[Ledger]:
        for name in sorted(sizes):
            parsed = parse_object_name(name)
            if parsed is None:
                continue
            uuid, ledger = parsed
            path = os.path.join(self._folder, name)
            if name + INDEX_SUFFIX not in sizes:
                self._note("a data object without its index: its offload was not finished", path)
                continue
            try:
                index = read_index(path)
                metadata = index.metadata
            except CorruptLog as error:
                self._damaged(error.problem, path + INDEX_SUFFIX, error.at)
                continue
            if index.data_bytes != sizes[name].st_size:
                self._damaged(f"{sizes[name].st_size} bytes, by its index {index.data_bytes}", path)
                continue
            yield Ledger(
                ledger, uuid, path, sizes[name].st_size, sizes[name].st_mtime_ns, index, metadata
            )

    def _check_compacted(self, manifest: Manifest, ledger: Ledger | None) -> None:
        path = os.path.join(self._folder, manifest.object)
        if ledger is None:
            if not any(
                p.path.startswith(path) and p.kind is ProblemKind.DAMAGED for p in self._problems
            ):
                self._damaged("the manifest names this object, and it is not there", path)
        elif ledger.entries != manifest.entries or not ledger.is_compacted:
            self._damaged(
                f"a ledger of {ledger.entries} entries, and the manifest names a compacted one of {manifest.entries}",
                path,
            )

    def _check_forgotten(self, strays: Sequence[Ledger], ledgers: Sequence[Ledger]) -> None:
        """Without a manifest a compacted ledger is what a crash left of the first round, unless the raw ledgers that it
        was made of are gone: then it is all there is of them."""
        for ledger in strays:
            first = first_id(ledger)
            if first is not None and (not ledgers or first.ledger < ledgers[0].id):
                self._damaged(
                    f"a compacted ledger that begins at {first}, and no manifest names it",
                    ledger.path,
                    None,
                    f"nothing was changed; bring back its {MANIFEST}, or move the object and its index away",
                )

    def _chosen(self, raw: Sequence[Ledger], listed: dict[int, LedgerInfo]) -> Iterator[Ledger]:
        """One object a ledger: of several the one that the topic's metadata name."""
        for number, same in groupby(
            sorted(raw, key=lambda ledger: ledger.id), key=lambda ledger: ledger.id
        ):
            objects = list(same)
            info = listed.get(number)
            if len(objects) > 1 and info is not None and info.offload is not None:
                objects = [each for each in objects if each.uuid == info.offload.uuid] or objects
            if len(objects) > 1:
                names = " and ".join(_object(each) for each in objects)
                self._damaged(
                    f"two objects are ledger {number}: {names}",
                    self._folder,
                    None,
                    "nothing was changed; move away the one that the topic's metadata do not name",
                )
                continue
            (ledger,) = objects
            if info is not None and info.entries and info.entries != ledger.entries:
                self._damaged(
                    f"{ledger.entries} entries by its index, {info.entries} by the topic's metadata",
                    ledger.path,
                )
            yield ledger

    def _check_missing(
        self, ledgers: Sequence[Ledger], info: ManagedLedgerInfo | None, manifest: Manifest | None
    ) -> None:
        """A ledger that is not here may be one at or below the horizon, or the log's end; not one in between."""
        if info is None:
            return
        here = {ledger.id for ledger in ledgers}
        last = max(here, default=-1)
        for each in info.ledgers:
            if each.ledger in here or any(
                _is_of(problem, each.ledger) for problem in self._problems
            ):
                continue
            entries = each.entries or 0
            end = Position(each.ledger, entries - 1)
            if entries and manifest is not None and end <= manifest.horizon:
                continue
            if each.ledger > last:
                self._note(
                    f"ledger {each.ledger} is not here: the log ends before it", self._folder
                )
                return
            if entries:
                self._damaged(
                    f"ledger {each.ledger} of {entries} entries is not here",
                    self._folder,
                    None,
                    "fetch it; compacted without it, its messages would be lost for good",
                )


def first_id(ledger: Ledger) -> Position | None:
    """The id that a compacted ledger's first record bears; None: it is empty.

    Raises:
        CorruptLog: there is no such record.
        LogError: the object cannot be read.
    """
    if not ledger.index.blocks:
        return None
    try:
        with open(ledger.path, "rb") as file:
            file.seek(ledger.index.blocks[0].offset + BLOCK_HEADER_BYTES)
            return decode_record_at(file, ledger.size_bytes)
    except LogError as error:
        raise error.located(ledger.path) from error
    except OSError as error:
        raise to_log_error(error, ledger.path, "read the ledger") from error


def decode_record_at(file: BinaryIO, size_bytes: int) -> Position:
    """The id of the record that begins where the open data object of so many bytes stands."""
    at = file.tell()
    head = file.read(ENTRY_HEAD.size)
    size = (
        EntryHead._make(ENTRY_HEAD.unpack_from(head)).size if len(head) == ENTRY_HEAD.size else -1
    )
    if not 0 <= size <= size_bytes - at - ENTRY_HEAD.size:
        raise CorruptLog("no entry begins here", at)
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
                raise LogError("too large for metadata", path=path, remedy=_RESTORE)
            return file.read(_MOST_METADATA_BYTES)
    except OSError as error:
        raise to_log_error(error, path, "read the file") from error
