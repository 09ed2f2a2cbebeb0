"""Tiered segments (KIP-405) where a real broker left them, against what its consumer read.

``tests/corpus/make_tiered.py`` says what the corpus is.
"""

from __future__ import annotations

import base64
import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.errors import CorruptLog, InvalidConfig
from lastwrite.kafka.store.log_dir import read_partition
from lastwrite.spark.inline import INLINE
from lastwrite.storage.objects.bucket import BucketStore
from tests.support.objects import BUCKET, S3

CORPUS = Path(__file__).parent.parent / "corpus" / "tiered"
TIER = CORPUS / "tier"
TOPICS = ("orders", "forked")


def consumed(name: str, topic: str) -> list[dict[str, Any]]:
    """What a consumer of the broker read, in the fields of ``read``."""
    rows = map(json.loads, gzip.decompress((CORPUS / f"{name}.jsonl.gz").read_bytes()).splitlines())
    return [row for row in rows if row.pop("topic") == topic]


def seen(rows: Any) -> list[dict[str, Any]]:
    """The same fields of what ``read`` gives."""
    return [
        {
            "offset": row["offset"],
            "timestamp": row["timestamp"],
            "timestamp_type": "create" if row["timestamp_type"] == "CreateTime" else "append",
            "key": row["key"],
            "value": row["value"],
            "headers": row["headers"],
        }
        for row in rows
    ]


def folder(topic: str, tier: Path = TIER) -> Path:
    (found,) = tier.glob(f"{topic}-0-*")
    return found


def tier_end(topic: str) -> int:
    return read_partition(str(folder(topic))).end_offset


def table_of(rows: list[dict[str, Any]]) -> dict[bytes, bytes]:
    """The last write of each key, without deletes."""
    found = {row["key"]: row["value"] for row in rows}
    return {
        base64.b64decode(key): base64.b64decode(value)
        for key, value in found.items()
        if value is not None
    }


def below_end(rows: list[dict[str, Any]], topic: str) -> list[dict[str, Any]]:
    end = tier_end(topic)
    return [row for row in rows if row["offset"] < end]


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TIER, tmp_path / "tier"))


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("isolation", ["committed", "plain"])
def test_records_are_those_of_a_consumer(topic: str, isolation: str) -> None:
    wanted = consumed(isolation, topic)
    level = "read_committed" if isolation == "committed" else "read_uncommitted"
    first = wanted[0]["offset"]
    rows = lastwrite.read(str(TIER), topic=topic, offset=first, isolation_level=level)
    assert seen(rows) == below_end(wanted, topic)
    local = read_partition(str(CORPUS / "local" / f"{topic}-0"))
    assert tier_end(topic) == local.segments[0].base_offset
    dumped = lastwrite.dump(str(folder(topic)), offset=first)
    assert [row["offset"] for row in dumped if row["control"] is None] == [
        row["offset"] for row in below_end(consumed("plain", topic), topic)
    ]


@pytest.mark.parametrize("topic", TOPICS)
def test_the_table_is_that_of_a_consumer(topic: str) -> None:
    # Of orders the tier alone has what somebody deleted below offset 40.
    rows = below_end(consumed("committed", topic), topic)
    table = lastwrite.latest(str(TIER), topic)
    wanted = table_of(rows)
    assert {key: table[key] for key in wanted} == wanted
    if topic == "forked":
        assert dict(table) == wanted
    assert table.end_offsets == {0: tier_end(topic)}


def test_what_a_leader_copied_that_lost_does_not_count() -> None:
    log = read_partition(str(folder("forked")))
    bases = [segment.base_offset for segment in log.segments]
    there = sorted(int(each.name[:20]) for each in folder("forked").glob("*.log"))
    assert len(there) == 7 and len(bases) == 5 and bases == sorted(set(bases))
    assert not log.problems


def test_all_who_look_find_it_whole() -> None:
    report = lastwrite.inspect(str(TIER), spark=INLINE)
    assert [(each.topic, each.status) for each in report.partitions] == [
        ("forked", "whole"),
        ("orders", "whole"),
    ]
    proof = lastwrite.verify(str(TIER), spark=INLINE)
    assert [each.status for each in proof.partitions] == ["verified", "verified"]
    why = lastwrite.explain(str(TIER), topic="orders")
    assert [each.topic for each in why.partitions] == ["orders"]
    index = list(lastwrite.dump(str(folder("orders")), index=True))
    assert {row["index"] for row in index} >= {"offset", "time", "transaction"}


def test_a_file_by_itself() -> None:
    log = next(folder("orders").glob("*.log"))
    rows = list(lastwrite.dump(str(log)))
    assert rows[0]["topic"] == "orders" and rows[0]["offset"] == int(log.name[:20])
    epochs = log.with_suffix(".leader_epoch_checkpoint")
    report = lastwrite.inspect([str(epochs)])
    assert report.files[0].topic == "orders" and not report.files[0].problems


