"""Tests of an archive copied object by object: its manifests have another store's etags."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.model.stores import StoreSettings
from lastwrite.spark.inline import INLINE
from lastwrite.storage.objects import address as addresses
from lastwrite.storage.objects.address import store_at
from lastwrite.storage.objects.store import ObjectStore
from tests.support.kafka.logs import NAME, write_segment
from tests.support.objects import BUCKET, S3

pytestmark = pytest.mark.broker
NOW_MS = 1_700_000_000_000
EACH = 500


@pytest.fixture
def copied(s3: S3, tmp_path: Path) -> Iterator[tuple[str, str, dict[str, str]]]:
    """An archive in a folder, and its copy in a bucket."""
    before = addresses.used()
    for base in range(0, 4 * EACH, EACH):
        records = [Record(base + n, NOW_MS, b"key %d" % n, b"v%d" % base) for n in range(EACH)]
        batches = [encode_batch(records[n : n + 50]) for n in range(0, EACH, 50)]
        write_segment(tmp_path / "log" / NAME, base, batches, mtime_ms=NOW_MS)
    here, there = str(tmp_path / "archive"), f"s3://{BUCKET}/copied/{uuid.uuid4().hex}"
    lastwrite.fetch([str(tmp_path / "log")], here, include_active=True)
    stores.append(s3.settings)
    copy_all(here, there)
    yield here, there, s3.config
    addresses.use(before)


stores: list[StoreSettings] = []


def at(path: str) -> tuple[ObjectStore, str]:
    return store_at(path, stores[-1])


def copy_all(here: str, there: str) -> None:
    """Copy all objects, the manifests last, as any tool for buckets does."""
    (source, above), (target, prefix) = at(here), at(there)
    found_keys = (each.key for each in source.list(f"{above}/".lstrip("/")))
    for key in sorted(found_keys, key=lambda key: "manifest" in key):
        found = source.get(key)
        assert found is not None
        name = f"{prefix}/{key.removeprefix(above).lstrip('/')}".lstrip("/")
        target.remove([name])
        assert target.create(name, found[0]) is not None


def rows(path: str, config: dict[str, str] | None = None) -> list[dict[str, Any]]:
    return list(lastwrite.dump(path, config=config))


def compact(path: str, config: dict[str, str]) -> Any:
    settings = {**config, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
    [done] = lastwrite.compact(path, config=settings, now_ms=NOW_MS, spark=INLINE).partitions
    return done


def test_copy_is_read_and_compacted_like_the_archive(
    copied: tuple[str, str, dict[str, str]], tmp_path: Path
) -> None:
    here, there, config = copied
    etag = first_log(there)[0].version.etag
    assert etag not in manifest_of(there), "else nothing is shown"
    assert rows(there, config) == rows(here)
    assert list(lastwrite.read(there, config=config)) == list(lastwrite.read(here))
    assert lastwrite.latest(there, config=config) == lastwrite.latest(here)
    assert lastwrite.inspect(there, config=config).exit_status == 0
    assert lastwrite.verify(there, here, config=config, spark=INLINE).exit_status == 0
    for _ in range(2):
        done, wanted = compact(there, config), compact(here, {})
        assert (done.status, done.bytes_after) == (wanted.status, wanted.bytes_after)
        assert [(row["offset"], row["value"]) for row in rows(there, config)] == [
            (row["offset"], row["value"]) for row in rows(here)
        ]
    back = str(tmp_path / "back")
    copy_all(there, back)
    assert rows(back) == rows(there, config)
    assert compact(back, {}).status != "failed"


@pytest.mark.parametrize("change", ["other bytes", "shorter", "gone"])
def test_changed_or_missing_object_of_a_copy_is_named(
    copied: tuple[str, str, dict[str, str]], change: str
) -> None:
    here, there, config = copied
    found, store = first_log(there)
    content = store.get(found.key)
    assert content is not None
    store.remove([found.key])
    if change != "gone":
        spoilt = content[0][:-20] + os.urandom(20) if change == "other bytes" else content[0][:-20]
        store.create(found.key, spoilt)
    before = manifest_of(there)
    done = compact(there, config)
    assert done.status == ("failed" if change == "shorter" else "damaged")
    assert found.key in str(done.reason) and "copy of the archive" in str(done.reason)
    assert manifest_of(there) == before
    copy_all(here, there)  # as the remedy says
    assert compact(there, config).status == "cleaned"


def first_log(path: str) -> tuple[Any, ObjectStore]:
    store, prefix = at(path)
    return next(each for each in store.list(f"{prefix}/") if each.key.endswith(".log")), store


def manifest_of(path: str) -> str:
    store, prefix = at(path)
    found = store.get(f"{prefix}/kafka/t/0/manifest.json")
    assert found is not None
    return found[0].decode()
