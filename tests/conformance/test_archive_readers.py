"""Tests of reading an archive while a round or a sweep removes objects that are being read."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import lastwrite
from lastwrite.archive.partition_store import partition_store_at
from lastwrite.commands.table import KeyedTable
from lastwrite.errors import CommitConflict, CorruptLog
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.spark.inline import INLINE
from lastwrite.storage.objects import address as addresses
from tests.support.kafka.logs import NAME, write_segment
from tests.support.objects import BUCKET, S3

NOW_MS = 1_700_000_000_000
EACH, SEGMENTS = 20, 6


class Archive:
    """An archive of one partition. All segments have the same keys, and each one key of its own."""

    def __init__(self, address: str, log: Path, config: dict[str, object]) -> None:
        self.address, self._log, self.stores = address, log, config or None
        self.config = {**config, "storage.keepReplacedMs": 0, "cleanup.policy": "compact"}
        self._bases = count(0, EACH)
        for _ in range(SEGMENTS):
            self._write()
        self.fetch()

    def _write(self) -> None:
        base = next(self._bases)
        keys = [b"own %d" % base, *(b"key %d" % n for n in range(1, EACH))]
        records = [Record(base + n, NOW_MS, key, b"v%d" % base) for n, key in enumerate(keys)]
        write_segment(self._log / NAME, base, [encode_batch(records)], mtime_ms=NOW_MS)

    def fetch(self) -> None:
        options = {"include_active": True, "config": self.stores}
        report = lastwrite.fetch([str(self._log)], self.address, **options)
        assert report.exit_status == 0

    def replace(self) -> None:
        """Run a round that replaces nearly all objects, and delete the replaced ones."""
        self._write()
        self.fetch()
        config = {**self.config, "min.cleanable.dirty.ratio": 0, "segment.bytes": 1000}
        report = lastwrite.compact(self.address, config=config, now_ms=NOW_MS, spark=INLINE)
        assert [each.status for each in report.partitions] == ["cleaned"]
        stores = {name: value for name, value in self.config.items() if name[:8] == "storage."}
        swept = lastwrite.sweep(self.address, config=stores)
        assert [each.reason for each in swept.partitions] == [""]
        seen = partition_store_at(f"{self.address}/kafka/t/0").read()
        assert seen is not None and seen.manifest.unused == ()


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.broker)])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Archive]:
    before = addresses.used()
    if request.param == "folder":
        yield Archive(str(tmp_path / "archive"), tmp_path / "log", {})
    else:
        s3: S3 = request.getfixturevalue("s3")
        address = f"s3://{BUCKET}/readers/{uuid.uuid4().hex}"
        yield Archive(address, tmp_path / "log", dict(s3.config))
    addresses.use(before)


READERS: dict[str, Callable[[Archive], Iterator[dict[str, Any]]]] = {
    "dump": lambda archive: lastwrite.dump(archive.address, config=archive.stores),
    "read": lambda archive: lastwrite.read(archive.address, config=archive.stores),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("rounds", [1, 5])
def test_reader_continues_after_its_last_offset(archive: Archive, reader: str, rounds: int) -> None:
    all_rows = list(READERS[reader](archive))
    end = EACH * SEGMENTS
    rows = READERS[reader](archive)
    got: list[dict[str, Any]] = []
    for _ in range(rounds):
        got += islice(rows, EACH)
        archive.replace()
    got += rows
    offsets = [row["offset"] for row in got]
    assert offsets == sorted(set(offsets)), "each once, in order"
    assert got[:EACH] == all_rows[:EACH]
    told = {row["offset"]: (row["key"], row["value"]) for row in got}
    # the current rows; those before the reader's position may be missing from what it got
    for row in READERS[reader](archive):
        if row["offset"] in told:
            assert told[row["offset"]] == (row["key"], row["value"])
        else:
            assert row["offset"] < offsets[-1] or row["offset"] >= end
    assert len([offset for offset in offsets if offset < end]) < len(all_rows), "of another one"


def test_table_is_rebuilt_from_the_newer_generation(archive: Archive) -> None:
    items = KeyedTable.items
    left = 1

    def late(table: KeyedTable) -> Iterator[tuple[bytes, bytes]]:
        nonlocal left
        if left:
            left -= 1
            archive.replace()
        return items(table)

    with patch.object(KeyedTable, "items", late):
        table = lastwrite.latest(archive.address, config=archive.stores)
    assert table == lastwrite.latest(archive.address, config=archive.stores)
    assert not left and len(table) == EACH - 1 + SEGMENTS + 1


def test_reader_that_always_loses_names_the_generation(archive: Archive) -> None:
    items = KeyedTable.items

    def late(table: KeyedTable) -> Iterator[tuple[bytes, bytes]]:
        archive.replace()
        return items(table)

    with (
        patch.object(KeyedTable, "items", late),
        pytest.raises(CommitConflict, match=r"another program replaced generation \d") as lost,
    ):
        lastwrite.latest(archive.address, config=archive.stores)
    assert "storage.keepReplacedMs" in str(lost.value)
    with patch("lastwrite.kafka.store.archived_segment.LEAST_INDEXED_BYTES", -1):
        archive.replace()
    rows = lastwrite.dump(archive.address, index=True, config=archive.stores)
    next(rows)
    archive.replace()
    with pytest.raises(CommitConflict, match="another program deleted|gone|no such"):
        list(rows)


def test_missing_object_of_the_current_manifest_is_damage(archive: Archive) -> None:
    folder = f"{archive.address}/kafka/t/0"
    place = partition_store_at(folder)
    seen = place.read()
    assert seen is not None
    logs = [each.key for each in seen.manifest.objects if each.key.endswith(".log")]
    rows = lastwrite.dump(archive.address, config=archive.stores)
    got = list(islice(rows, EACH))
    place.store.remove([place.key(logs[3])])
    with pytest.raises(CorruptLog, match="the manifest of its archive lists it") as lost:
        got.extend(rows)
    assert logs[3] in str(lost.value) and "copy of the archive" in str(lost.value)
    assert len(got) == 5 * EACH  # all but the missing object
