"""The folders of an archive, and the partitions that an address selects.

    ARCHIVE/kafka/TOPIC/N/manifest.json
    ARCHIVE/rocketmq/TOPIC/N/manifest.json
    ARCHIVE/pulsar/TENANT/NAMESPACE/persistent/TOPIC/manifest.json

An address may name the archive, a partition, or any folder in between.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

from lastwrite.archive.partition_store import MANIFEST, is_partition, partition_store_at
from lastwrite.storage.objects.address import is_address, store_at
from lastwrite.storage.objects.bucket import AT_ONCE
from lastwrite.storage.objects.store import ObjectInfo, ObjectStore

_AT_ONCE = 16  # parallel requests to the store
# number of folders per level that are checked to detect an archive
_SOME = 16
_LEVELS = {
    "kafka": 2,
    "rocketmq": 2,
    "pulsar": 4,
}  # folder levels between a system's folder and a partition


def partition_address(archive: str, system: str, *names: str | int) -> str:
    """The address of a partition in an archive.

    ``names`` are its folders below the system's folder.
    """
    return "/".join([archive.rstrip("/"), system, *(quote(str(name), safe="") for name in names)])


def systems_at(path: str) -> list[str]:
    """The systems with partitions in the archive at ``path``. Empty if it is not an archive.

    Raises:
        RemoteFailed: the store does not respond.
    """
    return sorted({system for system, _ in _partitions(path, is_partition, first_only=True)})


def first_partition_at(path: str, system: str) -> str | None:
    """The address of one of the system's partitions at ``path``. None if there is none.

    Raises:
        RemoteFailed: the store does not respond.
    """
    found = _partitions(path, is_partition, first_only=True)
    return next((folder for its, folder in found if its == system), None)


def partitions_at(path: str, system: str | None = None) -> list[str]:
    """The addresses of the partitions at ``path``, of all systems or of one.

    Raises:
        RemoteFailed: the store does not respond.
    """
    found = _partitions(path, is_partition)
    return [folder for name, folder in found if system in (None, name)]


def manifests_at(path: str, system: str) -> list[tuple[str, ObjectInfo]]:
    """The addresses of the system's partitions at ``path``, with the metadata of their manifests.

    The manifests are not read.

    Raises:
        RemoteFailed: the store does not respond.
    """
    manifests: dict[str, ObjectInfo] = {}

    def is_there(folder: str) -> bool:
        place = partition_store_at(folder)
        found = place.store.head(place.key(MANIFEST))
        if found is not None:
            manifests[folder] = found
        return found is not None

    found = _partitions(path, is_there)
    return [(folder, manifests[folder]) for name, folder in found if name == system]


def _partitions(
    path: str, is_there: Callable[[str], bool], first_only: bool = False
) -> Iterator[tuple[str, str]]:
    """The system and address of each partition.

    ``is_there`` returns whether an address has a partition. With ``first_only``, only the first
    partition of each system is returned.
    """
    base = path.rstrip("/") if is_address(path) else os.path.abspath(path)
    if not is_address(path) and not os.path.isdir(base):
        return
    store, prefix = store_at(base)
    steps = base.split("/")
    is_found = False
    # a folder above the archive, or a topic in the archive, may be named like a system
    for system, depth in _depths(steps):
        for found in _of_system(store, prefix, (system, base, depth), is_there, first_only):
            is_found = True
            yield found
        if is_found:
            return
    if not is_address(path):  # no listing: a log root may have thousands of folders
        systems = [system for system in _LEVELS if os.path.isdir(os.path.join(base, system))]
    else:
        systems = [name for name in store.folders(_inside(prefix)) if name in _LEVELS]
    for system in systems:
        place = system, f"{base}/{system}", _LEVELS[system]
        below = f"{_inside(prefix)}{system}"
        yield from _of_system(store, below, place, is_there, first_only)


def _of_system(
    store: ObjectStore,
    prefix: str,
    place: tuple[str, str, int],
    is_there: Callable[[str], bool],
    first_only: bool,
) -> Iterator[tuple[str, str]]:
    system, address, depth = place
    most = _SOME if first_only else None
    known = _named_by_one_page(store, prefix, place) if depth and is_address(address) else None
    found: Iterator[str]
    if known is None:
        found = _below(store, prefix, place, is_there, most)
    elif first_only:
        found = filter(is_there, known[:most])
    else:
        with ThreadPoolExecutor(_AT_ONCE, "manifests") as pool:
            found = itertools.compress(known, list(pool.map(is_there, known)))
    for folder in itertools.islice(found, 1 if first_only else None):
        yield system, folder


def _named_by_one_page(
    store: ObjectStore, prefix: str, place: tuple[str, str, int]
) -> list[str] | None:
    """The addresses of an archive's partitions, if one request lists all objects.

    None for an archive with more objects.

    Listing the folders instead would need one request per topic.
    """
    system, address, depth = place
    listed = list(itertools.islice(store.list(_inside(prefix)), AT_ONCE))
    if len(listed) == AT_ONCE:
        return None
    names = (each.key[len(_inside(prefix)) :].split("/") for each in listed)
    return [
        "/".join([address, *folders])
        for *folders, name in sorted(names)
        if name == MANIFEST
        and len(folders) == depth
        and all(_fits(system, depth - level, folder) for level, folder in enumerate(folders))
    ]


def _inside(prefix: str) -> str:
    return f"{prefix}/" if prefix else ""


def _depths(steps: list[str]) -> Iterator[tuple[str, int]]:
    """Yield each system whose folder may contain the path, and the levels down to a partition.

    A level is a folder between the path and a partition of the system.
    """
    for system, levels in _LEVELS.items():
        for below in range(levels + 1):
            if len(steps) <= below or steps[-1 - below] != system:
                continue
            names = steps[len(steps) - below :]
            if all(_fits(system, levels - n, name) for n, name in enumerate(names)):
                yield system, levels - below


def _fits(system: str, depth: int, name: str) -> bool:
    """Whether a folder may have this name, ``depth`` levels above a partition's files."""
    if system == "pulsar":
        return depth != 2 or name == "persistent"
    return depth != 1 or name.isdigit()


def _below(
    store: ObjectStore,
    prefix: str,
    place: tuple[str, str, int],
    is_there: Callable[[str], bool],
    most: int | None,
) -> Iterator[str]:
    """The partitions ``depth`` levels below a folder.

    Opens at most ``most`` folders in each folder.
    """
    system, address, depth = place
    if depth == 0:
        if is_there(address):
            yield address
        return
    names = [name for name in store.folders(_inside(prefix)) if _fits(system, depth, name)]

    def below(name: str) -> Iterator[str]:
        inner = system, f"{address}/{name}", depth - 1
        return _below(store, f"{_inside(prefix)}{name}", inner, is_there, most)

    if most is not None or len(names) < 2:
        yield from itertools.chain.from_iterable(map(below, names[:most]))
        return
    with ThreadPoolExecutor(_AT_ONCE, "list") as pool:  # parallel, because requests mostly wait
        yield from itertools.chain.from_iterable(pool.map(lambda name: list(below(name)), names))
