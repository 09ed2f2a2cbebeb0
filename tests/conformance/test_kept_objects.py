"""Tests of stored scans in a bucket: later rounds read less, and damaged scans are ignored."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

import lastwrite
from lastwrite.archive.partition_store import read_versioned_manifest
from lastwrite.archive.rounds import ArchiveRounds
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.store.archived import ArchivedLog, contents_of
from lastwrite.reports.compaction import CompactionReport
from lastwrite.scan_cache.format import encode_secret
from lastwrite.spark.inline import INLINE
from lastwrite.storage.objects.address import store_at, use
from tests.property.test_scan_cache import told
from tests.support.kafka.logs import NAME, write_checkpoint, write_segment
from tests.support.objects import BUCKET, S3, FaultProxy

pytestmark = pytest.mark.broker

NOW_MS = 1_700_000_000_000
EACH = 200  # records in a segment, 1 kB each
SECRET = "_lastwrite/kept.secret"
POLICY = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.bytes": "1000"}


@pytest.fixture(autouse=True)
def keeping_small_segments() -> Iterator[None]:
    with patch("lastwrite.scan_cache.cache.LEAST_SEGMENT_BYTES", 1):
        yield


class Pair:
    """A log directory, and its two archives: with stored scans and without."""

    def __init__(self, s3: S3, tmp_path: Path, endpoint: str | None = None) -> None:
        self.root = tmp_path / "log"
        self.name = tmp_path.name
        self.config = {**POLICY, **s3.config, "storage.endpoint": endpoint or s3.endpoint}
        self.end = 0
        self.on: dict[str, Any] = {"spark": INLINE}

    @property
    def kept(self) -> str:
        return f"s3://{BUCKET}/{self.name}/kept"

    @property
    def bare(self) -> str:
        return f"s3://{BUCKET}/{self.name}/bare"

    def grow(self, numbers: list[int], *, keep_scans: bool = False) -> None:
        """Append a segment with these keys, and fetch it into both archives."""
        records = [
            Record(self.end + n, NOW_MS, b"key %d" % number, (b"%d " % self.end) * 200)
            for n, number in enumerate(numbers)
        ]
        write_segment(self.root / NAME, self.end, [encode_batch(records)], mtime_ms=NOW_MS)
        self.end += len(numbers)
        write_checkpoint(self.root, "replication-offset-checkpoint", {NAME: self.end})
        for to in (self.kept, self.bare):
            kept = keep_scans and to == self.kept
            report = lastwrite.fetch(
                [str(self.root)], to, config=self.config, include_active=True, keep_scans=kept
            )
            assert report.exit_status == 0, report

    def round(self, path: str, **options: Any) -> CompactionReport:
        return lastwrite.compact(
            path, config=self.config, now_ms=NOW_MS, drop_keyless=True, **(self.on | options)
        )

    def rounds(self) -> tuple[CompactionReport, CompactionReport]:
        """Run a round on both archives, and check that they are equal. Returns both reports."""
        ours, wanted = self.round(self.kept, keep_scans=True), self.round(self.bare)
        assert ours.exit_status == wanted.exit_status == 0, (ours, wanted)
        assert repr(told(ours)).replace(self.kept, self.bare) == repr(told(wanted))
        assert self.content(self.kept) == self.content(self.bare)
        return ours, wanted

    def content(self, to: str) -> dict[tuple[int, str], bytes]:
        """Every byte of the log, by segment and kind of object."""
        found = {}
        store, prefix = store_at(f"{to}/kafka/t/0")
        for segment in self.log(to).segments:
            for each in segment.objects():
                if not each.key.endswith(".kept"):
                    content = store.get(f"{prefix}/{each.key}")
                    assert content is not None
                    found[segment.base_offset, each.key.rpartition(".")[2]] = content[0]
        return found

    def log(self, to: str) -> ArchivedLog:
        folder = f"{to}/kafka/t/0"
        return contents_of(read_versioned_manifest(folder).manifest, folder)

    def objects(self) -> dict[int, str]:
        """The key of each segment's stored scan, by base offset."""
        return {
            each.base_offset: each.kept.key for each in self.log(self.kept).segments if each.kept
        }

    def key(self, name: str) -> str:
        store, prefix = store_at(f"{self.kept}/kafka/t/0")
        return f"{prefix}/{name}"


@pytest.fixture
def pair(s3: S3, tmp_path: Path) -> Iterator[Pair]:
    found = Pair(s3, tmp_path)
    use(s3.settings)
    for n in range(4):
        found.grow([*range(n * EACH, (n + 1) * EACH)])
    yield found


def read_bytes(report: CompactionReport) -> int:
    assert report.requests is not None
    return report.requests.bytes_read


