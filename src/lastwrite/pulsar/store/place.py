"""Whether a path contains data of Pulsar: topic folders by name, single files by their first bytes.

The code that detects the system of a path imports only this module of Pulsar.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import StrEnum

from lastwrite.errors import InvalidConfig
from lastwrite.pulsar.format.names import (
    FETCHED,
    MANAGED_LEDGER,
    MANAGED_LEDGER_JSON,
    MANIFEST,
    PERSISTENT,
    TopicName,
    parse_object_name,
)
from lastwrite.storage.objects.address import is_address

_LEVELS = 4  # levels of a topic's path: tenant, namespace, "persistent", topic
_LOG_ROOT_FILES = ("meta.properties", "recovery-point-offset-checkpoint", ".kafka_cleanshutdown")


class PulsarFileKind(StrEnum):
    """The kinds of single files that Pulsar and BookKeeper write."""

    DATA_OBJECT = "data object"
    INDEX_OBJECT = "index object"
    ENTRY_LOG = "entry log"
    JOURNAL = "journal"
    MAP_FILE = "map file"


_MAGICS = {
    bytes.fromhex("fbdbabcb"): PulsarFileKind.DATA_OBJECT,
    bytes.fromhex("de47de47"): PulsarFileKind.INDEX_OBJECT,
    b"BKLO": PulsarFileKind.ENTRY_LOG,
    b"BKLG": PulsarFileKind.JOURNAL,
    b"SEQ\x06": PulsarFileKind.MAP_FILE,
}


def kind_of(path: str) -> PulsarFileKind | None:
    """The kind of the file at ``path``, by its first four bytes.

    None if there is no file, or if it is of no such kind.
    """
    if not os.path.isfile(path):
        return None
    try:
        with open(path, "rb") as file:
            return _MAGICS.get(file.read(4))
    except OSError:
        return None  # a later read of the file reports the reason


def is_topic_folder(folder: str) -> bool:
    """Whether the folder has a topic's name and contains a file of a topic."""
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
    known = (MANAGED_LEDGER, MANAGED_LEDGER_JSON, MANIFEST, FETCHED)
    return name in known or parse_object_name(name) is not None


def name_or_none(folder: str) -> TopicName | None:
    """The topic that a folder is named after. None if its name is not a topic's."""
    try:
        return name_of(folder)
    except InvalidConfig:
        return None


def name_of(folder: str) -> TopicName:
    """The topic that a folder is named after.

    Raises:
        InvalidConfig: the last four parts of the path are not a managed ledger's name.
    """
    return TopicName.of_folder(os.path.abspath(folder))


def locate(path: str) -> str | None:
    """The topic folder at or above ``path``.

    Without such a folder, returns ``path`` if topics are below it, otherwise None.
    """
    if is_address(str(path)):  # a bucket contains archives, but no topic folders
        return None
    whole = os.path.abspath(str(path))
    real = os.path.realpath(whole)
    # Use the name of the real path, if it is a topic's name.
    if real != whole and (found := locate(real)) is not None:
        return found
    above = whole if os.path.isdir(whole) else os.path.dirname(whole)
    for folder in (above, os.path.dirname(above)):
        if is_topic_folder(folder):
            return folder
    if not os.path.isdir(whole) or any(
        os.path.exists(os.path.join(whole, name)) for name in _LOG_ROOT_FILES
    ):
        return None
    return str(path) if next(topics_below(whole), None) is not None else None


def topics_below(folder: str, depth: int = _LEVELS) -> Iterator[str]:
    """Topic folders in ``folder``, at most ``depth`` levels below it, unsorted."""
    try:
        with os.scandir(folder) as entries:
            below = [entry.path for entry in entries if entry.is_dir()]
    except OSError:
        return  # some folders on the way may not be readable
    if os.path.basename(folder) == PERSISTENT:
        yield from filter(is_topic_folder, below)
    elif depth > 1:
        for each in below:
            yield from topics_below(each, depth - 1)
