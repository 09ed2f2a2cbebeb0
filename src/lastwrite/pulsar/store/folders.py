"""Offloaded ledgers in folders: objects copied from a bucket, and MapFiles.

Both name their topic in the ledger's metadata, where a broker stores the managed ledger's name. So
all topics of a bucket are found without the cluster. Very old ledgers lack this name. It is then
read from the path of a MapFile, or from the user metadata of a bucket's object, if they were saved
beside it as ``NAME.meta.json``.

Source: Pulsar 4.2.4, offloaders 4.0.8; docs/formats/pulsar.md, "Ledger metadata" and "Offloaded
ledger".
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from lastwrite.errors import CorruptLog, InvalidConfig, LogError, located
from lastwrite.model.log import Problem, ProblemKind
from lastwrite.pulsar.format.ledger_metadata import LedgerMetadata
from lastwrite.pulsar.format.names import (
    INDEX_SUFFIX,
    MAP_DATA,
    TopicName,
    parse_map_file_name,
    parse_object_name,
    parse_streamed_name,
)
from lastwrite.pulsar.format.offload import block_entries
from lastwrite.pulsar.format.sequence_file import METADATA_KEY, walk_sequence_file
from lastwrite.pulsar.store.objects import OffloadWriter, checked_index, read_index
from lastwrite.storage.files import to_log_error
from lastwrite.storage.mapping import mapped

# key of the managed ledger's name in a raw ledger's custom metadata
MANAGED_LEDGER_NAME = "pulsar/managed-ledger"
_USER_METADATA_SUFFIX = ".meta.json"
_MOST_USER_METADATA_BYTES = 1 << 20


class Form(StrEnum):
    """The file format of an offloaded ledger."""

    OBJECT = "object"
    MAP_FILE = "MapFile"


@dataclass(frozen=True, slots=True)
class Offloaded:
    """One offloaded ledger. ``path`` is its data object, or its MapFile's folder."""

    form: Form
    path: str
    ledger: int
    uuid: UUID
    topic: TopicName | None  # the ledger's topic; None if its metadata have no topic
    metadata: LedgerMetadata
    is_compacted: bool
    # damage that is visible without reading the entries; None if there is none
    damage: CorruptLog | None = None

    @property
    def last_entry(self) -> int:
        return -1 if self.metadata.last_entry is None else self.metadata.last_entry


def find_offloaded(path: str) -> tuple[list[Offloaded], list[Problem]]:
    """The offloaded ledgers in a folder and below it, sorted by path, and the problems found."""
    found: list[Offloaded] = []
    problems: list[Problem] = []
    for folder, below, names in os.walk(path, onerror=_refused):
        below.sort()
        for name in sorted(names):
            if parse_object_name(name) is not None:
                _take(_object, os.path.join(folder, name), found, problems)
            elif parse_streamed_name(name) is not None and name + INDEX_SUFFIX in names:
                words = (
                    "objects with several ledgers (layout V2) are not supported; the object was "
                    "skipped"
                )
                place, remedy = os.path.join(folder, name), "fetch its ledgers from the bookies"
                problems.append(Problem(ProblemKind.UNSUPPORTED, words, place, None, remedy))
        for name in list(below):
            place = os.path.join(folder, name)
            if parse_map_file_name(name) and os.path.isfile(os.path.join(place, MAP_DATA)):
                below.remove(name)
                _take(_map_file, place, found, problems)
    return found, problems


def _refused(error: OSError) -> None:
    raise to_log_error(error, error.filename, "list the folder") from error


def _take(
    read: Callable[[str], Offloaded | None],
    path: str,
    found: list[Offloaded],
    problems: list[Problem],
) -> None:
    """Read one offloaded ledger and add it to ``found``, or its error to ``problems``."""
    try:
        ledger = read(path)
    except LogError as error:
        problems.append(_problem_of(error, path))
        return
    if ledger is None:
        words = "the data object has no index: its offload was not finished"
        problems.append(Problem(ProblemKind.RECOVERED, words, path))
        return
    found.append(ledger)
    if ledger.damage is not None:
        problems.append(_problem_of(ledger.damage, path))


def _problem_of(error: LogError, path: str) -> Problem:
    kind = ProblemKind.DAMAGED if error.exit_status == 3 else ProblemKind.UNSUPPORTED
    return Problem(kind, error.problem, error.path or path, error.at, error.remedy)


def _object(path: str) -> Offloaded | None:
    parsed = parse_object_name(os.path.basename(path))
    assert parsed is not None
    uid, ledger = parsed
    if not os.path.exists(path + INDEX_SUFFIX):
        return None
    metadata = read_index(path).metadata
    damage = None
    try:
        checked_index(path)
    except CorruptLog as error:
        damage = error
    topic = _topic_of(metadata) or _topic_of_user_metadata(path + _USER_METADATA_SUFFIX)
    is_compacted = metadata.compacted_topic is not None
    return Offloaded(Form.OBJECT, path, ledger, uid, topic, metadata, is_compacted, damage)