def test_second_round_reads_only_new_data_and_fingerprints(pair: Pair) -> None:
    pair.rounds()
    assert list(pair.objects()) == [0, EACH, 2 * EACH, 3 * EACH]
    log_bytes = sum(each.bytes for each in pair.log(pair.kept).segments)
    pair.grow([*range(4 * EACH, 5 * EACH)])
    ours, wanted = pair.rounds()
    assert read_bytes(wanted) > log_bytes
    assert read_bytes(ours) < log_bytes / 4 + 20 * 5 * EACH + 40_000
    pair.grow([5, *range(5 * EACH, 6 * EACH)])  # only the first segment loses a record
    before = pair.objects()
    ours, wanted = pair.rounds()
    assert read_bytes(ours) < read_bytes(wanted) * 3 / 4
    after = pair.objects()
    assert {base for base in after if after[base] != before.get(base)} == {0, 5 * EACH}
    first = next(each for each in pair.log(pair.kept).segments if each.base_offset == 0)
    assert first.records == EACH - 1
    # The scan of the remaining records is stored, too, so that a round reads nothing of the log.
    pair.round(pair.kept, keep_scans=True)
    again = pair.round(pair.kept, keep_scans=True, drop_expired_deletes=True)
    assert again.partitions[0].status == "unchanged"
    assert read_bytes(again) < 20 * 6 * EACH + 40_000


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("exchange", ["folder", "shuffle"])
def test_spark_tasks_use_stored_scans(pair: Pair, exchange: str) -> None:
    """Without a shared folder, scan results reach the writing tasks by the shuffle."""
    conf = {"spark.lastwrite.exchange": exchange}
    pair.on = {"master": "local[2]", "conf": conf}
    pair.rounds()
    assert list(pair.objects()) == [0, EACH, 2 * EACH, 3 * EACH]
    pair.grow([5, *range(5 * EACH, 6 * EACH)])
    ours, wanted = pair.rounds()
    assert read_bytes(ours) < read_bytes(wanted) * 3 / 4
    pair.grow([EACH + 7, 7 * EACH])
    pair.on = {"spark": INLINE}  # uses the scans that another exchange stored
    ours, wanted = pair.rounds()
    assert read_bytes(ours) < read_bytes(wanted) * 3 / 4
    assert pair.log(pair.kept).segments[0].records == EACH - 1


def test_first_round_after_a_fetch_reads_only_fingerprints(pair: Pair) -> None:
    """Also with repeated keys and a part of a segment.

    A segment that loses records is read once.
    """
    pair.rounds()
    pair.grow([*range(4 * EACH, 5 * EACH)], keep_scans=True)
    pair.grow([*range(5 * EACH, 6 * EACH)], keep_scans=True)
    assert {4 * EACH, 5 * EACH} <= {*pair.objects()}
    ours, wanted = pair.rounds()
    assert read_bytes(ours) < 20 * 6 * EACH + 40_000 < read_bytes(wanted) / 10
    pair.grow([7 * EACH + n % 50 for n in range(EACH)], keep_scans=True)
    size = pair.log(pair.kept).segments[-1].bytes
    ours, wanted = pair.rounds()
    assert size < read_bytes(ours) < size + 20 * 7 * EACH + 60_000


@pytest.mark.parametrize("source", ["root", "archive"])
def test_copy_into_an_archive_has_its_own_scans(pair: Pair, source: str) -> None:
    """The copy's scans are encrypted with the secret of the target archive."""
    pair.grow([5])
    to = f"s3://{BUCKET}/{pair.name}/copy"
    pair.rounds()
    places = {"root": str(pair.root), "archive": pair.kept}
    options: dict[str, Any] = {"include_active": True, "drop_expired_deletes": True}
    report = pair.round(places[source], to=to, keep_scans=True, **options)
    assert report.exit_status == 0, report
    found = [each.kept for each in pair.log(to).segments if each.bytes > 10_000]
    assert len(found) == 4 and None not in found
    pair.round(to, keep_scans=True)  # this round also probes the store's guarantees
    again = pair.round(to, keep_scans=True, drop_expired_deletes=True)
    assert again.partitions[0].status == "unchanged"
    assert read_bytes(again) < 20 * 5 * EACH + 40_000


def test_round_without_the_option_keeps_scans_of_unchanged_segments(pair: Pair) -> None:
    pair.rounds()
    before = pair.objects()
    pair.grow([5])
    pair.round(pair.kept)
    pair.round(pair.bare)
    assert pair.objects() == {base: key for base, key in before.items() if base}
    pair.grow([EACH])
    pair.rounds()
    assert {0, 2 * EACH, 3 * EACH} <= {*pair.objects()}


