"""Tests of Kafka rounds on an archive whose store does not answer a manifest's replacement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.archive import partition_store as places
from lastwrite.archive.partition_store import PartitionStore
from lastwrite.errors import RemoteFailed
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.storage.objects.folder import FolderStore
from tests.support.engine import compact
from tests.support.kafka.logs import NAME, write_segment

NOW_MS = 1_700_000_000_000
EACH = 20


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One partition of three closed segments with the same keys."""
    monkeypatch.setattr(places, "_waits", lambda: [0.0] * 3)
    for base in range(0, 4 * EACH, EACH):
        records = [Record(base + n, NOW_MS, b"key %d" % n, b"v%d" % base) for n in range(EACH)]
        write_segment(tmp_path / "log" / NAME, base, [encode_batch(records)], mtime_ms=NOW_MS)
    lastwrite.fetch([str(tmp_path / "log")], str(tmp_path / "archive"))
    return tmp_path / "archive"


def check_whole(archive: Path) -> int:
    """Check that all objects of the manifest exist. Returns its generation."""
    [manifest] = archive.rglob("manifest.json")
    seen = PartitionStore(FolderStore(str(manifest.parent)), "").read()
    assert seen is not None
    for each in seen.manifest.objects:
        assert (manifest.parent / each.key).stat().st_size == each.bytes
    return seen.manifest.generation


@pytest.mark.parametrize("does", [True, False])
def test_commit_with_an_unknown_outcome_deletes_nothing(
    archive: Path, does: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_whole(archive) == 1
    real_replace: Any = FolderStore.replace
    real_read = PartitionStore.read
    is_cut = False

    def replace(store: FolderStore, key: str, *rest: Any) -> Any:
        nonlocal is_cut
        if not key.endswith("manifest.json"):
            return real_replace(store, key, *rest)
        if does and not is_cut:
            real_replace(store, key, *rest)
        is_cut = True
        return None

    def read(place: PartitionStore) -> Any:
        if is_cut:
            raise RemoteFailed("no answer")
        return real_read(place)

    with monkeypatch.context() as patched:
        patched.setattr(FolderStore, "replace", replace)
        patched.setattr(PartitionStore, "read", read)
        [report] = compact(archive, {}, NOW_MS).partitions
    assert report.status == "failed"
    assert "cannot determine whether the new manifest was written" in (report.reason or "")
    assert check_whole(archive) == (2 if does else 1)
    [report] = compact(archive, {}, NOW_MS).partitions
    assert report.status != "failed"
    check_whole(archive)