def _map_file(path: str) -> Offloaded:
    parsed = parse_map_file_name(os.path.basename(path))
    assert parsed is not None
    ledger, uid = parsed
    key, value = next(_records(path), (0, b""))
    if key != METADATA_KEY:
        words = "the MapFile has no ledger metadata: its offload was not finished"
        raise CorruptLog(words, path=path)
    metadata = LedgerMetadata.decode(value)
    topic = _topic_of(metadata) or _topic_of_folder(path)
    return Offloaded(Form.MAP_FILE, path, ledger, uid, topic, metadata, False)


def named_by(path: str) -> tuple[TopicName | None, int] | None:
    """The topic and the ledger id of an unreadable file, from its path.

    The topic is None if neither the folder nor the user metadata name it. Returns None for a file
    that is not a ledger's.
    """
    bare = path.removesuffix(INDEX_SUFFIX)
    if (parsed := parse_object_name(os.path.basename(bare))) is not None:
        return _topic_of_user_metadata(bare + _USER_METADATA_SUFFIX), parsed[1]
    folder = os.path.dirname(path) if os.path.basename(path) == MAP_DATA else path
    if (found := parse_map_file_name(os.path.basename(folder))) is None:
        return None
    return _topic_of_folder(folder), found[0]


def _topic_of_folder(path: str) -> TopicName | None:
    """The topic of a MapFile: the parent folder is named after the managed ledger."""
    with contextlib.suppress(InvalidConfig):
        return TopicName.of_folder(os.path.dirname(os.path.abspath(path)))
    return None


def _topic_of(metadata: LedgerMetadata) -> TopicName | None:
    with contextlib.suppress(InvalidConfig):
        if metadata.compacted_topic is not None:
            return TopicName.parse(metadata.compacted_topic)
        name = metadata.custom.get(MANAGED_LEDGER_NAME)
        return None if name is None else TopicName.of_managed_ledger(name.decode(errors="replace"))
    return None


def _topic_of_user_metadata(path: str) -> TopicName | None:
    """The topic from the user metadata that were saved beside an object.

    Object stores convert the names of user metadata to lower case.
    """
    try:
        with open(path, "rb") as file:
            said = json.loads(file.read(_MOST_USER_METADATA_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    told = said.items() if isinstance(said, dict) else ()
    names = {str(key).lower(): value for key, value in told}
    with contextlib.suppress(InvalidConfig):
        return TopicName.of_managed_ledger(str(names.get("managedledgername", "")))
    return None


def _records(path: str) -> Iterator[tuple[int, bytes]]:
    """The keys and values in a MapFile, in the file's order."""
    name = os.path.join(path, MAP_DATA)
    with mapped(name) as data, located(name):
        for pair in walk_sequence_file(data):
            yield pair.key, pair.value


def object_entries(found: Offloaded) -> Iterator[tuple[int, bytes]]:
    """The entries, with their ids, of a data object that is truncated or does not match its index.

    From each block it reads the entries before the first damage.
    """
    blocks = read_index(found.path).blocks
    with mapped(found.path) as data:
        for n, block in enumerate(blocks):
            end = blocks[n + 1].offset if n + 1 < len(blocks) else len(data)
            size = min(len(data), end) - block.offset
            with contextlib.suppress(CorruptLog):
                for entry, at, length in block_entries(data, block.offset, size, block.first_entry):
                    if entry > found.last_entry:
                        break
                    yield entry, data[at : at + length].tobytes()


def map_file_entries(
    found: Offloaded, skip: Callable[[CorruptLog], None]
) -> Iterator[tuple[int, bytes]]:
    """The intact entries of a MapFile, with their ids. ``skip`` receives the damaged records.

    No checksum covers an id. An id is therefore accepted only if it follows the previous record's
    id, or if the next record's id follows it.
    """
    last = -1
    before: int | None = None
    # an entry that is returned if the next record's id follows its id
    held: tuple[int, bytes] | None = None

    def report(error: CorruptLog) -> None:
        nonlocal before
        before = None
        skip(error)

    name = os.path.join(found.path, MAP_DATA)
    with mapped(name) as data:
        for pair in walk_sequence_file(data, skip=report):
            if held is not None and before is not None and pair.key == held[0] + 1:
                yield held
                last = held[0]
            held = None
            if last < pair.key <= found.last_entry:
                if before is not None and pair.key == before + 1:
                    yield pair.key, pair.value
                    last = pair.key
                else:
                    held = pair.key, pair.value
            before = pair.key
        if held is not None and held[0] == found.last_entry > last:
            yield held


def write_map_file(found: Offloaded, writer: OffloadWriter) -> None:
    """Write a MapFile's entries to a data object. The entry ids must ascend from 0 without gaps.

    Raises:
        CorruptLog: an entry is missing or out of order, or a record is damaged.
    """
    expected, name = 0, os.path.join(found.path, MAP_DATA)
    remedy = "fetch the ledger from a bookie, or from a copy of the MapFile"
    for key, value in _records(found.path):
        if key == METADATA_KEY:
            continue
        if key != expected:
            words = f"the MapFile has entry {key} in the place of entry {expected}"
            raise CorruptLog(words, path=name, remedy=remedy)
        writer.append(key, value)
        expected += 1
    if expected != found.last_entry + 1:
        words = (
            f"the MapFile has {expected} entries, but the ledger metadata state "
            f"{found.last_entry + 1}"
        )
        raise CorruptLog(words, path=name, remedy=remedy)