@pytest.mark.parametrize("how", ["removed", "cut", "flipped", "another", "empty"])
def test_damaged_scan_is_ignored(pair: Pair, how: str) -> None:
    pair.rounds()
    store, _ = store_at(pair.kept)
    keys = [pair.key(each) for each in pair.objects().values()]
    content, found = store.get(keys[1]) or pytest.fail()
    spoilt = {
        "cut": content[:-1],
        "flipped": bytes([content[0] ^ 1]) + content[1:],
        "another": (store.get(keys[2]) or pytest.fail())[0],
        "empty": b"",
    }
    if how == "removed":
        store.remove([keys[1]])
    else:
        assert store.replace(keys[1], spoilt[how], found.version)
    pair.grow([EACH + 3, 5 * EACH])
    pair.rounds()
    pair.grow([EACH + 4, 6 * EACH])
    ours, wanted = pair.rounds()
    assert read_bytes(ours) < read_bytes(wanted)
    assert pair.key(pair.objects()[EACH]) != keys[1]


def test_loser_of_two_concurrent_rounds_starts_again(pair: Pair) -> None:
    pair.rounds()
    pair.grow([5])
    commit = ArchiveRounds.commit
    others: list[None] = []

    def overtaken(self: ArchiveRounds, folder: str, made: Any) -> None:
        if not others:
            others.append(None)
            assert pair.round(pair.kept, keep_scans=True).exit_status == 0
        commit(self, folder, made)

    with patch.object(ArchiveRounds, "commit", overtaken):
        lost = pair.round(pair.kept, keep_scans=True)
    assert lost.exit_status == 0 and lost.partitions[0].attempts == 2
    pair.round(pair.bare)
    assert pair.content(pair.kept) == pair.content(pair.bare)
    store, prefix = store_at(f"{pair.kept}/kafka/t/0")
    manifest = read_versioned_manifest(f"{pair.kept}/kafka/t/0").manifest
    named = {each.key for each in (*manifest.objects, *manifest.unused)}
    there = {each.key.removeprefix(f"{prefix}/") for each in store.list(f"{prefix}/data/")}
    assert there == named
    pair.grow([6])
    pair.rounds()


def test_unreadable_secret_stores_no_scans(pair: Pair, proxy: FaultProxy, s3: S3) -> None:
    pair.rounds()
    before = pair.objects()
    pair.grow([5])
    pair.config["storage.endpoint"] = proxy.endpoint
    proxy.spoil({"method": "GET", "path": "kept.secret", "do": "503", "code": 403})
    try:
        pair.rounds()
    finally:
        proxy.spoil()
    assert pair.objects() == {base: key for base, key in before.items() if base}


def test_secret_file_outside_the_bucket_takes_precedence(pair: Pair, tmp_path: Path) -> None:
    pair.rounds()
    before = pair.objects()
    file = tmp_path / "secret"
    file.write_bytes(b"s" * 32)
    pair.config["storage.secretFile"] = str(file)
    pair.grow([5 * EACH])
    refused = pair.round(pair.kept, keep_scans=True)
    assert "other users can read the file" in str(refused.partitions[0].reason)
    file.chmod(0o600)
    pair.rounds()
    assert not {*before.values()} & {*pair.objects().values()}
    store, _ = store_at(pair.kept)
    store.remove([f"{pair.name}/kept/{SECRET}"])
    pair.grow([6 * EACH])
    ours, wanted = pair.rounds()
    assert read_bytes(ours) < read_bytes(wanted) / 2
    assert store.head(f"{pair.name}/kept/{SECRET}") is None
    pair.grow([7 * EACH])
    pair.config["storage.secretFile"] = str(tmp_path / "none")
    report = pair.round(pair.kept, keep_scans=True)
    assert "secretFile cannot be read" in str(report.partitions[0].reason)


def test_secret_is_neither_logged_nor_recoverable_from_scans(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """The stored scans do not show fingerprints, either."""
    caplog.set_level(logging.DEBUG)
    ours, _ = pair.rounds()
    store, _ = store_at(pair.kept)
    secret = (store.get(f"{pair.name}/kept/{SECRET}") or pytest.fail())[0]
    assert encode_secret(secret[:-4]) == secret
    everything = msgspec.json.encode(ours.to_dict()) + caplog.text.encode()
    for each in store.list(f"{pair.name}/kept/kafka/"):
        everything += (store.get(each.key) or pytest.fail())[0]
    for told_as in (secret[:8], secret[:8].hex().encode(), repr(secret[:8])[2:-1].encode()):
        assert told_as not in everything
    # Scans of the same keys in two archives have no block in common.
    again = f"s3://{BUCKET}/{pair.name}/again"
    assert lastwrite.fetch([str(pair.root)], again, config=pair.config, include_active=True)
    pair.round(again, keep_scans=True)
    blocks = []
    for to in (pair.kept, again):
        (first,) = [each for each in pair.log(to).segments if each.base_offset == 0]
        assert first.kept is not None
        found = store_at(f"{to}/kafka/t/0/{first.kept.key}")
        blocks.append((found[0].get(found[1]) or pytest.fail())[0][: 16 * EACH])
    one, other = blocks
    assert sum(a == b for a, b in zip(one, other, strict=True)) < len(one) / 64
