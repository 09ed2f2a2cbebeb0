"""Detect the table at a folder or address. A location contains at most one table, of one format."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from lastwrite.errors import InvalidConfig, LogError
from lastwrite.storage.objects.address import is_address
from lastwrite.storage.objects.store import ObjectInfo
from lastwrite.tables.place import TablePlace
from lastwrite.tables.upkeep import OURS

CATALOG_FILE: Final = "catalog.db"  # the SQLite catalog in the folder of an Iceberg table
# for each format: the prefix of its metadata files below the table, and a pattern of their names
_MARKS = {
    "delta": ("_delta_log/", re.compile(r"_delta_log/[0-9._a-z-]+(?:json|parquet)$")),
    "parquet": ("_lastwrite/current", re.compile(r"_lastwrite/current$")),
    "iceberg": ("metadata/", re.compile(r"metadata/[^/]+\.metadata\.json$")),
}
_OF_FORMAT = {
    "delta": "_delta_log",
    "parquet": "_lastwrite",
    "iceberg": f"metadata and {CATALOG_FILE}",
}
# files of a run that crashed before its first commit, and hidden files
_HARMLESS = re.compile(
    rf"{CATALOG_FILE}(?:-\w+)?$|_lastwrite-probe-|metadata/version-hint\.text$|"
    r"(?:.*/)?\.[^/]*$|lost\+found/"
)


def is_table_name(to: str) -> bool:
    """Whether ``to`` may be a table's name in a catalog: ``namespace.table``."""
    return re.fullmatch(r"[\w-]+(\.[\w-]+)+", to) is not None


def metadata_files(place: TablePlace) -> list[str]:
    """The names of Iceberg's metadata files below a location."""
    mark, is_like = _MARKS["iceberg"]
    return [name for name in _names(place, mark) if is_like.match(name)]


def formats_at(address: str) -> list[str]:
    """The formats whose tables are at the address, sorted. Lists the address once per format."""
    place = TablePlace(address)
    return sorted(
        format
        for format, (mark, is_like) in _MARKS.items()
        if any(is_like.match(name) for name in _names(place, mark))
    )


def format_there(address: str, format: str | None) -> str:
    """The format of the table at the address. If there is no table: ``format``, or ``iceberg``.

    Raises:
        InvalidConfig: the address has a table of another format, or tables of two formats; or it is
            not a folder, and no folder can be created there.
    """
    if not is_address(address):
        _check_folder(address)
    there = formats_at(address)
    if len(there) > 1:
        folders = " or ".join(_OF_FORMAT[each] for each in there)
        raise InvalidConfig(
            f"the address has tables of several formats ({', '.join(there)}); nothing was changed",
            path=address,
            remedy=f"create the table in an empty folder; or move {folders} out of this folder, "
            "whichever you do not use",
        )
    if there and format not in (None, *there):
        raise InvalidConfig(
            f"the address has a table of format {there[0]}, but {format} was requested; nothing "
            "was changed",
            path=address,
            remedy=f"give --as {there[0]}, or another address with --to",
        )
    return there[0] if there else format or "iceberg"


def check_free(address: str) -> None:
    """Check, before a table is created, that the address contains only files of crashed runs.

    Raises:
        InvalidConfig: the address contains other files, or is inside another table.
    """
    place = TablePlace(address)
    for found in place.store.list(place.key("")):
        name = place.name(found.key)
        if not _HARMLESS.match(name) and not OURS.match(name):
            raise InvalidConfig(
                f"the folder has other files, such as {name}; nothing was changed",
                path=address,
                remedy="give an empty or a new folder with --to",
            )
    for above in _above(address):
        there: list[str] = []
        with suppress(LogError):  # the user may lack the permission to list this folder
            there = formats_at(above)
        if there:
            raise InvalidConfig(
                f"the address is inside the {there[0]} table {above}, whose maintenance removes "
                "files that it does not list; nothing was changed",
                path=address,
                remedy="give an address outside that table with --to",
            )


def _check_folder(path: str) -> None:
    """Check that the path is a folder, or that a folder can be created there.

    Raises:
        InvalidConfig: the path is not a folder, and no folder can be created there.
    """
    at = os.path.abspath(path)
    while not os.path.lexists(at):
        at = os.path.dirname(at)
    if not os.path.isdir(at):
        problem = f"{at} is not a folder; the log was not read"
        raise InvalidConfig(problem, path=path, remedy="give a folder with --to")


def check_writable(path: str) -> None:
    """Check that files can be written below a path. A folder may not exist yet. Below an address
    this writes and removes a small object.

    Raises:
        InvalidConfig, RemoteFailed: files cannot be written.
    """
    if is_address(path):
        place = TablePlace(path)
        key = place.key(f"_lastwrite-probe-{secrets.token_hex(8)}")
        place.store.create(key, b"")
        place.store.remove([key])
        return
    at = os.path.abspath(path)
    while not os.path.lexists(at):
        at = os.path.dirname(at)
    if not os.access(at, os.W_OK | os.X_OK):
        raise InvalidConfig(
            f"{at} is not writable; the log was not read",
            path=path,
            remedy="give the user who runs lastwrite the permission to write there, or give "
            "another folder with --to",
        )


def _names(place: TablePlace, prefix: str) -> Iterator[str]:
    found: ObjectInfo
    for found in place.store.list(place.key(prefix)):
        yield place.name(found.key)


def _above(address: str) -> Iterator[str]:
    """The folders that contain ``address``, the nearest first; in a store, up to the bucket."""
    if is_address(address):
        scheme, _, rest = address.rstrip("/").partition("://")
        names = rest.split("/")
        for count in range(len(names) - 1, 0, -1):
            yield f"{scheme}://{'/'.join(names[:count])}"
        return
    at = os.path.abspath(address)
    while (above := os.path.dirname(at)) != at:
        at = above
        yield at
