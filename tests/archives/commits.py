"""Concurrent writers of one manifest in a real S3 server, behind a proxy that damages requests.

The manifest must have each commit that a writer knows to have won.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from threading import Thread

import msgspec

from lastwrite.archive.manifest import Manifest
from lastwrite.archive.partition_store import PartitionStore
from lastwrite.errors import CommitConflict, LogError, RemoteFailed
from lastwrite.storage.objects.bucket import BucketStore
from tests.support.objects import BUCKET, S3, FaultProxy

FAULTS = (
    {"method": "PUT", "chance": 0.15, "do": "late"},
    {"method": "PUT", "chance": 0.15, "do": "lost"},
    {"method": "PUT", "chance": 0.1, "do": "409"},
    {"method": "GET", "chance": 0.1, "do": "503"},
    {"method": "GET", "chance": 0.1, "do": "drop", "bytes": 5},
)


class Writer:
    """A writer that counts its own commits in the manifest."""

    def __init__(self, name: str, store: BucketStore, prefix: str) -> None:
        self.name, self.place = name, PartitionStore(store, prefix)
        self.met: Counter[str] = Counter()
        self.problem: Exception | None = None

    def write(self, commits: int) -> None:
        """Try to commit until ``commits`` attempts have won."""
        while self.met["won"] < commits and self.problem is None:
            try:
                seen = self.place.read()
                counts = {} if seen is None else counts_of(seen.manifest)
                log = msgspec.json.encode(counts | {self.name: counts.get(self.name, 0) + 1})
                made = Manifest(system="kafka", topic="orders", partition=0, log=msgspec.Raw(log))
                begun = self.place.begin(seen)
            except RemoteFailed:
                self.met["did not begin"] += 1
                continue
            except LogError as problem:
                self.problem = problem
                return
            try:
                self.place.commit(begun, made)
                self.met["won"] += 1
            except CommitConflict:
                self.met["lost"] += 1
            except RemoteFailed:
                self.met["unknown"] += 1
            except LogError as problem:
                self.problem = problem


def counts_of(manifest: Manifest) -> dict[str, int]:
    return msgspec.json.decode(manifest.log, type=dict[str, int])


def commit_under_faults(
    server: S3,
    proxy: FaultProxy,
    prefix: str,
    commits: int,
    faults: Sequence[dict[str, object]] = FAULTS,
) -> Counter[str]:
    """Run four writers until each has won ``commits`` commits. Returns counts of outcomes and
    faults.

    Raises:
        AssertionError: the manifest's counts differ from the writers' counts.
    """
    proxy.spoil(*faults)
    settings = replace(server.settings, endpoint=proxy.endpoint)
    address = f"s3://{BUCKET}"
    writers = [Writer(f"w{n}", BucketStore(address, settings), prefix) for n in range(4)]
    threads = [Thread(target=each.write, args=(commits,)) for each in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    met = sum((each.met for each in writers), Counter[str]())
    met["requests spoilt"] = proxy.used()
    proxy.spoil()
    for writer in writers:
        if writer.problem is not None:
            raise AssertionError(writer.name) from writer.problem
    seen = PartitionStore(BucketStore(address, server.settings), prefix).read()
    assert seen is not None
    counts = counts_of(seen.manifest)
    for writer in writers:
        believed, unknown = writer.met["won"], writer.met["unknown"]
        assert believed <= counts[writer.name] <= believed + unknown, (writer.name, counts, met)
    assert sum(counts.values()) == seen.manifest.generation
    met["made"] = seen.manifest.generation
    return met
