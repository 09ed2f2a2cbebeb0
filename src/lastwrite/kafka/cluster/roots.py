"""The metadata log used for a log root: in that root, in another root, or given by the user.

``meta.properties`` in every log root has the ids of its cluster and broker::

    version=1
    cluster.id=q1Sh-9_ISia_zwGINzRvyQ
    node.id=1
    directory.id=…                          differs between a broker's log roots

A metadata log is used only for roots of the same cluster. A root without ``meta.properties``, such
as a copy, is assumed to belong to the cluster of the other roots, if these all belong to one
cluster.

Source: Kafka 4.4.0 ``MetaProperties``; KIP-631, KIP-858.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from lastwrite.config.properties import decode_properties
from lastwrite.errors import CorruptLog, InvalidConfig, NotALog
from lastwrite.kafka.cluster.metadata_log import FOLDER
from lastwrite.storage.file_state import state_of
from lastwrite.storage.files import to_log_error

META_PROPERTIES = "meta.properties"
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RootIdentity:
    """The ids of cluster, broker and log root in ``meta.properties``. A missing id is None."""

    cluster: str | None = None
    node: str | None = None
    directory: str | None = None
    version: str | None = None


def read_meta_properties(root: str) -> RootIdentity:
    """Read the ids of cluster, broker and log root from ``meta.properties`` in ``root``.

    Raises:
        CorruptLog: the file is not a properties file.
        LogError: the file cannot be read.
    """
    try:
        return read_identity(os.path.join(root, META_PROPERTIES))
    except FileNotFoundError:
        return RootIdentity()


def read_identity(path: str) -> RootIdentity:
    """Read the ids of cluster, broker and log root from the file at ``path``.

    Raises:
        FileNotFoundError: the file does not exist.
        CorruptLog, LogError: the file is damaged or cannot be read.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(_MOST_BYTES).decode("utf-8")
        found = decode_properties(text)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise to_log_error(error, path, "read the ids of broker and cluster") from error
    except (UnicodeDecodeError, InvalidConfig) as error:
        at = error.start if isinstance(error, UnicodeDecodeError) else 0
        raise CorruptLog(
            f"the file is not a properties file: {error}",
            at,
            path,
            "restore the file from a backup; its cluster.id and node.id are the same in the "
            "broker's other log.dirs, its directory.id is not",
        ) from error
    return RootIdentity(
        found.get("cluster.id") or None,
        found.get("node.id") or found.get("broker.id") or None,
        found.get("directory.id") or None,
        found.get("version") or None,
    )


@dataclass(frozen=True, slots=True)
class MetadataSource:
    """The metadata log used for a log root, and the candidates that were rejected, with reasons."""

    folder: str | None = None  # folder of the metadata log; None if no metadata log is used
    node: str | None = None  # id of the broker with this log root; None if unknown
    rejected: tuple[str, ...] = ()  # one sentence for each rejected candidate


class MetadataLookup:
    """Finds the metadata log for each of a command's log roots.

    ``metadata`` is the path given with --metadata.

    Raises:
        NotALog: there is no metadata log at ``metadata``.
        InvalidConfig: the metadata log and a log root belong to different clusters.
    """

    def __init__(self, roots: Sequence[str] = (), metadata: str | None = None) -> None:
        self._roots = tuple(dict.fromkeys(map(os.path.abspath, roots)))
        self._stated = None if metadata is None else metadata_folder_at(metadata)
        self._found: dict[str, tuple[object, MetadataSource]] = {}
        if self._stated is not None:
            theirs = read_meta_properties(os.path.dirname(self._stated)).cluster
            for root in self._roots:
                ours = read_meta_properties(root).cluster
                if None not in (ours, theirs) and ours != theirs:
                    raise InvalidConfig(
                        f"the metadata in {self._stated} belongs to cluster {theirs}, but this "
                        f"log root belongs to cluster {ours}",
                        path=root,
                        remedy=f"give the metadata of cluster {ours} with --metadata",
                    )

    def metadata_for(self, root: str) -> MetadataSource:
        """The metadata log for ``root``: given with --metadata, in ``root``, or in another root.

        Raises:
            LogError: a ``meta.properties`` cannot be read.
        """
        state = self._state(root)
        known = self._found.get(root)
        if known is None or known[0] != state:
            known = self._found[root] = (state, self._find_source(root))
        return known[1]

    def _state(self, root: str) -> object:
        """A value that changes whenever a new search could find another metadata log."""
        found: list[object] = []
        for each in (root, *self._roots):
            found.append(state_of(os.path.join(each, META_PROPERTIES)))
            found.append(os.path.isdir(os.path.join(each, FOLDER)))
        return found

    def _find_source(self, root: str) -> MetadataSource:
        mine = read_meta_properties(root)
        if self._stated is not None:
            return MetadataSource(self._stated, mine.node)
        own = os.path.join(root, FOLDER)
        if os.path.isdir(own):
            return MetadataSource(own, mine.node)
        clusters = {each: read_meta_properties(each).cluster for each in (*self._roots, root)}
        named = sorted({cluster for cluster in clusters.values() if cluster is not None})
        refused = []
        for other in self._roots:
            folder = os.path.join(other, FOLDER)
            if other == root or not os.path.isdir(folder):
                continue
            theirs = clusters[other]
            if mine.cluster is not None and mine.cluster == theirs:
                return MetadataSource(folder, mine.node)
            if mine.cluster is None or theirs is None:
                if len(named) <= 1:
                    return MetadataSource(folder, mine.node)
                silent = root if mine.cluster is None else other
                refused.append(
                    f"the metadata in {folder} was not used: {silent} has no meta.properties, and "
                    f"the given log roots belong to several clusters: {' and '.join(named)}"
                )
            else:
                refused.append(
                    f"the metadata in {folder} was not used: it belongs to cluster {theirs}, but "
                    f"{root} belongs to cluster {mine.cluster}"
                )
        return MetadataSource(None, mine.node, tuple(refused))


def metadata_folder_at(path: str) -> str:
    """The folder of the metadata log at ``path``.

    ``path`` is that folder, a copy of it, or the log root that contains it.
    """
    path = os.path.abspath(path)
    below = os.path.join(path, FOLDER)
    if os.path.isdir(below):
        return below
    try:
        names = os.listdir(path)
    except OSError as error:
        raise NotALog(
            f"the cluster's metadata cannot be read: {error.strerror}",
            path=path,
            remedy="check the path of --metadata",
        ) from error
    is_metadata = os.path.basename(path) == FOLDER or any(
        name.endswith(".checkpoint") for name in names
    )
    if not is_metadata or not any(name.endswith((".log", ".checkpoint")) for name in names):
        raise NotALog(
            "the path of --metadata contains no metadata log of a cluster",
            path=path,
            remedy=f"give the log root of a broker or controller, or its folder {FOLDER}, or a "
            "copy of one of them",
        )
    return path