def test_a_gap_is_damage_and_has_offsets(tier: Path) -> None:
    (lost,) = folder("orders", tier).glob("00000000000000000130-*.log")
    lost.unlink()
    (problem,) = read_partition(str(folder("orders", tier))).problems
    assert problem.message == "offsets 130 to 203 are in no segment of the tier"
    with pytest.raises(CorruptLog, match="offsets 130 to 203"):
        lastwrite.latest(str(tier), "orders")
    report = lastwrite.inspect(str(tier), topic="orders", spark=INLINE)
    assert report.exit_status == 3


def test_a_copy_that_was_broken_off_does_not_count(tier: Path) -> None:
    (whole,) = folder("orders", tier).glob("00000000000000000130-*.log")
    part = whole.with_name("00000000000000000130-AAAAAAAAAAAAAAAAAAAAAA.log")
    part.write_bytes(whole.read_bytes()[:1000])
    before = read_partition(str(folder("orders")))
    assert read_partition(str(folder("orders", tier))).end_offset == before.end_offset
    assert len(read_partition(str(folder("orders", tier))).segments) == len(before.segments)
    # Leaders come last: with them it is a copy, of which the longer one counts.
    epochs = whole.with_suffix(".leader_epoch_checkpoint")
    shutil.copy(epochs, part.with_suffix(".leader_epoch_checkpoint"))
    log = read_partition(str(folder("orders", tier)))
    assert part.name not in {Path(segment.path).name for segment in log.segments}
    assert not log.problems


def test_damage_is_named_by_file_and_byte(tier: Path) -> None:
    (log,) = folder("orders", tier).glob("00000000000000000060-*.log")
    content = bytearray(log.read_bytes())
    content[200] ^= 1
    log.write_bytes(content)
    report = lastwrite.verify(str(tier), topic="orders", spark=INLINE)
    assert report.exit_status == 3
    (problem,) = report.partitions[0].problems
    assert problem.path == str(log)
    with pytest.raises(CorruptLog):
        lastwrite.latest(str(tier), "orders")


def test_a_tier_is_only_read(tier: Path) -> None:
    before = {each: each.read_bytes() for each in tier.rglob("*") if each.is_file()}
    for path in (tier, folder("orders", tier)):
        with pytest.raises(InvalidConfig, match="fetch .* --to ARCHIVE"):
            lastwrite.compact(str(path), spark=INLINE)
    with pytest.raises(InvalidConfig, match="fetch .* --to ARCHIVE"):
        lastwrite.clean([str(tier)], once=True)
    assert lastwrite.plan(str(tier), topic="orders", spark=INLINE).exit_status == 0
    assert {each: each.read_bytes() for each in tier.rglob("*") if each.is_file()} == before


def test_a_topic_that_was_made_anew(tier: Path) -> None:
    shutil.copytree(folder("orders", tier), tier / "orders-0-AAAAAAAAAAAAAAAAAAAAAA")
    with pytest.raises(InvalidConfig, match="two ids"):
        lastwrite.latest(str(tier), "orders")
    assert lastwrite.latest(str(tier), "forked")
    assert lastwrite.latest(str(tier / "orders-0-AAAAAAAAAAAAAAAAAAAAAA"))


def test_a_topic_of_a_log_root_that_is_called_like_a_tier(tmp_path: Path) -> None:
    name = "foo-1-aaaaaaaaaaaaaaaaaaa-0"
    shutil.copytree(CORPUS / "local" / "forked-0", tmp_path / name)
    assert read_partition(str(tmp_path / name)).name.topic == name[:-2]


def in_bucket(s3: S3, source: Path, prefix: str) -> str:
    store = BucketStore(f"s3://{BUCKET}", s3.settings)
    for path in source.rglob("*"):
        if path.is_file():
            assert store.create(f"{prefix}/{path.relative_to(source)}", path.read_bytes())
    return f"s3://{BUCKET}/{prefix}"


@pytest.mark.broker
def test_in_a_bucket(s3: S3) -> None:
    root, config = in_bucket(s3, TIER, "tier"), s3.config
    for topic in TOPICS:
        found = lastwrite.latest(root, topic, config=config)
        assert dict(found) == dict(lastwrite.latest(str(TIER), topic))
    rows = lastwrite.read(root, topic="forked", config=config)
    assert seen(rows) == below_end(consumed("plain", "forked"), "forked")
    proof = lastwrite.verify(root, spark=INLINE, config=config)
    assert [each.status for each in proof.partitions] == ["verified", "verified"]
    with pytest.raises(InvalidConfig, match="fetch .* --to ARCHIVE"):
        lastwrite.compact(root, spark=INLINE, config=config)
