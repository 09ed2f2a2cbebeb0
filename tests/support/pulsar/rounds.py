"""Random Pulsar topics, rounds over them, and their folders' state, for failure tests."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lastwrite
from lastwrite.pulsar.format.names import INDEX_SUFFIX, MANIFEST, SURVEY_SUFFIX
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.store import lock
from lastwrite.pulsar.store.manifest import read_manifest
from lastwrite.spark.inline import INLINE
from tests.support.pulsar.model import START_MS, Author, ModelTopic, Rules, content
from tests.support.pulsar.topics import put_ledger, read_compacted, topic_folder

Content = tuple[Position | None, list[tuple[object, ...]]]  # the horizon, and the entries up to it


def lay_out(seed: int, archive: Path) -> tuple[Content, Content]:
    """Write a topic of a few ledgers. Returns its content, and its content after a round.

    Topics of odd seeds have been compacted before.
    """
    rng, author, model = random.Random(seed), Author(seed), ModelTopic()
    folder = topic_folder(archive)
    for ledger in range(10, 10 + rng.randint(3, 4)):
        entries = author.entries(rng.randint(4, 12)) + author.end_transactions()
        put_ledger(folder, ledger, entries, 700 + max(map(len, entries)))
        model.raw += [(Position(ledger, n), entry) for n, entry in enumerate(entries)]
        if seed % 2 and ledger == 11:
            compact(archive)
            assert model.compact(Rules())
    before = model.horizon, [content(*each) for each in model.compacted]
    assert model.compact(Rules())
    return before, (model.horizon, [content(*each) for each in model.compacted])


def compact(archive: Path, **arguments: Any) -> int:
    return lastwrite.compact(
        str(archive), system="pulsar", now_ms=START_MS, spark=INLINE, **arguments
    ).exit_status


def held(archive: Path) -> Content:
    """The horizon in the manifest, and the entries of its compacted ledger."""
    folder = topic_folder(archive)
    manifest = read_manifest(str(folder))
    if manifest is None:
        return None, []
    return manifest.horizon, [content(*each) for each in read_compacted(folder)]


def raw_files(archive: Path) -> dict[str, bytes]:
    found = {path.name: path for path in topic_folder(archive).iterdir()}
    return {
        name: path.read_bytes()
        for name, path in found.items()
        if b"compacted-ledger" not in _index_of(path)
        and name not in (MANIFEST, lock.FILE)
        and not name.endswith((SURVEY_SUFFIX, ".aside", f".aside{INDEX_SUFFIX}"))
    }


def _index_of(path: Path) -> bytes:
    index = path if path.name.endswith(INDEX_SUFFIX) else path.with_name(path.name + INDEX_SUFFIX)
    return index.read_bytes() if index.exists() else b""


def shape(archive: Path) -> tuple[int, set[str]]:
    """The number of files without surveys, and the endings of files that a round sets aside."""
    names = [
        path.name
        for path in topic_folder(archive).iterdir()
        if not path.name.endswith(SURVEY_SUFFIX)
    ]
    return len(names), {name.rpartition(".")[2] for name in names if ".aside" in name}
